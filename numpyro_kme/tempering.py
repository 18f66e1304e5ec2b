r"""Draws from prior times likelihood by waste-free tempered sequential Monte Carlo: several modes, no tuning.

Particles go from the prior to the posterior through `prior * likelihood^t`. At each temperature few of them, the chains, are
resampled and moved, and all states of their last round of moves are the particles of the next temperature. A temperature is the
largest at which the effective sample size of the weights is a stated share; rounds of moves end when the chains have forgotten where
they began, so that easy posteriors cost little.

Half of the proposals add a multiple of the difference of two particles, which has the right scale and orientation in every
direction, and jump between modes. The others keep the Student law $t$ with `nu` degrees of freedom and the mean and covariance $S$ of the
particles: with $q = (x - m)' S^{-1} (x - m)$

$$ x' = m + \cos(a) (x - m) + \sin(a) \sqrt{(\nu + q) / c}\; S^{1/2} n, \qquad c \sim \chi^2_{\nu + D}, \; n \sim N(0, I), $$

accepted with probability $\min(1, \pi(x') t(x) / (\pi(x) t(x')))$: half of the angles $a$ are right, which forgets
the state where the posterior is near $t$, and half uniform below, of which the small ones are accepted where it is not.

References: Dau and Chopin (2022), JRSS B 84 (waste-free); Del Moral et al. (2006), JRSS B 68; ter Braak (2006), Statistics and
Computing 16 (differences); Grumitt et al. (2024), Inverse Problems 40 (Student proposals).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.smc import resampling

LogDensity = Callable[[Any, jax.Array], jax.Array]

MOVES = 4
"""Moves in a round: so many particles come from each chain."""
TARGET_ESS = 0.5
FORGOTTEN, MOST_ROUNDS = 0.1, 10
"""At each temperature, rounds end at this squared correlation of the chains with where they began, in the worst coordinate."""
ENOUGH, MOST_FINAL_ROUNDS = 0.8, 24
"""At the posterior, rounds end at this effective number of draws, as a share of all."""
STRAY = 0.01
"""Values beyond so large a share of the chains on either side count as the last ones within, else a single stray chain would rule."""
LOCAL, MODE_JUMP = 0.5, 0.05
"""Shares of proposals by differences, and by whole differences among all."""
DEGREES = 4
"""Degrees of freedom of the Student law, one more in odd dimensions: with the dimension they make an even number."""
JITTER, RIDGE = 1e-3, 1e-9
"""Noise of differences, in standard deviations, and what is added to the diagonal of correlation matrices."""
SMALLEST, HALVINGS, MOST_TEMPERATURES = -60.0, 14, 1000
"""Log of the smallest step of the temperature, as a share of what is left, how often the search for it halves an interval, and
a bound that only a likelihood of infinity meets."""


class Tempered(NamedTuple):
    """Draws after tempering, and how it went.

    Attributes:
        particles: `(M, D)`, equally weighted draws from the posterior, the states of `M = N / 4` chains.
        log_evidence: Estimate of `log int likelihood d prior`.
        num_temperatures: How many steps led from the prior to the posterior.
        num_evaluations: How many times both densities were evaluated.
        acceptance: Share of proposals that were accepted in the last round of moves.
        effective_size: Effective number of independent draws, `1 / ((1 - r^2) / M + r^2 / F)` for the worst coordinate:
            `r` is the correlation between a chain's states before and after the moves at the posterior, `F = M^2 / sum_i f_i^2` the
            effective number of prior draws that the chains descend from, of which draw `i` has `f_i` descendants. Both states
            are clipped at the 1st and 99th percentiles of those before, so that it holds for means of the bulk: a mode of less
            than 1% of the mass may be stuck, and its share wrong, without notice.
    """

    particles: jax.Array
    log_evidence: jax.Array
    num_temperatures: jax.Array
    num_evaluations: jax.Array
    acceptance: jax.Array
    effective_size: jax.Array


class _Points(NamedTuple):
    """Positions `(n, D)` and their densities, `(n,)`."""

    u: jax.Array
    log_prior: jax.Array
    log_likelihood: jax.Array

    def log_density(self, temperature):
        return self.log_prior + temperature * self.log_likelihood


class _Chains(NamedTuple):
    """Chains after some rounds of moves, and their states `(MOVES, M, ...)` in the last round."""

    points: _Points
    path: _Points
    num_rounds: jax.Array
    acceptance: jax.Array


class _Carry(NamedTuple):
    """Particles `(N, ...)`, the last `M` of them the present states of the chains, the prior draws that they descend from, `(N,)`, ..."""

    key: jax.Array
    particles: _Points
    ancestors: jax.Array
    temperature: jax.Array
    log_evidence: jax.Array
    num_temperatures: jax.Array
    num_rounds: jax.Array
    acceptance: jax.Array
    effective_size: jax.Array
    finished: jax.Array


@partial(jax.jit, static_argnums=(1, 2))
def temper(
    rng_key: jax.Array, log_prior: LogDensity, log_likelihood: LogDensity, data: Any, particles: jax.Array
) -> Tempered:
    """Turn draws from a prior into draws from the posterior.

    Args:
        rng_key: The only source of randomness.
        log_prior: `(data, point (D,)) -> log p`, up to a constant.
        log_likelihood: `(data, point (D,)) -> log L`. Where it is -inf or NaN the posterior has no mass; where it is so at
            every particle, the evidence is not finite.
        data: A pytree handed to both, so that a new observation does not compile again.
        particles: `(N, D)` independent draws from the prior, `MOVES` for each draw from the posterior that is wanted; a few
            thousand for ten dimensions.
    Returns:
        `Tempered`.
    Cost: `N` evaluations of both densities, batched over `M`, at the prior and in each round of moves: 1 to `MOST_ROUNDS` at each
    temperature, 1 to `MOST_FINAL_ROUNDS` at the posterior. Narrow crescents and modes far apart meet these bounds; the chains then still
    remember where they began, and `effective_size` is small.
    """
    num_chains = len(particles) // MOVES
    size = num_chains * MOVES

    @jax.vmap
    def evaluate(u):
        value = log_likelihood(data, u)
        return _Points(u, log_prior(data, u), jnp.where(jnp.isnan(value), -jnp.inf, value))

    def go_on(carry):
        """To the next temperature; from the last one no further, but as many rounds of moves as it needs. One loop compiles once."""
        key, resample_key, move_key = jax.random.split(carry.key, 3)
        last = carry.temperature >= 1.0
        step, weights, log_mean = _reweigh(carry.particles.log_likelihood, 1.0 - carry.temperature)
        temperature = jnp.where(carry.num_temperatures < MOST_TEMPERATURES, carry.temperature + step, 1.0)
        chosen = jnp.where(last, jnp.arange(size), resampling.systematic(resample_key, weights, size))
        starts = jnp.where(last, chosen[-num_chains:], chosen[::MOVES])
        start = jax.tree.map(lambda x: x[starts], carry.particles)
        families = num_chains**2 / jnp.sum(jnp.square(jnp.bincount(carry.ancestors[starts], length=size)))
        move, memory = _mover(evaluate, temperature, carry.particles.u[chosen]), _memory(start.u)

        def effective_size(u):
            return 1.0 / ((1.0 - memory(u)) / num_chains + memory(u) / families)

        def enough(u):
            return jnp.where(last, effective_size(u) >= ENOUGH * num_chains, memory(u) <= FORGOTTEN)

        chains = _move(move_key, move, start, enough, jnp.where(last, MOST_FINAL_ROUNDS, MOST_ROUNDS))
        return _Carry(
            key=key,
            particles=jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), chains.path),
            ancestors=jnp.tile(carry.ancestors[starts], MOVES),
            temperature=temperature,
            log_evidence=carry.log_evidence + jnp.where(last, 0.0, log_mean),
            num_temperatures=carry.num_temperatures + ~last,
            num_rounds=carry.num_rounds + chains.num_rounds,
            acceptance=chains.acceptance,
            effective_size=effective_size(chains.points.u),
            finished=last,
        )

    zero, none = jnp.zeros((), particles.dtype), jnp.array(0)
    at_prior = _Carry(
        rng_key, evaluate(particles[:size]), jnp.arange(size), zero, zero, none, none, zero, zero, jnp.array(False)
    )
    end = jax.lax.while_loop(lambda carry: ~carry.finished, go_on, at_prior)
    return Tempered(
        particles=end.particles.u[-num_chains:],
        log_evidence=end.log_evidence,
        num_temperatures=end.num_temperatures,
        num_evaluations=size * (1 + end.num_rounds),
        acceptance=end.acceptance,
        effective_size=end.effective_size,
    )


def _reweigh(log_likelihood: jax.Array, to_go: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The next step of the temperature, normalised weights and the log of their mean.

    The effective sample size of the particles at which the likelihood is positive falls to `TARGET_ESS` of their number; all
    others go at once, however many they are.
    """
    alive = log_likelihood > -jnp.inf
    peak = jnp.max(log_likelihood)
    relative = jnp.where(alive, log_likelihood - peak, -jnp.inf)

    def enough(step):
        weights = jnp.exp(step * relative)
        return jnp.square(jnp.sum(weights)) >= TARGET_ESS * jnp.sum(alive) * jnp.sum(jnp.square(weights))

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        longer = enough(to_go * jnp.exp(middle))
        return jnp.where(longer, middle, low), jnp.where(longer, high, middle)

    low, _ = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.full((), SMALLEST, peak.dtype), jnp.zeros((), peak.dtype)))
    step = jnp.where(enough(to_go), to_go, to_go * jnp.exp(low))
    weights = jnp.exp(step * relative)
    return step, weights / jnp.sum(weights), step * peak + jnp.log(jnp.mean(weights))


def _memory(before: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Largest squared correlation of a coordinate before and after, `(n, D)` each, without strays; 1 where it does not vary."""
    ordered, out = jnp.sort(before, axis=0), int(STRAY * len(before))

    def centred(x):
        x = jnp.clip(x, ordered[out][None], ordered[-1 - out][None])
        return x - jnp.mean(x, axis=0, keepdims=True)

    first = centred(before)

    def memory(after):
        last = centred(after)
        squares = jnp.sum(jnp.square(first), axis=0) * jnp.sum(jnp.square(last), axis=0)
        shared = jnp.square(jnp.sum(first * last, axis=0))
        return jnp.max(jnp.where(squares > 0, shared / jnp.where(squares > 0, squares, 1.0), 1.0))

    return memory


def _move(rng_key: jax.Array, move: Callable, start: _Points, enough: Callable, most: jax.Array) -> _Chains:
    """Rounds of `MOVES` moves of all chains, at least one, until there are enough or the most."""

    def go_on(carry):
        _, chains = carry
        return (chains.num_rounds == 0) | ((chains.num_rounds < most) & ~enough(chains.points.u))

    def one_round(carry):
        key, chains = carry
        key, here = jax.random.split(key)
        points, (path, accepted) = jax.lax.scan(move, chains.points, _random(here, *chains.points.u.shape))
        return key, _Chains(points, path, chains.num_rounds + 1, jnp.mean(accepted, dtype=points.u.dtype))

    path = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (MOVES, *x.shape)), start)
    begin = _Chains(start, path, jnp.array(0), jnp.zeros((), start.u.dtype))
    return jax.lax.while_loop(go_on, one_round, (rng_key, begin))[1]


def _degrees(dim: int) -> int:
    return DEGREES + dim % 2


def _random(rng_key: jax.Array, count: int, dim: int) -> tuple[jax.Array, jax.Array]:
    """Uniforms and normals of a round of moves, `(MOVES, ..., count)`, in float32, which is enough for proposals.

    XLA takes several times longer where the last axis is short, or where they are drawn in the loop that uses them.
    """
    keys, halves = jax.random.split(rng_key), (_degrees(dim) + dim) // 2
    uniform = jax.random.uniform(keys[0], (MOVES * (5 + halves) * count,), jnp.float32).reshape(MOVES, -1, count)
    return uniform, jax.random.normal(keys[1], (MOVES * dim * count,), jnp.float32).reshape(MOVES, dim, count)


def _mover(evaluate: Callable, temperature: jax.Array | float, particles: jax.Array) -> Callable:
    """One Metropolis move of all chains, with proposals from equally weighted particles `(N, D)`."""
    size, dim = particles.shape
    dtype = particles.dtype
    degrees = _degrees(dim)
    scale = 2.38 / (2.0 * dim) ** 0.5
    mean, sd = jnp.mean(particles, axis=0), jnp.maximum(jnp.std(particles, axis=0), jnp.finfo(dtype).tiny)
    standard = (particles - mean[None]) / sd[None]
    root = jnp.linalg.cholesky(standard.T @ standard / size + RIDGE * jnp.eye(dim, dtype=dtype))
    inverse = jnp.linalg.inv(root)

    @partial(jax.vmap, in_axes=(0, 1, 1))
    def propose(u, uniform, normal):
        """A proposal, and the log of `t(u) / t(proposal)` where it is by the Student law."""
        kind, amount, *pair = uniform[:4]
        first, second = (jnp.floor(x * size).astype(int) for x in pair)
        multiple = jnp.where(kind < MODE_JUMP, 1.0, scale)
        by_difference = u + multiple * (particles[first] - particles[second]) + JITTER * sd * normal
        white = inverse @ ((u - mean) / sd)
        chi_square, angle = -2.0 * jnp.log(jnp.prod(1.0 - uniform[4:])), 0.5 * jnp.pi * jnp.minimum(2.0 * amount, 1.0)
        heavy = normal * jnp.sqrt((degrees + white @ white) / chi_square)
        there = jnp.cos(angle) * white + jnp.sin(angle) * heavy
        log_ratio = 0.5 * (degrees + dim) * (jnp.log1p(there @ there / degrees) - jnp.log1p(white @ white / degrees))
        local = kind < LOCAL
        return jnp.where(local, by_difference, mean + sd * (root @ there)), jnp.where(local, 0.0, log_ratio)

    def move(points, draws):
        uniform, normal = (x.astype(dtype) for x in draws)
        there, log_ratio = propose(points.u, uniform[1:], normal)
        proposed = evaluate(there)
        log_ratio += proposed.log_density(temperature) - points.log_density(temperature)
        accepted = jnp.log1p(-uniform[0]) < log_ratio
        points = jax.tree.map(lambda new, old: jax.vmap(jnp.where)(accepted, new, old), proposed, points)
        return points, (points, accepted)

    return move
