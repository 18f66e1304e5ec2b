"""A model with learnt likelihoods in place of its simulators, and draws from it: in coordinates where that suffices,
through the model otherwise; latents that are discrete are summed over."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from scipy import special

from numpyro_kme._core import checks, compat, host, numpy_function, numpy_rng, pieces, saveable
from numpyro_kme._core.programs import Program, Recomputed, split
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.likelihoods.adjusted import AdjustedSurrogate
from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.prepared import PreparedLikelihood, prepare
from numpyro_kme.models.problem import Problem, discrete_message
from numpyro_kme.models.unconstrained import Terms, Unconstrained
from numpyro_kme.samplers.importance import adapted_proposal
from numpyro_kme.samplers.tempering import MOVES, Tempered, temper
from numpyro_kme.simulations.simulations import of_rows

PARTICLES = 4000
"""Draws from the prior; of the posterior there are `MOVES` times fewer, and no fewer than are wanted."""
STARTS = 2
"""Draws from the adapted density for each chain: it is close to the posterior, and with four of them the effective size
is larger by 6% for a quarter more evaluations."""
MOST_VALUES = 100
"""Joint values of discrete latents that are summed over."""


@saveable
class PosteriorDraws(NamedTuple):
    """Equally weighted posterior draws.

    Attributes:
        latents: `{site: (n, *shape)}`.
        coordinates: Those of the arguments of each simulator with a learnt likelihood, `{site: (n, *groups, D)}`.
        log_posterior: Log of the unnormalised density that was sampled, `(n,)`.
        log_likelihood: Log of the learnt likelihoods, `(n,)`.
        log_evidence: Log of the integral of that density.
        info: How sampling went.
        measures: The prior of each simulator's coordinates, or the learnt one.
    """

    latents: Mapping[str, np.ndarray]
    coordinates: Mapping[str, np.ndarray]
    log_posterior: np.ndarray
    log_likelihood: np.ndarray
    log_evidence: float
    info: Mapping[str, Any]
    measures: Mapping[str, Measure] = {}


@dataclass(frozen=True, eq=False)
class LearntModel(Recomputed):
    """A model with learnt likelihoods in place of its simulators, at many points.

    Everything else in the model is one program, which does not depend on what was learnt.
    """

    problem: Problem
    likelihoods: Mapping[str, FittedLikelihood]

    @cached_property
    def rest(self) -> Unconstrained:
        """The model without its simulators, a function of the latents that are not discrete."""
        return Unconstrained.of(self.problem, self.problem.discrete)

    def flatten(self, latents: Mapping[str, np.ndarray]) -> np.ndarray:
        """Vectors `(n, D)` free of constraints, of latents `{site: (n, *shape)}` but for those that are discrete."""
        if not self.rest.shapes:
            return np.zeros((len(next(iter(latents.values()))), 0))
        return np.asarray(Program(jax.vmap(self.rest.flatten))({k: jnp.asarray(v) for k, v in latents.items()}))

    def evaluate(self, u: np.ndarray, given: Mapping[str, Any]) -> tuple[Any, Any, Terms, np.ndarray]:
        """The latents, the coordinates of simulators' arguments, the log densities, and the part of them that was
        learnt, at vectors `(n, D)` and values `{site: (n, *shape)}` of discrete latents."""
        latents, terms, arguments = host.to_host(self._rest(u, dict(given)))
        z = {name: fitted.coordinates.table(arguments[name]) for name, fitted in self.likelihoods.items()}
        learnt = np.broadcast_to(self.log_likelihood(z), terms.log_prior.shape)
        return latents, z, terms._replace(log_likelihood=terms.log_likelihood + learnt), learnt

    def log_likelihood(self, z: Mapping[str, np.ndarray]) -> np.ndarray:
        """Log likelihood of all calls that count, each to the power of its scale, `(n,)`, at coordinates
        `{site: (n, *groups, D)}`; one zero if none does."""
        total = np.zeros(1)
        for name, (prepared, *counting) in self._different.items():
            total = total + prepared.total(z[name], *counting)
        return total

    def guided(self, site: str, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates of a site's arguments for those of a sampler, `(n, D)` (`LikelihoodAt.guided`)."""
        return self._prepared[site].guided(z)

    def guided_vectors(self, u: np.ndarray, given: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """The same for vectors `(n, D)`, in which the scores of shifts change."""
        found, log_ratio = u.copy(), np.zeros(len(u))
        arguments = host.to_host(self._rest(u, dict(given))[2]) if self._shifts else {}
        for name, columns in self._shifts.items():
            z, added = self.guided(name, self.likelihoods[name].coordinates.table(arguments[name]))
            found[:, columns], log_ratio = z[:, -len(columns) :], log_ratio + added
        return found, log_ratio

    def pointwise(self, latents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Log likelihood of each call that counts at latents `{site: (n, *shape)}`, `{site: (n, *batch)}`, or `(n,
        calls)` where some are masked; scales are left out."""
        arguments, found = self.problem.arguments(latents), {}
        for name, prepared in self._prepared.items():
            site, z = self.problem.simulators[name], self.likelihoods[name].coordinates.table(arguments[name])
            values = np.broadcast_to(prepared.log_densities(z), (len(z), *site.simulator.batch_shape))
            found[name] = site.counted(values, lead=1)
        return found

    @cached_property
    def _shifts(self) -> dict[str, np.ndarray]:
        """Numbers of the entries of vectors that are scores of the shifts of a site."""
        shifted = [name for name in self._prepared if isinstance(self.likelihoods[name].surrogate, AdjustedSurrogate)]
        sizes = [prod(shape) for shape in self.rest.shapes.values()] if shifted else []
        places = np.split(np.arange(sum(sizes)), np.cumsum(sizes))
        return {name: places[[*self.rest.shapes].index(f"{name}_shift")] for name in shifted}

    @cached_property
    def _rest(self) -> Program:
        return Program(jax.vmap(self.rest.evaluate), thorough=True)

    @cached_property
    def _different(self) -> dict[str, tuple[PreparedLikelihood, Any, Any, int]]:
        """The likelihood of each site, with the mask, the scale and the number of plates that its total takes; where
        all calls have the same parameters, of each different output once, to the power of its number."""
        found: dict[str, tuple[PreparedLikelihood, Any, Any, int]] = {}
        for name, prepared in self._prepared.items():
            site, observed = self.problem.simulators[name], np.asarray(self.problem.observations[name])
            found[name] = prepared, site.mask, site.scale, len(site.fn.batch_shape)
            if prod(site.simulator.groups) == 1 == np.size(site.scale) and site.simulator.bounds is None:
                counted = observed[np.broadcast_to(site.mask, site.simulator.batch_shape)]
                outputs, number = np.unique(counted, axis=0, return_counts=True)
                if len(outputs) < len(counted):
                    once = prepare(self.likelihoods[name], outputs).brief()
                    found[name] = once, True, np.ravel(site.scale) * number, 1
        return found

    @cached_property
    def _prepared(self) -> dict[str, PreparedLikelihood]:
        found = {}
        for name, observed in self.problem.observations.items():
            site = self.problem.simulators[name]
            if site.mask.any():
                found[name] = prepare(self.likelihoods[name], observed, site.mask, site.simulator.bounds).brief()
        return found


@numpy_function
def draw_in_coordinates(
    rng_key: jax.Array, model: LearntModel, measure: Measure, num_samples: int, power: float = 1.0
) -> PosteriorDraws:
    """Draw in the coordinates of the one simulator site, which determine all latents, with the likelihood to a power.

    All calls of the site have the same parameters, and nothing else is observed.
    """
    fit_key, start_key, temper_key, pick_key = split(rng_key, 4)
    ((site, fitted),) = model.likelihoods.items()

    def log_likelihood(z):
        z, log_ratio = model.guided(site, z)
        return power * (model.log_likelihood({site: z}) + log_ratio)

    candidates = None
    if model._shifts:  # far from a mode shifts explain all, so that draws from the prior do not lead to a narrow one
        candidates = np.array(measure.sample(start_key, len(fitted.simulated)))
        own = candidates.shape[1] - len(model._shifts[site])
        candidates[:, :own] = np.asarray(fitted.simulated)[:, :own]
    with host.one_blas_thread:
        start = adapted_proposal(fit_key, log_likelihood, measure, PARTICLES // MOVES, candidates)

        def log_densities(z):
            log_start = start.log_densities(z)
            return log_start, measure.log_densities(z) + log_likelihood(z) - log_start

        chains = max(num_samples, PARTICLES // MOVES)
        found = temper(temper_key, log_densities, start.sample(start_key, STARTS * chains), chains)
        rows = numpy_rng(pick_key).permutation(len(found.particles))[:num_samples]
    particles = found.particles[rows]
    z, log_ratio = model.guided(site, particles)
    relative = found.log_density[rows] - measure.log_densities(particles)
    learnt, total = relative / power - log_ratio, relative - log_ratio + measure.log_densities(z)
    return as_drawn(fitted.coordinates.latents(z), {site: z}, total, learnt, found)


@numpy_function
def draw_in_model(rng_key: jax.Array, model: LearntModel, num_samples: int, power: float = 1.0) -> PosteriorDraws:
    r"""Draw the latents of a model whose every site has a density, with all likelihoods to a power.

    Those that are not discrete, unconstrained `u`, are drawn from `sum_k p(k) p(u | k) q(y | u, k)` over the joint
    values `k` of the discrete ones, if any, and `k` given them.
    """
    start_key, temper_key, pick_key = split(rng_key, 3)
    prior = model.problem.draw(start_key, max(MOVES * num_samples, PARTICLES)).latents
    values = joint_values(model.problem)
    rows = [dict(zip(values, row)) for row in zip(*values.values(), strict=True)] or [{}]
    start, found, particles = model.flatten(prior), None, np.zeros((num_samples, 0))

    def at_each(u):
        """The model at each joint value, with log priors and log likelihoods, `(n, k)` each."""
        given = [{name: np.broadcast_to(v, (len(u), *np.shape(v))) for name, v in row.items()} for row in rows]
        changed, log_ratios = zip(*(model.guided_vectors(u, one) for one in given))
        evaluated = [model.evaluate(own, one) for own, one in zip(changed, given)]
        terms, priors = [terms for _, _, terms, _ in evaluated], [np.square(own) - np.square(u) for own in changed]
        log_prior = [t.log_prior + t.log_jacobian + 0.5 * p.sum(axis=1) for t, p in zip(terms, priors)]
        log_likelihood = [t.log_likelihood + log_ratio for t, log_ratio in zip(terms, log_ratios)]
        return evaluated, np.stack(log_prior, axis=1), power * np.stack(log_likelihood, axis=1)

    def log_densities(u):
        _, log_prior, log_likelihood = at_each(u)
        marginal = special.logsumexp(log_prior, axis=1)
        return marginal, special.logsumexp(log_prior + log_likelihood, axis=1) - marginal

    with host.one_blas_thread:
        if start.shape[1]:
            found = temper(temper_key, log_densities, start)
            particles = found.particles[numpy_rng(pick_key).permutation(len(found.particles))[:num_samples]]
        evaluated, log_prior, log_likelihood = at_each(particles)
    total = log_prior + log_likelihood
    chosen = np.argmax(total + numpy_rng(pick_key).gumbel(size=total.shape), axis=1)
    own = np.arange(len(chosen))
    latents, z, terms, learnt = jax.tree.map(lambda *leaves: np.stack(leaves)[chosen, own], *evaluated)
    log_posterior = terms.log_prior + power * terms.log_likelihood
    if found is None:  # every latent is discrete, and the sum is the posterior
        log_evidence, info = float(special.logsumexp(total[0])), {"effective sample size": float(num_samples)}
        drawn = PosteriorDraws(latents, z, log_posterior, learnt, log_evidence, info)
    else:
        drawn = as_drawn(latents, z, log_posterior, learnt, found)
    what = f"{', '.join(values)}: summed over, {len(rows)} joint values"
    return drawn._replace(info=dict(drawn.info) | ({"discrete latents": what} if values else {}))


def joint_values(problem: Problem) -> dict[str, np.ndarray]:
    """All joint values of the discrete latents, `{site: (k, *shape)}`, if there are any.

    Raises:
        ValueError: If there are more than `MOST_VALUES`, or infinitely many.
    """
    if not problem.discrete:
        return {}
    sets = {}
    for name in problem.discrete:
        latent = problem.latents[name]
        fn = compat.innermost(latent.fn)
        listed, why = fn.has_enumerate_support and not fn.event_dim, "KELFI sums over values that it can list"
        checks.require(listed, discrete_message(name, latent, f"it has infinitely many values: {why}"))
        sets[name] = [np.ravel(fn.enumerate_support(expand=False))] * latent.value.size
    total = prod(float(len(one)) for entries in sets.values() for one in entries)
    if total > MOST_VALUES:
        name = max(sets, key=lambda name: prod(map(len, sets[name])))
        why = f"the discrete latents have {total:g} joint values: KELFI sums over at most {MOST_VALUES}"
        raise checks.explained(discrete_message(name, problem.latents[name], why))
    values = [problem.latents[name].value for name in sets]
    parts = pieces(np.array(list(product(*chain(*sets.values())))), [value.shape for value in values])
    return {name: part.astype(value.dtype) for name, part, value in zip(sets, parts, values)}


@numpy_function
def mode(target: Unconstrained, latents: Mapping[str, np.ndarray], log_posterior: np.ndarray) -> dict[str, Any]:
    """Maximise the posterior density of the latents by L-BFGS from the five best of the given draws."""

    def loss(u):
        terms = target.terms(u)
        return -(terms.log_prior + terms.log_likelihood)

    value_and_gradient = Program(jax.value_and_grad(loss), thorough=True)
    starts = target.flatten_rows(of_rows(latents, np.argsort(log_posterior)[-5:]))
    found = [scipy.optimize.minimize(value_and_gradient, np.asarray(u), jac=True, method="L-BFGS-B") for u in starts]
    return target.constrain(jnp.asarray(min(found, key=lambda result: result.fun).x))


def as_drawn(latents, coordinates, log_posterior, log_likelihood, found: Tempered) -> PosteriorDraws:
    """Draws with how they were found; raises where the posterior has no mass at any draw from the prior."""
    kept, size = len(log_posterior), MOVES * len(found.particles)
    checks.require(
        bool(np.isfinite(found.log_evidence)),
        f"The posterior has no mass at any of {size} draws from the prior: the likelihood is zero or NaN at each. Look "
        "at the model's factors and ordinary likelihoods there, or choose a prior that reaches where they are not.",
    )
    temperatures = f"{found.num_temperatures} temperature{'s' * (found.num_temperatures > 1)}"
    how = f"{size} particles, {found.num_evaluations} evaluations, {found.acceptance:.0%} of the last moves accepted"
    sampler = f"tempered sequential Monte Carlo, {temperatures}, {how}"
    info = {"sampler": sampler, "effective sample size": min(float(kept), found.effective_size)}
    return PosteriorDraws(latents, coordinates, log_posterior, log_likelihood, found.log_evidence, info)
