"""Scales of data: the median heuristic, cross-validation, rules that engines take; robust standard deviations."""

import abc
from dataclasses import field, replace
from typing import Any

import jax
import numpy as np
import scipy
from jax.typing import ArrayLike

from numpyro_kme._core import Array, checks, median_absolute_deviation, numpy_function
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.low_rank import DistributionRegression
from numpyro_kme.kernels.stationary import Gaussian


@numpy_function
def median_heuristic(x: Array, *, max_points: int | None = 2048, ties: bool = True) -> np.ndarray:
    r"""Median distance between the points, `l = sqrt(median_{i<j} |x_i - x_j|_2^2)`.

    A first guess in the units of the data; it says nothing about which differences matter.

    Args:
        x: `(n, dim)` concrete points, `n >= 2`.
        max_points: Above this many points, the median is over the pairs of this many of them, picked at
            random by a NumPy generator with seed 0: the answer is deterministic, and for 2048 points its
            standard error is one to three per cent. `None` uses every pair.
        ties: Whether pairs that coincide count. Leave them out for counts and other numbers that often agree; where
            half of the pairs do, they are left out.
    Returns:
        A float64 scalar.
    Raises:
        ValueError: If all points coincide.
    Cost: `min(n, max_points)^2 / 2` distances, in time and memory, on the host.
    """
    return _median_distance("x", _subset(x, max_points), ties)


@numpy_function
def median_heuristic_per_dimension(x: Array, *, max_points: int | None = 2048, ties: bool = True) -> np.ndarray:
    r"""One length scale per dimension, `l_d = c m_d`, with `m_d` the median distance along dimension `d`.

    The factor `c` is the median heuristic of `x / m`: the median of `|(x_i - x_j) / l|_2` is 1, as it is for
    `median_heuristic`, and with columns that are alike both give about the same kernel.

    Args:
        x: `(n, dim)` concrete points, `n >= 2`.
        max_points, ties: As in `median_heuristic`.
    Returns:
        `(dim,)` in float64.
    Raises:
        ValueError: If a column is constant; the error names it.
    Cost: `dim + 1` times that of `median_heuristic`.
    """
    subset = _subset(x, max_points)
    columns = [_median_distance(f"x[:, {d}]", subset[:, d : d + 1], ties) for d in range(subset.shape[1])]
    return np.stack(columns) * _median_distance("x", subset / np.stack(columns), ties)


def _subset(x, max_points):
    checks.table("x", x, min_rows=2)
    x = np.asarray(x, dtype=np.float64)
    if max_points is None or len(x) <= max_points:
        return x
    checks.require(max_points >= 2, f"`max_points` must be at least 2; got {max_points}.")
    return x[np.random.default_rng(0).choice(len(x), max_points, replace=False)]


def _median_distance(name, x, ties):
    squares = scipy.spatial.distance.pdist(x, "sqeuclidean")
    apart = squares[squares > 0.0]
    checks.require(len(apart) > 0, f"All points of `{name}` coincide. Pass a length scale by hand.")
    return np.sqrt((ties and np.median(squares)) or np.median(apart))


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
class CrossValidation(LengthScaleRule):
    r"""The multiple of the median heuristic with which a Gaussian kernel predicts targets best, by leave-one-out.

    Least mean of $|t_i - \hat t_{-i}|^2 / \mathrm{var}(t)$ over multiples and regularisations, with $\hat t_{-i}$ by
    kernel ridge regression from all points but one, in closed form. In an engine the targets are the parameters of the
    simulations.

    Args:
        rng_key: Chooses points.
        multiples: Multiples of the median heuristic that are tried.
        per_dimension: Whether that is `median_heuristic_per_dimension`.
        most: Largest number of points, chosen at random.
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
        checks.require(targets is not None, "CrossValidation needs `targets`: what points are to predict, `(n, p)`.")
        checks.table("x", x, min_rows=10)
        checks.table("targets", targets)
        checks.require(len(x) == len(targets), f"`x` and `targets` need as many rows; got {len(x)} and {len(targets)}.")
        checks.whole("most", self.most, 10)
        checks.require(len(self.multiples) >= 1, "`multiples` must hold at least one number; got none.")
        x, targets = (some_rows(self.rng_key, np.asarray(a, np.float64), self.most) for a in (x, targets))
        checks.require(bool(np.ptp(targets, axis=0).any()), "`targets` are constant: every length scale predicts them.")
        scale = MedianHeuristic(self.per_dimension)(x)
        tried = [Gaussian(multiple * scale) for multiple in self.multiples]
        return DistributionRegression.fit_best(tried, x, targets, tolerance=1e-14).features.kernel.length_scale


class KernelRule(abc.ABC):
    """A way to choose a kernel on outputs of a simulator: `rule(x)` or `rule(x, targets)`.

    Where an engine or a form takes a kernel on outputs it takes such a rule, too, which sees the simulations.
    """

    @abc.abstractmethod
    def __call__(self, x: Any, targets: ArrayLike | None = None) -> Kernel:
        """A kernel for outputs `(m, *event)`, with rows of NaN where they end; `targets` `(m, p)` are the parameters of
        each, for rules that need them."""

    def candidates(self, x: Any, targets: ArrayLike | None = None) -> list[Kernel]:
        """Kernels of which the best is chosen, where something is learnt that has a held-out error; here the one."""
        return [self(x, targets)]


SETS = 100
"""Outputs whose distances give a length scale of a kernel on whole outputs."""

WIDER = 8.0
"""The second of two candidates is as many times wider."""


class RuleOfDistances(KernelRule):
    """A rule whose kernel `exp(-d^2 / (2 eps^2))` has `eps` in units of the median distance between `SETS` outputs: an
    author writes the kernel with `eps = 1`.

    Attributes:
        multiple: `eps` in these units.
    """

    multiple: float

    @abc.abstractmethod
    def unscaled(self, few: np.ndarray, targets: ArrayLike | None) -> Any:
        """The kernel with `eps = 1` for outputs `(SETS, longest, dim)`, the first ones, and targets of all."""

    def __call__(self, x, targets=None):
        """The kernel."""
        few = np.asarray(x, np.float64)[:SETS]
        few = few.reshape(*few.shape[:2], -1)
        kernel = self.unscaled(few, targets)
        squared = -2.0 * np.asarray(kernel.log_gram(kernel.points(few)))
        median = float(np.sqrt(np.median(squared[np.triu_indices(len(squared), 1)])))
        checks.require(median > 0, "At least half of the outputs are the same: give a kernel by hand.")
        return replace(kernel, length_scale=self.multiple * median)

    def candidates(self, x, targets=None):
        """With `eps`, and with `WIDER` times that."""
        return and_a_wider_one(self(x, targets))


def and_a_wider_one(kernel: Any) -> list[Kernel]:
    """A kernel with a `length_scale`, and the same with `WIDER` times that."""
    return [kernel, replace(kernel, length_scale=WIDER * kernel.length_scale)]


def some_rows(rng_key: jax.Array, x: np.ndarray, most: int) -> np.ndarray:
    """All rows, or `most` of them at random."""
    if len(x) <= most:
        return x
    return x[np.asarray(jax.random.choice(rng_key, len(x), (most,), replace=False))]


def mad_or_sd(x: np.ndarray) -> np.ndarray:
    """The median absolute deviation over the first axis, or where that is 0 the standard deviation, `(...)`."""
    mad = median_absolute_deviation(x)
    return np.where(mad > 0, mad, np.std(x, axis=0))
