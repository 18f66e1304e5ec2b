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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme.samplers.resampling import systematic

LogDensities = Callable[[jax.Array], tuple[jax.Array, jax.Array]]

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

    def without_nan(self) -> "_Points":
        """With a likelihood of zero where it is not a number."""
        return self._replace(log_likelihood=jnp.where(jnp.isnan(self.log_likelihood), -jnp.inf, self.log_likelihood))


class _Draws(NamedTuple):
    """Random numbers of a round of moves: uniforms `(MOVES, 5 + ..., M)` and normals `(MOVES, D, M)`."""

    uniform: jax.Array
    normal: jax.Array


class _Law(NamedTuple):
    """What proposals are made from: particles `(N, D)`, their moments, and the Cholesky factor of their correlations."""

    particles: jax.Array
    mean: jax.Array
    sd: jax.Array
    root: jax.Array
    inverse: jax.Array


class _Before(NamedTuple):
    """Where chains began: positions `(M, D)` centred and without strays, and the bounds of these, `(D,)`."""

    centred: jax.Array
    low: jax.Array
    high: jax.Array


class _Level(NamedTuple):
    """One temperature: where its chains begin, `(M, ...)`, with what they propose."""

    start: _Points
    ancestors: jax.Array
    temperature: jax.Array
    log_mean: jax.Array
    families: jax.Array
    law: _Law
    before: _Before


def temper(rng_key: jax.Array, log_densities: LogDensities, particles: jax.Array) -> Tempered:
    """Turn draws from a prior into draws from the posterior.

    Args:
        rng_key: The only source of randomness.
        log_densities: `(n, D) -> (log p, log L)`, each `(n,)`: the prior up to a constant, and the likelihood. Where this is
            -inf or NaN the posterior has no mass; where it is so at every particle, the evidence is not finite. It is called
            with `N / 4` points at a time, and compiled by the caller; no other program depends on the densities.
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

    def evaluate(u):
        return _Points(u, *log_densities(u))

    cloud = _at_prior([evaluate(block) for block in jnp.split(particles[:size], MOVES)])
    ancestors, zero = jnp.arange(size), jnp.zeros((), particles.dtype)
    temperature, log_evidence = zero, zero
    num_temperatures = num_rounds = 0
    last = False
    while True:  # at the last temperature once more, for as many rounds as it needs
        rng_key, resample_key, move_key = jax.random.split(rng_key, 3)
        level = _level(resample_key, cloud, ancestors, temperature, last, num_temperatures < MOST_TEMPERATURES)
        points, most = level.start, MOST_FINAL_ROUNDS if last else MOST_ROUNDS
        for _ in range(most):
            move_key, draws, there, log_ratio = _begin(move_key, level.law, points.u)
            path, accepted = [], []
            for number in range(MOVES):
                points, moved, there, log_ratio = _move(
                    level, points, evaluate(there), log_ratio, draws, np.int32(number)
                )
                path.append(points)
                accepted.append(moved)
            cloud, memory, acceptance = _end(level.before, path, accepted)
            num_rounds += 1
            effective_size = 1.0 / ((1.0 - float(memory)) / num_chains + float(memory) / float(level.families))
            if effective_size >= ENOUGH * num_chains if last else memory <= FORGOTTEN:
                break
        ancestors = level.ancestors
        if last:
            break
        temperature, log_evidence = level.temperature, log_evidence + level.log_mean
        num_temperatures += 1
        last = bool(temperature >= 1.0)
    return Tempered(
        particles=points.u,
        log_evidence=log_evidence,
        num_temperatures=jnp.array(num_temperatures),
        num_evaluations=jnp.array(size * (1 + num_rounds)),
        acceptance=acceptance,
        effective_size=jnp.array(effective_size),
    )


_at_prior = jax.jit(lambda parts: _joined(parts).without_nan())


def _joined(parts: list[_Points]) -> _Points:
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


@jax.jit
def _level(rng_key, cloud: _Points, ancestors, temperature, last, go_on) -> _Level:
    """The next temperature; the last one again, from the states that the chains are in."""
    size = len(cloud.u)
    num_chains = size // MOVES
    step, weights, log_mean = _reweigh(cloud.log_likelihood, 1.0 - temperature)
    chosen = jnp.where(last, jnp.arange(size), systematic(rng_key, weights, size))
    starts = jnp.where(last, chosen[-num_chains:], chosen[::MOVES])
    start = jax.tree.map(lambda x: x[starts], cloud)
    return _Level(
        start=start,
        ancestors=jnp.tile(ancestors[starts], MOVES),
        temperature=jnp.where(go_on, temperature + step, 1.0),
        log_mean=log_mean,
        families=num_chains**2 / jnp.sum(jnp.square(jnp.bincount(ancestors[starts], length=size))),
        law=_law(cloud.u[chosen]),
        before=_before(start.u),
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


def _before(u: jax.Array) -> _Before:
    ordered, out = jnp.sort(u, axis=0), int(STRAY * len(u))
    low, high = ordered[out], ordered[-1 - out]
    return _Before(_centred(u, low, high), low, high)


def _centred(u, low, high):
    clipped = jnp.clip(u, low[None], high[None])
    return clipped - jnp.mean(clipped, axis=0, keepdims=True)


@jax.jit
def _end(before: _Before, path: list[_Points], accepted: list[jax.Array]) -> tuple[_Points, jax.Array, jax.Array]:
    """All states of a round, how much of its beginning the last one remembers, and the share of accepted moves."""
    acceptance = jnp.mean(jnp.stack(accepted), dtype=path[-1].u.dtype)
    return _joined(path), _memory(before, path[-1].u), acceptance


def _memory(before: _Before, u: jax.Array) -> jax.Array:
    """Largest squared correlation of a coordinate with where the chains began, without strays; 1 where it does not vary."""
    first, last = before.centred, _centred(u, before.low, before.high)
    squares = jnp.sum(jnp.square(first), axis=0) * jnp.sum(jnp.square(last), axis=0)
    shared = jnp.square(jnp.sum(first * last, axis=0))
    return jnp.max(jnp.where(squares > 0, shared / jnp.where(squares > 0, squares, 1.0), 1.0))


def _degrees(dim: int) -> int:
    return DEGREES + dim % 2


@jax.jit
def _begin(rng_key: jax.Array, law: _Law, u: jax.Array) -> tuple[jax.Array, _Draws, jax.Array, jax.Array]:
    """The next key, the random numbers of a round of moves, and the first proposals."""
    rng_key, here = jax.random.split(rng_key)
    draws = _random(here, *u.shape)
    return rng_key, draws, *_propose(law, u, draws.uniform[0], draws.normal[0])


@jax.jit
def _move(level: _Level, points: _Points, proposed: _Points, log_ratio: jax.Array, draws: _Draws, number: jax.Array):
    """The points after a Metropolis move, which of them moved, and the next proposals."""
    proposed = proposed.without_nan()
    log_ratio += proposed.log_density(level.temperature) - points.log_density(level.temperature)
    accepted = jnp.log1p(-draws.uniform[number, 0].astype(points.u.dtype)) < log_ratio
    points = jax.tree.map(lambda new, old: jax.vmap(jnp.where)(accepted, new, old), proposed, points)
    then = (number + 1) % MOVES
    return points, accepted, *_propose(level.law, points.u, draws.uniform[then], draws.normal[then])


def _random(rng_key: jax.Array, count: int, dim: int) -> _Draws:
    """For all moves of a round, in float32, which is enough for proposals.

    XLA takes several times longer where the last axis is short, or where they are drawn in the loop that uses them.
    """
    keys, halves = jax.random.split(rng_key), (_degrees(dim) + dim) // 2
    uniform = jax.random.uniform(keys[0], (MOVES * (5 + halves) * count,), jnp.float32).reshape(MOVES, -1, count)
    normal = jax.random.normal(keys[1], (MOVES * dim * count,), jnp.float32).reshape(MOVES, dim, count)
    return _Draws(uniform, normal)


def _law(particles: jax.Array) -> _Law:
    size, dim = particles.shape
    mean, sd = jnp.mean(particles, axis=0), jnp.maximum(jnp.std(particles, axis=0), jnp.finfo(particles.dtype).tiny)
    standard = (particles - mean[None]) / sd[None]
    root = jnp.linalg.cholesky(standard.T @ standard / size + RIDGE * jnp.eye(dim, dtype=particles.dtype))
    return _Law(particles, mean, sd, root, jnp.linalg.inv(root))


def _propose(law: _Law, u: jax.Array, uniform: jax.Array, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Proposals `(M, D)`, and for each the log of `t(u) / t(proposal)` where it is by the Student law."""
    size, dim = law.particles.shape
    degrees, scale = _degrees(dim), 2.38 / (2.0 * dim) ** 0.5

    @partial(jax.vmap, in_axes=(0, 1, 1))
    def propose(u, uniform, normal):
        kind, amount, *pair = uniform[:4]
        first, second = (jnp.floor(x * size).astype(int) for x in pair)
        multiple = jnp.where(kind < MODE_JUMP, 1.0, scale)
        by_difference = u + multiple * (law.particles[first] - law.particles[second]) + JITTER * law.sd * normal
        white = law.inverse @ ((u - law.mean) / law.sd)
        chi_square, angle = -2.0 * jnp.log(jnp.prod(1.0 - uniform[4:])), 0.5 * jnp.pi * jnp.minimum(2.0 * amount, 1.0)
        heavy = normal * jnp.sqrt((degrees + white @ white) / chi_square)
        there = jnp.cos(angle) * white + jnp.sin(angle) * heavy
        log_ratio = 0.5 * (degrees + dim) * (jnp.log1p(there @ there / degrees) - jnp.log1p(white @ white / degrees))
        local = kind < LOCAL
        return (
            jnp.where(local, by_difference, law.mean + law.sd * (law.root @ there)),
            jnp.where(local, 0.0, log_ratio),
        )

    return propose(u, uniform[1:].astype(u.dtype), normal.astype(u.dtype))
