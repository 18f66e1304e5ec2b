"""The quantile function of the von Mises distribution, from Gauss-Legendre sums of its density."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import i0e, i1e, log_ndtr

NODES, WEIGHTS = np.polynomial.legendre.leggauss(48)
"""Of the quadrature of a density over an interval."""
STEPS = 24
"""Of Newton's method within a bracket; ten reach rounding."""
REACH = 40.0
"""Density `exp(-REACH)` times that at the end of an interval counts as none."""


@jax.custom_jvp
def von_mises(z: jax.Array, concentration: jax.Array) -> jax.Array:
    """The quantile at `ndtr(z)` of the von Mises distribution around 0, with derivatives of the implicit function."""
    z, kappa = jnp.broadcast_arrays(z, jnp.asarray(concentration, z.dtype))
    target = log_ndtr(-jnp.abs(z))

    def step(_, state):
        x, low, high = state
        log_below = jnp.log(_below(x, kappa)[0])
        low, high = jnp.where(log_below < target, x, low), jnp.where(log_below < target, high, x)
        end = jnp.maximum(x + jnp.pi, jnp.finfo(z.dtype).eps)  # Newton's method in the logarithm of this distance
        move = (target - log_below) * jnp.exp(log_below - _log_density(x, kappa)) / end
        newton = x + end * jnp.expm1(jnp.clip(move, -1.0, 40.0))
        return jnp.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high)), low, high

    low = jnp.full(z.shape, -jnp.pi, z.dtype)
    flat = low * (1.0 - jnp.exp(jnp.log(2.0) + target))  # that of no concentration
    start = jnp.maximum(flat, -jnp.abs(z) / jnp.sqrt(jnp.maximum(kappa, 1e-6)))
    return jnp.copysign(lax.fori_loop(0, STEPS, step, (start, low, jnp.zeros_like(low)))[0], z)


@von_mises.defjvp
def _(primals, tangents):
    z, kappa = (jnp.asarray(value, primals[0].dtype) for value in primals)
    x = von_mises(z, kappa)
    slope = jnp.exp(-_log_density(x, kappa))
    by_kappa = jnp.copysign(_below(-jnp.abs(x), kappa)[1], x)
    by_z = jnp.exp(-0.5 * jnp.square(z) - 0.5 * jnp.log(2.0 * jnp.pi)) * slope
    return x, by_z * tangents[0] - by_kappa * slope * tangents[1]


def _log_density(x: jax.Array, kappa: jax.Array) -> jax.Array:
    return -2.0 * kappa * jnp.square(jnp.sin(0.5 * x)) - jnp.log(2.0 * jnp.pi * i0e(kappa))


def _below(x: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The distribution function at `x <= 0`, and its derivative in `kappa`, precise where both are small."""
    falling = jnp.where(x > -0.5 * jnp.pi, -jnp.sin(x), 0.0) * kappa * (2.0 / jnp.pi)  # of log density, at least
    width = jnp.minimum(jnp.pi * jnp.sqrt(0.5 * REACH / kappa), REACH / jnp.maximum(falling, 1e-6))
    width = jnp.minimum(width, jnp.maximum(x + jnp.pi, 0.0))[..., None]
    t = x[..., None] - 0.5 * width * jnp.asarray(1.0 + NODES, x.dtype)
    mass = 0.5 * width * jnp.asarray(WEIGHTS, x.dtype) * jnp.exp(_log_density(t, kappa[..., None]))
    mean = (i1e(kappa) / i0e(kappa))[..., None]
    return jnp.sum(mass, axis=-1), jnp.sum(mass * (jnp.cos(t) - mean), axis=-1)
