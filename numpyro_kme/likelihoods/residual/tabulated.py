r"""Kernels of single residuals on a grid: a density at many residuals, by one row of a table for each point."""

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.mixture import log_heavy_tailed, log_kernels

if TYPE_CHECKING:
    from numpyro_kme.likelihoods.residual.density import KernelMixture

FINEST, LARGEST = 0.12, 4000
"""Distance of grid points, in bandwidths of the narrowest kernel: log densities err by about 2e-3; most grid points."""

NEAR, REACH = 4.0, 7.0
"""Bandwidths to which grid points are as near as that, and to which kernels are tabulated; the heavy-tailed density is
larger beyond."""

SMALLEST = 1e-25
"""A kernel that is smaller is 0: products of numbers that are hardly any take processors fifty times as long."""

PAYS = 100
"""Grid points that cost a row of the table what a residual costs without it."""


@register
class Tabulated:
    r"""Kernels `N_j` of a density of single residuals at points that are equally far apart in $\operatorname{arcsinh}$.

    Between them the log of their mixture is interpolated. A row, one product of a vector and a matrix, serves all
    residuals at the same coordinates.

    Attributes:
        low, step: First point and distance of two, in $\operatorname{arcsinh}$, scalars.
        kernels: `N_j` at the points, `(m, G)`.
    """

    low: Array
    step: Array
    kernels: Array

    @classmethod
    def of(cls, density: "KernelMixture") -> "Tabulated | None":
        """Tabulate kernels around single residuals; None around vectors, or where they would need a large table."""
        (residuals,), eps = np.asarray(density.residuals, np.float64), np.asarray(density.eps, np.float64)
        if residuals.shape[1] > 1:
            return None
        centres, widths = np.sqrt(1.0 - eps**2) * residuals[:, 0], eps * np.asarray(density.factors)[0]
        step = FINEST * np.min(widths / np.hypot(1.0, np.abs(centres) + NEAR * widths))
        low, high = (np.arcsinh(f(centres + side * REACH * widths)) for f, side in ((np.min, -1), (np.max, 1)))
        if not (high - low) / step < LARGEST:
            return None
        v = np.sinh(np.arange(low, high + step, step))[:, None]
        kernels = np.exp(log_kernels(v, residuals, eps[None], density.factors[0], np)).T
        return cls(low, step, np.where(kernels < SMALLEST, 0.0, kernels))

    def serves(self, v: np.ndarray, z: np.ndarray) -> bool:
        """Tell whether residuals `(..., 1)` are many for the points `(..., D)` that they share."""
        return PAYS * v.size >= self.kernels.shape[1] * prod(z.shape[:-1])

    def log_density(self, weights: np.ndarray, v: np.ndarray, heavy_tailed_weight: Array) -> np.ndarray:
        """Log of the mixture of kernels with weights `(..., m)`, up to a factor, and of the heavy-tailed density, at
        residuals `(..., 1)`."""
        flat, width = weights.reshape(-1, weights.shape[-1]), self.kernels.shape[1]
        rows = flat @ self.kernels
        rows /= flat.sum(axis=1, keepdims=True)
        logs = np.log(np.maximum(rows, np.finfo(rows.dtype).tiny, out=rows), out=rows).ravel()
        place = (np.arcsinh(v[..., 0]) - self.low) / self.step
        left = np.clip(place, 0.0, width - 2.0).astype(np.int64)
        number = width * np.arange(len(flat)).reshape(weights.shape[:-1]) + left
        found = logs[number] + (place - left) * (logs[number + 1] - logs[number])
        near = np.where((place >= 0.0) & (place <= width - 1.0), found, -np.inf) + np.log1p(-heavy_tailed_weight)
        return np.logaddexp(near, np.log(heavy_tailed_weight) + log_heavy_tailed(v))
