"""Finite-dimensional feature maps of a kernel, `k(x, y) ~ phi(x)' phi(y)`: a mean embedding is the mean of `phi`."""

import abc
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import jax
import numpy as np
from scipy.linalg import eigh

from numpyro_kme._core.host import on_host
from numpyro_kme.kernels import Kernel
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.losses.direct_mmd import vectors

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
        counts = np.bincount(cell.ravel(), (1.0 - part).ravel(), size) + np.bincount(
            cell.ravel() + 1, part.ravel(), size
        )
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
