"""What an emulator is trained on: simulations at many parameters, kept as mean features of the kernel."""

import abc
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import eigh

from numpyro_kme._core import checks, programs
from numpyro_kme._core.host import on_host
from numpyro_kme._core.programs import jitted
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.kernels import Kernel
from numpyro_kme.kernels.base import num_points
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.losses import mixing
from numpyro_kme.losses.generator import Generator, QuadratureNodes, vectors

CELLS, FEATURES = 2048, 256
"""Points of the line at which features are tabulated; how many features there are, at most."""

BATCH = 64
"""Sets of points whose features are computed at a time."""

OUTER = 1e-3
"""Proportion of the points on either side that a table leaves out, but for a margin."""


class FeatureMap(abc.ABC):
    """Features of simulated points and of data."""

    @abc.abstractmethod
    def at(self, points: Any) -> np.ndarray:
        """Features of points `(m, ...)`, `(m, J)`."""

    def mean(self, points: Any) -> np.ndarray:
        """Mean features of sets of points `(R, M, ...)`, `(R, J)`."""
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), points)
        sets, each = jax.tree.leaves(points)[0].shape[:2]
        found = [
            self.at(jax.tree.map(itemgetter(slice(i, i + BATCH * each)), flat))
            for i in range(0, sets * each, BATCH * each)
        ]
        return np.concatenate([part.reshape(-1, each, part.shape[1]).mean(axis=1) for part in found])

    def reweighted(self, data_features: np.ndarray, reweightings: Reweightings) -> np.ndarray:
        """Mean features of the reweighted data, `(R, J)`, from those of the data, `(n, J)`."""
        n, extra = len(data_features), reweightings.extra
        found = reweightings.weights[:, :n] @ data_features
        if extra is not None:
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), extra)
            own = self.at(flat).reshape(len(found), -1, found.shape[1])
            found += np.einsum("rt,rtj->rj", reweightings.weights[:, n:], own)
        return found


@dataclass(frozen=True)
class TabulatedFeatures(FeatureMap):
    """The leading eigenfunctions of a kernel on a window of the line, between whose cells they are linear.

    The density of a simulated scalar is smooth, and so in the span of few smooth functions, even where the kernel has a
    narrow part.

    Attributes:
        low: Left end of the window.
        step: Width of a cell.
        table: Values `(cells, J)`, zero at both ends.
    """

    low: float
    step: float
    table: np.ndarray

    @classmethod
    @on_host
    def fit(cls, kernel: Kernel, points: np.ndarray) -> "TabulatedFeatures":
        """Tabulate on a window with all but `OUTER` of the points on either side, and a tenth of its width beyond."""
        low, high = np.quantile(points, [OUTER, 1.0 - OUTER])
        cells, step = np.linspace(low - 0.1 * (high - low), high + 0.1 * (high - low), CELLS, retstep=True)
        gram = np.asarray(kernel.gram(cells[:, None]))
        values, functions = eigh(gram, subset_by_index=(CELLS - FEATURES, CELLS - 1))
        table = functions[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0))
        table[[0, -1]] = 0.0
        return cls(float(cells[0]), float(step), table)

    def at(self, points):
        """Linear interpolation in the table; zero outside."""
        cell, part = self._locate(np.ravel(points))
        return (1.0 - part)[:, None] * self.table[cell] + part[:, None] * self.table[cell + 1]

    def mean(self, points):
        """Points are counted by cells first."""
        cell, part = self._locate(points.reshape(len(points), -1))
        cell = cell + len(self.table) * np.arange(len(cell))[:, None]
        size = len(self.table) * len(cell)
        left, right = (1.0 - part).ravel(), part.ravel()
        counts = np.bincount(cell.ravel(), left, size) + np.bincount(cell.ravel() + 1, right, size)
        return counts.reshape(len(cell), -1) @ self.table / cell.shape[1]

    def _locate(self, points):
        position = np.clip((points - self.low) / self.step, 0.0, len(self.table) - 1.0)
        cell = np.minimum(position.astype(int), len(self.table) - 2)
        return cell, position - cell


@dataclass(frozen=True)
class CholeskyFeatures(FeatureMap):
    """Features by a pivoted incomplete Cholesky factor, for points of any kind; see `LowRank`."""

    factor: LowRank

    @classmethod
    def fit(cls, kernel: Kernel, points: Any) -> "CholeskyFeatures":
        """Choose at most `FEATURES` pivots among the points."""
        return cls(LowRank.fit(kernel, vectors(points), tolerance=1e-6, max_rank=FEATURES))

    def at(self, points):
        """`W k(P, t)`."""
        return self.factor.features(vectors(points))


def fit_features(kernel: Kernel, points: Any) -> FeatureMap:
    """Feature map for points like `(m, ...)`: tabulated for scalars."""
    if isinstance(points, np.ndarray) and points.size == len(points):
        return TabulatedFeatures.fit(kernel, np.ravel(points))
    return CholeskyFeatures.fit(kernel, points)


def together(data: Any, simulated: Any) -> Any:
    """Data, and about as many simulations `(R, count, ...)`, as one set of points."""
    n = num_points(data)

    def both(a, b):
        flat = b.reshape(-1, *b.shape[2:])
        return np.concatenate([a.reshape(n, *flat.shape[1:]), flat[:: max(len(flat) // n, 1)]])

    return jax.tree.map(both, data, simulated)


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
        q = np.maximum(q, 1e-3 * q.max()) if fit_proportion else q
        return data @ data + mixing.discrepancy(q, s, fit_proportion)

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
    features: Any = None

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

        def some(numbered):
            return _simulate(self.generator, rng_key, *numbered, count // 2)

        # simulations in one call of the compiled simulator
        found = programs.in_blocks(some, (np.arange(len(x)), self.parameters(x)), max(8192 // count, 1))
        for leaf in jax.tree.leaves(found):
            lost = len(x) - int(np.isfinite(leaf).reshape(len(x), -1).all(axis=1).sum())
            checks.require(
                not lost,
                f"the simulator drew values that are not finite at {lost} of {len(x)} parameters. Narrow the priors, "
                "or return a finite value there.",
            )
        return found

    def training_set(self, rng_key: jax.Array, x: np.ndarray, count: int) -> EmulatorTrainingSet:
        """Simulate at points `x (R, p)`."""
        return self.summarise(x, self.simulate(rng_key, x, count))

    def summarise(self, x: np.ndarray, simulated: Any) -> EmulatorTrainingSet:
        """Mean features of simulations `(R, count, ...)` at points `x (R, p)`."""
        half = jax.tree.leaves(simulated)[0].shape[1] // 2
        halves = jax.tree.map(lambda leaf: leaf.reshape(len(x) * 2, half, *leaf.shape[2:]), simulated)
        return EmulatorTrainingSet(x, self.features.mean(halves).reshape(len(x), 2, -1), np.full(len(x), 2.0 * half))


@partial(jitted, static_argnums=4)
def _simulate(generator, rng_key, rows, u, half):
    def one(row, u):
        keys = jax.random.split(jax.random.fold_in(rng_key, row))
        values = jax.vmap(lambda key: generator.noise.quasi_random(key, half))(keys)
        values = jax.tree.map(lambda leaf: leaf.reshape(2 * half, *leaf.shape[2:]), values)
        return generator.points(u, QuadratureNodes(values, jnp.ones(2 * half)))

    return jax.vmap(one)(rows, u)
