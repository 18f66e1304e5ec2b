r"""Weights of simulations that follow the coordinates, by JAX or NumPy: a conditional mean embedding made positive.

$a(z) = (K + m \lambda I)^{-1} k(z) + b \big( 1 - \mathbf 1^\top (K + m \lambda I)^{-1} k(z) \big)$ with a Gaussian
kernel and the intercept $b = (K + m \lambda I)^{-1} \mathbf 1 / \mathbf 1^\top (K + m \lambda I)^{-1} \mathbf 1$, and
their smooth positive part. The kernel at pivots `P` tells that at all simulations, $k(z) \approx F F_P^{-1} k_P(z)$.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import gaussian_gram
from numpyro_kme.kernels.low_rank import by_columns
from numpyro_kme.likelihoods.base import positive_part
from numpyro_kme.likelihoods.residual.functions import padded
from numpyro_kme.likelihoods.residual.mixture import exponentials

SOFTNESS = 0.1
"""Weights below this fraction of `1 / m` count as about zero, smoothly."""

UNEXPLAINED, MOST = 0.01, 1000
"""Pivots are taken until no simulation's kernel is unexplained by more than this times `lam`, or there are `MOST`."""


@register
class EmbeddingWeights:
    """The weights `a`.

    Attributes:
        pivots: `P`, `(r, D)`; rows of `matrix` that are zero round `r` up.
        beta: Length scale of the kernel, a scalar.
        matrix: What the weights are of `k_P(z)`, `(r, m)`.
        intercept: `b`, `(m,)`.
    """

    pivots: Array
    beta: Array
    matrix: Array
    intercept: Array

    @classmethod
    def fit(cls, z: np.ndarray, beta: float, lam: float) -> "EmbeddingWeights":
        """At coordinates `(m, D)`, with the length scale of the kernel and the regularisation. Cost: `m r^2`."""
        m = len(z)
        factor, pivots = by_columns(
            lambda some: gaussian_gram(z, z[some], beta**2), np.ones(m), UNEXPLAINED * lam, min(m, MOST)
        )
        inner = np.linalg.inv(factor.T @ factor + m * lam * np.eye(len(pivots)))
        matrix = np.linalg.solve(factor[pivots].T, inner @ factor.T)
        ones = 1.0 - factor @ (inner @ factor.sum(axis=0))
        intercept = ones / ones.sum()
        spare = padded(len(pivots), 16, 64) - len(pivots)
        matrix = np.pad(matrix - np.outer(matrix.sum(axis=1), intercept), ((0, spare), (0, 0)))
        return cls(np.pad(z[pivots], ((0, spare), (0, 0))), np.array(beta), matrix, intercept)

    def __call__(self, z: Any, xp: Any = jnp) -> Any:
        """`a(z)` at points `(..., D)` up to a factor, `(..., m)`."""
        found = _gaussian(z, self.pivots, self.beta, xp) @ xp.asarray(self.matrix)
        found += xp.broadcast_to(xp.asarray(self.intercept), found.shape)  # in place by NumPy
        return positive_part(found, SOFTNESS / np.shape(self.matrix)[1], xp)


def _gaussian(z: Any, points: Any, beta: Any, xp: Any) -> Any:
    """The kernel between points `(..., D)` and `(r, D)`, `(..., r)`, by one product of matrices."""
    points, z = xp.asarray(points) / beta, z / beta
    size, one = xp.sum(xp.square(points), axis=1, keepdims=True), xp.ones((*z.shape[:-1], 1), z.dtype)
    factor = xp.concatenate([points, -0.5 * size, -0.5 * xp.ones_like(size)], axis=1)
    powers = xp.concatenate([z, one, xp.sum(xp.square(z), axis=-1, keepdims=True)], axis=-1)
    return exponentials(powers @ factor.T, xp)
