"""Simulations at many parameters, kept as mean features: what an emulator is trained on."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host, to_host
from numpyro_kme.bootstrap.emulated.features import FeatureMap
from numpyro_kme.losses.generator import Generator, QuadratureNodes

CHUNK = 8192
"""Simulations in one call of the compiled simulator."""


@dataclass(frozen=True)
class EmulatorTrainingSet:
    """At each point the mean features of two independent halves of the simulations there.

    Attributes:
        x: Points `(n, p)`, in standard deviations of the prior from its middle.
        split_halves: Mean features of each half, `(n, 2, J)`.
        counts: Simulations at each point, `(n,)`.
    """

    x: np.ndarray
    split_halves: np.ndarray
    counts: np.ndarray

    def join(self, other: "EmulatorTrainingSet") -> "EmulatorTrainingSet":
        """Both."""
        return EmulatorTrainingSet(*(np.concatenate(pair) for pair in zip(vars(self).values(), vars(other).values())))

    @property
    def means(self) -> np.ndarray:
        """Mean features of all simulations at each point, `(n, J)`."""
        return self.split_halves.mean(axis=1)

    def losses(self, data: np.ndarray, fit_proportion: bool) -> np.ndarray:
        """Unbiased squared distances from an embedding `(J,)`, `(n,)`; with a fitted mixing proportion nearly so."""
        q, s = np.sum(self.split_halves[:, 0] * self.split_halves[:, 1], axis=1), self.means @ data
        if fit_proportion:
            return data @ data + -np.square(np.maximum(s, 0.0)) / np.maximum(q, 1e-3 * q.max())
        return data @ data + (q - 2.0 * s)

    def noise(self) -> np.ndarray:
        """Variance of the means, in all features together, `(n,)`."""
        apart = np.square(self.split_halves[:, 0] - self.split_halves[:, 1]).sum(axis=1) / 4.0
        return np.mean(self.counts * apart) / self.counts


@dataclass(frozen=True)
class TrainingSimulator:
    """How training sets are made.

    Attributes:
        generator: The simulator.
        middle: Middle of the prior, `(p,)`.
        width: Robust standard deviations of the prior, `(p,)`.
        features: Feature map of simulated points, once it is known.
    """

    generator: Generator
    middle: np.ndarray
    width: np.ndarray
    features: FeatureMap | None = None

    def standardise(self, u: np.ndarray) -> np.ndarray:
        """Points `x (n, p)` of parameters `u (n, p)`."""
        return (u - self.middle) / self.width

    def parameters(self, x: np.ndarray) -> np.ndarray:
        """Parameters `u` of points `x`, `(p,)` or `(n, p)`."""
        return self.middle + self.width * x

    @on_host
    def simulate(self, rng_key: jax.Array, x: np.ndarray, count: int) -> Any:
        """Simulations `(R, count, ...)`, two independent halves at each point.

        Those at point `i` depend on the key and on `i` alone.
        """
        size = max(CHUNK // count, 1)
        u, parts = self.parameters(x), []
        for first in range(0, len(x), size):
            rows = np.arange(first, first + size)
            chunk = _simulate(self.generator, rng_key, rows, u[np.minimum(rows, len(x) - 1)], count // 2)
            parts.append(to_host(chunk))
        found = jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(x)], *parts)
        for leaf in jax.tree.leaves(found):
            lost = len(x) - int(np.isfinite(leaf).reshape(len(x), -1).all(axis=1).sum())
            checks.require(
                lost == 0,
                f"the simulator drew values that are not finite at {lost} of {len(x)} parameters. Narrow the priors, "
                "or return a finite value there.",
            )
        return found

    def training_set(self, rng_key: jax.Array, x: np.ndarray, count: int) -> EmulatorTrainingSet:
        """Simulate at points `x (R, p)`."""
        return self.summarise(x, self.simulate(rng_key, x, count))

    def summarise(self, x: np.ndarray, simulated: Any) -> EmulatorTrainingSet:
        """Mean features of simulations `(R, count, ...)` at points `x (R, p)`."""
        assert self.features is not None
        half = jax.tree.leaves(simulated)[0].shape[1] // 2
        halves = jax.tree.map(lambda leaf: leaf.reshape(len(x) * 2, half, *leaf.shape[2:]), simulated)
        return EmulatorTrainingSet(x, self.features.mean(halves).reshape(len(x), 2, -1), np.full(len(x), 2.0 * half))


@partial(jax.jit, static_argnums=4)
def _simulate(generator, rng_key, rows, u, half):
    def one(row, u):
        keys = jax.random.split(jax.random.fold_in(rng_key, row))
        values = jax.vmap(lambda key: generator.noise.quasi_random(key, half))(keys)
        values = jax.tree.map(lambda leaf: leaf.reshape(2 * half, *leaf.shape[2:]), values)
        return generator.points(u, QuadratureNodes(values, jnp.ones(2 * half)))

    return jax.vmap(one)(rows, u)
