"""Kernels and regularisation of kernel Bayes' rule and its filter, from the data: K folds, and a held-out half."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, door, shown, solves
from numpyro_kme.embeddings.filtering import KernelBayesFilter
from numpyro_kme.embeddings.kernel_bayes import KernelBayesRule, num_pairs, posterior_weights
from numpyro_kme.embeddings.means import MeanEmbedding
from numpyro_kme.kernels import low_rank
from numpyro_kme.kernels.base import Kernel, PointSet, num_points, take
from numpyro_kme.kernels.low_rank import LowRank


@shown
class KernelBayesSettings(NamedTuple):
    """Kernels and regularisation of kernel Bayes' rule and its filter.

    Attributes:
        kernel_x: Compares what is inferred.
        kernel_y: Compares observations.
        regularisation: `eps`.
        delta: `2 eps` when left out.
    """

    kernel_x: Kernel
    kernel_y: Kernel
    regularisation: float
    delta: float | None = None

    def rule(self, x: PointSet, y: PointSet, prior: PointSet, prior_weights=None, **settings) -> KernelBayesRule:
        """`KernelBayesRule.fit` with the prior embedded from points `prior` by `kernel_x`."""
        embedding = MeanEmbedding(self.kernel_x, prior, prior_weights)
        return KernelBayesRule.fit(self.kernel_y, x, y, embedding, self.regularisation, delta=self.delta, **settings)

    def filter(self, states: PointSet, observations: PointSet, **settings) -> KernelBayesFilter:
        """`KernelBayesFilter.fit`."""
        kernels, epsilon = (self.kernel_x, self.kernel_y), self.regularisation
        return KernelBayesFilter.fit(*kernels, states, observations, epsilon, delta=self.delta, **settings)


@shown
class ChosenSettings(NamedTuple):
    """The candidate with the least error.

    Attributes:
        settings: The candidate.
        errors: Errors of all candidates, in their order.
    """

    settings: KernelBayesSettings
    errors: np.ndarray


@door
def kernel_bayes_candidates(
    kernel_x: Kernel,
    kernel_y: Kernel,
    regularisations: Sequence[float],
    *,
    scales_x: Sequence[float] = (0.5, 0.7, 1.0, 1.4, 2.0),
    scales_y: Sequence[float] | None = None,
    delta_ratios: Sequence[float] = (2.0,),
) -> list[KernelBayesSettings]:
    """Settings with the length scales of two kernels multiplied by numbers, and every regularisation.

    Args:
        kernel_x, kernel_y: With a field `length_scale`, such as `Gaussian(median_heuristic(x))`; one without is kept as
            it is.
        regularisations: `eps`.
        scales_x, scales_y: Multiples of each length scale. When `scales_y` is left out, both kernels have the same
            multiple, as in the filter of the paper.
        delta_ratios: `delta` as multiples of `eps`.
    """
    for name, kernel in {"kernel_x": kernel_x, "kernel_y": kernel_y}.items():
        checks.instance(name, kernel, Kernel, "a kernel, such as Gaussian(1.0)")
    checks.sound("regularisations", np.ma.asarray(regularisations))
    both = [(s, s) for s in scales_x] if scales_y is None else list(product(scales_x, scales_y))
    kernels = [(scaled_kernel(kernel_x, a), scaled_kernel(kernel_y, b)) for a, b in both]
    each = product(kernels, regularisations, delta_ratios)
    return [KernelBayesSettings(*pair, float(epsilon), float(ratio * epsilon)) for pair, epsilon, ratio in each]


def scaled_kernel(kernel: Kernel, factor: float) -> Kernel:
    """The kernel with its length scale multiplied; as it is where it has none."""
    if not hasattr(kernel, "length_scale"):
        return kernel
    return replace(kernel, length_scale=np.asarray(kernel.length_scale) * factor)  # type: ignore[type-var]


@door
def choose_by_folds(
    rng_key: jax.Array,
    x: PointSet,
    y: PointSet,
    settings: Sequence[KernelBayesSettings],
    *,
    num_folds: int = 10,
    compare_in: Kernel | None = None,
    tolerance: float = low_rank.TOLERANCE,
) -> ChosenSettings:
    r"""Settings of kernel Bayes' rule by the paper's K-fold criterion.

    Averaged over the observations, posteriors under the joint sample's own prior are that prior:
    $\sum_a \big| \tfrac{1}{|T_a|} \sum_{j \in T_a} \hat m^{[-a]}_{X \mid Y_j} - \hat m^{[a]}_X \big|^2$ is small for
    good settings.

    Norms in the spaces of different kernels do not compare: the wider `kernel_x`, the smaller all distances. With
    `compare_in` every candidate is measured in the space of that kernel. The paper does without.

    Args:
        rng_key: Divides the sample into folds.
        x, y: Joint sample, `n` points each.
        settings: Candidates, such as `kernel_bayes_candidates(...)`.
        num_folds: `K`, from 2 to `n / 2`.
        compare_in: Kernel of the norm; the candidate's `kernel_x` when left out.
        tolerance: Of the low-rank factors.
    Cost: for each candidate factors of rank `r`, `2 n r^2`, and `K n r^2` for the folds.
    References: Fukumizu, Song & Gretton (2013), JMLR 14, section 4.2.
    """
    in_one = None if compare_in is None else LowRank.fit(compare_in, x, tolerance=tolerance).values

    def error(one, of_x, of_y, fold):
        norm = of_x if in_one is None else in_one
        rest, weights = _held_out(one, of_x, of_y, fold, of_y[fold].mean(axis=0))
        return np.sum(np.square(norm[rest].T @ weights - norm[fold].mean(axis=0)))

    return _least_over_folds(rng_key, x, y, settings, num_folds, tolerance, error)


@door
def choose_by_prediction(
    rng_key: jax.Array,
    x: ArrayLike,
    y: PointSet,
    settings: Sequence[KernelBayesSettings],
    *,
    num_folds: int = 10,
    tolerance: float = low_rank.TOLERANCE,
) -> ChosenSettings:
    r"""Settings of kernel Bayes' rule by cross-validation of posterior means under the joint sample's own prior.

    The mean of $|x_j - \hat E[X \mid y_j]|^2$ over held-out pairs: best where means are what is wanted. It is as cheap
    as the criterion of `choose_by_folds` and, unlike it, sees whether each observation is used well.

    Args:
        rng_key: Divides the sample into folds.
        x: `(n, dim)`.
        y: `n` points.
        settings: Candidates, such as `kernel_bayes_candidates(...)`.
        num_folds: `K`, from 2 to `n / 2`.
        tolerance: Of the low-rank factors.
    References: Fukumizu, Song & Gretton (2013), JMLR 14, section 4.2.
    """
    checks.concrete(x=x)
    checks.table("x", x)
    table = np.asarray(x, np.float64)

    def error(one, of_x, of_y, fold):
        rest, weights = _held_out(one, of_x, of_y, fold, of_y[fold].T)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = (weights / weights.sum(axis=0)).T @ table[rest]
        return np.sum(np.square(means - table[fold])) / len(table)

    return _least_over_folds(rng_key, x, y, settings, num_folds, tolerance, error)


def _least_over_folds(rng_key, x, y, settings, num_folds, tolerance, error) -> ChosenSettings:
    """Sum the errors `error(candidate, features of x, of y, fold)` over random folds."""
    checks.concrete(rng_key=rng_key, x=x, y=y)
    n = num_pairs(x, y)
    checks.whole("num_folds", num_folds, 2)
    checks.require(2 * num_folds <= n, f"`num_folds` must be at most half of the {n} points; got {num_folds}.")
    folds = np.array_split(np.asarray(jax.random.permutation(rng_key, n)), num_folds)

    def total(one):
        of_x, of_y = (LowRank.fit(*of, tolerance=tolerance).values for of in ((one.kernel_x, x), (one.kernel_y, y)))
        return sum(error(one, of_x, of_y, fold) for fold in folds)

    return _least(settings, total)


def _held_out(settings, of_x, of_y, fold, phi):
    """Rows that are not held out, and their posterior weights for features `phi` of observations."""
    rest = np.setdiff1d(np.arange(len(of_x)), fold)
    u = of_x[rest]
    mu = solves.ridge(u, len(rest) * settings.regularisation, u @ u.mean(axis=0))
    delta = 2.0 * settings.regularisation if settings.delta is None else settings.delta
    return rest, posterior_weights(mu, of_y[rest], delta, phi)


@door
def choose_by_holdout(
    states: PointSet,
    observations: PointSet,
    settings: Sequence[KernelBayesSettings],
    *,
    modes: bool = False,
    normalise: bool = True,
    tolerance: float = low_rank.TOLERANCE,
    max_rank: int | None = None,
) -> ChosenSettings:
    """Settings of the filter by its error on the second half of the training path, learnt from the first.

    The error is the mean squared Euclidean (for matrices, Frobenius) distance between the decoded state and the true
    one. A candidate whose filter breaks down has an infinite error.

    Args:
        states, observations: One path in the order of time, 8 points or more.
        settings: Candidates, such as `kernel_bayes_candidates(...)`.
        modes: Decode by modes instead of means.
        normalise: As in `KernelBayesFilter.filter`.
        tolerance, max_rank: Of the low-rank factors.
    References: Fukumizu, Song & Gretton (2013), JMLR 14, section 5.3.
    """
    checks.concrete(states=states, observations=observations)
    length = num_points(states)
    checks.require(length >= 8, f"`states` must hold at least 8 times to be halved; got {length}.")
    n = num_points(observations)
    checks.require(n == length, f"`states` and `observations` must be one path; got {length} and {n} points.")
    path, seen = take((states, observations), slice(length // 2))
    truth, new = take((states, observations), slice(length // 2, None))

    def error(one):
        found = one.filter(path, seen, tolerance=tolerance, max_rank=max_rank)
        weights = found.filter(new, normalise=normalise)
        decoded = found.modes(weights) if modes else found.means(weights)
        return np.sum(np.square(decoded - truth)) / len(decoded)

    return _least(settings, error)


def _least(settings, error) -> ChosenSettings:
    """The candidate with the least error; it is infinite where one cannot be solved or breaks down."""
    checks.require(len(settings) >= 1, "`settings` must hold at least one candidate; got none.")
    for one in settings:
        checks.instance("settings", one, KernelBayesSettings, "candidates KernelBayesSettings(...)")
        checks.positive_number("regularisation", one.regularisation)
        checks.optional(checks.positive_number, "delta", one.delta)

    def or_infinite(one):
        try:
            found = float(error(one))
        except (np.linalg.LinAlgError, FloatingPointError):
            return np.inf
        return found if np.isfinite(found) else np.inf

    errors = np.array([or_infinite(one) for one in settings])
    tried = [one.regularisation for one in settings]
    checks.require(
        bool(np.isfinite(errors).any()),
        f"None of the {len(errors)} candidates, with regularisations from {min(tried):.3g} to {max(tried):.3g}, gave a "
        "finite error; add larger regularisations or wider kernels.",
        np.linalg.LinAlgError,
    )
    return ChosenSettings(settings[int(np.argmin(errors))], errors)
