"""Gaussian kernel values as exponentials of inner products, for large sums over pairs."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import iv

from numpyro_kme.kernels.base import Kernel, products, register, scaled
from numpyro_kme.kernels.stationary import Gaussian

LARGEST_ERROR = 1e-5
"""Largest error of an exponent, in the precision of the points."""


DEGREES = {"float64": 10, "float32": 6}
"""Degrees of the polynomial for `2^f`, `|f| <= 1/2`: its error is below half a unit in the last place."""


@jax.custom_jvp
def exp2_negative(t: jax.Array) -> jax.Array:
    """Power `2^t` of exponents that are not positive, but for rounding.

    On CPUs `2^round(t)`, written into the bits of the exponent, times a polynomial: twice as fast as XLA's own
    function, and right to the last digit, where that loses as many digits as `|t|` has. Powers below the smallest
    normal number are that number.
    """
    if t.dtype.name not in DEGREES:
        return jnp.exp2(t)
    return jax.lax.platform_dependent(t, cpu=_exp2_by_polynomial, default=jnp.exp2)


@exp2_negative.defjvp
def _exp2_negative_jvp(primals, tangents):
    value = exp2_negative(*primals)
    return value, float(np.log(2.0)) * value * tangents[0]


def _exp2_by_polynomial(t):
    kind = jnp.finfo(t.dtype)
    t = jnp.maximum(t, kind.minexp)
    whole = jnp.round(t)
    fraction = t - whole
    value, *rest = (jnp.full_like(t, c) for c in _coefficients(DEGREES[t.dtype.name]))
    for c in rest:
        value = value * fraction + c
    shifted = whole + (2.0**kind.nmant + kind.maxexp - 1)  # the biased exponent in the lowest bits
    bits = jax.lax.bitcast_convert_type(shifted, jnp.int64 if kind.bits == 64 else jnp.int32)
    return value * jax.lax.bitcast_convert_type(bits << kind.nmant, t.dtype)


@cache
def _coefficients(degree: int) -> tuple[float, ...]:
    """Coefficients, highest first, of the Chebyshev series of `2^f` on `|f| <= 1/2`, cut after `degree`."""
    order = np.arange(degree + 1)
    series = iv(order, 0.5 * np.log(2.0)) * np.where(order, 2.0, 1.0)
    return tuple((chebyshev.cheb2poly(series) * 2.0**order)[::-1].tolist())


class Factors(NamedTuple):
    """Left and right factors `(n, dim + 2)` of the exponents `<left_i, right_j> = -|a_i - b_j|^2`."""

    left: jax.Array
    right: jax.Array


@register
class ExpProduct(Kernel):
    """Kernel `2^<left(a), right(b)>` on points that are `Factors`: one matrix product and one exponential."""

    def pair(self, a, b):
        """Value for one pair of points."""
        return exp2_negative(jnp.vdot(a.left, b.right))

    def gram(self, x, y=None):
        """Matrix of kernel values."""
        return exp2_negative(products(x.left, (x if y is None else y).right))


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
