r"""Mixtures of kernels around residuals, defended by a heavy-tailed density, and their weights, by JAX or NumPy.

Weights of simulations follow the coordinates, a conditional mean embedding made positive:
$a(z) = (K + m \lambda I)^{-1} k(z) + b \big( 1 - \mathbf 1^\top (K + m \lambda I)^{-1} k(z) \big)$ with a Gaussian
kernel and the intercept $b = (K + m \lambda I)^{-1} \mathbf 1 / \mathbf 1^\top (K + m \lambda I)^{-1} \mathbf 1$, and
their smooth positive part. The kernel at pivots `P` tells that at all simulations, $k(z) \approx F F_P^{-1} k_P(z)$.
"""

from math import lgamma, log, pi
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import gaussian_gram
from numpyro_kme.kernels.low_rank import by_columns
from numpyro_kme.likelihoods.base import positive_part

SOFTNESS = 0.1
"""Weights below this fraction of `1 / m` count as about zero, smoothly."""

UNEXPLAINED, MOST = 0.01, 1000
"""Pivots are taken until no simulation's kernel is unexplained by more than this times `lam`, or there are `MOST`."""

HEAVY_TAILED_SCALE, HEAVY_TAILED_DEGREES = 2.0, 3.0
"""Scale, in residual standard deviations, and degrees of freedom of the Student density `p_0`, heavy-tailed."""


def log_heavy_tailed(v: Any, xp: Any = np) -> Any:
    """`log p_0`: Student density of residuals `(..., n)`."""
    n = v.shape[-1]
    size = xp.sum(xp.square(v / HEAVY_TAILED_SCALE), axis=-1)
    constant = lgamma(0.5 * (HEAVY_TAILED_DEGREES + n)) - lgamma(0.5 * HEAVY_TAILED_DEGREES)
    constant -= 0.5 * n * log(HEAVY_TAILED_DEGREES * pi) + n * log(HEAVY_TAILED_SCALE)
    return constant - 0.5 * (HEAVY_TAILED_DEGREES + n) * xp.log1p(size / HEAVY_TAILED_DEGREES)


def exponentials(logs: Any, xp: Any) -> Any:
    """Exponentials; by NumPy in place, and none so small that processors take their time over it in float32."""
    if xp is jnp:
        return jnp.exp(logs)
    # log of the smallest kernel in a density, relative to the largest; a row: with a number NumPy takes twice as long
    smallest = np.full(logs.shape[-1], -60.0, logs.dtype)
    return np.exp(np.maximum(logs, smallest, out=logs), out=logs)


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


def log_kernels(v: Any, residuals: Any, eps: Any, factors: Any, xp: Any) -> Any:
    """`log N(v | sqrt(1 - eps^2) r_j, (eps s_j)^2)`, `(..., m)`, of residuals `r` `(m, k)`, with bandwidths `(k,)` and
    factors `s` `(m,)`."""
    eps, narrow = xp.asarray(eps), 1.0 / xp.square(xp.asarray(factors))[:, None]
    centres = xp.asarray(residuals) * (xp.sqrt(1.0 - xp.square(eps)) / eps)[None, :]
    constant = 0.5 * len(eps) * xp.log(2.0 * pi / narrow[:, 0]) + xp.sum(xp.log(eps))
    return log_gaussians(v / eps, centres, narrow, xp) - constant


def log_defended(logs: Any, weights: Any, v: Any, tail_weight: Any, xp: Any) -> Any:
    """Log of the mixture of kernels with log densities `logs` `(..., m)` and these weights, and the heavy-tailed
    density at `v` `(..., n)`, which has the weight `w`."""
    tail_weight = xp.asarray(tail_weight)
    tails = xp.log(tail_weight) + log_heavy_tailed(v, xp)
    # no less than the heavy-tailed component: XLA may compute `logs` twice, and far out, where they are -1e12, they
    # differ by more than the largest exponent of float32
    peak = xp.maximum(xp.max(logs, axis=-1), xp.maximum(tails, xp.finfo(logs.dtype).min))
    peak = peak if xp is np else jax.lax.stop_gradient(peak)
    logs -= peak[..., None]  # in place by NumPy
    near, every = exponentials(logs, xp), xp.ones(logs.shape[-1], logs.dtype)
    mixture = (1.0 - tail_weight) * xp.einsum("...m,...m->...", near, weights) / (weights @ every)
    return peak + xp.log(mixture + xp.exp(tails - peak))


@register
class EmbeddingWeights:
    """The weights `a`.

    Attributes:
        pivots: `P`, `(r, D)`.
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
        return cls(z[pivots], np.array(beta), matrix - np.outer(matrix.sum(axis=1), intercept), intercept)

    def __call__(self, z: Any, xp: Any = jnp) -> Any:
        """`a(z)` at points `(..., D)` up to a factor, `(..., m)`."""
        points, beta = xp.asarray(self.pivots), xp.asarray(self.beta)
        near = log_gaussians(z / beta, points / beta, xp.ones((len(points), 1), points.dtype), xp)
        found = exponentials(near, xp) @ xp.asarray(self.matrix)
        found += xp.broadcast_to(xp.asarray(self.intercept), found.shape)  # in place by NumPy
        return positive_part(found, SOFTNESS / np.shape(self.matrix)[1], xp)
