"""Simulations at many parameters, kept as mean features."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host, to_host
from numpyro_kme.losses.features import Features
from numpyro_kme.losses.generator import Generator, Nodes

PATHS = 8192
"""Draws in one call of the compiled simulator."""


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

    @on_host
    def draws(self, rng_key: jax.Array, x: np.ndarray, count: int) -> Any:
        """Draws `(R, count, ...)`, two independent halves at each point; those of point `i` depend on the key and `i` alone."""
        size = max(PATHS // count, 1)
        u, parts = self.middle + self.width * x, []
        for first in range(0, len(x), size):
            rows = np.arange(first, first + size)
            parts.append(to_host(_draw(self.generator, rng_key, rows, u[np.minimum(rows, len(x) - 1)], count // 2)))
        found = jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(x)], *parts)
        for leaf in jax.tree.leaves(found):
            lost = len(x) - int(np.isfinite(leaf).reshape(len(x), -1).all(axis=1).sum())
            checks.require(
                lost == 0,
                f"the simulator drew values that are not finite at {lost} of {len(x)} parameters. Narrow the priors, or return "
                "a finite value there.",
            )
        return found

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


@partial(jax.jit, static_argnums=4)
def _draw(generator, rng_key, rows, u, half):
    def one(row, u):
        keys = jax.random.split(jax.random.fold_in(rng_key, row))
        values = jax.vmap(lambda key: generator.noise.spread(key, half))(keys)
        values = jax.tree.map(lambda leaf: leaf.reshape(2 * half, *leaf.shape[2:]), values)
        return generator.points(u, Nodes(values, jnp.ones(2 * half)))

    return jax.vmap(one)(rows, u)
