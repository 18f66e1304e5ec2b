"""Rules that choose the length scale of a kernel from data: the median heuristic, kernel learning, cross-validation."""

import abc
from dataclasses import field

import jax
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels import low_rank, median_heuristic, median_heuristic_per_dimension
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.kernel_learning import LANDMARKS, learn_length_scale
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.kernels.stationary import Gaussian

REGULARISATIONS = 10.0 ** np.arange(-9.0, 1.0)
"""Regularisations of kernel ridge regressions whose errors are compared."""


class LengthScaleRule(abc.ABC):
    """A way to choose the length scale of a kernel: `rule(x)` or `rule(x, targets)`, a scalar or `(dim,)`.

    The engines that choose a kernel themselves take one as `length_scale`; anything else takes its result, as in
    `MMD(Gaussian(rule(x)))`.
    """

    needs_targets = False
    """Whether it has to know what each point says something about, such as its parameters."""

    @abc.abstractmethod
    def __call__(self, x: ArrayLike, targets: ArrayLike | None = None) -> np.ndarray:
        """Length scale for points `x` `(n, dim)`, with `targets` `(n, p)` where they are needed."""


@register
class MedianHeuristic(LengthScaleRule):
    """The median distance between points: `median_heuristic`, or one for each dimension.

    Args:
        per_dimension: `median_heuristic_per_dimension` instead.
        ties: Whether pairs that coincide count.
    """

    per_dimension: bool = field(default=False, metadata=dict(static=True))
    ties: bool = field(default=True, metadata=dict(static=True))

    def __call__(self, x, targets=None):
        """The median; `targets` say nothing."""
        heuristic = median_heuristic_per_dimension if self.per_dimension else median_heuristic
        return heuristic(x, ties=self.ties)


@register
class BayesianKernelLearning(LengthScaleRule):
    """The length scale of `learn_length_scale`, from at most `most` of the points.

    Args:
        rng_key: Chooses points and landmarks.
        num_landmarks: How many landmarks.
        most: How many points, at most, chosen at random.
    """

    rng_key: jax.Array
    num_landmarks: int = field(default=LANDMARKS, metadata=dict(static=True))
    most: int = field(default=1000, metadata=dict(static=True))

    def __post_init__(self):
        checks.key(self.rng_key)

    def __call__(self, x, targets=None):
        """The learnt scalar; `targets` say nothing."""
        checks.matrix("x", x, min_rows=2)
        rows, landmarks = jax.random.split(self.rng_key)
        table = _some(rows, np.asarray(x), self.most)
        return np.asarray(learn_length_scale(landmarks, table, num_landmarks=self.num_landmarks).length_scale)


@register
class CrossValidation(LengthScaleRule):
    r"""The multiple of the median heuristic with which a Gaussian kernel predicts targets best, by leave-one-out.

    Least mean of $|t_i - \hat t_{-i}|^2 / \mathrm{var}(t)$ over multiples and regularisations, with $\hat t_{-i}$ by
    kernel ridge regression from all points but one, in closed form. In an engine the targets are the parameters of the
    simulations.

    Args:
        rng_key: Chooses points.
        multiples: Of the median heuristic.
        per_dimension: Whether that is `median_heuristic_per_dimension`.
        most: How many points, at most, chosen at random.
    Cost: an eigendecomposition of the size of `most` for each multiple.
    """

    rng_key: jax.Array
    multiples: tuple[float, ...] = field(default=(0.1, 0.2, 0.5, 1.0, 2.0, 5.0), metadata=dict(static=True))
    per_dimension: bool = field(default=False, metadata=dict(static=True))
    most: int = field(default=500, metadata=dict(static=True))
    needs_targets = True

    def __post_init__(self):
        checks.key(self.rng_key)

    def __call__(self, x, targets=None):
        """The best multiple times the median."""
        checks.require(
            targets is not None, "CrossValidation needs `targets`: what the points are to predict, `(n, p)`."
        )
        checks.matrix("x", x, min_rows=10)
        checks.matrix("targets", targets)
        checks.require(
            len(x) == len(targets), f"`x` and `targets` must have as many rows; got {len(x)} and {len(targets)}."
        )
        checks.sound("x", x)
        checks.sound("targets", targets)
        checks.whole("most", self.most, 10)
        checks.require(len(self.multiples) >= 1, "`multiples` must hold at least one number; got none.")
        x, targets = (_some(self.rng_key, np.asarray(a, np.float64), self.most) for a in (x, targets))
        sd = targets.std(axis=0)
        checks.require(bool(sd.any()), "`targets` are constant: every length scale predicts them.")
        targets = (targets - targets.mean(axis=0)) / np.where(sd > 0, sd, 1.0)
        scale = MedianHeuristic(self.per_dimension)(x)
        errors = [
            min(
                np.mean(np.square(rest))
                for _, _, rest in low_rank.ridges(_factor(x, factor * scale), targets, REGULARISATIONS)
            )
            for factor in self.multiples
        ]
        return self.multiples[int(np.argmin(errors))] * scale


def _factor(x, scale):
    """A factor of the Gaussian Gram matrix, exact to rounding."""
    return LowRank.fit(Gaussian(scale), x, tolerance=1e-14).values


def _some(rng_key, x, most):
    if len(x) <= most:
        return x
    return x[np.asarray(jax.random.choice(rng_key, len(x), (most,), replace=False))]
