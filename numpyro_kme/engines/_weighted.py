"""What engines share whose result is a weighting of simulations from the prior, with weights of one sign or of both."""

import abc
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_kme import _checks, _linalg
from numpyro_kme._checks import EffectiveSampleSizeError
from numpyro_kme.coordinates import Coordinates
from numpyro_kme.embeddings import MeanEmbedding
from numpyro_kme.engines._bank import Bank, check_model
from numpyro_kme.engines._base import Engine, Result
from numpyro_kme.engines._tables import groups
from numpyro_kme.herding import herd
from numpyro_kme.kernel_bayes import pre_image
from numpyro_kme.kernel_means.candidates import systematic
from numpyro_kme.kernels import Gaussian
from numpyro_kme.problem import Problem
from numpyro_kme.simulations import Simulations, simulate
from numpyro_kme.simulations.failures import OnFailure

LEAST_EFFECTIVE_SIZE = 10.0


class Weighting(NamedTuple):
    """Weights of the simulations.

    Attributes:
        weights: `(m,)`, of any sign and total.
        info: What a person reads.
    """

    weights: np.ndarray
    info: Mapping[str, Any]


class WeightedEngine(Engine):
    """Base of the engines that weight simulations from the prior.

    A subclass prepares what does not depend on the observation in `_fit`, and gives weights in `_weigh`.
    """

    advice: str
    """What to do where the effective sample size is too small."""

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
        _checks.whole("num_simulations", num_simulations, 20, " Thousands are usual.")
        _checks.whole("num_samples", num_samples, 1)
        _checks.instance("simulations", simulations, Simulations | None, "a bank of simulations (Simulations)")
        self.num_simulations, self.num_samples = num_simulations, num_samples
        self.on_failure, self.progress_bar, self._given = on_failure, progress_bar, simulations

    @abc.abstractmethod
    def _fit(self, rng_key: jax.Array, bank: Bank) -> None:
        """Prepare what does not depend on the observation."""

    @abc.abstractmethod
    def _weigh(self, bank: Bank, y: np.ndarray) -> Weighting:
        """Weights of the simulations given an observation, read as a row of `bank.x`."""

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
        coordinates = Coordinates.from_prior(coordinates_key, self.problem)
        self._bank = Bank.read(coordinates, self.problem, self.simulations)
        self._fit(fit_key, self._bank)
        return self._condition(sample_key)

    def condition(self, rng_key: jax.Array, *args, **kwargs) -> None:
        """Infer from another observation, with the simulations and whatever was factorised in the last `run`.

        Args:
            rng_key: The only source of randomness.
            *args: Positional arguments of the model.
            **kwargs: Keyword arguments of the model, with the new observation.
        """
        _ = self.result
        before, self.problem = self.problem, self._checked(self.problem.with_data(*args, **kwargs))
        try:
            self._result = self._condition(rng_key)
        except Exception:
            self.problem = before
            raise

    def _checked(self, problem: Problem) -> Problem:
        check_model(problem, type(self).__name__)
        return problem

    def _condition(self, rng_key) -> Result:
        bank, site = self._bank, self.problem.site()
        found = self._weigh(bank, bank.point(self.problem.observations[site]))
        weights, info = self._normalise(found)
        _warn_of_variances(bank, weights)
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
        effective = 1.0 / float(np.sum(np.square(weights)))
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

    def _choose(self, rng_key, bank: Bank, weights: np.ndarray) -> np.ndarray:
        """Indices of equally weighted simulations: systematic resampling, or herding where weights are signed."""
        if (weights >= 0).all():
            return systematic(rng_key, weights, self.num_samples)
        kernel = _kernel(bank, weights, 1.0 / 3.0)
        values = _linalg.on_host(MeanEmbedding.__call__, MeanEmbedding(kernel, bank.z, weights), bank.z)
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
        _checks.require(
            values.shape[:1] == self._weights.shape,
            f"`function` must give {len(self._weights)} rows, one for each simulation; it gave shape {values.shape}.",
        )
        return np.tensordot(self._weights, values, axes=1)

    def pre_image(self) -> dict[str, np.ndarray]:
        """Point estimate, `{site: (*shape)}`: the mode of the weights smoothed by a Gaussian kernel in coordinates.

        The kernel is as wide as the posterior in each coordinate, from its largest weights.

        Raises:
            ValueError: If the coordinates of the simulator's arguments do not determine the latents.
        """
        _ = self.result
        bank, weights = self._bank, self._weights
        z = pre_image(MeanEmbedding(_kernel(bank, weights, 1.0), bank.z, weights))
        return _linalg.on_host(bank.coordinates.latents, z)


def with_unit_sum(weights: np.ndarray, name: str, advice: str) -> np.ndarray:
    """Weights divided by their sum, unless they vanish or cancel.

    Raises:
        EffectiveSampleSizeError: If they do.
    """
    weights = np.asarray(weights, np.float64)
    total, size = float(weights.sum()), float(np.abs(weights).sum())
    if not (np.isfinite(size) and size > 0):
        raise EffectiveSampleSizeError(
            f"{name}: the weights of all {len(weights)} simulations are zero: none comes near the observation. {advice}"
        )
    if total <= 1e-6 * size:
        raise EffectiveSampleSizeError(
            f"{name}: the signed weights sum to {total:.2g} where their sizes sum to {size:.2g}, so they are no posterior: "
            f"the observation lies away from the simulations, or the regularisation is too small. {advice}"
        )
    return weights / total


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


def _kernel(bank: Bank, weights: np.ndarray, share: float) -> Gaussian:
    """As wide as a share of the standard deviations of the positive part of the weights."""
    positive = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    deviation = np.sqrt(positive @ np.square(bank.z - positive @ bank.z))
    return Gaussian(share * np.maximum(deviation, 1e-8))
