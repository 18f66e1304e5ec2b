"""Replicates on an emulator: networks learn the model's mean embedding once, and every replicate minimises on them."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme import _checks, _linalg
from numpyro_kme.bootstrap.fit import SAME, Fit, distinct, spread
from numpyro_kme.bootstrap.lanes import Tasks
from numpyro_kme.bootstrap.networks import Networks
from numpyro_kme.losses import mass
from numpyro_kme.losses.base import Objective, join, num_points
from numpyro_kme.losses.direct_mmd import DirectMMD, potential, vectors
from numpyro_kme.losses.features import Features, fit_features
from numpyro_kme.losses.generator import BLOCK, Generator, Nodes
from numpyro_kme.losses.grid_mmd import GridMMD

OUTPUTS = 24
"""Principal features that the networks learn: the embeddings of all laws in question lie close to a space of few dimensions."""

EXPLORE, REFINE = 7, 6
"""Rounds of simulations, at most, in which the loss is tempered, and those in which it is not."""

SHARES = 1, 2, 4
"""Draws at each point of the prior, of a round that explores and of one that refines, in proportion."""

LEAST = 64
"""Draws at a point of the prior, at least."""

HOT, COOLING = 1e3, 6.0
"""First temperature of the loss, and the largest factor by which a round lowers it."""

NEAR = 0.05
"""How soon points count less for being far from the data: weights are `1 / (noise + NEAR loss)`."""

STEPS = 2000, 5000
"""Steps of Adam in a round that explores and in one that refines."""

ITERATIONS, LAST = 30, 100
"""Steps of each descent in a round, and in the end."""

LONGEST = 0.7
"""Longest step of a descent, in standard deviations of the prior."""

ELSEWHERE = 0.5
"""Second starts are at least so far from the first, in standard deviations of the prior."""

PATHS = 8192
"""Draws in one call of the compiled simulator."""


@dataclass(frozen=True)
class Emulation:
    """What is known of an emulator.

    Attributes:
        simulations: Draws of the simulator in all.
        rounds: Rounds in which they were made.
        unit: One unit of log-likelihood in the loss, see `loss_unit`.
        error: Root mean square error of the emulated loss at the replicates' minima, in units of log-likelihood, to first
            order, from simulations that the emulator has not seen; the noise of these is taken out.
        resolution: Errors below about this cannot be told from none by so many simulations.
    """

    simulations: int
    rounds: int
    unit: float
    error: float
    resolution: float

    @classmethod
    def read(cls, simulations: float, rounds: int, unit: float, errors: np.ndarray) -> "Emulation":
        """From the errors by each half of the draws, `(R, 2)`: the mean product of independent errors has no noise in it."""
        product = errors[:, 0] * errors[:, 1]
        resolution = np.sqrt(product.std() / np.sqrt(len(product)))
        return cls(int(simulations), rounds, unit, float(np.sqrt(max(product.mean(), 0.0))), float(resolution))


class Minima(NamedTuple):
    """Minima of the emulated loss, one a row: parameters, loss, mass, step left, and whether the loss is convex there."""

    x: np.ndarray
    value: np.ndarray
    mass: np.ndarray
    remaining: np.ndarray
    hessian: np.ndarray
    convex: np.ndarray


class Emulated(NamedTuple):
    """Minima in units of the parameters, second minima that were lower, first points, the full data's fit, and what is known."""

    minima: Minima
    moved: np.ndarray
    starts: np.ndarray
    fit: Fit
    shift: np.ndarray
    emulation: Emulation


def loss_unit(tangents: np.ndarray, data: np.ndarray) -> float:
    r"""What one unit of log-likelihood is in the loss: `sum_k h_k / sum_k (h_k^2 / j_k)`, the inverse of a learning rate.

    For a log-likelihood the variance `j` of the gradient over reweightings of the data is the Hessian `h`, the information
    identity, and the unit 1. For another loss it is that of Lyddon, Holmes and Walker, along the principal directions of `h`.
    The sums go over several points too, since along what the data leave open `h` may vary.

    Args:
        tangents: Derivatives of the embedding at several points `(K, r, p)`: `h = 2 T' T`.
        data: Embeddings of replicates' data `(R, r)`: their gradients vary as `2 T' data`.

    References: Lyddon, Holmes and Walker (2019), Biometrika 106.
    """
    h, directions = np.linalg.eigh(2.0 * np.swapaxes(tangents, 1, 2) @ tangents)
    slopes = 2.0 * tangents @ directions
    j = np.einsum("krp,rs,ksp->kp", slopes, np.cov(data.T).reshape(data.shape[1], -1), slopes, optimize=True)
    h = np.maximum(h, 1e-9 * h.max())
    return float(h.sum() / (h**2 / np.maximum(j, 1e-300)).sum())


@dataclass(frozen=True)
class Bank:
    """Simulations: at each point the mean features of two independent halves of the draws.

    Attributes:
        x: Points `(n, p)`, in standard deviations of the prior from its middle.
        halves: `(n, 2, J)`.
        counts: Draws at each point `(n,)`.
    """

    x: np.ndarray
    halves: np.ndarray
    counts: np.ndarray

    def join(self, other: "Bank") -> "Bank":
        """Both."""
        return Bank(*(np.concatenate(pair) for pair in zip(vars(self).values(), vars(other).values())))

    @property
    def means(self) -> np.ndarray:
        """Features of all draws `(n, J)`."""
        return self.halves.mean(axis=1)

    def losses(self, data: np.ndarray, free: bool) -> np.ndarray:
        """Unbiased squared distances from an embedding `(J,)`, `(n,)`; with free mass nearly so."""
        q, s = np.sum(self.halves[:, 0] * self.halves[:, 1], axis=1), self.means @ data
        return data @ data + (-np.square(np.maximum(s, 0.0)) / np.maximum(q, 1e-3 * q.max()) if free else q - 2.0 * s)

    def noise(self) -> np.ndarray:
        """Variance of the means, in all features together, `(n,)`."""
        apart = np.square(self.halves[:, 0] - self.halves[:, 1]).sum(axis=1) / 4.0
        return np.mean(self.counts * apart) / self.counts


@dataclass(frozen=True)
class Simulations:
    """How simulations are made: a generator, a map from standardised parameters to its own, features of its draws."""

    generator: Generator
    middle: np.ndarray
    width: np.ndarray
    features: Features | None = None

    def draws(self, rng_key: jax.Array, x: np.ndarray, count: int) -> Any:
        """Draws `(R, count, ...)`, two independent halves at each point; those of point `i` depend on the key and `i` alone."""
        size = max(PATHS // count, 1)
        u, parts = self.middle + self.width * x, []
        with _linalg.float64():
            for first in range(0, len(x), size):
                rows = np.arange(first, first + size)
                parts.append(_linalg.to_host(_draw(self.generator, rng_key, rows, u[np.minimum(rows, len(x) - 1)], count // 2)))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(x)], *parts)

    def bank(self, rng_key: jax.Array, x: np.ndarray, count: int) -> Bank:
        """Simulate at points `(R, p)`."""
        assert self.features is not None
        return self.read(x, self.draws(rng_key, x, count))

    def read(self, x: np.ndarray, draws: Any) -> Bank:
        """The bank of draws `(R, count, ...)`."""
        assert self.features is not None
        half = jax.tree.leaves(draws)[0].shape[1] // 2
        halves = jax.tree.map(lambda leaf: leaf.reshape(len(x) * 2, half, *leaf.shape[2:]), draws)
        return Bank(x, self.features.mean(halves).reshape(len(x), 2, -1), np.full(len(x), 2.0 * half))


@dataclass(frozen=True)
class Emulator:
    """The embedding as a function of standardised parameters, on a few principal features.

    Attributes:
        networks: What was learnt.
        basis: Principal features `(J, r)`.
        bank: Where it was learnt.
        free: Whether the mass is free.
    """

    networks: Networks
    basis: np.ndarray
    bank: Bank
    free: bool

    @classmethod
    def fit(cls, rng_key: jax.Array, bank: Bank, data: np.ndarray, free: bool, rows: int, steps: int) -> "Emulator":
        """Learn from a bank; points near the data's embedding `(J,)` count most."""
        weights = 1.0 / (bank.noise() + NEAR * np.maximum(bank.losses(data, free), 0.0) + 1e-12 * (data @ data))
        means = bank.means
        _, vectors = np.linalg.eigh((means * weights[:, None]).T @ means)
        basis = vectors[:, ::-1][:, :OUTPUTS]
        with _linalg.float64():
            networks = Networks.fit(rng_key, bank.x, means @ basis, weights, rows, steps)
        return cls(networks, basis, bank, free)

    @cached_property
    def known(self) -> np.ndarray:
        """Emulated embeddings at the points of the bank `(n, r)`."""
        return self.at(self.bank.x)

    def at(self, x: np.ndarray) -> np.ndarray:
        """Emulated embeddings `(R, r)`."""
        return _in_chunks(lambda rows: _at(self.networks, rows), 1024, x)

    def tangents(self, x: np.ndarray, share: np.ndarray) -> np.ndarray:
        """Derivatives of the embedding at points `(R, p)`, with free mass of its direction only, `(R, r, p)`."""
        return _in_chunks(lambda *rows: _tangents(self.networks, *rows, self.free), 64, x, share)

    def starts(self, data: np.ndarray, towards: np.ndarray, unit: float, weight: float, away: Any = None) -> np.ndarray:
        """The point of the bank that is best for each task; `away` from points `(R, p)` if these are given."""
        q, s = np.square(self.known).sum(axis=1), data @ self.known.T
        losses = -np.square(np.maximum(s, 0.0)) / q if self.free else q - 2.0 * s
        apart = np.square(self.bank.x).sum(axis=1) - 2.0 * towards @ self.bank.x.T
        losses = losses / unit + 0.5 * weight * apart
        if away is not None:
            near = np.stack([np.abs(self.bank.x - x).max(axis=1) < ELSEWHERE for x in away])
            losses = np.where(near & ~near.all(axis=1, keepdims=True), np.inf, losses)
        return self.bank.x[np.argmin(losses, axis=1)]

    def minimise(self, data, towards, unit, weight, starts, steps=ITERATIONS) -> Minima:
        """Minimise `loss / unit + weight |x - z|^2 / 2` for embeddings `(R, r)` and points `z (R, p)`, from starts `(R, p)`."""

        def some(*rows):
            return _minimise(self.networks, *rows, float(unit), float(weight), steps, self.free)

        return Minima(*_in_chunks(some, 64, data, towards, starts))


def design(num_simulations: int) -> tuple[int, int]:
    """Points of a round, at most 1,024, and draws at a point of the prior, a power of two, for so many draws in all."""
    shares, each = 2 * SHARES[0] + EXPLORE * SHARES[1] + REFINE * SHARES[2], LEAST
    while num_simulations > 1024 * shares * each:
        each *= 2
    return num_simulations // (shares * each), each


def emulate(rng_key: jax.Array, objective: Objective, starts: np.ndarray, pilot: Any, tasks: Tasks, settings: Any) -> Emulated:
    r"""Minimise the squared MMD of every task on an emulator of `mu_u`, which is learnt in rounds.

    The first simulations are at prior draws. A round then trains the networks anew on everything there is, minimises the
    emulated loss of pilot replicates, divided by a temperature, each pulled to a prior point of its own, and simulates at their
    minima; half of these are moved by a draw of the normal law with the loss as log-density. The temperature falls to the
    error found there, and then to 1. At last the replicates are minimised, from two starts each.

    Args:
        rng_key: The only source of randomness.
        objective: A squared MMD.
        starts: Draws of the prior `(S, p)`, unconstrained.
        pilot: `(round, count) -> Tasks` with `extra = (points, z)`, new replicates for each round.
        tasks: The replicates, likewise.
        settings: `Settings`.
    """
    _checks.require(
        isinstance(objective, GridMMD | DirectMMD) and objective.generator.covariates is None,
        f'`method="emulated"` knows the squared MMD without covariates; got {type(objective).__name__}'
        f"{' with covariates' if objective.generator.covariates is not None else ''}. Use MMD(...), or leave `method` out.",
    )
    assert isinstance(objective, GridMMD | DirectMMD)
    middle, width, weight = np.median(starts, axis=0), spread(starts), settings.prior_weight
    points, each = design(settings.num_simulations)
    keys = jax.random.split(rng_key, 4)
    simulations = Simulations(objective.generator, middle, width)
    x = (starts[np.arange(2 * points) % len(starts)] - middle) / width
    draws = simulations.draws(keys[0], x, SHARES[0] * each)
    features = fit_features(objective.kernel, _together(objective.data, draws))
    simulations = replace(simulations, features=features)
    bank, free = simulations.read(x, draws), objective.free_mass
    of_data = features.at(objective.data)
    whole = of_data.mean(axis=0)
    hot, rounds, rows = HOT, 0, (2 + EXPLORE + REFINE) * points
    unit = np.square(of_data).sum(axis=1).mean() / len(of_data)
    for number in range(EXPLORE + REFINE + 1):
        exploring, last = hot > 1.0 and number < EXPLORE, rounds == REFINE
        hot = hot if exploring else 1.0
        key = jax.random.fold_in(keys[1], number)
        emulator = Emulator.fit(key, bank, whole, free, rows, STEPS[0 if exploring else 1])
        now = pilot(number, points)
        data, towards = _embeddings(features, of_data, now) @ emulator.basis, (now.extra[1] - middle) / width
        found = emulator.minimise(data, towards, unit * hot, weight, emulator.starts(data, towards, unit * hot, weight))
        unit = loss_unit(emulator.tangents(found.x[:64], found.mass[:64]), data)
        if last:
            break
        new = simulations.bank(jax.random.fold_in(keys[2], number), _jittered(key, found), SHARES[1 if exploring else 2] * each)
        error = _errors(emulator, new, data, found)[: points // 2] / unit
        bank, rounds = bank.join(new), rounds + (not exploring)
        hot = float(np.clip(0.5 * np.sqrt(max(np.median(error[:, 0] * error[:, 1]), 0.0)), max(1.0, hot / COOLING), hot))
    data, towards = _embeddings(features, of_data, tasks) @ emulator.basis, (tasks.extra[1] - middle) / width
    first = emulator.starts(data, towards, unit, weight)
    one = emulator.minimise(data, towards, unit, weight, first, LAST)
    away = emulator.starts(data, towards, unit, weight, one.x)
    two = emulator.minimise(data, towards, unit, weight, away, LAST)
    totals = [m.value / unit + 0.5 * weight * np.square(m.x - towards).sum(axis=1) for m in (one, two)]
    moved = totals[1] < totals[0] - 1e-3
    best = Minima(*(np.where(moved.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(one, two)))
    unseen = simulations.bank(keys[3], best.x, 4 * SHARES[2] * each)
    error = _errors(emulator, unseen, data, best) / unit
    emulation = Emulation.read(bank.counts.sum() + unseen.counts.sum(), number, unit, error)
    constant = _squared_norms(objective, tasks) - np.square(data).sum(axis=1)
    scales = width[:, None] * width
    best = best._replace(
        x=middle + width * best.x,
        value=best.value + constant,
        remaining=best.remaining * width,
        hessian=best.hessian * unit / scales,
    )
    full = _full_fit(emulator, whole @ emulator.basis, unit, weight)
    fit = replace(full, u=middle + width * full.u, others=middle + width * full.others, hessian=full.hessian * unit / scales, scale=width)
    some = np.unique(np.linspace(0, len(tasks) - 1, min(BLOCK, len(tasks))).astype(int))
    shift = _between(emulator, data[some], (best.x[some] - middle) / width, unit, best.hessian[some] * scales / unit) * width
    return Emulated(best, moved, middle + width * first, fit, shift, emulation)


def _embeddings(features: Features, of_data: np.ndarray, tasks: Tasks) -> np.ndarray:
    """Features of the weighted data of every task `(R, J)`."""
    n, extra = len(of_data), tasks.extra[0]
    found = tasks.weights[:, :n] @ of_data
    if extra is not None:
        for i in range(len(found)):
            found[i] += tasks.weights[i, n:] @ features.at(jax.tree.map(lambda leaf: leaf[i], extra))
    return found


def _errors(emulator: Emulator, bank: Bank, data: np.ndarray, found: Minima) -> np.ndarray:
    """Errors of the emulated losses at the points of a bank, to first order, by each half of the draws, `(R, 2)`."""
    have = emulator.at(bank.x)
    force = 2.0 * found.mass[:, None] * (found.mass[:, None] * have - data)
    return np.einsum("rhj,jk,rk->rh", bank.halves, emulator.basis, force, optimize=True) - np.sum(have * force, axis=1)[:, None]


def _jittered(rng_key: jax.Array, found: Minima) -> np.ndarray:
    """The minima, the second half of them moved by a draw of the normal law with their Hessian as precision."""
    values, vectors = np.linalg.eigh(found.hessian)
    noise = np.asarray(jax.random.normal(rng_key, found.x.shape)) / np.sqrt(np.maximum(values, 1.0))
    moves = np.einsum("rpq,rq->rp", vectors, noise)
    return found.x + np.where(np.arange(len(moves))[:, None] < len(moves) // 2, 0.0, moves)


def _full_fit(emulator: Emulator, whole: np.ndarray, unit: float, weight: float) -> Fit:
    """The full data's minimum, pulled to the prior's middle, from the best points of the bank."""
    p, middle = emulator.bank.x.shape[1], np.square(emulator.bank.x).sum(axis=1)
    losses = np.square(emulator.known - whole).sum(axis=1) / unit + 0.5 * weight * middle
    starts = emulator.bank.x[np.argsort(losses)[:64]]
    found = emulator.minimise(np.repeat(whole[None], len(starts), axis=0), np.zeros_like(starts), unit, weight, starts, LAST)
    best, *others = distinct(found.x, found.value / unit + 0.5 * weight * np.square(found.x).sum(axis=1), np.ones(p))
    same = np.abs(found.x - found.x[best]).max(axis=1) <= SAME
    return Fit(
        u=found.x[best],
        value=float(found.value[best]),
        hessian=found.hessian[best],
        others=found.x[others],
        other_values=found.value[others],
        scale=np.ones(p),
        reached=int(same.sum()),
        followed=len(starts),
        converged=bool(found.convex[best] and np.abs(found.remaining[best]).max() < 1e-2),
    )


def _between(emulator: Emulator, data, x, unit, hessians) -> np.ndarray:
    """Standard deviations over networks of the minima, to first order, as steps of each network from the common one, `(k, p)`."""
    with _linalg.float64():
        slopes = np.asarray(_slopes_of_each(emulator.networks, data, x, float(unit), emulator.free))
    steps = np.linalg.solve(hessians[:, None] + 1e-9 * np.eye(x.shape[1]), slopes[..., None])[..., 0]
    return (steps - steps.mean(axis=1, keepdims=True)).reshape(-1, x.shape[1]) / np.sqrt(steps.shape[1] - 1.0)


def _squared_norms(objective: GridMMD | DirectMMD, tasks: Tasks) -> np.ndarray:
    """`|mu_w|^2` of every task."""
    bare = DirectMMD(objective.generator, objective.kernel, objective.data, objective.free_mass)
    with _linalg.float64():
        return np.asarray(_norms(bare, tasks.weights, tasks.extra[0]))


def _in_chunks(function: Any, size: int, *arrays: np.ndarray) -> Any:
    """Call a compiled function on so many rows of arrays at a time, so that it is compiled once; the last rows are padded."""
    count, results = len(arrays[0]), []
    with _linalg.float64():
        for first in range(0, count, size):
            rows = np.minimum(np.arange(first, first + size), count - 1)
            results.append(_linalg.to_host(function(*(a[rows] for a in arrays))))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *results)


@jax.jit
def _norms(objective, weights, extra):
    return objective.offsets(weights, extra)


def _together(data: Any, draws: Any) -> Any:
    """Data, and about as many draws `(R, count, ...)`, as one set of points."""
    n = num_points(data)

    def both(a, b):
        flat = b.reshape(-1, *b.shape[2:])
        return np.concatenate([a.reshape(n, *flat.shape[1:]), flat[:: max(len(flat) // n, 1)]])

    return jax.tree.map(both, data, draws)


@partial(jax.jit, static_argnums=4)
def _draw(generator, rng_key, rows, u, half):
    def one(row, u):
        keys = jax.random.split(jax.random.fold_in(rng_key, row))
        values = jax.vmap(lambda key: generator.noise.spread(key, half))(keys)
        values = jax.tree.map(lambda leaf: leaf.reshape(2 * half, *leaf.shape[2:]), values)
        return generator.points(u, Nodes(values, jnp.ones(2 * half)))

    return jax.vmap(one)(rows, u)


@jax.jit
def _at(networks, x):
    return jax.vmap(lambda one: networks(one).mean(axis=0))(x)


def _residual(model, data, free):
    """`c mu - data` with the mass `c`; `model` and `data` are stacked over networks."""
    c = mass.share(model @ model, model @ data) if free else jnp.ones(())
    return c * model - data, c


def _tangent(model, jacobian, c, free):
    """Derivatives of `_residual` but for those of the mass, which the residual is orthogonal to."""
    if not free:
        return jacobian
    along = model / jnp.sqrt(model @ model)
    return c * (jacobian - jnp.outer(along, along @ jacobian))


@partial(jax.jit, static_argnums=3)
def _tangents(networks, x, c, free):
    def model(t):
        return networks(t).mean(axis=0)

    return jax.vmap(lambda x, c: _tangent(model(x), jax.jacfwd(model)(x), c, free))(x, c)


@partial(jax.jit, static_argnums=4)
def _slopes_of_each(networks, data, x, unit, free):
    def of_one(x, data):
        def losses(t):
            return jax.vmap(lambda model: jnp.sum(jnp.square(_residual(model, data, free)[0])) / unit)(networks(t))

        return jax.jacfwd(losses)(x)

    return jax.lax.map(lambda row: of_one(*row), (x, data))


@partial(jax.jit, static_argnums=7)
def _minimise(networks, data, towards, starts, unit, weight, steps, free):
    """Levenberg and Marquardt with exact derivatives of the networks; the loss is averaged over these."""
    p, count = starts.shape[1], networks.level.size
    eye, nets = jnp.eye(p), jax.tree.leaves(networks.layers)[0].shape[0]
    size = 1.0 / jnp.sqrt(nets * unit)

    def model(x):
        return size * networks(x).reshape(nets * count)

    def one(row):
        data, z, start = row
        target = size * jnp.tile(data, nets)

        def look(x):
            value, jacobian = model(x), jax.jacfwd(model)(x)
            residual, c = _residual(value, target, free)
            return residual, _tangent(value, jacobian, c, free), c

        def total(residual, x):
            return residual @ residual + 0.5 * weight * jnp.sum(jnp.square(x - z))

        def step(_, state):
            x, (residual, tangents, c), damping = state
            hessian = 2.0 * tangents.T @ tangents + weight * eye
            gradient = 2.0 * tangents.T @ residual + weight * (x - z)
            move = -jnp.linalg.solve(hessian + damping * jnp.diag(jnp.diag(hessian)) + 1e-9 * eye, gradient)
            move = move * jnp.minimum(1.0, LONGEST / jnp.maximum(jnp.max(jnp.abs(move)), 1e-300))
            trial = look(x + move)
            better = total(trial[0], x + move) < total(residual, x)
            kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), (x + move, trial), (x, (residual, tangents, c)))
            return (*kept, jnp.where(better, 0.25 * damping, 4.0 * jnp.maximum(damping, 1e-3)))

        x, (residual, tangents, c), _ = jax.lax.fori_loop(0, steps, step, (start, look(start), jnp.full((), 1e-2)))

        def objective(t):
            return total(_residual(model(t), target, free)[0], t)

        gradient, hessian = jax.grad(objective)(x), jax.hessian(objective)(x)
        values, vectors = jnp.linalg.eigh(hessian)
        raised = jnp.maximum(jnp.abs(values), 1e-9 * jnp.max(jnp.abs(values)) + 1e-290)
        remaining = -vectors @ ((gradient @ vectors) / raised)
        return x, unit * (residual @ residual), c, remaining, 2.0 * tangents.T @ tangents + weight * eye, values[0] > 0.0

    return jax.vmap(lambda *row: one(row))(data, towards, starts)
