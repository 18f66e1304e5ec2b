"""What one reads from a likelihood that an engine has learnt: densities, the mode, predictions, relevance, super-samples."""

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme._core.programs import Program
from numpyro_kme.embeddings.herding import herd
from numpyro_kme.embeddings.measures import Measure, Normal
from numpyro_kme.engines import _sampling
from numpyro_kme.engines._base import Engine
from numpyro_kme.likelihoods.distribution import FittedLikelihood, too_far
from numpyro_kme.likelihoods.posterior import KernelMeansPosterior
from numpyro_kme.mcmc import handlers
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.unconstrained import Unconstrained
from numpyro_kme.samplers.importance import log_densities
from numpyro_kme.simulations import Simulations

HERDING_CANDIDATES = 4096


class LearntLikelihood(Engine):
    """An engine that has learnt the likelihood of each simulator site; a subclass learns and samples.

    Attributes:
        problem: What the model consists of.
        simulations: The simulations that were used.
        likelihoods: The learnt likelihood of each simulator site, for `handlers.surrogate`.
        measures: The prior of each simulator's coordinates.
        learn_prior: Whether the prior was learnt too.
    """

    problem: Problem
    simulations: Simulations
    likelihoods: dict[str, FittedLikelihood]
    measures: dict[str, Measure]
    learn_prior: bool
    _drawn: _sampling.Drawn

    @property
    def _plain(self) -> bool:
        """One simulator site, one observation of it, neither masked nor scaled, and no other likelihood."""
        sites = self.problem.simulators
        plain = not any(site.plates or site.weighted for site in sites.values())
        return len(sites) == 1 and not self.problem.likelihoods and plain

    def _observation(self, site: str) -> np.ndarray:
        return np.asarray(self.problem.observations[site], np.float64)

    def _target(self) -> Unconstrained:
        model = handlers.surrogate(self.model, self.likelihoods)
        latents = {name: latent.value for name, latent in self.problem.latents.items()}
        return Unconstrained.read(model, self.problem.args, self.problem.kwargs, latents)

    def _describe(self, drawn) -> dict[str, Any]:
        info: dict[str, Any] = {"simulations": len(self.simulations)}
        for site, fitted in self.likelihoods.items():
            prefix = f"{site}: " if len(self.likelihoods) > 1 else ""
            info |= {prefix + "coordinates": fitted.coordinates.note}
            info |= {prefix + name: value for name, value in fitted.surrogate.describe().items()}
            if not (self.problem.simulators[site].plates or self.problem.simulators[site].weighted):
                place = fitted.surrogate.describe_observation(fitted.surrogate.point(self._observation(site)))
                info |= {prefix + "observation": place} if place else {}
            share = float(np.mean(self._beyond(site, drawn.latents)))
            info[prefix + "parameters"] = (
                f"{share:.2%} of the draws lie beyond the simulated parameters: no simulation supports the likelihood "
                "there"
                if share
                else "all draws within the simulated parameters"
            )
        for site, measure in self.measures.items():
            if self.learn_prior:
                mean, covariance = measure.moments()
                info[f"prior mean of {site}"] = np.asarray(mean)
                info[f"prior sd of {site}"] = np.sqrt(np.diagonal(covariance))
        if self.simulations.failures:
            info["simulations that failed"] = self.simulations.describe_failures()
        info |= drawn.info
        with suppress(ValueError):
            for fitted in self.likelihoods.values():
                fitted.surrogate.require_density()
            info["log marginal likelihood"] = drawn.log_evidence
        return info

    @property
    def posterior(self) -> KernelMeansPosterior:
        """The posterior in the coordinates of the one simulator site, with its embedding, moments and predictions.

        Raises:
            ValueError: If other likelihoods, plates or simulator sites stand beside it, or it is masked or scaled.
        """
        _ = self.result
        checks.require(
            self._plain,
            "The posterior in coordinates needs a model with one simulator site and nothing else that is observed; "
            f"this one has the simulator sites {list(self.problem.simulators)}, of which "
            f"{[name for name, site in self.problem.simulators.items() if site.plates or site.weighted]} stand in "
            f"plates or are masked or scaled, and the likelihoods {list(self.problem.likelihoods)}. Use the draws.",
        )
        site = self.problem.site()
        surrogate = self.likelihoods[site].surrogate
        return KernelMeansPosterior(surrogate, surrogate.point(self._observation(site)), self.measures[site])

    def log_density(self, latents: Mapping[str, Any]) -> np.ndarray:
        r"""Log of the kernel means posterior density $q(\theta \mid y) = q(y \mid \theta) p(\theta) / q(y)$.

        Args:
            latents: `{site: (n, *shape)}`, for all latents.
        Returns:
            `(n,)`; minus infinity where a signed surrogate is negative. Where other likelihoods, plates, masks or
            scales stand beside the simulator, the density that was sampled, over its estimated mass.
        """
        _ = self.result
        log_prior = np.asarray(self.problem.log_prior(latents), np.float64)
        if not self._plain:
            return self._log_joint(latents) - self._drawn.log_evidence
        z = self._coordinates_of(latents)
        sign, log_ratio = self.posterior.signed_log_density(z)
        if self.learn_prior:
            log_prior += _log_densities(self.posterior.measure, z) - _log_densities(Normal.standard(z.shape[1]), z)
        return np.where(sign > 0, log_ratio + log_prior, -np.inf)

    def beyond(self, latents: Mapping[str, Any]) -> np.ndarray:
        """Which latents lie beyond the simulated parameters of a simulator site, for one of its groups at least
        (`FittedLikelihood.beyond`).

        Args:
            latents: `{site: (n, *shape)}`, for all latents.
        Returns:
            `(n,)`.
        """
        _ = self.result
        sites = [self._beyond(site, latents) for site in self.likelihoods]
        return np.any([found.reshape(len(found), -1).any(axis=1) for found in sites], axis=0)

    def _warn_if_beyond(self) -> None:
        """Warn of draws beyond the simulated parameters, at the end: a round that others follow may be far out."""
        for site, fitted in self.likelihoods.items():
            share = float(np.mean(self._beyond(site, self._drawn.latents)))
            if share > fitted.negligible:
                warnings.warn(too_far(site, share), stacklevel=4)

    def _beyond(self, site: str, latents) -> np.ndarray:
        y, mask = self.problem.observations[site], self.problem.simulators[site].mask
        return self.likelihoods[site].beyond(y, self.problem.arguments(latents)[site], mask)

    @on_host
    def herd(self, rng_key: jax.Array, num_samples: int) -> dict[str, np.ndarray]:
        r"""Super-samples of the posterior, `{site: (num_samples, *shape)}`, by kernel herding of its embedding.

        Their averages of smooth functions of the parameters converge faster than those of independent draws. They follow
        the signed posterior, and come in the order in which herding finds them. The herding kernel is
        `posterior.herding_kernel()`, which is narrower than the posterior, and the candidates are
        `posterior.weighted_points`.

        Raises:
            ValueError: If the coordinates do not determine the latents, or other likelihoods stand beside the simulator.
        """
        checks.key(rng_key)
        posterior = self.posterior
        coordinates = self.likelihoods[self.problem.site()].coordinates
        kernel = posterior.herding_kernel()
        candidates = np.asarray(posterior.weighted_points(rng_key, max(HERDING_CANDIDATES, num_samples)).points)
        chosen = np.asarray(herd(posterior.embedding(kernel, candidates), kernel, candidates, num_samples))
        return coordinates.latents_table(candidates[chosen])

    def mode(self) -> dict[str, np.ndarray]:
        """The latents at the maximum of the posterior density, `{site: (*shape)}`, by L-BFGS from the best draws.

        Under a learnt prior the density is taken in coordinates.
        """
        _ = self.result
        if self.learn_prior:
            coordinates = self.likelihoods[self.problem.site()].coordinates
            return on_host(Coordinates.latents)(coordinates, self.posterior.mode())
        return _sampling.mode(self._target(), self._drawn.latents, self._drawn.log_posterior)

    def log_marginal_likelihood(self) -> float:
        """Log of `q(y)`, the prior mean of the learnt likelihood of the observation.

        In closed form (or over prior draws) for one simulator site; otherwise estimated by tempering, of what counts:
        masked outputs are left out, and `q` is raised to the power of the site's scale. Minus infinity if a signed
        surrogate has a negative mean.
        """
        _ = self.result
        if not self._plain:
            return self._drawn.log_evidence
        sign, log_size = self.posterior.log_marginal()
        return float(log_size) if sign > 0 else -np.inf

    def predictive_log_density(self, y_new: Any) -> np.ndarray:
        """Log predictive density of new observations given the one that was inferred from, `q(y* | y)`.

        Args:
            y_new: `(n, *event)`.
        Returns:
            `(n,)`, in units of the simulator's output; minus infinity where the signed surrogate's is negative.
        """
        posterior = self.posterior
        fitted = self.likelihoods[self.problem.site()]
        outputs = np.asarray(y_new, np.float64)
        checks.require(
            outputs.shape[1:] == fitted.event_shape,
            f"`y_new` must have shape (n, *{fitted.event_shape}); got {outputs.shape}.",
        )
        sign, log_size = posterior.predictive_log_density(np.stack([fitted.surrogate.point(y) for y in outputs]))
        return np.where(sign > 0, log_size, -np.inf)

    def relevance(self) -> dict[str, np.ndarray]:
        """How much each number of a simulator's output tells about the parameters, `{site: (*event)}`, in nats.

        The drop of the leave-one-out log posterior density of the simulated parameters when it is taken out (published
        form), or the information of its location about the coordinates (residual form).
        """
        _ = self.result
        return {site: f.surrogate.relevance().reshape(f.event_shape) for site, f in self.likelihoods.items()}

    def surrogate_variance(self, latents: Mapping[str, Any]) -> np.ndarray:
        """Variance of the surrogate at latents `{site: (n, *shape)}`, relative to far from all simulations, `(n,)`.

        It lies between 0 and 1, and says where further simulations would tell most.
        """
        _ = self.result
        return self._variance(latents)

    @on_host
    def _variance(self, latents) -> np.ndarray:
        surrogate = self.likelihoods[self.problem.site()].surrogate
        return np.asarray(surrogate.variance(self._coordinates_of(latents)))

    def _coordinates_of(self, latents) -> np.ndarray:
        site = self.problem.site()
        return self.likelihoods[site].coordinates.table(self.problem.arguments(latents)[site])

    @on_host
    def _log_joint(self, latents) -> np.ndarray:
        target = self._target()
        points = {name: np.asarray(v, np.float64) for name, v in latents.items()}
        terms = Program(jax.vmap(lambda point: target.terms(target.flatten(point))))(points)
        return np.asarray(terms.log_prior + terms.log_likelihood)


@on_host
def _log_densities(measure: Measure, z: np.ndarray) -> np.ndarray:
    return np.asarray(log_densities(measure, jnp.asarray(z)))
