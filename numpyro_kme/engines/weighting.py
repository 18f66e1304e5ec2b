"""Posteriors that are weightings of simulations: a strategy gives the weights, the rest is the same for all."""

import abc
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen, numbers, shown
from numpyro_kme._core.host import numpy_function
from numpyro_kme._core.programs import Recomputed
from numpyro_kme.abc.discrepancies import out_of_distribution_check
from numpyro_kme.abc.weighting import (
    LEAST_EFFECTIVE_SIZE,
    RegressionAdjustment,
    deviations,
    effective_sample_size,
    with_unit_sum,
)
from numpyro_kme.embeddings.kernel_bayes import KernelBayesRule
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding
from numpyro_kme.engines.posterior import groups, missing_entries, varies, with_present_data
from numpyro_kme.engines.reference_table import ReferenceTable, observed_part
from numpyro_kme.engines.weighted_posterior import WeightedPosterior, columns, herded, vector_maps
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.regression import DistributionRegression
from numpyro_kme.models.problem import Problem
from numpyro_kme.samplers.importance import systematic_shuffled

SHIFT, ERRORS, LEFT, MOST = 0.25, 2.0, 0.78, 1.7
"""A posterior is coarse where the regression moves a mean by more than `SHIFT` of its standard deviations and `ERRORS`
standard errors of the shift, or leaves less than `LEFT` of the standard deviation; too narrow where it leaves more than
`MOST` times that."""

FEW = 100
"""With more statistics the regression is not made unasked: it costs their number cubed."""

PER_STATISTIC = 10
"""Effective number of simulations per statistic from which the side of the observation that they lie on is known."""


@shown
class Weighting(NamedTuple):
    """Weights of the simulations.

    Attributes:
        weights: `(m,)`, of any sign and total.
        distances: Distances of the simulations from the observation, `(m,)`, as `WeightingMethod.apart` measures them.
        info: What a person reads.
    """

    weights: np.ndarray
    distances: np.ndarray
    info: Mapping[str, Any]


@frozen
class WeightingMethod(Recomputed, abc.ABC):
    """Base of the weighting strategies: what was learnt from simulations, and the posterior of any observation.

    Attributes:
        engine: The settings: `num_samples`, `regression_adjustment`, and `advice`, what to do where the effective
            sample size is too small.
        fit_key: The key by which it was learnt: for another mask it is learnt again.
        problem: The model, as it was run.
        table: The simulations.
    """

    measure: ClassVar[str]
    """Name of the distances."""
    compared: ClassVar[int] = 200
    """Simulations that are compared with one another, at most."""

    engine: Any
    fit_key: jax.Array
    problem: Problem
    table: ReferenceTable

    @abc.abstractmethod
    def weigh(self, y: np.ndarray) -> Weighting:
        """Weights of the simulations given an observation, read as a row of `table.x`, and their distances from it."""

    @abc.abstractmethod
    def apart(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Distances of rows `(k, *event)` of `table.x` from such rows `(s, *event)`, `(s, k)`."""

    def at(self, y: np.ndarray) -> Self:
        """The strategy for one observation, where the observation decides how distances are measured."""
        return self

    @cached_property
    def between(self) -> np.ndarray:
        """Distances of some simulations from one another, `(k, k)`."""
        number = len(self.table)
        some = self.table.x[np.linspace(0, number - 1, min(self.compared, number)).astype(int)]
        return self.apart(some, some)

    def posterior(self, rng_key: jax.Array, problem: Problem) -> "WeightedPosterior":
        """Weight the simulations by the observation of a model."""
        mask = observed_part(problem)
        if not np.array_equal(mask, self.table.mask):
            again = self.engine._fit(self.fit_key, problem, self.table.simulations)
            return again.posterior(rng_key, problem)
        name, table = type(self.engine).__name__, self.table
        site = problem.site()
        y = table.point(problem.observations[site])
        strategy = self.at(y)
        found = strategy.weigh(y)
        weights, effective = normalised(found.weights, name, self.engine.advice)
        info: dict[str, Any] = {"simulations": len(weights), **found.info, "effective sample size": effective}
        info |= missing_entries(problem.simulators[site])
        if (weights < 0).any():
            info["proportion of negative weight"] = float(-weights[weights < 0].sum() / np.abs(weights).sum())
        if table.simulations.failures or table.simulations.repeated:
            info["simulations that failed"] = table.simulations.describe_failures()
        far = strategy._warn_if_out_of_distribution(found.distances)
        present = with_present_data(table.simulations, problem)
        sites, z = {**present.latents, **present.deterministics}, table.z
        if self.engine.regression_adjustment:
            problem.require_continuous("`regression_adjustment`, which moves latents,")
            sites, z, info["regression adjustment"] = adjusted(problem, table, weights, y)
        elif not far and not problem.discrete:  # a regression says little of a probability
            warn_if_coarse(name, problem, table, weights, y)
        warn_of_negative_variances(table.coordinates.names, z, weights)
        number = self.engine.num_samples
        chosen = systematic_shuffled(rng_key, weights, number) if (weights >= 0).all() else herded(z, weights, number)
        weighted = {site: value[None] for site, value in {**sites, "weight": weights}.items()}
        return WeightedPosterior(
            engine=name,
            samples={site: value[chosen] for site, value in sites.items()},
            groups={**groups(present, problem), "weighted_posterior": weighted},
            info=info,
            problem=problem,
            simulations=table.simulations,
            sites=sites,
            weights=weights,
            z=z,
            coordinates=table.coordinates,
        )

    def _warn_if_out_of_distribution(self, distances: np.ndarray) -> bool:
        """An effective sample size does not see that all simulations are far."""
        found = out_of_distribution_check(distances, self.between)
        if found.is_out_of_distribution:
            checks.warn(
                f"{type(self.engine).__name__}: the observation lies away from the simulations. The nearest "
                f"{found.proportion:.2%} of them are up to {found.nearest:.4g} from it, and simulations are up to "
                f"{found.threshold:.4g} from one another ({self.measure}). The weights say which are least far, not "
                "what the parameters are. Check the observation and the simulator, or use a prior under which such "
                "data occur.",
            )
        return found.is_out_of_distribution


@frozen
class SignedWeights(WeightingMethod):
    """Signed weights by ridge regression on the data.

    Attributes:
        fitted: The regression.
    """

    measure = "squared distance in the space of the kernel"

    fitted: ConditionalMeanEmbedding | KernelBayesRule

    def at_rows(self, y: np.ndarray) -> np.ndarray:
        """Weights `(s, m)` at rows `(s, *event)` of `table.x`."""
        return np.asarray(self.fitted.weights(self.fitted.right.kernel.points(y)), np.float64)

    def weigh(self, y):  # noqa: D102
        weights = self.at_rows(y[None])[0]
        info = {
            "sum of weights": float(weights.sum()),
            **dict(zip(("regularisation", "delta"), np.ravel(self.fitted.regularisation).tolist())),
            "rank of the data": f"{self.fitted.right.rank} of {len(self.table)}",
        }
        return Weighting(weights, self.apart(self.table.x, y[None])[0], info)

    def apart(self, x, y):  # noqa: D102
        return squared_distances(self.fitted.right.kernel, x, y)


def held_out_regularisation(table: ReferenceTable, kernel: Kernel, tolerance: float) -> float:
    """The power of ten with which coordinates and their squares are predicted best by kernel ridge regression, each
    simulation without itself."""
    targets = np.concatenate([table.z, np.square(table.z)], axis=1)
    return float(DistributionRegression.fit(kernel, table.x, targets, tolerance=tolerance).regularisation)


@numpy_function
def squared_distances(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`k(x_i, x_i) + k(y_j, y_j) - 2 k(x_i, y_j)` for outputs `(k, *event)` and `(s, *event)`, `(s, k)`."""
    x, y = kernel.points(x), kernel.points(y)
    own = np.asarray(kernel.diagonal(x))[None] + np.asarray(kernel.diagonal(y))[:, None]
    return own - 2.0 * np.asarray(kernel.gram(y, x))


def normalised(weights: np.ndarray, name: str, advice: str) -> tuple[np.ndarray, float]:
    """Weights with a sum of one, checked to be a posterior, and their effective sample size."""
    weights = with_unit_sum(weights, name, advice)
    effective = effective_sample_size(weights)
    checks.require(
        effective >= LEAST_EFFECTIVE_SIZE - 1e-6,  # that of ten equal weights may come out as 9.999999999999998
        f"{name}: the effective sample size is {effective:.1f} of {len(weights)} simulations, below "
        f"{LEAST_EFFECTIVE_SIZE:.0f}: this is not a posterior. {advice}",
        checks.EffectiveSampleSizeError,
    )
    return weights, effective


def adjusted(
    problem: Problem, table: ReferenceTable, weights: np.ndarray, y: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Latents and deterministics where `RegressionAdjustment` moves those that have a weight, their coordinates, and by
    how many standard deviations it moves each mean."""
    found, moved = _regression(problem, table, weights, y)
    latents = {name: np.asarray(moved[name], value.dtype) for name, value in table.simulations.latents.items()}
    drawn = problem.evaluate(latents)
    z = table.coordinates_of(drawn.arguments[problem.site()])
    deterministics = {name: np.asarray(value) for name, value in drawn.deterministics.items()}
    return {**latents, **deterministics}, z, found.shift / found.scale


def _regression(
    problem: Problem, table: ReferenceTable, weights: np.ndarray, y: np.ndarray
) -> tuple[RegressionAdjustment, Mapping[str, np.ndarray]]:
    """The regression of the latents on the statistics, and the latents where it moves those that have a weight."""
    to_vectors, latents_at = vector_maps(problem, table.coordinates)
    vectors = to_vectors(table.z, table.simulations.latents)
    found = RegressionAdjustment.fit(vectors, table.simulated_statistics, weights, table.statistics(y[None])[0])
    counts = np.abs(weights) > 1e-9 * np.abs(weights).max()
    return found, latents_at(np.where(counts[:, None], found.adjusted, vectors))


def warn_if_coarse(name: str, problem: Problem, table: ReferenceTable, weights: np.ndarray, y: np.ndarray) -> None:
    """Weights by a discrepancy or a kernel may see less than the data say, which a regression on the outputs shows.

    It is judged by the latents as they are reported: near a bound their means and standard deviations may change much
    where those of vectors without constraints do not.
    """
    q = table.simulated_statistics.shape[1]
    if q > FEW:
        return
    found, moved = _regression(problem, table, weights, y)
    positive = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    by_numbers = table.x.ndim == 2 and not table.ragged
    if by_numbers and effective_sample_size(positive) > PER_STATISTIC * q and found.distance > q + 2.0:
        checks.warn(
            f"{name}: the observation lies outside the simulations that are near it, {np.sqrt(found.distance):.2g} "
            "standard deviations from their mean, so that they are of one side only. The posterior may be shifted and "
            "too wide. Simulate more, leave out numbers that say nothing of the parameters, or use `KELFI`, which does "
            "not compare with the nearest."
        )
    latents = table.simulations.latents
    before, after = columns(latents), columns({name: moved[name] for name in latents})
    own = varies(before[weights != 0.0])
    before, after, names = before[:, own], after[:, own], np.array(list(numbers(latents)))[own]
    scale, residual = deviations(before, weights), np.maximum(found.residual, 1e-300)
    # each point is left out of the regression that moves it
    held_out = np.max(residual / np.maximum(deviations(found.adjusted, positive), 1e-300))
    left = held_out * deviations(after, positive) / scale
    shift, error = np.abs(weights @ (after - before)) / scale, left * np.max(found.error / residual)
    coarse = (shift > SHIFT) & (shift > ERRORS * error) | (left < LEFT) | (left > MOST) & (weights < 0.0).any()
    if coarse.any():
        d = int(np.argmax(np.where(coarse, np.maximum(shift, np.abs(np.log(left))), 0.0)))
        what = "means and standard deviations of the draws" if table.data_sets else "outputs"
        checks.warn(
            f"{name}: the posterior is {'coarse' if left[d] < MOST else 'too narrow, by its signed weights'}. Among "
            f"the simulations near the observation, a regression on the {what} moves the mean of {names[d]} by "
            f"{shift[d]:.2g} of its standard deviation, and leaves {left[d]:.2g} of that. Use "
            "`regression_adjustment=True`, or more simulations."
        )


def warn_of_negative_variances(names: tuple[str, ...], z: np.ndarray, weights: np.ndarray) -> None:
    """Signed weights can give variances that no distribution has."""
    negative = [name for name, value in zip(names, weights @ np.square(z - weights @ z)) if value <= 0]
    if negative:
        checks.warn(
            f"Under the signed weights the variance of {', '.join(negative)} is negative: means may be right, and "
            "nothing finer. Use more simulations, or another regularisation.",
        )
