"""Gaussian kernel values as exponentials of inner products, for large sums over pairs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_kme.kernels.base import Kernel, products, register, scaled
from numpyro_kme.kernels.stationary import Gaussian

LARGEST_ERROR = 1e-5
"""Largest error of an exponent, in the precision of the points."""


class Factors(NamedTuple):
    """Left and right factors `(n, dim + 2)` of the exponents `<left_i, right_j> = -|a_i - b_j|^2`."""

    left: jax.Array
    right: jax.Array


@register
class ExpProduct(Kernel):
    """Kernel `2^<left(a), right(b)>` on points that are `Factors`: one matrix product and one exponential."""

    def pair(self, a, b):
        """Value for one pair of points."""
        return jnp.exp2(jnp.vdot(a.left, b.right))

    def gram(self, x, y=None):
        """Matrix of kernel values."""
        return jnp.exp2(products(x.left, (x if y is None else y).right))


def factors(kernel: Gaussian, x: jax.Array, y: jax.Array) -> tuple[Factors, Factors, jax.Array]:
    """Write a Gaussian kernel between `(n, dim)` and `(m, dim)` as an `ExpProduct`.

    Points are centred and scaled so that `k(x_i, y_j) = 2^(-|a_i - b_j|^2)`, and `|a - b|^2` is multiplied
    out: an error of about `eps max(|a|^2, |b|^2)` in the exponent.

    Returns:
        The factors of `x` and `y`, and whether the error is at most `LARGEST_ERROR`.
    """
    a, b = scaled(x, y, kernel.length_scale)
    centre = jax.lax.stop_gradient(0.5 * (jnp.mean(a, axis=0, keepdims=True) + jnp.mean(b, axis=0, keepdims=True)))
    unit = jnp.sqrt(0.5 / jnp.log(2.0)).astype(jnp.result_type(a, b))
    (left, largest), (right, other) = (_factor((points - centre) * unit) for points in (a, b))
    resolution = jnp.finfo(left.left.dtype).eps
    return left, right, resolution * jnp.maximum(largest, other) <= LARGEST_ERROR


def _factor(a):
    own = jnp.sum(jnp.square(a), axis=1, keepdims=True)
    one = jnp.ones_like(own)
    return Factors(jnp.concatenate([2.0 * a, -own, -one], axis=1), jnp.concatenate([a, one, own], axis=1)), jnp.max(own)
