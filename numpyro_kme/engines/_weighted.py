"""What engines share whose posterior is a weighting of simulations from the prior, with weights of one sign or of
both."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from scipy import stats

from numpyro_kme._core import checks
from numpyro_kme._core.checks import EffectiveSampleSizeError
from numpyro_kme.abc import weighting
from numpyro_kme.abc.discrepancies import out_of_distribution_check
from numpyro_kme.abc.weighting import LEAST_EFFECTIVE_SIZE, with_unit_sum
from numpyro_kme.engines._reference_table import ReferenceTable, arguments_to_coordinates, check_model
from numpyro_kme.engines._tables import check_simulations, groups
from numpyro_kme.engines._weighted_posterior import WeightedPosterior, choose
from numpyro_kme.engines.base import Engine, Trained
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.simulate import Plan

ROUNDING = 1e-6
"""Of an effective sample size: that of ten equal weights may come out as 9.999999999999998."""
COMPARED = 200
"""Simulations that are compared with one another, where that is cheap."""
PRIOR_DRAWS, UNLIKELY = 1000, 1e-6
"""Draws that given simulations are compared with, and the p-value below which they come from elsewhere than the prior.
"""


class Weighting(NamedTuple):
    """Weights of the simulations.

    Attributes:
        weights: `(m,)`, of any sign and total.
        distances: Of the simulations from the observation, `(m,)`, as `Weigher.apart` measures them.
        info: What a person reads.
    """

    weights: np.ndarray
    distances: np.ndarray
    info: Mapping[str, Any]


@dataclass(frozen=True)
class Weigher(abc.ABC):
    """What an engine has learnt to weight simulations by; frozen.

    Attributes:
        table: The simulations.
    """

    table: ReferenceTable

    def at(self, y: np.ndarray) -> Self:
        """The same for one observation, where it measures by it."""
        return self

    @abc.abstractmethod
    def weigh(self, y: np.ndarray) -> Weighting:
        """Weights of the simulations given an observation, read as a row of `table.x`, and their distances from it."""

    @abc.abstractmethod
    def apart(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """How far rows `(k, *event)` of `table.x` are from such rows `(s, *event)`, `(s, k)`."""

    @property
    def num_compared(self) -> int:
        """How many simulations are compared with one another."""
        return min(COMPARED, len(self.table))

    @cached_property
    def between(self) -> np.ndarray:
        """Distances of some simulations from one another, `(k, k)`."""
        some = self.table.x[np.linspace(0, len(self.table) - 1, self.num_compared).astype(int)]
        return self.apart(some, some)


class LearntWeigher(NamedTuple):
    """What a weighting engine keeps for other observations.

    Attributes:
        simulations: As they were made.
        weigher: What was learnt from them, without the draws that the observation masked.
        fit_key: Its key: for another mask it is learnt again.
    """

    simulations: Simulations
    weigher: Weigher
    fit_key: jax.Array


class WeightedEngine(Engine):
    """Base of the engines that weight simulations from the prior; a subclass makes a `Weigher` in `_fit`."""

    advice: str
    """What to do where the effective sample size is too small."""
    measure: str
    """What `Weigher.apart` measures."""
    from_anywhere = False
    """Whether simulations may come from elsewhere than the prior."""

    def __init__(self, model: Callable, plan: Plan, num_samples: int):
        super().__init__(model)
        checks.whole("num_simulations", plan.num_simulations, 20, " Thousands are usual.")
        checks.whole("num_samples", num_samples, 1)
        self.plan, self.num_samples = plan, num_samples

    @abc.abstractmethod
    def _fit(self, rng_key: jax.Array, problem: Problem, table: ReferenceTable) -> Weigher:
        """Learn what does not depend on the observation."""

    def _infer(self, rng_key, args, kwargs):
        simulate_key, coordinates_key, fit_key, sample_key = jax.random.split(rng_key, 4)
        problem = Problem.read(self.model, *args, **kwargs)
        self._check(problem)
        simulations = self.plan.simulate(simulate_key, problem)
        check_simulations(problem, simulations)
        coordinates = Coordinates.from_prior(coordinates_key, problem)
        if self.plan.simulations is not None and not self.from_anywhere:
            self._check_prior(jax.random.fold_in(coordinates_key, 1), problem, simulations, coordinates)
        weigher = self._fit(fit_key, problem, ReferenceTable.read(coordinates, problem, simulations))
        learnt = LearntWeigher(simulations, weigher, fit_key)
        return Trained(self._settings(), problem, learnt), self._posterior(sample_key, problem, learnt)

    def _check(self, problem: Problem) -> None:
        """That this engine can infer from a model, before anything is simulated."""
        check_model(problem, type(self).__name__)

    def _check_prior(self, rng_key, problem: Problem, simulations: Simulations, coordinates: Coordinates) -> None:
        """That given simulations could be draws from the prior, by two-sample Kolmogorov-Smirnov tests of their
        coordinates."""
        site = problem.site()
        drawn = problem.draw(rng_key, PRIOR_DRAWS).arguments
        given, own = (arguments_to_coordinates(coordinates, table[site]).T for table in (simulations.arguments, drawn))
        tests = [stats.ks_2samp(z, prior) for z, prior in zip(given, own)]
        worst = min(range(len(tests)), key=lambda d: tests[d].pvalue)
        checks.require(
            tests[worst].pvalue * len(tests) > UNLIKELY,
            f"`simulations` are not draws from the prior of this model: {coordinates.names[worst]} has a "
            f"Kolmogorov-Smirnov distance of {tests[worst].statistic:.2f} from it (p-value {tests[worst].pvalue:.1g}), "
            f"and {type(self).__name__} takes them for such. Use KernelBayes or KELFI, which take simulations made "
            "anywhere, or a model with the prior they came from.",
        )

    def _condition(self, rng_key, problem, learnt: LearntWeigher):
        """With the same simulations; where the new observation has another mask, learnt again for the draws that
        count."""
        self._check(problem)
        table = learnt.weigher.table
        if not np.array_equal(problem.simulators[problem.site()].mask.ravel(), table.mask):
            table = ReferenceTable.read(table.coordinates, problem, learnt.simulations)
            learnt = learnt._replace(weigher=self._fit(learnt.fit_key, problem, table))
        return self._posterior(rng_key, problem, learnt)

    def _posterior(self, rng_key, problem: Problem, learnt: LearntWeigher) -> WeightedPosterior:
        table = learnt.weigher.table
        y = table.point(problem.observations[problem.site()])
        weigher = learnt.weigher.at(y)
        found = weigher.weigh(y)
        weights, info = self._normalise(found, learnt.simulations)
        _warn_of_variances(table, weights)
        self._warn_if_out_of_distribution(weigher, found.distances)
        chosen = choose(rng_key, table.z, weights, self.num_samples)
        sites = {name: np.asarray(value) for name, value in {**table.latents, **table.deterministics}.items()}
        weighted = {name: value[None] for name, value in {**sites, "weight": weights}.items()}
        return WeightedPosterior(
            engine=type(self).__name__,
            samples={name: value[chosen] for name, value in sites.items()},
            groups={
                **groups(replace(learnt.simulations, latents=table.latents), problem),
                "weighted_posterior": weighted,
            },
            info=info,
            problem=problem,
            simulations=learnt.simulations,
            table=table,
            weights=weights,
        )

    def _normalise(self, found: Weighting, simulations: Simulations) -> tuple[np.ndarray, dict[str, Any]]:
        """Weights with a sum of one, checked to be a posterior."""
        name = type(self).__name__
        weights = with_unit_sum(found.weights, name, self.advice)
        effective = weighting.effective_sample_size(weights)
        if effective < LEAST_EFFECTIVE_SIZE - ROUNDING:
            raise EffectiveSampleSizeError(
                f"{name}: the effective sample size is {effective:.1f} of {len(weights)} simulations, below "
                f"{LEAST_EFFECTIVE_SIZE:.0f}: this is not a posterior. {self.advice}"
            )
        info: dict[str, Any] = {"simulations": len(weights), **found.info, "effective sample size": effective}
        if (weights < 0).any():
            info["negative share of weights"] = float(-weights[weights < 0].sum() / np.abs(weights).sum())
        if simulations.failures:
            info["simulations that failed"] = simulations.describe_failures()
        return weights, info

    def _warn_if_out_of_distribution(self, weigher: Weigher, distances: np.ndarray) -> None:
        """An effective sample size does not see that all simulations are far."""
        found = out_of_distribution_check(distances, weigher.between)
        if found.is_out_of_distribution:
            checks.warn(
                f"{type(self).__name__}: the observation lies away from the simulations. The nearest of them, a share "
                f"of {found.proportion:.2g}, are up to {found.nearest:.4g} from it, and simulations are up to "
                f"{found.threshold:.4g} from one another ({self.measure}). The weights say which are least far, not "
                "what the parameters are. Check the observation and the simulator, or use a prior under which such "
                "data occur.",
            )


def fewer_compared(m: int) -> int:
    """So many that comparing them with one another costs half of what comparing `m` simulations with the observation
    does."""
    return int(np.clip(np.sqrt(m / 2), 10, 50))


def _warn_of_variances(table: ReferenceTable, weights: np.ndarray) -> None:
    """Signed weights can give variances that no distribution has."""
    variances = weights @ np.square(table.z - weights @ table.z)
    negative = [name for name, value in zip(table.coordinates.names, variances) if value <= 0]
    if negative:
        checks.warn(
            f"Under the signed weights the variance of {', '.join(negative)} is negative: means may be right, and "
            "nothing finer. Use more simulations, or another regularisation.",
        )
