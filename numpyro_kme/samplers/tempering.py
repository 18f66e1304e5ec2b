"""Waste-free tempered sequential Monte Carlo: draws from prior times likelihood, with several modes and without tuning.

Particles go from the prior to the posterior through `prior * likelihood^t`. At each temperature few of them, the
chains, are resampled and moved, and all states of their last round of moves are the particles of the next temperature.
A temperature is the largest at which the effective sample size of the weights is a stated fraction of the particles;
rounds of moves end when the chains no longer correlate with where they began, so that easy posteriors cost little.
Proposals are those of `samplers.proposals`.

References: Dau and Chopin (2022), JRSS B 84 (waste-free); Del Moral et al. (2006), JRSS B 68.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme.samplers.importance import systematic
from numpyro_kme.samplers.proposals import ProposalDistribution, RandomNumbers, fit_proposal, propose, random_numbers

LogDensities = Callable[[jax.Array], tuple[jax.Array, jax.Array]]

MOVES = 4
"""Moves in a round: so many particles come from each chain."""
DECORRELATED, MOST_ROUNDS = 0.1, 10
"""At each temperature, rounds end when the squared correlation with where the chains began, in the worst coordinate, is
at most this."""
ENOUGH, MOST_FINAL_ROUNDS = 0.8, 24
"""At the posterior, rounds end when the effective number of draws is so large, relative to all."""
SMALLEST, HALVINGS, MOST_TEMPERATURES = -60.0, 14, 1000
"""Log of the smallest step of the temperature, relative to what is left; how often the search for it halves an
interval; and a bound that only a likelihood of infinity meets."""


class Tempered(NamedTuple):
    """Draws after tempering, and how it went.

    Attributes:
        particles: `(M, D)`, equally weighted draws from the posterior, the states of `M = N / 4` chains.
        log_evidence: Estimate of `log int likelihood d prior`.
        num_temperatures: How many steps led from the prior to the posterior.
        num_evaluations: How many times both densities were evaluated.
        acceptance: Acceptance rate of the last round of moves.
        effective_size: Effective number of independent draws, `1 / ((1 - r^2) / M + r^2 / F)` for the worst coordinate:
            `r` is the autocorrelation between a chain's states before and after the moves at the posterior,
            `F = M^2 / sum_i f_i^2` the effective number of prior draws that the chains descend from, of which draw `i`
            has `f_i` descendants. Both states are clipped at the 1st and 99th percentiles of those before, so that it
            holds for means of the bulk: a mode of less than 1 % of the mass may be stuck, and its probability wrong,
            without notice.
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


class _Before(NamedTuple):
    """Where chains began: positions `(M, D)`, clipped at the bounds `(D,)` and centred.

    The bounds are the 1st and 99th percentiles, else one outlying particle would rule.
    """

    centred: jax.Array
    low: jax.Array
    high: jax.Array


class _Level(NamedTuple):
    """One temperature: where its chains begin, `(M, ...)`, with what they propose."""

    start: _Points
    ancestors: jax.Array
    temperature: jax.Array
    log_mean: jax.Array
    effective_ancestors: jax.Array
    proposal: ProposalDistribution
    before: _Before


def temper(rng_key: jax.Array, log_densities: LogDensities, particles: jax.Array) -> Tempered:
    """Turn draws from a prior into draws from the posterior.

    Args:
        rng_key: The only source of randomness.
        log_densities: `(n, D) -> (log p, log L)`, each `(n,)`: the prior up to a constant, and the likelihood. Where
            the likelihood is -inf or NaN the posterior has no mass; where it is so at every particle, the evidence is
            not finite. It is called with `N / 4` points at a time, and compiled by the caller; no other program depends
            on the densities.
        particles: `(N, D)` independent draws from the prior, `MOVES` for each draw from the posterior that is wanted; a
            few thousand for ten dimensions.
    Returns:
        `Tempered`.
    Cost: `N` evaluations of both densities, batched over `M`, at the prior and in each round of moves: 1 to
    `MOST_ROUNDS` at each temperature, 1 to `MOST_FINAL_ROUNDS` at the posterior. Narrow crescents and modes far apart
    meet these bounds; the chains then still correlate with where they began, and `effective_size` is small.
    """
    num_chains = len(particles) // MOVES
    size = num_chains * MOVES

    def evaluate(u):
        return _Points(u, *log_densities(u))

    population = _at_prior([evaluate(block) for block in jnp.split(particles[:size], MOVES)])
    ancestors, temperature = jnp.arange(size), jnp.zeros((), particles.dtype)
    log_evidence, num_temperatures, num_rounds, last = temperature, 0, 0, False
    while True:  # at the last temperature once more, for as many rounds as it needs
        rng_key, resample_key, move_key = jax.random.split(rng_key, 3)
        level = _level(resample_key, population, ancestors, temperature, last, num_temperatures < MOST_TEMPERATURES)
        points, most = level.start, MOST_FINAL_ROUNDS if last else MOST_ROUNDS
        for _ in range(most):
            move_key, random, proposed, log_ratio = _begin(move_key, level.proposal, points.u)
            path, accepted = [], []
            for number in range(MOVES):
                found = _move(level, points, evaluate(proposed), log_ratio, random, np.int32(number))
                points, moved, proposed, log_ratio = found
                path.append(points)
                accepted.append(moved)
            population, correlation, acceptance = _end(level.before, path, accepted)
            num_rounds += 1
            shared = float(correlation)
            effective_size = 1.0 / ((1.0 - shared) / num_chains + shared / float(level.effective_ancestors))
            if effective_size >= ENOUGH * num_chains if last else correlation <= DECORRELATED:
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
def _level(rng_key, population: _Points, ancestors, temperature, last, go_on) -> _Level:
    """The next temperature; the last one again, from the states that the chains are in."""
    size = len(population.u)
    num_chains = size // MOVES
    step, weights, log_mean = _reweigh(population.log_likelihood, 1.0 - temperature)
    chosen = jnp.where(last, jnp.arange(size), systematic(rng_key, weights, size))
    starts = jnp.where(last, chosen[-num_chains:], chosen[::MOVES])
    start = jax.tree.map(lambda x: x[starts], population)
    return _Level(
        start=start,
        ancestors=jnp.tile(ancestors[starts], MOVES),
        temperature=jnp.where(go_on, temperature + step, 1.0),
        log_mean=log_mean,
        effective_ancestors=num_chains**2 / jnp.sum(jnp.square(jnp.bincount(ancestors[starts], length=size))),
        proposal=fit_proposal(population.u[chosen]),
        before=_before(start.u),
    )


def _reweigh(log_likelihood: jax.Array, to_go: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The next step of the temperature, normalised weights and the log of their mean.

    The effective sample size of the particles at which the likelihood is positive falls to half of their
    number; all others go at once, however many they are.
    """
    alive = log_likelihood > -jnp.inf
    peak = jnp.max(log_likelihood)
    relative = jnp.where(alive, log_likelihood - peak, -jnp.inf)

    def enough(step):
        weights = jnp.exp(step * relative)
        return jnp.square(jnp.sum(weights)) >= 0.5 * jnp.sum(alive) * jnp.sum(jnp.square(weights))

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
    ordered, out = jnp.sort(u, axis=0), int(0.01 * len(u))
    low, high = ordered[out], ordered[-1 - out]
    return _Before(_centred(u, low, high), low, high)


def _centred(u, low, high):
    clipped = jnp.clip(u, low[None], high[None])
    return clipped - jnp.mean(clipped, axis=0, keepdims=True)


@jax.jit
def _end(before: _Before, path: list[_Points], accepted: list[jax.Array]) -> tuple[_Points, jax.Array, jax.Array]:
    """All states of a round, the squared autocorrelation over it, and its acceptance rate."""
    acceptance = jnp.mean(jnp.stack(accepted), dtype=path[-1].u.dtype)
    return _joined(path), _squared_autocorrelation(before, path[-1].u), acceptance


def _squared_autocorrelation(before: _Before, u: jax.Array) -> jax.Array:
    """Largest squared correlation of a coordinate with where the chains began; 1 where it does not vary."""
    first, last = before.centred, _centred(u, before.low, before.high)
    squares = jnp.sum(jnp.square(first), axis=0) * jnp.sum(jnp.square(last), axis=0)
    shared = jnp.square(jnp.sum(first * last, axis=0))
    return jnp.max(jnp.where(squares > 0, shared / jnp.where(squares > 0, squares, 1.0), 1.0))


@jax.jit
def _begin(
    rng_key: jax.Array, proposal: ProposalDistribution, u: jax.Array
) -> tuple[jax.Array, RandomNumbers, jax.Array, jax.Array]:
    """The next key, the random numbers of a round of moves, and the first proposals."""
    rng_key, here = jax.random.split(rng_key)
    random = random_numbers(here, MOVES, *u.shape)
    return rng_key, random, *propose(proposal, u, random.uniform[0], random.normal[0])


@jax.jit
def _move(
    level: _Level, points: _Points, proposed: _Points, log_ratio: jax.Array, random: RandomNumbers, number: jax.Array
):
    """The points after a Metropolis move, which of them moved, and the next proposals."""
    proposed = proposed.without_nan()
    log_ratio += proposed.log_density(level.temperature) - points.log_density(level.temperature)
    accepted = jnp.log1p(-random.uniform[number, 0].astype(points.u.dtype)) < log_ratio
    points = jax.tree.map(lambda new, old: jax.vmap(jnp.where)(accepted, new, old), proposed, points)
    then = (number + 1) % MOVES
    return points, accepted, *propose(level.proposal, points.u, random.uniform[then], random.normal[then])
