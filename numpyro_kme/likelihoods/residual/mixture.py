"""Mixtures of kernels around residuals, and of a heavy-tailed density, by JAX or NumPy."""

from math import lgamma, log, pi
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
