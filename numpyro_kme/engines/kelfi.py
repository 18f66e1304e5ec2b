"""KELFI: kernel embedding likelihood-free inference."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.scipy.special import logsumexp

from numpyro_kme import _checks, _linalg, handlers
from numpyro_kme.coordinates import Coordinates
from numpyro_kme.engines import _sampling
from numpyro_kme.engines._base import Engine, Result
from numpyro_kme.kernel_means.base import Form
from numpyro_kme.kernel_means.distribution import FittedLikelihood, fit_likelihood
from numpyro_kme.measures import Measure, NormalMixture, Points
from numpyro_kme.problem import Problem
from numpyro_kme.simulations import Simulations, simulate
from numpyro_kme.unconstrained import Unconstrained

PRIOR_DRAWS = 4000
"""Prior draws that stand in for a prior whose law in coordinates is not known."""


class KELFI(Engine):
    r"""Kernel embedding likelihood-free inference: a posterior from a few hundred simulations.

    The likelihood of the simulator is learnt as a kernel mean embedding,
    $q(y \mid \theta) = \kappa_\epsilon(y)^\top (L + m \lambda I)^{-1} \ell(\theta)$, with hyperparameters
    learnt by leave-one-out prediction of the simulations. It does not depend on the observation, so `condition`
    serves a new one without simulating or learning again.

    Args:
        model: A NumPyro model with observed `Simulator` sites; other likelihoods and factors may stand beside them.
        num_simulations: Number `m` of simulations at draws from the prior.
        num_samples: Number of equally weighted posterior draws.
        form: Form and settings of the surrogate, `KernelMeans()` or `ResidualKernelMeans()`.
        simulations: Simulations made elsewhere, instead of new ones (`Simulations`).
        on_failure: What to do when a simulation fails, as in `simulate`.
        progress_bar: Whether to show the progress of the simulations.
    Attributes:
        problem: What the model consists of.
        simulations: The simulations that were used.
        likelihoods: The learnt likelihood of each simulator site, for `handlers.surrogate`.
    References:
        Hsu and Ramos (2019), AISTATS.
    """

    def __init__(
        self,
        model: Callable,
        num_simulations: int = 300,
        *,
        num_samples: int = 1000,
        form: Form | None = None,
        simulations: Simulations | None = None,
        on_failure: Any = "raise",
        progress_bar: bool = True,
    ):
        super().__init__(model)
        _checks.require(
            num_simulations >= 2, f"`num_simulations` must be at least 2; got {num_simulations}. Some hundreds are usual."
        )
        _checks.require(num_samples >= 1, f"`num_samples` must be at least 1; got {num_samples}.")
        self.num_simulations, self.num_samples = num_simulations, num_samples
        self.form, self.on_failure, self.progress_bar = form, on_failure, progress_bar
        self._given = simulations

    def _infer(self, rng_key, args, kwargs):
        simulate_key, fit_key, sample_key = jax.random.split(rng_key, 3)
        self.problem = Problem.read(self.model, *args, **kwargs)
        observations = self.problem.observations
        self.simulations = self._given or simulate(
            simulate_key,
            self.problem,
            self.num_simulations,
            on_failure=self.on_failure,
            progress_bar=self.progress_bar,
        )
        self.measures, self.likelihoods = {}, {}
        for site, y in observations.items():
            coordinates = Coordinates.from_prior(fit_key, self.problem, site)
            self.measures[site] = self._measure(fit_key, site, coordinates)
            theta, x = _training_table(self.simulations, self.problem, site)
            self.likelihoods[site] = fit_likelihood(
                theta, x, form=self.form, coordinates=coordinates, measure=self.measures[site], y=y
            )
        return self._sample(sample_key)

    def condition(self, rng_key: jax.Array, *args, **kwargs) -> None:
        """Infer from another observation, with the simulations and the learnt likelihood of the last `run`.

        Args:
            rng_key: The only source of randomness.
            *args: Positional arguments of the model.
            **kwargs: Keyword arguments of the model, with the new observation.
        """
        _ = self.result
        self.problem = Problem.read(self.model, *args, **kwargs)
        self._result = self._sample(rng_key)

    def _measure(self, rng_key, site: str, coordinates: Coordinates) -> Measure:
        """The prior in coordinates: exact where its law is known, otherwise prior draws."""
        if coordinates.exact:
            return NormalMixture(*coordinates.mixture)
        arguments = self.problem.draw(rng_key, PRIOR_DRAWS).arguments[site]
        rows = arguments.reshape(-1, arguments.shape[-1]).astype(np.float64)
        with _linalg.float64():
            return Points(np.asarray(jax.vmap(coordinates.forward)(rows)))

    def _sample(self, rng_key) -> Result:
        site = next(iter(self.likelihoods))
        fitted = self.likelihoods[site]
        if self._plain and fitted.coordinates.exact and fitted.coordinates.one_to_one:
            likelihood = fitted.surrogate.at(self._flat_observation(site))
            drawn = _sampling.in_coordinates(
                rng_key, likelihood, self.measures[site], fitted.coordinates, self.num_samples
            )
        else:
            drawn = _sampling.in_model(rng_key, self._target(), self.problem, self.num_samples)
        self._drawn = drawn
        return Result(
            samples={**drawn.latents, **self.problem.evaluate(drawn.latents).deterministics},
            fields={"lp": drawn.log_posterior},
            groups=_groups(self.simulations, self.problem),
            info=self._describe(drawn),
        )

    @property
    def _plain(self) -> bool:
        """One simulator site, one observation of it, and no other likelihood."""
        sites = self.problem.simulators
        return len(sites) == 1 and not self.problem.likelihoods and not any(s.plates for s in sites.values())

    def _flat_observation(self, site: str) -> np.ndarray:
        return np.asarray(self.problem.observations[site], np.float64).reshape(-1)

    def _target(self) -> Unconstrained:
        model = handlers.surrogate(self.model, self.likelihoods)
        latents = {name: latent.value for name, latent in self.problem.latents.items()}
        return Unconstrained.read(model, self.problem.args, self.problem.kwargs, latents)

    def _describe(self, drawn) -> dict[str, Any]:
        info: dict[str, Any] = {"simulations": len(next(iter(self.simulations.latents.values())))}
        for site, fitted in self.likelihoods.items():
            prefix = f"{site}: " if len(self.likelihoods) > 1 else ""
            info |= {prefix + "coordinates": fitted.coordinates.note}
            info |= {prefix + name: value for name, value in fitted.surrogate.describe().items()}
        return info | dict(drawn.info) | {"log marginal likelihood": drawn.log_evidence}
