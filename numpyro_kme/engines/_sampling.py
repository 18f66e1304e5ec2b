"""Draws from prior times learnt likelihood, in coordinates where that suffices and through the model otherwise."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from numpyro_kme._core import checks, solves
from numpyro_kme._core.host import on_host
from numpyro_kme._core.programs import Program
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.likelihoods.base import LikelihoodAt
from numpyro_kme.models.coordinates import Coordinates, Unconstrained
from numpyro_kme.models.problem import Problem
from numpyro_kme.samplers.importance import sample
from numpyro_kme.samplers.tempering import MOVES, Tempered, temper

PARTICLES = 4000
"""Draws from the prior; of the posterior there are `MOVES` times fewer, and no fewer than are wanted."""


class Drawn(NamedTuple):
    """Equally weighted posterior draws.

    Attributes:
        latents: `{site: (n, *shape)}`.
        log_posterior: Log of the unnormalised density that was sampled, `(n,)`.
        log_evidence: Log of the mass of that density.
        info: How sampling went.
    """

    latents: Mapping[str, np.ndarray]
    log_posterior: np.ndarray
    log_evidence: float
    info: Mapping[str, Any]


@on_host
def in_coordinates(
    rng_key: jax.Array, likelihood: LikelihoodAt, measure: Measure, coordinates: Coordinates, num_samples: int
) -> Drawn:
    """Draw in coordinates that determine all latents; a new observation does not compile again."""
    start_key, temper_key, pick_key = jax.random.split(rng_key, 3)
    with solves.one_blas_thread:
        data = jax.tree.map(jnp.asarray, (likelihood, measure))
        start = sample(data[1], start_key, _num_particles(num_samples))
        found = temper(temper_key, partial(_log_densities, (data[0].brief(), data[1])), start)
        latents, log_posterior = _finish(data, coordinates, pick_key, found.particles, num_samples)
        return _drawn(latents, log_posterior, found)


def in_model(rng_key: jax.Array, target: Unconstrained, problem: Problem, num_samples: int) -> Drawn:
    """Draw the unconstrained latents of a model whose every site has a density."""
    start_key, temper_key, pick_key = jax.random.split(rng_key, 3)
    prior = problem.draw(start_key, _num_particles(num_samples)).latents
    return _from_prior(temper_key, pick_key, target, prior, num_samples)


@on_host
def _from_prior(
    temper_key, pick_key, target: Unconstrained, prior: Mapping[str, np.ndarray], num_samples: int
) -> Drawn:
    evaluate = Program(jax.vmap(target.evaluate))  # the one program that a model's densities need

    def log_densities(u):
        terms = evaluate(u)[1]
        return terms.log_prior + terms.log_jacobian, terms.log_likelihood

    with solves.one_blas_thread:
        start = Program(jax.vmap(target.flatten))(dict(prior))
        found = temper(temper_key, log_densities, start)
        rows = np.asarray(_rows(pick_key, len(found.particles), num_samples))
        latents, terms = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], evaluate(found.particles))
        return _drawn(latents, terms.log_prior + terms.log_likelihood, found)


@on_host
def mode(target: Unconstrained, latents: Mapping[str, np.ndarray], log_posterior: np.ndarray) -> dict[str, Any]:
    """Maximise the posterior density of the latents by L-BFGS from the five best of the given draws."""
    best = np.argsort(log_posterior)[-5:]

    def loss(u):
        terms = target.terms(u)
        return -(terms.log_prior + terms.log_likelihood)

    value_and_gradient = Program(jax.value_and_grad(loss))
    starts = Program(jax.vmap(target.flatten))({name: value[best] for name, value in latents.items()})
    found = [scipy.optimize.minimize(value_and_gradient, np.asarray(u), jac=True, method="L-BFGS-B") for u in starts]
    return target.constrain(jnp.asarray(min(found, key=lambda result: result.fun).x))


@jax.jit
def _log_densities(data, z):
    """Log prior and log likelihood at coordinates `(n, D)`."""
    likelihood, measure = data
    return jax.vmap(measure.log_density)(z), jax.vmap(likelihood.log_density)(z)


@partial(jax.jit, static_argnums=4)
def _finish(data, coordinates, rng_key, particles, num_samples):
    """Latents, and log densities with respect to the coordinates."""
    likelihood, measure = data
    z = particles[_rows(rng_key, len(particles), num_samples)]
    log_posterior = jax.vmap(lambda point: measure.log_density(point) + likelihood.log_density(point))(z)
    return jax.vmap(coordinates.latents)(z), log_posterior


def _num_particles(num_samples: int) -> int:
    return max(MOVES * num_samples, PARTICLES)


@partial(jax.jit, static_argnums=(1, 2))
def _rows(rng_key, size, number):
    """Some of the particles, in random order."""
    return jax.random.permutation(rng_key, size)[:number]


def _drawn(latents, log_posterior, found: Tempered) -> Drawn:
    kept, size = len(log_posterior), MOVES * len(found.particles)
    checks.require(
        bool(np.isfinite(found.log_evidence)),
        f"The posterior has no mass at any of {size} draws from the prior: the likelihood is zero or NaN at each. Look "
        "at the model's factors and ordinary likelihoods there, or choose a prior that reaches where they are not.",
    )
    return Drawn(
        {name: np.asarray(value) for name, value in latents.items()},
        np.asarray(log_posterior),
        float(found.log_evidence),
        {
            "sampler": f"tempered sequential Monte Carlo, {int(found.num_temperatures)} temperatures, "
            f"{size} particles, {int(found.num_evaluations)} evaluations, {float(found.acceptance):.0%} of the last "
            "moves accepted",
            "effective sample size": min(float(kept), float(found.effective_size)),
        },
    )
