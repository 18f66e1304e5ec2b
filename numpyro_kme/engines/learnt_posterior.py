"""The posterior under a learnt likelihood: densities, the mode, predictions, informative statistics, super-samples."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks, listed, numbers, numpy_function, saveable, shown
from numpyro_kme.embeddings.means import herd
from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.engines import learnt_model
from numpyro_kme.engines.posterior import Limited, Posterior, missing_entries, problem_of, sites_at
from numpyro_kme.likelihoods.adjusted import AdjustedSurrogate
from numpyro_kme.likelihoods.descent import ravel
from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.extrapolation import NEGLIGIBLE, extrapolation_message
from numpyro_kme.likelihoods.posterior import KernelMeansPosterior
from numpyro_kme.mcmc import handlers
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.unconstrained import Unconstrained
from numpyro_kme.samplers.importance import StandardErrors, unsure_message
from numpyro_kme.simulations import Simulations

ODD = 4.0
"""Standard deviations from simulations at the draws beyond which a statistic is warned of. With one of four statistics
beyond what 300 prior draws make, posterior means were .1 to 1.2 sd off up to 3.3, and 2 to 6 sd from 4.3 on. Where the
model held, 3.9 was the largest of 177 fits (normal, heavy-tailed and skewed draws, five statistics), and one in ten
with heavy tails was beyond 2; of medians 8 standard errors off, half were below 3 to 6.6."""


@shown
@saveable
@dataclass(frozen=True, kw_only=True)
class LearntPosterior(Posterior):
    """A posterior under learnt likelihoods.

    Attributes:
        likelihoods: The learnt likelihood of each simulator site, for `handlers.surrogate`.
        learn_prior: Whether the prior was learnt too.
        drawn: The draws, as they were sampled.
        extrapolated: Fraction of them beyond the simulated parameters of each site, for each of its calls with
            parameters of their own, `{site: (*groups)}`.
    """

    problem: Problem
    simulations: Simulations
    likelihoods: Mapping[str, FittedLikelihood]
    learn_prior: bool
    drawn: learnt_model.PosteriorDraws
    extrapolated: Mapping[str, np.ndarray]

    brief = (
        *("fit", "shifted", "missing", "censored", "simulations that failed", "discrete latents", "prior mean"),
        *("prior sd", "effective sample size", "log marginal likelihood"),
    )

    @property
    def checks(self) -> tuple[Limited, ...]:
        """Numbers of `Posterior.checks`, the largest proportion of draws beyond the simulations of each site, and how
        far a statistic is at most from simulations at the draws."""
        outside = ((site, float(np.max(found))) for site, found in self.extrapolated.items())
        beyond = (Limited(f"draws beyond the simulations of {site}", found, NEGLIGIBLE) for site, found in outside)
        far = (Limited(f"misfit of {site}, sd", max(found.values()), ODD) for site, found in self.misfits.items())
        return (*super().checks, *beyond, *far)

    @cached_property
    def misfits(self) -> dict[str, dict[str, float]]:
        """Distances of each statistic from simulations at the draws, in their standard deviations,
        `{site: {name: sd}}`: of sites that make one output, where the form says it and the model is known."""
        sites = {} if self.problem is None else self.problem.simulators
        single = {name: self.likelihoods[name].surrogate for name, site in sites.items() if site.single}
        found = {
            name: surrogate.misfit(surrogate.point(problem_of(self).observations[name]), self.drawn.coordinates[name])
            for name, surrogate in single.items()
        }
        return {name: apart for name, apart in found.items() if apart}

    @cached_property
    def in_coordinates(self) -> KernelMeansPosterior:
        """The posterior in the coordinates of the one simulator site, with its embedding, moments and predictions.

        Raises:
            ValueError: If other likelihoods, plates or simulator sites stand beside it, it is masked or scaled, its
                statistics may be shifted, or the probability that a call succeeds is a factor (`on_failure="skip"`).
        """
        problem = problem_of(self)
        checks.require(
            self._plain,
            "The posterior in coordinates needs one simulator site, without plates, masks, scales, intervals or "
            f"shifts, whose calls all succeed, and no other likelihood; the model has {list(problem.simulators)} and "
            f"{list(problem.factors)}. Use the draws.",
        )
        site, surrogate = problem.site(), self._fitted.surrogate
        observed = surrogate.point(problem.observations[site])
        return KernelMeansPosterior(surrogate, observed, self.drawn.measures[site])

    @property
    def _plain(self) -> bool:
        """Tell whether the likelihood of one output is all that there is, without the probability of success, and
        without shifts."""
        if not plain(self.problem) or isinstance(self._fitted.surrogate, AdjustedSurrogate):
            return False
        return self._fitted.success is None

    @property
    def _fitted(self) -> FittedLikelihood:
        """The learnt likelihood of the one simulator site."""
        return self.likelihoods[problem_of(self).site()]

    def log_density(self, latents: Mapping[str, Any]) -> np.ndarray:
        r"""Log of the kernel means posterior density $q(\theta \mid y) = q(y \mid \theta) p(\theta) / q(y)$.

        Args:
            latents: `{site: (n, *shape)}`, for all latents.
        Returns:
            `(n,)`; minus infinity where a signed surrogate is negative. Where other likelihoods, plates, masks or
            scales stand beside the simulator, the density that was sampled, over its estimated integral.
        """
        log_prior = np.asarray(problem_of(self).log_prior(latents), np.float64)
        if not self._plain:
            terms = self._log_terms(latents)
            return np.asarray(terms.log_prior + terms.log_likelihood) - self.drawn.log_evidence
        z = self._coordinates_of(latents)
        sign, log_ratio = self.in_coordinates.signed_log_density(z)
        if self.learn_prior:
            log_prior += self.in_coordinates.measure.log_densities(z) - standard_normal(z.shape[1]).log_densities(z)
        return np.where(sign > 0, log_ratio + log_prior, -np.inf)

    def log_likelihood(self, latents: Mapping[str, Any]) -> np.ndarray:
        r"""Log of the likelihood of all observations, $q(y \mid \theta)$ for each simulator, up to a constant.

        Args:
            latents: `{site: (n, *shape)}`, for all latents.
        Returns:
            `(n,)`; minus infinity where a signed surrogate is negative.
        """
        if not self._plain:
            return np.asarray(self._log_terms(latents).log_likelihood)
        sign, log_q = self.in_coordinates.signed_log_likelihood(self._coordinates_of(latents))
        return np.where(sign > 0, log_q, -np.inf)

    @numpy_function
    def pointwise_log_likelihood(self) -> dict[str, np.ndarray]:
        r"""Log of the learnt likelihood of each call of a simulator along a plate, $\log q(y_i \mid \theta)$, at each
        draw, and of each observation of the other likelihoods: for `arviz.loo` and `arviz.compare`.

        Along plates observations are independent given the latents, so that each can be left out alone. Calls that are
        masked, or of which nothing was observed, are left out; `numpyro.handlers.scale` does not count, as in
        `numpyro.infer.log_likelihood`. A site that is one event, beside others along plates, is not among them.

        Returns:
            `{site: (n, *plates)}`, or `{site: (n, calls)}` of the calls that count where some do not.
        Raises:
            ValueError: If no site stands along a plate: nothing is exchangeable; or the learnt likelihood is no density
                of the output.
        """
        problem = problem_of(self)
        for fitted in self.likelihoods.values():
            fitted.surrogate.require_density()
        others = problem.pointwise(self.drawn.latents) if problem.factors else {}
        learnt = learnt_model.LearntModel(problem, self.likelihoods).pointwise(self.drawn.latents)
        found = {name: np.asarray(v) for name, v in {**learnt, **others}.items() if np.ndim(v) > 1}
        checks.require(
            bool(found),
            f"The observed sites {[*problem.simulators, *problem.factors]} are one event each, of which no part can be "
            "left out. Put independent observations in numpyro.plate, one call of the simulator for each.",
        )
        return found

    def beyond(self, latents: Mapping[str, Any]) -> np.ndarray:
        """Mark latents beyond the simulated parameters of a simulator site, for one of its groups at least
        (`FittedLikelihood.beyond`).

        Args:
            latents: `{site: (n, *shape)}`, for all latents.
        Returns:
            `(n,)`.
        """
        problem, found = problem_of(self), []
        for site, arguments in problem.arguments(latents).items():
            fitted, mask = self.likelihoods[site], problem.simulators[site].mask
            outside = fitted.beyond(problem.observations[site], fitted.coordinates.table(arguments), mask)
            found.append(outside.reshape(len(outside), -1).any(axis=1))
        return np.any(found, axis=0)

    @numpy_function
    def herd(self, rng_key: jax.Array, num_samples: int) -> Posterior:
        r"""Super-samples by kernel herding of the posterior's embedding, as a posterior.

        Their averages of smooth functions of the parameters converge faster than those of independent draws. They
        follow the signed posterior, and come in the order in which herding finds them. The herding kernel is
        `in_coordinates.herding_kernel()`, which is narrower than the posterior, and the candidates are
        `in_coordinates.weighted_particles`.

        Raises:
            ValueError: If the coordinates do not determine the latents, or other likelihoods stand beside the
                simulator.
        """
        posterior = self.in_coordinates
        kernel = posterior.herding_kernel()
        candidates = np.asarray(posterior.weighted_particles(rng_key, max(4096, num_samples)).particles)
        chosen = np.asarray(herd(kernel, posterior.embedding(kernel, candidates), candidates, num_samples))
        latents = self._fitted.coordinates.latents(candidates[chosen])
        return self._super_samples(sites_at(problem_of(self), latents))

    def mode(self) -> dict[str, np.ndarray]:
        """The latents at the maximum of the posterior density, `{site: (*shape)}`, by L-BFGS from the best draws.

        Under a learnt prior the density is taken in coordinates.
        """
        if self.learn_prior:
            found = self._fitted.coordinates.latents(np.asarray(self.in_coordinates.mode())[None])
            return {name: value[0] for name, value in found.items()}
        problem = problem_of(self)
        discrete = [*problem.discrete]
        checks.require(not discrete, f"The mode is found by gradients, and {discrete} are discrete. Use the draws.")
        surrogate = replace(problem, model=handlers.surrogate(problem.model, self.likelihoods))
        return learnt_model.mode(Unconstrained.of(surrogate), self.drawn.latents, self.drawn.log_posterior)

    def log_marginal_likelihood(self) -> float:
        """Log of `q(y)`, the prior mean of the learnt likelihood of the observation.

        In closed form (or over prior draws) for one simulator site; otherwise estimated by tempering, of what counts:
        masked outputs are left out, and `q` is raised to the power of the site's scale. Minus infinity if a signed
        surrogate has a negative mean.

        Raises:
            ValueError: If a learnt likelihood is no density of the output, as where statistics are learnt.
        """
        if not self._plain:
            for fitted in self.likelihoods.values():
                fitted.surrogate.require_density()
            return self.drawn.log_evidence
        sign, log_size = self.in_coordinates.log_marginal()
        return float(log_size) if sign > 0 else -np.inf

    def predictive_log_density(self, y_new: Any) -> np.ndarray:
        """Log predictive density of new observations given the one that was inferred from, `q(y* | y)`.

        Args:
            y_new: `(n, *event)`.
        Returns:
            `(n,)`, in units of the simulator's output; minus infinity where the signed surrogate's is negative.
        """
        posterior, fitted = self.in_coordinates, self._fitted
        outputs = np.asarray(y_new, np.float64)
        fits = outputs.shape[1:] == fitted.event_shape
        checks.require(fits, f"`y_new` must have shape (n, *{fitted.event_shape}); got {outputs.shape}.")
        sign, log_size = posterior.predictive_log_density(np.stack([fitted.surrogate.point(y) for y in outputs]))
        return np.where(sign > 0, log_size, -np.inf)

    def informativeness(self) -> tuple[str, dict[str, np.ndarray]]:
        """Information that each number of a simulator's output has about the parameters: name of the measure, and
        `{site: (*event)}`, in nats; where statistics are learnt, `{site: (k,)}` of these.

        With the published form it is the held-out drop: of the leave-one-out log posterior density of the simulated
        parameters, when that number is taken out. With the residual form it is the mutual information of that number
        and the parameters, in a linear normal approximation: each number alone, so that a copy of another has as much
        and adds nothing.
        """
        by_site = {}
        for site, fitted in self.likelihoods.items():
            measure, values = fitted.surrogate.informativeness()
            by_site[site] = values.reshape(fitted.event_shape) if values.size == prod(fitted.event_shape) else values
        return measure, by_site

    def shifts(self) -> dict[str, np.ndarray]:
        """Shifts of each statistic of a simulator at each draw, in units of the output, 0 where it is not,
        `{site: (n, *event)}` (`KELFI(adjust=...)`)."""
        found = {}
        for site, fitted in self.likelihoods.items():
            if isinstance(fitted.surrogate, AdjustedSurrogate):
                shift = fitted.surrogate.split(self.drawn.coordinates[site])[1]
                found[site] = shift.reshape(len(shift), *fitted.event_shape)
        checks.require(bool(found), "No statistic may be shifted here. Run KELFI with `adjust=0.1`.")
        return found

    def with_shifts(self, simulations):
        """Implement `Posterior.with_shifts`."""
        x, arguments = dict(simulations.x), problem_of(self).arguments(simulations.latents)
        for site, fitted in self.likelihoods.items():
            if isinstance(fitted.surrogate, AdjustedSurrogate):
                shift = fitted.surrogate.split(fitted.coordinates.table(arguments[site]))[1]
                x[site] = x[site] + shift.reshape(x[site].shape)
        return replace(simulations, x=x)

    def surrogate_variance(self, latents: Mapping[str, Any]) -> np.ndarray:
        """Variance of the surrogate at latents `{site: (n, *shape)}`, relative to far from all simulations, `(n,)`.

        It lies between 0 and 1, and says where further simulations would tell most.
        """
        return self._fitted.surrogate.variance(self._coordinates_of(latents))

    def _coordinates_of(self, latents) -> np.ndarray:
        problem = problem_of(self)
        return self._fitted.coordinates.table(problem.arguments(latents)[problem.site()])

    @numpy_function
    def _log_terms(self, latents):
        problem = problem_of(self)
        model = learnt_model.LearntModel(problem, self.likelihoods)
        discrete = {name: np.asarray(latents[name]) for name in problem.discrete}
        points = {name: np.asarray(v, np.float64) for name, v in latents.items()} | discrete
        return model.evaluate(model.flatten(points), discrete)[2]


def plain(problem: Problem) -> bool:
    """One simulator site, one observation of it, not masked, scaled or in intervals, and no other likelihood."""
    return len(problem.simulators) == 1 and not problem.factors and problem.simulators[problem.site()].single


def describe(posterior: LearntPosterior) -> dict[str, Any]:
    """Lines of the summary: what was learnt, and how the draws were found."""
    problem, simulations, drawn = posterior.problem, posterior.simulations, posterior.drawn
    info: dict[str, Any] = {"simulations": len(simulations)}
    for site, fitted in posterior.likelihoods.items():
        found = {"coordinates": fitted.coordinates.note, **fitted.surrogate.describe()}
        found |= missing_entries(problem.simulators[site])
        if problem.simulators[site].single:
            observed = fitted.surrogate.point(problem.observations[site])
            found |= fitted.surrogate.describe_observation(observed, drawn.coordinates[site])
        outside = float(np.max(posterior.extrapolated[site]))
        far = f"{outside:.2%} of the draws lie beyond the simulated parameters: no simulation supports these"
        found["parameters"] = far if outside else "all draws within the simulated parameters"
        prefix = f"{site}: " if len(posterior.likelihoods) > 1 else ""
        for name, value in found.items():
            info[prefix + name] = value
    normals: Any = drawn.measures.items() if posterior.learn_prior else ()
    for site, normal in normals:
        info[f"prior mean of {site}"] = np.asarray(normal.means[0])
        info[f"prior sd of {site}"] = np.sqrt(np.diagonal(normal.covariances[0]))
    if simulations.failures or simulations.repeated:
        info["simulations that failed"] = simulations.describe_failures()
    info |= drawn.info
    with suppress(ValueError):
        for fitted in posterior.likelihoods.values():
            fitted.surrogate.require_density()
        error = "" if posterior.errors is None else f", standard error {posterior.errors.of_log_evidence:.2g}"
        info["log marginal likelihood"] = f"{drawn.log_evidence:.4g}{error}"
    return info


def emit_warnings(posterior: LearntPosterior) -> None:
    """Warn of draws outside the simulated parameters, and of too few simulations, at the end: a round that others
    follow may be far out."""
    simulations, number = posterior.simulations, len(posterior.simulations)
    around = ", or `refine` at draws of this posterior."
    if not simulations.proposed:
        around = ", or for this observation alone in rounds around its posterior: pass num_rounds=5, or `refine`."
    remedy = f"Simulate more (`num_simulations`), such as {2 * number:,}{around}"
    for site, outside in posterior.extrapolated.items():
        fitted = posterior.likelihoods[site]
        if np.max(outside) > NEGLIGIBLE:
            far = np.argwhere(outside > NEGLIGIBLE)
            checks.warn(extrapolation_message(site, float(np.max(outside)), remedy, far))
        if not fitted.surrogate.moves:
            checks.warn(
                f"The parameters change how probable values of all statistics of {site!r} are, and do not move them: "
                "the posterior may be too wide. Give statistics that count, as the proportion of values beyond a point."
            )
    for site, apart in posterior.misfits.items():
        odd = [f"{name} ({far:.2g} sd)" for name, far in sorted(apart.items(), key=lambda one: -one[1]) if far > ODD]
        if odd:
            checks.warn(
                f"Statistics of {site!r} are over {ODD:g} sd from simulations at the posterior draws: {listed(odd)}. "
                "They are taken for outliers, and the posterior may be that of the others. If the model can make them, "
                f"simulate more, such as {2 * number:,}; else repair the model, or see `KELFI(adjust=0.1)`.",
                about=f"{np.ravel(posterior.problem.observations[site]).astype(np.float64)}, far outside",
            )
    if not is_sure(posterior.errors, posterior.drawn.latents):
        assert posterior.errors is not None
        needed = number * max(2.0, float(np.max(posterior.errors.relative(ravel(posterior.drawn.latents, 1)))) ** 2)
        further = (
            f"{remedy} If errors fall with the root of their number, about {float(f'{needed:.1g}'):,.0f} suffice. "
            "Neither helps where the model cannot make the observation: `kme.diagnostics.misspecification_test`."
        )
        checks.warn(unsure_message(posterior.errors, numbers(posterior.drawn.latents), further))


def is_sure(errors: StandardErrors | None, latents: Mapping[str, np.ndarray]) -> bool:
    """Tell whether no standard error of a latent is large; True where they are not known."""
    return errors is None or not np.any(errors.relative(ravel(latents, 1)) > 1.0)
