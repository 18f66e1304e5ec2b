"""Posteriors that are weights of simulations: a strategy gives the weights, the rest is the same for all."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import jax
import numpy as np

from numpyro_kme._core import Recomputed, checks, door, frozen, numpy_function, saveable, shown
from numpyro_kme.abc.discrepancies import out_of_distribution_check
from numpyro_kme.abc.weighting import LEAST_EFFECTIVE_SIZE, RegressionAdjustment, effective_sample_size, with_unit_sum
from numpyro_kme.embeddings.kernel_bayes import KernelBayesRule
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding, MeanEmbedding, herd
from numpyro_kme.engines.base import SimulationEngine
from numpyro_kme.engines.posterior import Posterior, arviz_groups, by_chain, missing_entries, problem_of, sites_at
from numpyro_kme.engines.reference_table import ReferenceTable, observed_part
from numpyro_kme.kernels import Gaussian, Polynomial
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.likelihoods.descent import ravel
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.unconstrained import Unconstrained
from numpyro_kme.samplers.importance import systematic_shuffled
from numpyro_kme.simulations.simulations import of_rows

SHIFT, ERRORS, LEFT, MOST = 0.25, 2.0, 0.78, 1.7
"""A posterior is coarse where the regression moves a mean by more than `SHIFT` of its standard deviations and `ERRORS`
standard errors of the shift, or leaves less than `LEFT` of the standard deviation; too narrow where it leaves more than
`MOST` times that."""

FEW = 100
"""With more statistics the regression is not made unasked: it costs their number cubed."""

LEAST_DEVIATION = 0.2
"""Least standard deviation, relative to the positive part of signed weights, whose variances may have any sign."""

QUADRATIC = 0.01
"""Weight of a quadratic kernel in herding: with more of it draws follow the noise of a covariance under signed weights
(`python -m benchmarks verdict`)."""


@shown
@saveable
@dataclass(frozen=True, kw_only=True)
class WeightedPosterior(Posterior):
    """A posterior that is a weighting of simulations from the prior.

    Attributes:
        sites: Latents and deterministics of the simulations, `{site: (m, *shape)}`; where a regression adjusted them,
            as it moved them.
        weights: `(m,)`, with a sum of one; some methods give weights of both signs.
        z: Coordinates of the simulations, `(m, D)`.
        coordinates: Coordinates of the simulator's arguments.
    """

    brief = ("effective", "proportion of negative", "missing", "censored", "simulations that failed", "regression")

    problem: Problem
    sites: Mapping[str, np.ndarray]
    weights: np.ndarray
    z: np.ndarray
    coordinates: Coordinates

    def get_weights(self) -> dict[str, np.ndarray]:
        """The weighted set: every simulation's latents `{site: (m, *shape)}`, and under `"weight"` weights that sum to
        one.

        Some methods give weights of both signs.
        """
        return {**self.sites, "weight": self.weights}

    @door
    def expectation(self, function: Callable[[Mapping[str, np.ndarray]], Any]) -> np.ndarray:
        """Posterior expectation by the weights, `sum_i w_i f(theta_i)`; more exact than an average of `get_samples`.

        Args:
            function: Maps `{site: (m, *shape)}`, all simulations at once, to `(m, *event)`.
        Returns:
            `(*event)`.
        """
        values = np.asarray(function(self.sites))
        fits = values.shape[:1] == self.weights.shape
        checks.require(fits, f"`function` must give {len(self.weights)} rows, one a simulation; got {values.shape}.")
        return np.tensordot(self.weights, values, axes=1)

    def mode(self) -> dict[str, np.ndarray]:
        """Point estimate, `{site: (*shape)}`: the mode of the posterior embedding (its pre-image), the weights smoothed
        by a Gaussian kernel in coordinates.

        The kernel is as wide as the posterior in each coordinate. Where the simulator's
        arguments do not determine the latents, as under a Dirichlet or a hierarchical prior, the coordinates are those
        of all latents, mapped to vectors without constraints. Where all latents are discrete it is the value that has
        the largest weight.
        """
        problem = problem_of(self)
        latents = {name: self.sites[name] for name in problem.latents}
        one = len(problem.discrete) in (0, len(latents))
        checks.require(one, f"The mode is no simulation, and {[*problem.discrete]} are discrete. Use `get_weights`.")
        if problem.discrete:
            _, first, group = np.unique(ravel(latents, 1), axis=0, return_index=True, return_inverse=True)
            best = first[np.argmax(np.bincount(group.ravel(), self.weights))]
            return {name: np.asarray(value[best]) for name, value in latents.items()}
        to_vectors, latents_at = vector_maps(problem, self.coordinates)
        z = to_vectors(self.z, latents)
        found = MeanEmbedding(Gaussian(deviation(z, self.weights)), z, self.weights).mode()
        return {name: np.asarray(value[0]) for name, value in latents_at(found[None]).items()}

    def herd(self, rng_key: jax.Array, num_samples: int) -> Posterior:
        """Super-samples: simulations chosen by kernel herding of the embedded posterior, in the order in which it
        finds them.

        The key decides nothing: candidates are the simulations.
        """
        checks.key(rng_key)
        checks.whole("num_samples", num_samples, 1)
        chosen = herded(self.z, self.weights, num_samples)
        return self._super_samples(of_rows(self.sites, chosen))


@dataclass(eq=False, repr=False, kw_only=True)
class WeightingEngine(SimulationEngine[WeightedPosterior]):
    """Base of the engines that weight simulations; `advice` says what to do if too few have weight.

    Args:
        regression_adjustment: Whether a regression moves the weighted simulations to the observation.
    """

    advice: ClassVar[str]

    regression_adjustment: bool = False

    def check_settings(self):  # noqa: D102
        super().check_settings()
        checks.instance("regression_adjustment", self.regression_adjustment, bool, "True or False")
        checks.whole("num_simulations", self.num_simulations, 20, " Thousands are usual.")


def herded(z: np.ndarray, weights: np.ndarray, num_samples: int) -> np.ndarray:
    """Rows that follow weights of any sign: means by a linear kernel, the rest by a Gaussian and a bit of a quadratic.

    By a Gaussian kernel alone draws would follow the positive part of signed weights in more than two dimensions. A
    covariance that no distribution has is replaced by the nearest one that is positive definite.
    """
    u = (z - weights @ z) / deviation(z, weights)
    values, axes = np.linalg.eigh(u.T @ (weights[:, None] * u))
    second = 1.0 + np.square(u @ axes) @ np.maximum(values, LEAST_DEVIATION**2)
    gaussian = Gaussian(1.0 / 3.0)
    targets = MeanEmbedding(gaussian, u, weights)(u) + 1.0 + QUADRATIC * second
    kernel = gaussian + Polynomial(1) + QUADRATIC * Polynomial(2)
    return np.asarray(herd(kernel, targets, u, num_samples))


def deviation(z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Standard deviations under weights, or the least for their positive part."""
    positive = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    least = LEAST_DEVIATION**2 * positive @ np.square(z - positive @ z)
    return np.sqrt(np.maximum(weights @ np.square(z - weights @ z), np.maximum(least, 1e-16)))


def vector_maps(problem: Problem, coordinates: Coordinates) -> tuple[Callable, Callable]:
    """Maps of coordinates and latents `{site: (m, *shape)}` to vectors `(m, D)` without constraints that determine the
    latents, and back from vectors to latents: coordinates are such vectors, or all latents without constraints."""
    if coordinates.one_to_one:
        return (lambda z, latents: z), coordinates.latents
    target = Unconstrained.of(problem)
    return numpy_function(lambda z, latents: target.flatten_rows(latents)), numpy_function(target.constrain_rows)


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
    def weigh(self, observed: np.ndarray, distances: np.ndarray) -> tuple[np.ndarray, Mapping[str, Any]]:
        """Weights of the simulations, `(m,)`, of any sign and total, and what a person reads of them.

        Args:
            observed: The observation, as a row of `table.x`.
            distances: Distances of the simulations from it by `apart`, `(m,)`.
        """

    @abc.abstractmethod
    def apart(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Distances of rows `(k, *event)` of `table.x` from such rows `(s, *event)`, `(s, k)`."""

    def at(self, observed: np.ndarray) -> Self:
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
        observed = table.point(problem.observations[problem.site()])
        strategy = self.at(observed)
        distances = strategy.apart(table.x, observed[None])[0]
        weights, read = strategy.weigh(observed, distances)
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
        signed = bool((weights < 0).any())
        if signed:
            info["proportion of negative weight"] = float(-weights[weights < 0].sum() / np.abs(weights).sum())
        if simulations.failures or simulations.repeated:
            info["simulations that failed"] = simulations.describe_failures()
        is_far = warn_if_far(name, distances, strategy.between)
        sites, z = sites_at(problem, simulations.latents), table.z
        grouped = arviz_groups(problem, simulations, sites)
        if self.engine.regression_adjustment:
            problem.require_continuous("`regression_adjustment`, which moves latents,")
            sites, z, info["regression adjustment"] = self._adjusted(problem, observed, weights)
        elif not (is_far or problem.discrete or table.statistics(observed[None]).shape[1] > FEW):
            warn_if_coarse(name, self._regression(problem, observed, weights)[0], signed)
        warn_of_negative_variances(table.coordinates.names, z, weights)
        number = self.engine.num_samples
        chosen = herded(z, weights, number) if signed else systematic_shuffled(rng_key, weights, number)
        return WeightedPosterior(
            engine=name,
            samples=of_rows(sites, chosen),
            groups={**grouped, "weighted_posterior": by_chain({**sites, "weight": weights})},
            info=info,
            problem=problem,
            simulations=simulations,
            sites=sites,
            weights=weights,
            z=z,
            coordinates=table.coordinates,
        )

    def _regression(self, problem: Problem, observed: np.ndarray, weights: np.ndarray):
        """Regression of vectors that determine the latents on the statistics, these vectors, and the way back."""
        to_vectors, latents_at = vector_maps(problem, self.table.coordinates)
        vectors, statistics = to_vectors(self.table.z, self.table.simulations.latents), self.table.statistics
        found = RegressionAdjustment.fit(vectors, statistics(self.table.x), weights, statistics(observed[None])[0])
        return found, (vectors, latents_at)

    def _adjusted(self, problem: Problem, observed: np.ndarray, weights: np.ndarray):
        """Sites and coordinates of the simulations with weight, moved to the observation, and by how much in sd."""
        found, (vectors, latents_at) = self._regression(problem, observed, weights)
        counts = np.abs(weights) > 1e-9 * np.abs(weights).max()
        moved = latents_at(np.where(counts[:, None], found.adjusted, vectors))
        latents = {name: np.asarray(moved[name], v.dtype) for name, v in self.table.simulations.latents.items()}
        z = self.table.coordinates_of(problem.arguments(latents)[problem.site()])
        return sites_at(problem, latents), z, found.shift / found.scale


@frozen
class SignedWeights(WeightingMethod):
    """Signed weights by ridge regression on the data.

    Attributes:
        fitted: The regression.
    """

    fitted: ConditionalMeanEmbedding | KernelBayesRule

    def weigh(self, observed, distances):  # noqa: D102
        points = self.fitted.right.kernel.points(observed[None])
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


def warn_if_far(name: str, distances: np.ndarray, between: np.ndarray) -> bool:
    """Warn of an observation that lies away from all simulations, which no effective sample size sees."""
    far = out_of_distribution_check(distances, between)
    if far.is_out_of_distribution:
        checks.warn(
            f"{name}: the observation lies away from the simulations. The nearest {far.proportion:.2%} are up to "
            f"{far.nearest:.4g} from it, simulations {far.threshold:.4g} from one another. Check both, and the prior."
        )
    return far.is_out_of_distribution


def warn_if_coarse(name: str, found: RegressionAdjustment, signed: bool) -> None:
    """Warn where weights by a discrepancy or a kernel see less than the data say, which a regression on the outputs
    shows."""
    shift, error, left = np.abs(found.shift) / found.scale, found.error / found.scale, found.residual / found.scale
    coarse = (shift > SHIFT) & (shift > ERRORS * error) | (left < LEFT) | (left > MOST) & signed
    if coarse.any():
        d = int(np.argmax(np.where(coarse, np.maximum(shift, np.abs(np.log(np.maximum(left, 1e-300)))), 0.0)))
        checks.warn(
            f"{name}: the posterior is {'coarse' if left[d] < MOST else 'too narrow'}: a regression adjustment would "
            f"move a mean by {shift[d]:.2g} sd, and make its sd {left[d]:.2g} times as large. Use "
            "`regression_adjustment=True`, or more simulations."
        )


def warn_of_negative_variances(names: tuple[str, ...], z: np.ndarray, weights: np.ndarray) -> None:
    """Warn where signed weights give variances that no distribution has."""
    negative = [name for name, value in zip(names, weights @ np.square(z - weights @ z)) if value <= 0]
    if negative:
        checks.warn(
            f"Under the signed weights the variance of {', '.join(negative)} is negative: means may be right, and "
            "nothing finer. Use more simulations, or another regularisation."
        )
