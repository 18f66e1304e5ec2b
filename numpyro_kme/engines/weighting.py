"""Methods that weight simulations: a strategy gives the weights, the rest is the same for all."""

import abc
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen
from numpyro_kme._core.host import numpy_function
from numpyro_kme._core.programs import Recomputed
from numpyro_kme.abc.discrepancies import out_of_distribution_check
from numpyro_kme.abc.weighting import (
    LEAST_EFFECTIVE_SIZE,
    RegressionAdjustment,
    effective_sample_size,
    with_unit_sum,
)
from numpyro_kme.embeddings.kernel_bayes import KernelBayesRule
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding
from numpyro_kme.engines.base import check_positive
from numpyro_kme.engines.posterior import groups, missing_entries, with_present_data
from numpyro_kme.engines.reference_table import ReferenceTable, observed_part
from numpyro_kme.engines.weighted_posterior import WeightedPosterior, herded, vector_maps
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.models.problem import Problem
from numpyro_kme.samplers.importance import systematic_shuffled

SHIFT, ERRORS, LEFT, MOST = 0.25, 2.0, 0.78, 1.7
"""A posterior is coarse where the regression moves a mean by more than `SHIFT` of its standard deviations and `ERRORS`
standard errors of the shift, or leaves less than `LEFT` of the standard deviation; too narrow where it leaves more than
`MOST` times that."""

FEW = 100
"""With more statistics the regression is not made unasked: it costs their number cubed."""


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

    compared: ClassVar[int] = 200
    """Simulations that are compared with one another, at most."""

    engine: Any
    fit_key: jax.Array
    problem: Problem
    table: ReferenceTable

    @abc.abstractmethod
    def weigh(self, y: np.ndarray, distances: np.ndarray) -> tuple[np.ndarray, Mapping[str, Any]]:
        """Weights of the simulations, `(m,)`, of any sign and total, and what a person reads of them.

        Args:
            y: The observation, as a row of `table.x`.
            distances: Distances of the simulations from it by `apart`, `(m,)`.
        """

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

    def posterior(self, rng_key: jax.Array, problem: Problem) -> WeightedPosterior:
        """Weight the simulations by the observation of a model."""
        if not np.array_equal(observed_part(problem), self.table.mask):
            return self.engine._fit(self.fit_key, problem, self.table.simulations).posterior(rng_key, problem)
        name, table, simulations = type(self.engine).__name__, self.table, self.table.simulations
        y = table.point(problem.observations[problem.site()])
        strategy = self.at(y)
        distances = strategy.apart(table.x, y[None])[0]
        weights, read = strategy.weigh(y, distances)
        weights = with_unit_sum(weights, name, self.engine.advice)
        effective = effective_sample_size(weights)
        checks.require(
            effective >= LEAST_EFFECTIVE_SIZE - 1e-6,  # that of ten equal weights may come out as 9.999999999999998
            f"{name}: the effective sample size is {effective:.1f} of {len(weights)} simulations, below "
            f"{LEAST_EFFECTIVE_SIZE:.0f}: this is not a posterior. {self.engine.advice}",
            checks.EffectiveSampleSizeError,
        )
        info: dict[str, Any] = {"simulations": len(weights), **read, "effective sample size": effective}
        info |= missing_entries(problem.simulators[problem.site()])
        if (weights < 0).any():
            info["proportion of negative weight"] = float(-weights[weights < 0].sum() / np.abs(weights).sum())
        if simulations.failures or simulations.repeated:
            info["simulations that failed"] = simulations.describe_failures()
        far = out_of_distribution_check(distances, strategy.between)
        if far.is_out_of_distribution:  # an effective sample size does not see that all simulations are far
            checks.warn(
                f"{name}: the observation lies away from the simulations. The nearest {far.proportion:.2%} of them are "
                f"up to {far.nearest:.4g} from it, and simulations are up to {far.threshold:.4g} from one another. The "
                "weights say which are least far, not what the parameters are. Check the observation and the "
                "simulator, or use a prior under which such data occur."
            )
        present = with_present_data(simulations, problem)
        sites, z = {**present.latents, **present.deterministics}, table.z
        statistics, adjust = table.statistics(table.x), self.engine.regression_adjustment
        if adjust:
            problem.require_continuous("`regression_adjustment`, which moves latents,")
        if adjust or not (far.is_out_of_distribution or problem.discrete or statistics.shape[1] > FEW):
            to_vectors, latents_at = vector_maps(problem, table.coordinates)
            vectors, at = to_vectors(table.z, simulations.latents), table.statistics(y[None])[0]
            found = RegressionAdjustment.fit(vectors, statistics, weights, at)
            if not adjust:
                warn_if_coarse(name, found, bool((weights < 0).any()))
        if adjust:
            counts = np.abs(weights) > 1e-9 * np.abs(weights).max()
            moved = latents_at(np.where(counts[:, None], found.adjusted, vectors))
            latents = {latent: np.asarray(moved[latent], v.dtype) for latent, v in simulations.latents.items()}
            drawn = problem.evaluate(latents)
            sites = {**latents, **{site: np.asarray(value) for site, value in drawn.deterministics.items()}}
            z = table.coordinates_of(drawn.arguments[problem.site()])
            info["regression adjustment"] = found.shift / found.scale
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
            simulations=simulations,
            sites=sites,
            weights=weights,
            z=z,
            coordinates=table.coordinates,
        )


@frozen
class SignedWeights(WeightingMethod):
    """Signed weights by ridge regression on the data.

    Attributes:
        fitted: The regression.
    """

    fitted: ConditionalMeanEmbedding | KernelBayesRule

    def weigh(self, y, distances):  # noqa: D102
        points = self.fitted.right.kernel.points(y[None])
        weights = np.asarray(self.fitted.weights(points)[0], np.float64)
        return weights, {
            "sum of weights": float(weights.sum()),
            **dict(zip(("regularisation", "delta"), np.ravel(self.fitted.regularisation).tolist())),
            "rank of the data": f"{self.fitted.right.rank} of {len(self.table)}",
        }

    def apart(self, x, y):  # noqa: D102
        return squared_distances(self.fitted.right.kernel, x, y)


@numpy_function
def squared_distances(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`k(x_i, x_i) + k(y_j, y_j) - 2 k(x_i, y_j)` for outputs `(k, *event)` and `(s, *event)`, `(s, k)`."""
    x, y = kernel.points(x), kernel.points(y)
    own = np.asarray(kernel.diagonal(x))[None] + np.asarray(kernel.diagonal(y))[:, None]
    return own - 2.0 * np.asarray(kernel.gram(y, x))


def check_weighting(num_simulations: int, regression_adjustment: bool, **positive: float | None) -> None:
    """Check the settings of engines that weight simulations: their number, and numbers that are positive if given."""
    checks.instance("regression_adjustment", regression_adjustment, bool, "True or False")
    checks.whole("num_simulations", num_simulations, 20, " Thousands are usual.")
    check_positive(**positive)


def warn_if_coarse(name: str, found: RegressionAdjustment, signed: bool) -> None:
    """Warn where weights by a discrepancy or a kernel see less than the data say, which a regression on the outputs
    shows."""
    shift, error, left = np.abs(found.shift) / found.scale, found.error / found.scale, found.residual / found.scale
    coarse = (shift > SHIFT) & (shift > ERRORS * error) | (left < LEFT) | (left > MOST) & signed
    if coarse.any():
        d = int(np.argmax(np.where(coarse, np.maximum(shift, np.abs(np.log(np.maximum(left, 1e-300)))), 0.0)))
        checks.warn(
            f"{name}: the posterior is {'coarse' if left[d] < MOST else 'too narrow, by its signed weights'}. Among "
            f"the simulations near the observation, a regression on the outputs moves a mean by {shift[d]:.2g} of its "
            f"standard deviation, and leaves {left[d]:.2g} of that. Use `regression_adjustment=True`, or more "
            "simulations."
        )


def warn_of_negative_variances(names: tuple[str, ...], z: np.ndarray, weights: np.ndarray) -> None:
    """Warn where signed weights give variances that no distribution has."""
    negative = [name for name, value in zip(names, weights @ np.square(z - weights @ z)) if value <= 0]
    if negative:
        checks.warn(
            f"Under the signed weights the variance of {', '.join(negative)} is negative: means may be right, and "
            "nothing finer. Use more simulations, or another regularisation.",
        )
