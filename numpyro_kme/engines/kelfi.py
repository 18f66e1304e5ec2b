"""KELFI: kernel embedding likelihood-free inference."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import jax
import numpy as np

from numpyro_kme import _checks, _linalg, handlers
from numpyro_kme.coordinates import Coordinates
from numpyro_kme.engines import _sampling
from numpyro_kme.engines._base import Engine, Result
from numpyro_kme.engines._tables import check_sites, groups, training_table
from numpyro_kme.herding import herd
from numpyro_kme.kernel_means.base import Form
from numpyro_kme.kernel_means.distribution import FittedLikelihood, fit_likelihood
from numpyro_kme.kernel_means.hyperpriors import learn_normal
from numpyro_kme.kernel_means.posterior import KernelMeansPosterior
from numpyro_kme.measures import Measure, Normal, NormalMixture, Points
from numpyro_kme.problem import Problem
from numpyro_kme.simulations import Simulations, simulate
from numpyro_kme.unconstrained import Unconstrained

HERDING_CANDIDATES = 4096
PRIOR_DRAWS = 4000
"""Prior draws that stand in for a prior whose law in coordinates is not known."""


class KELFI(Engine):
    r"""Kernel embedding likelihood-free inference: a posterior from a few hundred simulations.

    The likelihood of the simulator is learnt as a kernel mean embedding: in the published form
    $q(y \mid \theta) = \kappa_\epsilon(y)^\top (L + m \lambda I)^{-1} \ell(\theta)$, by default the same of standardised residuals
    (`ResidualKernelMeans`), with hyperparameters learnt by leave-one-out prediction of the simulations. It does not depend
    on the observation, so `condition` serves a new one without simulating or learning again.

    Args:
        model: A NumPyro model with observed `Simulator` sites; other likelihoods and factors may stand beside them.
        num_simulations: Number `m` of simulations at draws from the prior.
        num_samples: Number of equally weighted posterior draws.
        form: Form and settings of the surrogate; `ResidualKernelMeans()` when left out. `KernelMeans()` is the published
            form: closed forms, data kernels on data sets and time series, `learn_prior`, `surrogate_variance`.
        simulations: Simulations made elsewhere, instead of new ones (`Simulations`).
        learn_prior: Whether the prior's mean and standard deviation in each coordinate are learnt too, by maximising the
            marginal likelihood $q(y)$ without simulating again (`learn_normal`). For a prior that is normal in the
            coordinates and determines them, and the published form.
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
        learn_prior: bool = False,
        on_failure: Any = "raise",
        progress_bar: bool = True,
    ):
        super().__init__(model)
        _checks.whole("num_simulations", num_simulations, 2, " Some hundreds are usual.")
        _checks.whole("num_samples", num_samples, 1)
        _checks.instance("form", form, Form | None, "KernelMeans(...), ResidualKernelMeans(...) or another form")
        _checks.instance("simulations", simulations, Simulations | None, "a bank of simulations (Simulations)")
        self.num_simulations, self.num_samples = num_simulations, num_samples
        self.form, self.on_failure, self.progress_bar = form, on_failure, progress_bar
        self.learn_prior, self._given = learn_prior, simulations

    def _infer(self, rng_key, args, kwargs):
        simulate_key, fit_key, sample_key = jax.random.split(rng_key, 3)
        self.problem = Problem.read(self.model, *args, **kwargs)
        check_sites(self.problem, self.form)
        self.simulations = self._given
        if self.simulations is None:
            self.simulations = simulate(
                simulate_key,
                self.problem,
                self.num_simulations,
                on_failure=self.on_failure,
                progress_bar=self.progress_bar,
            )
        self.measures: dict[str, Measure] = {}
        self.likelihoods: dict[str, FittedLikelihood] = {}
        for site, y in self.problem.observations.items():
            coordinates = Coordinates.from_prior(fit_key, self.problem, site)
            self.measures[site] = self._measure(fit_key, site, coordinates)
            theta, x = training_table(self.simulations, self.problem, site)
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
        check_sites(self.problem, self.form)
        self._result = self._sample(rng_key)

    def _measure(self, rng_key, site: str, coordinates: Coordinates) -> Measure:
        """The prior in coordinates: exact where its law is known, otherwise prior draws."""
        if coordinates.exact:
            return NormalMixture(*coordinates.mixture)
        arguments = self.problem.draw(rng_key, PRIOR_DRAWS).arguments[site]
        return Points(coordinates.table(arguments.reshape(-1, arguments.shape[-1])))

    def _sample(self, rng_key) -> Result:
        site = next(iter(self.likelihoods))
        fitted = self.likelihoods[site]
        in_coordinates = self._plain and fitted.coordinates.exact and fitted.coordinates.one_to_one
        if self.learn_prior:
            self._learn_prior(site, in_coordinates)
        if in_coordinates:
            likelihood = fitted.at(self._observation(site))
            drawn = _sampling.in_coordinates(
                rng_key, likelihood, self.measures[site], fitted.coordinates, self.num_samples
            )
        else:
            drawn = _sampling.in_model(rng_key, self._target(), self.problem, self.num_samples)
        self._drawn = drawn
        return Result(
            samples={**drawn.latents, **self.problem.evaluate(drawn.latents).deterministics},
            fields={"lp": drawn.log_posterior},
            groups=groups(self.simulations, self.problem),
            info=self._describe(drawn),
        )

    def _learn_prior(self, site: str, in_coordinates: bool) -> None:
        fitted = self.likelihoods[site]
        _checks.require(
            in_coordinates and len(fitted.coordinates.mixture[0]) == 1,
            "`learn_prior` needs one simulator site, nothing else that is observed, and a prior that is normal in the "
            f"coordinates of the simulator's arguments. {fitted.coordinates.note}",
        )
        start = Normal.standard(fitted.coordinates.dim)
        self.measures[site] = learn_normal(fitted.at(self._observation(site)), start)

    @property
    def _plain(self) -> bool:
        """One simulator site, one observation of it, and no other likelihood."""
        sites = self.problem.simulators
        return len(sites) == 1 and not self.problem.likelihoods and not any(s.plates for s in sites.values())

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
            if not self.problem.simulators[site].plates:
                place = fitted.surrogate.describe_observation(fitted.surrogate.point(self._observation(site)))
                info |= {prefix + "observation": place} if place else {}
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
        """The posterior in the coordinates of the one simulator site: embedding, moments, expectations, predictions.

        Raises:
            ValueError: If other likelihoods, plates or simulator sites stand beside it.
        """
        _ = self.result
        _checks.require(
            self._plain,
            "The posterior in coordinates needs a model with one simulator site and nothing else that is observed; "
            f"this one has the simulator sites {list(self.problem.simulators)} and the likelihoods "
            f"{list(self.problem.likelihoods)}. Use the draws.",
        )
        site = self.problem.site()
        surrogate = self.likelihoods[site].surrogate
        return KernelMeansPosterior(surrogate, surrogate.point(self._observation(site)), self.measures[site])

    def log_density(self, latents: Mapping[str, Any]) -> np.ndarray:
        r"""Log of the kernel means posterior density $q(\theta \mid y) = q(y \mid \theta) p(\theta) / q(y)$.

        Args:
            latents: `{site: (n, *shape)}`, for all latents.
        Returns:
            `(n,)`; minus infinity where a signed surrogate is negative. Where other likelihoods or plates stand beside
            the simulator, the density that was sampled, over its estimated mass.
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

    def herd(self, rng_key: jax.Array, num_samples: int) -> dict[str, np.ndarray]:
        r"""Super-samples of the posterior, `{site: (num_samples, *shape)}`, by kernel herding of its embedding.

        Their averages of smooth functions of the parameters converge faster than those of independent draws. They follow
        the signed posterior, and come in the order in which herding finds them. The herding kernel is
        `posterior.herding_kernel()`, which is narrower than the posterior, and the candidates are
        `posterior.weighted_points`.

        Raises:
            ValueError: If the coordinates do not determine the latents, or other likelihoods stand beside the simulator.
        """
        posterior = self.posterior
        coordinates = self.likelihoods[self.problem.site()].coordinates
        kernel = posterior.herding_kernel()
        candidates = np.asarray(posterior.weighted_points(rng_key, max(HERDING_CANDIDATES, num_samples)).points)
        with _linalg.float64():
            chosen = np.asarray(herd(posterior.embedding(kernel, candidates), kernel, candidates, num_samples))
            latents = jax.jit(jax.vmap(coordinates.latents))(candidates[chosen])
            return {name: np.asarray(value) for name, value in latents.items()}

    def mode(self) -> dict[str, np.ndarray]:
        """The latents at the maximum of the posterior density, `{site: (*shape)}`, by L-BFGS from the best draws.

        Under a learnt prior the density is taken in coordinates.
        """
        _ = self.result
        if self.learn_prior:
            coordinates = self.likelihoods[self.problem.site()].coordinates
            return _linalg.on_host(coordinates.latents, self.posterior.mode())
        return _sampling.mode(self._target(), self._drawn.latents, self._drawn.log_posterior)

    def log_marginal_likelihood(self) -> float:
        """Log of `q(y)`, the prior mean of the learnt likelihood of the observation.

        In closed form (or over prior draws) for one simulator site; otherwise estimated by tempering. Minus infinity if
        a signed surrogate has a negative mean.
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
        _checks.require(
            outputs.shape[1:] == fitted.event_shape,
            f"`y_new` must have shape (n, *{fitted.event_shape}); got {outputs.shape}.",
        )
        sign, log_size = posterior.predictive_log_density(np.stack([fitted.surrogate.point(y) for y in outputs]))
        return np.where(sign > 0, log_size, -np.inf)

    def relevance(self) -> dict[str, np.ndarray]:
        """How much each number of a simulator's output tells about the parameters, `{site: (*event)}`, in nats.

        The drop of the leave-one-out log posterior density of the simulated parameters when it is taken out.
        """
        _ = self.result
        return {site: f.surrogate.relevance().reshape(f.event_shape) for site, f in self.likelihoods.items()}

    def surrogate_variance(self, latents: Mapping[str, Any]) -> np.ndarray:
        """Variance of the surrogate at latents `{site: (n, *shape)}`, relative to far from all simulations, `(n,)`.

        It lies between 0 and 1, and says where further simulations would tell most.
        """
        _ = self.result
        with _linalg.float64():
            surrogate = self.likelihoods[self.problem.site()].surrogate
            return np.asarray(surrogate.variance(self._coordinates_of(latents)))

    def _coordinates_of(self, latents) -> np.ndarray:
        site = self.problem.site()
        return self.likelihoods[site].coordinates.table(self.problem.arguments(latents)[site])

    def _log_joint(self, latents) -> np.ndarray:
        target = self._target()
        points = {name: np.asarray(v, np.float64) for name, v in latents.items()}
        with _linalg.float64():
            terms = jax.jit(jax.vmap(lambda point: target.terms(target.flatten(point))))(points)
            return np.asarray(terms.log_prior + terms.log_likelihood)


def _log_densities(measure: Measure, z: np.ndarray) -> np.ndarray:
    return _linalg.on_host(jax.vmap(measure.log_density), z)
