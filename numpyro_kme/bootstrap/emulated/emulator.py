"""An emulator of a simulator's mean embedding, and minima of a squared MMD on it."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import on_host, to_host
from numpyro_kme.bootstrap.emulated.networks import Networks
from numpyro_kme.bootstrap.emulated.simulations import Bank
from numpyro_kme.losses import mass

OUTPUTS = 24
"""Principal features that the networks learn: the embeddings of all laws in question lie close to a space of few dimensions."""

NEAR = 0.05
"""How soon points count less for being far from the data: weights are `1 / (noise + NEAR loss)`."""

ITERATIONS, LAST = 30, 100
"""Steps of each descent in a round, and in the end."""

LONGEST = 0.7
"""Longest step of a descent, in standard deviations of the prior."""

ELSEWHERE = 0.5
"""Second starts are at least so far from the first, in standard deviations of the prior."""


class Minima(NamedTuple):
    """Minima of the emulated loss, one a row: parameters, loss, mass, step left, and whether the loss is convex there."""

    x: np.ndarray
    value: np.ndarray
    mass: np.ndarray
    remaining: np.ndarray
    hessian: np.ndarray
    convex: np.ndarray


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
        networks = on_host(Networks.fit)(rng_key, bank.x, means @ basis, weights, rows, steps)
        return cls(networks, basis, bank, free)

    @cached_property
    def known(self) -> np.ndarray:
        """Emulated embeddings at the points of the bank `(n, r)`."""
        return self.at(self.bank.x)

    def at(self, x: np.ndarray) -> np.ndarray:
        """Emulated embeddings `(R, r)`."""
        return in_chunks(lambda rows: _at(self.networks, rows), 1024, x)

    def tangents(self, x: np.ndarray, share: np.ndarray) -> np.ndarray:
        """Derivatives of the embedding at points `(R, p)`, with free mass of its direction only, `(R, r, p)`."""
        return in_chunks(lambda *rows: _tangents(self.networks, *rows, self.free), 64, x, share)

    def losses(self, known: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Losses of embeddings `(..., n, r)` beside data `(..., R, r)`, up to a term of the data, `(..., R, n)`."""
        q, s = np.square(known).sum(axis=-1)[..., None, :], data @ np.swapaxes(known, -1, -2)
        return -np.square(np.maximum(s, 0.0)) / q if self.free else q - 2.0 * s

    def best(self, data: np.ndarray, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """For each task `(R, r)` the best of some points of `x (S, p)`, those of its rows `(R, K)`."""
        if rows.shape[1] == 1:
            return x[rows[:, 0]]
        known, found = self.at(x), []
        for first in range(0, len(rows), 64):
            some = rows[first : first + 64]
            losses = self.losses(known[some], data[first : first + 64, None])[:, 0]
            found.append(np.take_along_axis(some, np.argmin(losses, axis=1)[:, None], axis=1)[:, 0])
        return x[np.concatenate(found)]

    def starts(self, data: np.ndarray, towards: np.ndarray, unit: float, weight: float, away: Any = None) -> np.ndarray:
        """The point of the bank that is best for each task; `away` from points `(R, p)` if these are given."""
        losses = self.losses(self.known, data)
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

        return Minima(*in_chunks(some, 64, data, towards, starts))

    def errors(self, bank: Bank, data: np.ndarray, found: Minima) -> np.ndarray:
        """Errors of the emulated losses at the points of a bank, to first order, by each half of the draws, `(R, 2)`."""
        have = self.at(bank.x)
        force = 2.0 * found.mass[:, None] * (found.mass[:, None] * have - data)
        seen = np.einsum("rhj,jk,rk->rh", bank.halves, self.basis, force, optimize=True)
        return seen - np.sum(have * force, axis=1)[:, None]

    def between(self, data: np.ndarray, x: np.ndarray, unit: float, hessians: np.ndarray) -> np.ndarray:
        """How far apart the networks' own minima are: a step of each from the common one, about their mean, `(k, p)`."""
        slopes = on_host(_slopes_of_each)(self.networks, data, x, float(unit), self.free)
        steps = np.linalg.solve(hessians[:, None] + 1e-9 * np.eye(x.shape[1]), slopes[..., None])[..., 0]
        return (steps - steps.mean(axis=1, keepdims=True)).reshape(-1, x.shape[1]) / np.sqrt(steps.shape[1] - 1.0)


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


@on_host
def in_chunks(function: Any, size: int, *arrays: np.ndarray) -> Any:
    """Call a compiled function on so many rows of arrays at a time, so that it is compiled once; the last rows are padded."""
    count, results = len(arrays[0]), []
    for first in range(0, count, size):
        rows = np.minimum(np.arange(first, first + size), count - 1)
        results.append(to_host(function(*(a[rows] for a in arrays))))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *results)


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
            kept = jax.tree.map(
                lambda new, old: jnp.where(better, new, old), (x + move, trial), (x, (residual, tangents, c))
            )
            return (*kept, jnp.where(better, 0.25 * damping, 4.0 * jnp.maximum(damping, 1e-3)))

        x, (residual, tangents, c), _ = jax.lax.fori_loop(0, steps, step, (start, look(start), jnp.full((), 1e-2)))

        def objective(t):
            return total(_residual(model(t), target, free)[0], t)

        gradient, hessian = jax.grad(objective)(x), jax.hessian(objective)(x)
        values, vectors = jnp.linalg.eigh(hessian)
        raised = jnp.maximum(jnp.abs(values), 1e-9 * jnp.max(jnp.abs(values)) + 1e-290)
        remaining = -vectors @ ((gradient @ vectors) / raised)
        return (
            x,
            unit * (residual @ residual),
            c,
            remaining,
            2.0 * tangents.T @ tangents + weight * eye,
            values[0] > 0.0,
        )

    return jax.vmap(lambda *row: one(row))(data, towards, starts)
