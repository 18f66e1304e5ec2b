"""Mixtures of kernels around residuals, with weights that follow the coordinates, by JAX or NumPy."""

from dataclasses import dataclass, replace
from math import lgamma, log, pi
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.solves import Array
from numpyro_kme.likelihoods.base import positive_part

HEAVY_TAILED_SCALE, HEAVY_TAILED_DEGREES = 2.0, 3.0
"""Scale, in residual standard deviations, and degrees of freedom of the Student density `p_0`, heavy-tailed."""

SOFTNESS = 0.1
"""Weights below this fraction of `1 / m` count as about zero, smoothly."""


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


@dataclass(frozen=True)
class ResidualKernels:
    """Kernels around the residuals of simulations, with weights `a(z)` that follow the coordinates.

    Attributes:
        points: Coordinates of the simulations, `(m, D)`.
        residuals: Their held-out decorrelated residuals, `(m, n)`.
        eps: Bandwidths of the residuals, `(n,)`.
        factors: Local bandwidth factors `s`, `(m,)`, or `(m, n)` where each residual has its own.
        beta: Length scale of the weights, a scalar.
        basis: `U`, `(m, r)`, with `m lam (K + m lam I)^-1 = I - U U'` up to negligible eigenvalues; columns of zeros
            round `r` up.
        intercept: `(K + m lam I)^-1 1 / 1' (K + m lam I)^-1 1`, `(m,)`.
        ridge: `m lam`, a scalar.
    """

    points: Array
    residuals: Array
    eps: Array
    factors: Array
    beta: Array
    basis: Array
    intercept: Array
    ridge: Array

    def trimmed(self) -> Self:
        """The same without columns of zeros in the basis, for NumPy."""
        basis = np.asarray(self.basis)
        return replace(self, basis=basis[:, basis.any(axis=0)])

    def weights(self, z: Any, xp: Any = jnp) -> Any:
        """`a(z)` at points `(..., D)` up to a factor, `(..., m)`, positive, by JAX or NumPy."""
        basis, points = xp.asarray(self.basis), xp.asarray(self.points) / self.beta
        z = z / self.beta
        size, one = xp.sum(xp.square(points), axis=1, keepdims=True), xp.ones((*z.shape[:-1], 1), z.dtype)
        factor = xp.concatenate([points, -0.5 * size - xp.log(self.ridge), -0.5 * xp.ones_like(size)], axis=1)
        powers = xp.concatenate([z, one, xp.sum(xp.square(z), axis=-1, keepdims=True)], axis=-1)
        kernel = exponentials(powers @ factor.T, xp)  # over the ridge
        # k - U U' k, and the intercept times what is left of 1 after its sum, k' (1 - U U' 1)
        intercept, rest = xp.asarray(self.intercept)[None, :], 1.0 - basis @ xp.sum(basis, axis=0)
        within = xp.concatenate([kernel @ xp.concatenate([basis, rest[:, None]], axis=1), one], axis=-1)
        kernel += within @ xp.concatenate([-basis.T, -intercept, intercept], axis=0)  # in place by NumPy
        return positive_part(kernel, SOFTNESS / len(points), xp)


def log_kernels_at(v: Any, residuals: Any, eps: Any, factors: Any, xp: Any) -> Any:
    """`log N(v | sqrt(1 - eps^2) r_j, (eps s_j)^2)`, `(..., m)`.

    One product of matrices, exact enough as residuals are about 1.
    """
    eps, narrow = xp.asarray(eps), 1.0 / xp.square(xp.asarray(factors))[:, None]
    centres = xp.asarray(residuals) * (xp.sqrt(1.0 - xp.square(eps)) / eps)[None, :]
    constant = 0.5 * len(eps) * xp.log(2.0 * pi / narrow) + xp.sum(xp.log(eps))
    own = -0.5 * narrow * xp.sum(xp.square(centres), axis=1, keepdims=True) - constant
    factor, v = xp.concatenate([narrow * centres, -0.5 * narrow, own], axis=1), v / eps
    powers = [v, xp.sum(xp.square(v), axis=-1, keepdims=True), xp.ones((*v.shape[:-1], 1), v.dtype)]
    return xp.concatenate(powers, axis=-1) @ factor.T


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
