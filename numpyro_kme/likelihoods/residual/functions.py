"""Fitted regressions as functions of the coordinates: features, and as few Gaussian kernels as they need."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy.linalg import block_diag

from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.smoothness import Regression, features


@register
class RidgeFunctions:
    """Fitted functions of the coordinates, `n` at once: `z (D,) -> (n,)`.

    Attributes:
        offset: Intercepts, `(n,)`.
        linear: Weights of the features, `(n, 2 D)`.
        points: Centres of the radial basis functions of all functions, `(r, D)`.
        precision: Their squared inverse length scales, `(r, D)`.
        rbf: Their weights in each function, `(n, r)`.
    """

    offset: ArrayLike
    linear: ArrayLike
    points: ArrayLike
    precision: ArrayLike
    rbf: ArrayLike

    @classmethod
    def of(cls, fits: Regression, tolerance: ArrayLike) -> "RidgeFunctions":
        """From `k` regressions and tolerances, `(k, m)`.

        Features, and as few of the first inducing points as match the function at every simulation to its tolerance,
        take the place of all of them.
        """
        offset, linear, centres, scales, rbf = [], [], [], [], []
        basis = np.concatenate([np.ones((len(fits.at), 1)), fits.at.features], axis=1)
        used = np.ones((len(fits.near), fits.at.dim), bool) if fits.at.used is None else fits.at.used
        used = np.concatenate([np.ones((len(used), 1), bool), used, used], axis=1)
        intercepts, slopes, weights = fits.weights()
        for i, scale in enumerate(1.0 / np.asarray(tolerance)[:, :, None]):
            straight = np.zeros(basis.shape[1])
            straight[used[i]], own = _simplified(basis[:, used[i]] * scale, fits.near[i] * scale, weights[i])
            offset.append(intercepts[i] + straight[0])
            linear.append(slopes[i] + straight[1:])
            centres.append(fits.at.inducing_points[: len(own)])
            scales.append(np.tile(np.exp(-2.0 * fits.smoothness.length[i]), (len(own), 1)))
            rbf.append(own[None, :])
        points, precision = map(np.concatenate, (centres, scales))
        return cls(np.array(offset), np.array(linear), points, precision, block_diag(*rbf))

    @staticmethod
    def together(parts: Sequence["RidgeFunctions"]) -> "RidgeFunctions":
        """Functions of the same coordinates, one part after another, in one pass."""
        offset, linear, points, precision = (
            np.concatenate([np.asarray(getattr(part, name)) for part in parts])
            for name in ("offset", "linear", "points", "precision")
        )
        return RidgeFunctions(offset, linear, points, precision, block_diag(*(part.rbf for part in parts)))

    def combined(self, matrix: np.ndarray, added: ArrayLike = 0.0) -> "RidgeFunctions":
        """Sums of the functions with weights `(k, n)`, plus constants `(k,)`, with the kernels that they need."""
        rbf = matrix @ np.asarray(self.rbf)
        needed = rbf.any(axis=0)
        points, precision = np.asarray(self.points)[needed], np.asarray(self.precision)[needed]
        return RidgeFunctions(matrix @ self.offset + added, matrix @ self.linear, points, precision, rbf[:, needed])

    def __call__(self, z: Any, xp: Any = jnp) -> Any:
        """Values `(..., n)` at points `(..., D)`, by JAX or NumPy, in the precision of `points`.

        Cost: `r` exponentials a point, and products of matrices; under `vmap` too.
        """
        offset, linear, points, precision, rbf = (
            xp.asarray(leaf) for leaf in (self.offset, self.linear, self.points, self.precision, self.rbf)
        )
        z = z.astype(points.dtype)
        near = xp.exp(log_gaussians(z, points, precision, xp))
        return offset + features(z, xp).astype(z.dtype) @ linear.T + near @ rbf.T


def log_gaussians(at: Any, centres: Any, precision: Any, xp: Any) -> Any:
    """`-sum_d p_jd (a_d - c_jd)^2 / 2` of points `a` `(..., k)`, `(..., m)`, by one product of matrices.

    Args:
        at: `a`.
        centres: `c`, `(m, k)`.
        precision: `p`, `(m, k)`, or `(m, 1)` where all numbers of a point have the same.
    """
    squares = xp.square(at)
    squares = squares if precision.shape[1] == at.shape[-1] else xp.sum(squares, axis=-1, keepdims=True)
    own = -0.5 * xp.sum(precision * xp.square(centres), axis=1, keepdims=True)
    factor = xp.concatenate([precision * centres, -0.5 * precision, own], axis=1)
    return xp.concatenate([at, squares, xp.ones((*at.shape[:-1], 1), at.dtype)], axis=-1) @ factor.T


def _simplified(basis: np.ndarray, kernels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the columns of `basis` `(m, b)`, and of the first few of the `kernels` `(m, r)`, with which they match
    `kernels @ weights` to 1 everywhere, by least squares; all kernels where half of the points would be needed, since a
    match at these says little of others."""
    target, count = kernels @ weights, 0
    while count < len(weights) and 2 * (basis.shape[1] + count) < len(kernels):
        columns = np.concatenate([basis, kernels[:, :count]], axis=1)
        found = np.linalg.lstsq(columns, target, rcond=1e-6)[0]
        if np.all(np.abs(target - columns @ found) <= 1.0):
            return found[: basis.shape[1]], found[basis.shape[1] :]
        count = max(4, 2 * count)
    return np.zeros(basis.shape[1]), weights
