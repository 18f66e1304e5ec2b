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
from blackjax.smc.solver import dichotomy

LogDensity = Callable[[Any, jax.Array], jax.Array]

TARGET_ESS = 0.6
MODE_JUMP = 0.1
FEWEST_MOVES, MOVES = 10, 2
"""Moves at each temperature: at least so many, and for each dimension."""
JITTER = 3e-3
SHORTEST_STEP = 1e-3
"""Least growth of the temperature, relative to itself, and its first step: steps of zero would never arrive."""


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


@partial(jax.jit, static_argnums=(1, 2), static_argnames=("num_moves", "num_final_rounds"))
def temper(
    rng_key: jax.Array,
    log_prior: LogDensity,
    log_likelihood: LogDensity,
    data: Any,
    particles: jax.Array,
    *,
    num_moves: int | None = None,
    num_final_rounds: int = 4,
) -> Tempered:
    """Turn draws from a prior into draws from the posterior.

    Args:
        rng_key: The only source of randomness.
        log_prior: `(data, point (D,)) -> log p`, up to a constant.
        log_likelihood: `(data, point (D,)) -> log L`. Where it is -inf or NaN the posterior has no mass; where it is so at
            every particle, the evidence is NaN.
        data: A pytree handed to both, so that a new observation does not compile again.
        particles: `(N, D)` independent draws from the prior; a few thousand for ten dimensions.
        num_moves: Moves of every particle at each temperature; twice the dimension when left out, and at least
            10. With half as many, curved posteriors in ten dimensions came out too wide.
        num_final_rounds: How many times as many moves follow at the posterior.
    Returns:
        `Tempered`.
    Cost: `N * num_moves * (num_temperatures + num_final_rounds)` evaluations of the two densities, batched over `N`.
    """
    dim = particles.shape[1]
    num_moves = num_moves or max(FEWEST_MOVES, MOVES * dim)
    step = partial(_differential_evolution, random_walk.build_rmh(), 2.38 / jnp.sqrt(2.0 * dim))
    kernel = inner_kernel_tuning.build_kernel(
        blackjax.adaptive_tempered_smc,
        partial(log_prior, data),
        partial(_or_nothing, partial(log_likelihood, data)),
        step,
        random_walk.init,
        resampling.systematic,
        lambda _, state, info: _reference(state.particles),
        num_mcmc_steps=num_moves,
        target_ess=TARGET_ESS,
        root_solver=_step,
    )
    start = inner_kernel_tuning.init(blackjax.smc.tempered.init, particles, _reference(particles))

    def unfinished(carry):
        return carry.rounds_after < num_final_rounds

    def advance(carry):
        key, here = jax.random.split(carry.key)
        arrived = carry.state.sampler_state.tempering_param >= 1.0
        state, info = kernel(here, carry.state)
        return _Carry(
            key=key,
            state=state,
            settled=jnp.where(arrived, carry.settled, state.sampler_state.particles),
            ancestors=jnp.where(arrived, carry.ancestors, carry.ancestors[info.ancestors]),
            log_evidence=carry.log_evidence + jnp.where(arrived, 0.0, info.log_likelihood_increment),
            num_temperatures=carry.num_temperatures + ~arrived,
            rounds_after=carry.rounds_after + arrived,
            acceptance=jnp.mean(info.update_info.is_accepted.astype(particles.dtype)),
        )

    zero = jnp.zeros((), particles.dtype)
    end = jax.lax.while_loop(
        unfinished,
        advance,
        _Carry(rng_key, start, particles, jnp.arange(particles.shape[0]), zero, jnp.array(0), jnp.array(0), zero),
    )
    final = end.state.sampler_state.particles
    size = _effective_size(end.settled, final, end.ancestors)
    return Tempered(final, end.log_evidence, end.num_temperatures, end.acceptance, size)


def _or_nothing(log_likelihood, u: jax.Array) -> jax.Array:
    value = log_likelihood(u)
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


def _step(excess: Callable, _: float, to_go: jax.Array) -> jax.Array:
    """The increment at which the effective sample size has no `excess` left; never zero.

    Where the likelihood vanishes at too many particles no increment leaves enough of them, and those at which it does not
    vanish have to go on alone.
    """
    shortest = SHORTEST_STEP * jnp.maximum(1.0 - to_go, SHORTEST_STEP)
    return jnp.minimum(jnp.maximum(dichotomy(excess, 0.0, to_go), shortest), to_go)


class _Carry(NamedTuple):
    key: jax.Array
    state: Any
    settled: jax.Array
    ancestors: jax.Array
    log_evidence: jax.Array
    num_temperatures: jax.Array
    rounds_after: jax.Array
    acceptance: jax.Array


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
        uniform = jax.random.uniform(key, (3 + position.shape[0],), position.dtype)
        first, second = jnp.floor(uniform[:2] * reference.shape[0]).astype(int)
        step = jnp.where(uniform[2] < MODE_JUMP, 1.0, scale)
        jitter = JITTER * (uniform[3:] - 0.5) * jnp.std(reference, axis=0)
        return position + step * (reference[first] - reference[second]) + jitter

    return kernel(rng_key, state, log_density, propose)
