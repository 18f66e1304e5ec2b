"""Signed numbers in log scale, and their positive versions."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from numpyro_kme._core.solves import Array

SignedLog = tuple[Array, Array]
"""A signed number as `(sign, log of the absolute value)`: nothing underflows and no sign is lost."""


def to_signed_log(value: ArrayLike, log_scale: ArrayLike = 0.0) -> SignedLog:
    """`(sign, log |value| + log_scale)`; the logarithm of 0 is `-inf`, with gradient 0."""
    value = jnp.asarray(value)
    zero = value == 0
    log_size = jnp.where(zero, -jnp.inf, jnp.log(jnp.abs(jnp.where(zero, 1.0, value))))
    return jnp.sign(value), log_size + log_scale


def positive_part(value: ArrayLike, floor: ArrayLike) -> jax.Array:
    """Smooth positive part `(v + sqrt(v^2 + c^2)) / 2`.

    It exceeds `max(v, 0)` by at most `c / 2`, at `v = 0`, and by about `c^2 / (4 |v|)` away from it.
    """
    value = jnp.asarray(value)
    return 0.5 * (value + jnp.sqrt(jnp.square(value) + jnp.square(floor)))


def log_positive_part(value: ArrayLike, log_floor: ArrayLike) -> jax.Array:
    """Logarithm of `positive_part(value, exp(log_floor))`, `log(c / 2) + arcsinh(v / c)`, safe at every magnitude.

    Its gradient is finite everywhere: that of `log v` where `v` is large, and that of the floor where `v` vanishes.
    """
    value, log_floor = jnp.asarray(value), jnp.asarray(log_floor)
    far = jnp.abs(value) > jnp.exp(log_floor)
    small = log_floor - jnp.log(2.0) + jnp.arcsinh(jnp.where(far, 0.0, value * jnp.exp(jnp.minimum(-log_floor, 80.0))))
    log_size = jnp.log(jnp.where(far, jnp.abs(value), 1.0))
    ratio = jnp.where(far, jnp.exp(jnp.where(far, log_floor - log_size, 0.0)), 1.0)
    log_half = jnp.log1p(jnp.sqrt(1.0 + jnp.square(ratio))) - jnp.log(2.0)
    above = log_size + log_half
    below = 2.0 * (log_floor - jnp.log(2.0)) - log_size - log_half
    return jnp.where(far, jnp.where(value > 0, above, below), small)
