"""Draws from prior times likelihood by tempered sequential Monte Carlo: many particles, several modes, no tuning.

The particles go from the prior to the posterior through `prior * likelihood^t`; the temperatures are chosen so that the
effective sample size never falls below a stated share. They are moved by differential evolution: a proposal adds a
multiple of the difference of two other particles, which has the right scale and orientation in every direction, and
jumps between modes. The sampler itself is BlackJAX's.

References: Del Moral et al. (2006), JRSS B 68; ter Braak (2006), Statistics and Computing 16.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from blackjax.mcmc import random_walk
from blackjax.smc import inner_kernel_tuning, resampling

LogDensity = Callable[[Any, jax.Array], jax.Array]

TARGET_ESS = 0.6
MODE_JUMP = 0.1


class Tempered(NamedTuple):
    """Particles after tempering, and how it went.

    Attributes:
        particles: `(N, D)`, equally weighted draws from the posterior.
        log_evidence: Estimate of `log int likelihood d prior`.
        num_temperatures: How many steps led from the prior to the posterior.
        acceptance: Share of proposals that were accepted in the last rounds of moves.
        effective_size: Effective number of independent draws, `1 / ((1 - r^2) / N + r^2 / F)` for the worst coordinate:
            `r` is the correlation between a particle before and after the last rounds of moves, `F` the effective
            number of prior draws that the particles descend from.
    """

    particles: jax.Array
    log_evidence: jax.Array
    num_temperatures: jax.Array
    acceptance: jax.Array
    effective_size: jax.Array


@partial(jax.jit, static_argnums=(1, 2), static_argnames=("num_moves", "num_final_moves", "max_temperatures"))
def temper(
    rng_key: jax.Array,
    log_prior: LogDensity,
    log_likelihood: LogDensity,
    data: Any,
    particles: jax.Array,
    *,
    num_moves: int = 10,
    num_final_moves: int = 40,
    max_temperatures: int = 60,
) -> Tempered:
    """Turn draws from a prior into draws from the posterior.

    Args:
        rng_key: The only source of randomness.
        log_prior: `(data, point (D,)) -> log p`, up to a constant.
        log_likelihood: `(data, point (D,)) -> log L`; finite wherever the prior has mass.
        data: A pytree handed to both, so that a new observation does not compile again.
        particles: `(N, D)` independent draws from the prior; a few thousand for ten dimensions.
        num_moves: Rounds of moves at each temperature.
        num_final_moves: Rounds of moves at the posterior.
        max_temperatures: Stop there; the last step then goes to the posterior at once.
    Returns:
        `Tempered`.
    Cost: `N * (num_temperatures * num_moves + num_final_moves)` evaluations of the two densities, batched over `N`.
    """
    dim = particles.shape[1]
    step = partial(_differential_evolution, random_walk.build_rmh(), 2.38 / jnp.sqrt(2.0 * dim))
    kernel = inner_kernel_tuning.build_kernel(
        blackjax.adaptive_tempered_smc,
        partial(log_prior, data),
        partial(log_likelihood, data),
        step,
        random_walk.init,
        resampling.systematic,
        lambda _, state, info: _reference(state.particles),
        num_mcmc_steps=num_moves,
        target_ess=TARGET_ESS,
    )
    start = inner_kernel_tuning.init(blackjax.smc.tempered.init, particles, _reference(particles))
    ancestors = jnp.arange(particles.shape[0])

    def unfinished(carry):
        _, state, _, _, count, _ = carry
        return (state.sampler_state.tempering_param < 1.0) & (count < max_temperatures)

    def next_temperature(carry):
        key, state, log_evidence, ancestors, count, _ = carry
        key, here = jax.random.split(key)
        state, info = kernel(here, state)
        accepted = jnp.mean(info.update_info.is_accepted.astype(particles.dtype))
        return (
            key,
            state,
            log_evidence + info.log_likelihood_increment,
            ancestors[info.ancestors],
            count + 1,
            accepted,
        )

    zero = jnp.zeros((), particles.dtype)
    key, state, log_evidence, ancestors, count, _ = jax.lax.while_loop(
        unfinished, next_temperature, (rng_key, start, zero, ancestors, 0, zero)
    )

    def posterior(point):
        return log_prior(data, point) + log_likelihood(data, point)

    def move(carry, key):
        walkers, reference = carry
        keys = jax.random.split(key, particles.shape[0])
        walkers, info = jax.vmap(lambda k, w: step(k, w, posterior, reference))(keys, walkers)
        return (walkers, walkers.position), jnp.mean(info.is_accepted.astype(particles.dtype))

    settled = state.sampler_state.particles
    walkers = jax.vmap(lambda p: random_walk.init(p, posterior))(settled)
    (walkers, _), accepted = jax.lax.scan(move, (walkers, settled), jax.random.split(key, num_final_moves))
    size = _effective_size(settled, walkers.position, ancestors)
    return Tempered(walkers.position, log_evidence, count, jnp.mean(accepted), size)


def _effective_size(before: jax.Array, after: jax.Array, ancestors: jax.Array) -> jax.Array:
    n = before.shape[0]
    families = n**2 / jnp.sum(jnp.bincount(ancestors, length=n).astype(before.dtype) ** 2)
    centred = [x - jnp.mean(x, axis=0, keepdims=True) for x in (before, after)]
    squares = [jnp.sum(x * x, axis=0) for x in centred]
    shared = jnp.max(jnp.sum(centred[0] * centred[1], axis=0) ** 2 / (squares[0] * squares[1]))
    return 1.0 / ((1.0 - shared) / n + shared / families)


def _reference(particles: jax.Array) -> dict[str, jax.Array]:
    return {"reference": particles[None]}


def _differential_evolution(kernel, scale, rng_key, state, log_density, reference):
    """One Metropolis step with a proposal from the differences of a fixed set of particles `(N, D)`."""

    def propose(key, position):
        pair, jump, jitter = jax.random.split(key, 3)
        first, second = jax.random.randint(pair, (2,), 0, reference.shape[0])
        step = jnp.where(jax.random.uniform(jump) < MODE_JUMP, 1.0, scale)
        noise = 1e-3 * jax.random.normal(jitter, position.shape) * jnp.std(reference, axis=0)
        return position + step * (reference[first] - reference[second]) + noise

    return kernel(rng_key, state, log_density, propose)
