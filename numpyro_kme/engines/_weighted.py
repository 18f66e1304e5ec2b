"""What engines share whose result is a weighting of simulations from the prior, with weights of one sign or of both."""

import abc
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

from numpyro_kme._core import checks
from numpyro_kme._core.checks import EffectiveSampleSizeError
from numpyro_kme._core.host import on_host
from numpyro_kme.abc import weighting
from numpyro_kme.abc.weighting import LEAST_EFFECTIVE_SIZE, with_unit_sum
from numpyro_kme.embeddings.herding import herd
from numpyro_kme.embeddings.kernel_bayes import pre_image
from numpyro_kme.embeddings.means import MeanEmbedding
from numpyro_kme.engines._bank import Bank, LatentVectors, arguments_to_coordinates, check_model
from numpyro_kme.engines._base import Engine, Result
from numpyro_kme.engines._tables import check_bank, groups, observed_anew
from numpyro_kme.kernels import Gaussian
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.samplers.importance import systematic
from numpyro_kme.simulations import Simulations, simulate
from numpyro_kme.simulations.failures import OnFailure

COMPARED = 200
"""Simulations that are compared with one another, where that is cheap."""
PRIOR_DRAWS, UNLIKELY = 1000, 1e-6
"""Draws that given simulations are compared with, and the p-value below which they come from elsewhere than the prior."""


class Weighting(NamedTuple):
    """Weights of the simulations.

    Attributes:
        weights: `(m,)`, of any sign and total.
        distances: Of the simulations from the observation, `(m,)`, as `_apart` measures them.
        info: What a person reads.
    """

    weights: np.ndarray
    distances: np.ndarray
    info: Mapping[str, Any]


class WeightedEngine(Engine):
    """Base of the engines that weight simulations from the prior.

    A subclass prepares what does not depend on the observation in `_fit`, and gives weights in `_weigh`.
    """

    advice: str
    """What to do where the effective sample size is too small."""
    measure: str
    """What `_apart` measures."""
    from_anywhere = False
    """Whether simulations may come from elsewhere than the prior."""

    def __init__(
        self,
        model: Callable,
        num_simulations: int = 1000,
        *,
        num_samples: int = 1000,
        simulations: Simulations | None = None,
        on_failure: OnFailure = "raise",
        progress_bar: bool = True,
    ):
        super().__init__(model)
        checks.whole("num_simulations", num_simulations, 20, " Thousands are usual.")
        checks.whole("num_samples", num_samples, 1)
        checks.instance("simulations", simulations, Simulations | None, "a bank of simulations (Simulations)")
        self.num_simulations, self.num_samples = num_simulations, num_samples
        self.on_failure, self.progress_bar, self._given = on_failure, progress_bar, simulations

    @abc.abstractmethod
    def _fit(self, rng_key: jax.Array, bank: Bank) -> None:
        """Prepare what does not depend on the observation."""

    @abc.abstractmethod
    def _weigh(self, bank: Bank, y: np.ndarray) -> Weighting:
        """Weights of the simulations given an observation, read as a row of `bank.x`, and their distances from it."""

    @abc.abstractmethod
    def _apart(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """How far rows `(k, *event)` of `bank.x` are from such rows `(s, *event)`, `(s, k)`, as this engine compares them."""

    def _infer(self, rng_key, args, kwargs):
        simulate_key, coordinates_key, fit_key, sample_key = jax.random.split(rng_key, 4)
        self.problem = self._checked(Problem.read(self.model, *args, **kwargs))
        self.simulations = self._given
        if self.simulations is None:
            self.simulations = simulate(
                simulate_key,
                self.problem,
                self.num_simulations,
                on_failure=self.on_failure,
                progress_bar=self.progress_bar,
            )
        check_bank(self.problem, self.simulations)
        coordinates = Coordinates.from_prior(coordinates_key, self.problem)
        if self._given is not None and not self.from_anywhere:
            self._check_prior(jax.random.fold_in(coordinates_key, 1), coordinates)
        self._prepare(coordinates, fit_key)
        return self._condition(sample_key)

    def _check_prior(self, rng_key, coordinates: Coordinates) -> None:
        """That given simulations could be draws from the prior, by two-sample Kolmogorov-Smirnov tests of their coordinates."""
        site = self.problem.site()
        drawn = self.problem.draw(rng_key, PRIOR_DRAWS).arguments
        given, own = (
            arguments_to_coordinates(coordinates, table[site]).T for table in (self.simulations.arguments, drawn)
        )
        tests = [stats.ks_2samp(z, prior) for z, prior in zip(given, own)]
        worst = min(range(len(tests)), key=lambda d: tests[d].pvalue)
        checks.require(
            tests[worst].pvalue * len(tests) > UNLIKELY,
            f"`simulations` are not draws from the prior of this model: {coordinates.names[worst]} has a Kolmogorov-Smirnov distance "
            f"of {tests[worst].statistic:.2f} from it (p-value {tests[worst].pvalue:.1g}), and {type(self).__name__} takes them for "
            "such. Use KernelBayes or KELFI, which take simulations made anywhere, or a model with the prior they came from.",
        )

    def _prepare(self, coordinates: Coordinates, fit_key) -> None:
        """What depends on the observation by its mask alone."""
        self._bank, self._fit_key = Bank.read(coordinates, self.problem, self.simulations), fit_key
        self._between: np.ndarray | None = None
        self._fit(fit_key, self._bank)

    def _infer_again(self, rng_key, args, kwargs):
        """With the simulations of the last run; where the new observation has another mask, factorised again for the
        draws that count."""
        self.problem = self._checked(observed_anew(self.problem, args, kwargs))
        if not np.array_equal(self.problem.simulators[self.problem.site()].mask.ravel(), self._bank.mask):
            self._prepare(self._bank.coordinates, self._fit_key)
        return self._condition(rng_key)

    def _checked(self, problem: Problem) -> Problem:
        """A model that this engine can infer from, said before anything is simulated."""
        check_model(problem, type(self).__name__)
        return problem

    def _condition(self, rng_key) -> Result:
        bank, site = self._bank, self.problem.site()
        y = bank.point(self.problem.observations[site])
        found = self._weigh(bank, y)
        weights, info = self._normalise(found)
        _warn_of_variances(bank, weights)
        self._warn_of_remoteness(bank, found.distances)
        chosen = self._choose(rng_key, bank, weights)
        self._weights = weights
        table = {name: np.asarray(value) for name, value in {**bank.latents, **bank.deterministics}.items()}
        weighted = {name: value[None] for name, value in {**table, "weight": weights}.items()}
        return Result(
            samples={name: value[chosen] for name, value in table.items()},
            groups={
                **groups(replace(self.simulations, latents=bank.latents), self.problem),
                "weighted_posterior": weighted,
            },
            info=info,
        )

    def _normalise(self, found: Weighting) -> tuple[np.ndarray, dict[str, Any]]:
        """Weights with a sum of one, checked to be a posterior."""
        name = type(self).__name__
        weights = with_unit_sum(found.weights, name, self.advice)
        effective = weighting.effective_sample_size(weights)
        if effective < LEAST_EFFECTIVE_SIZE:
            raise EffectiveSampleSizeError(
                f"{name}: the effective sample size is {effective:.1f} of {len(weights)} simulations, below "
                f"{LEAST_EFFECTIVE_SIZE:.0f}: this is not a posterior. {self.advice}"
            )
        info: dict[str, Any] = {"simulations": len(weights), **found.info, "effective sample size": effective}
        if (weights < 0).any():
            info["negative share of weights"] = float(-weights[weights < 0].sum() / np.abs(weights).sum())
        if self.simulations.failures:
            info["simulations that failed"] = self.simulations.describe_failures()
        return weights, info

    def _num_compared(self, m: int) -> int:
        """How many of `m` simulations are compared with one another."""
        return min(COMPARED, m)

    def _warn_of_remoteness(self, bank: Bank, distances: np.ndarray) -> None:
        """An effective sample size does not see that all simulations are far."""
        if self._between is None:
            some = bank.x[np.linspace(0, len(bank) - 1, self._num_compared(len(bank))).astype(int)]
            self._between = self._apart(some, some)
        found = weighting.remoteness(distances, self._between)
        if found.is_far:
            warnings.warn(
                f"{type(self).__name__}: the observation lies away from the simulations. The nearest of them, a share of "
                f"{found.share:.2g}, are up to {found.nearest:.4g} from it, and simulations are up to {found.usual:.4g} from one "
                f"another ({self.measure}). The weights say which are least far, not what the parameters are. Check the "
                "observation and the simulator, or use a prior under which such data occur.",
                stacklevel=5,
            )

    def _choose(self, rng_key, bank: Bank, weights: np.ndarray) -> np.ndarray:
        """Indices of equally weighted simulations: systematic resampling, or herding where weights are signed."""
        if (weights >= 0).all():
            return systematic(rng_key, weights, self.num_samples)
        kernel = _kernel(bank.z, weights, 1.0 / 3.0)
        values = on_host(MeanEmbedding.__call__)(MeanEmbedding(kernel, bank.z, weights), bank.z)
        return np.asarray(herd(values, kernel, bank.z, self.num_samples))

    def get_weights(self) -> dict[str, np.ndarray]:
        """The weighted set: every simulation's latents `{site: (m, *shape)}`, and under `"weight"` weights that sum to one.

        Some methods give weights of both signs.
        """
        return {name: value[0] for name, value in self.result.groups["weighted_posterior"].items()}

    def expectation(self, function: Callable[[Mapping[str, np.ndarray]], Any]) -> np.ndarray:
        """Posterior expectation by the weights, `sum_i w_i f(theta_i)`; more exact than an average of `get_samples`.

        Args:
            function: Maps `{site: (m, *shape)}`, all simulations at once, to `(m, *event)`.
        Returns:
            `(*event)`.
        """
        values = np.asarray(function({name: value for name, value in self.get_weights().items() if name != "weight"}))
        checks.require(
            values.shape[:1] == self._weights.shape,
            f"`function` must give {len(self._weights)} rows, one for each simulation; it gave shape {values.shape}.",
        )
        return np.tensordot(self._weights, values, axes=1)

    def pre_image(self) -> dict[str, np.ndarray]:
        """Point estimate, `{site: (*shape)}`: the mode of the weights smoothed by a Gaussian kernel in coordinates.

        The kernel is as wide as the posterior in each coordinate, from its largest weights. Where the simulator's arguments do not
        determine the latents, as under a Dirichlet or a hierarchical prior, the coordinates are those of all latents, mapped to
        vectors without constraints.
        """
        _ = self.result
        bank, weights = self._bank, self._weights
        one_to_one = bank.coordinates.one_to_one
        vectors = None if one_to_one else LatentVectors.read(self.problem, bank.latents)
        z = bank.z if vectors is None else vectors.table(bank.latents)
        found = pre_image(MeanEmbedding(_kernel(z, weights, 1.0), z, weights))
        if vectors is None:
            return on_host(Coordinates.latents)(bank.coordinates, found)
        return {name: np.asarray(value[0]) for name, value in vectors.latents(found[None]).items()}


def fewer_compared(m: int) -> int:
    """So many that comparing them with one another costs half of what comparing `m` simulations with the observation does."""
    return int(np.clip(np.sqrt(m / 2), 10, 50))


def _warn_of_variances(bank: Bank, weights: np.ndarray) -> None:
    """Signed weights can give variances that no distribution has."""
    variances = weights @ np.square(bank.z - weights @ bank.z)
    negative = [name for name, value in zip(bank.coordinates.names, variances) if value <= 0]
    if negative:
        warnings.warn(
            f"Under the signed weights the variance of {', '.join(negative)} is negative: means may be right, and nothing finer. "
            "Use more simulations, or another regularisation.",
            stacklevel=5,
        )


def _kernel(z: np.ndarray, weights: np.ndarray, share: float) -> Gaussian:
    """As wide as a share of the standard deviations of the positive part of the weights."""
    positive = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    deviation = np.sqrt(positive @ np.square(z - positive @ z))
    return Gaussian(share * np.maximum(deviation, 1e-8))
