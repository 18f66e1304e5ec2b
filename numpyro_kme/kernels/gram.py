"""Gram matrices: squared distances, sums over pairs in tiles, and Gaussian values as exponentials of products."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.polynomial import chebyshev
from scipy.special import iv

from numpyro_kme._core import checks
from numpyro_kme._core.host import full_precision
from numpyro_kme.kernels.base import Kernel, PointSet, num_points, register

TILE = 256
"""Points along each side of a tile."""


FEW = 32
"""Dimensions up to which distances are sums of squared differences."""

LARGEST_ERROR = 1e-5
"""Largest error of an exponent, in the precision of the points."""

DEGREES = {"float64": 10, "float32": 6}
"""Degrees of the polynomial for `2^f`, `|f| <= 1/2`: its error is below half a unit in the last place."""


def scaled(x: Any, y: Any, length_scale: ArrayLike, xp: Any = jnp) -> tuple[Any, Any]:
    """Points in units of the length scale, a scalar or `(dim,)`; `y` is `x` when left out. By JAX, or by NumPy."""
    checks.table("x", x)
    dim = jnp.shape(x)[1]
    if y is not None:
        checks.table("y", y, columns=dim)
    scale = one_per_dimension(length_scale, dim, xp)
    with np.errstate(over="ignore"):
        x, y = x / scale, None if y is None else y / scale
    advice = "Their numbers cannot be held: give the data, or the length scale, in other units."
    checks.sound("points in units of the length scale", (x, y), advice)
    return x, x if y is None else y


def distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """Matrix `|x_i - y_j|`, also where the square of a distance cannot be held; gradients are 0 at distance 0."""
    largest = jnp.maximum(jnp.max(jnp.abs(x)), jnp.max(jnp.abs(y)))
    unit = jax.lax.stop_gradient(jnp.maximum(1e-17 * largest, 1.0))
    return unit * safe_sqrt(squared_distances(x / unit, y / unit))


def one_per_dimension(length_scale: ArrayLike, dim: int, xp: Any = jnp) -> Any:
    """A length scale that is a scalar or `(dim,)` as `(1, dim)`."""
    shape = jnp.shape(length_scale)
    checks.require(
        shape in ((), (1,), (dim,)),
        f"`length_scale` must be a scalar or have shape ({dim},), one per column of the points; got {shape}.",
    )
    return xp.broadcast_to(xp.asarray(length_scale), (1, dim))


def scaled_difference(a: jax.Array, b: jax.Array, length_scale: ArrayLike) -> jax.Array:
    """Difference of two points in units of the length scale, a scalar or `(dim,)`."""
    shape = jnp.shape(length_scale)
    checks.require(
        shape in ((), (1,), jnp.shape(a)),
        f"`length_scale` must be a scalar or have the shape of a point, {jnp.shape(a)}; got {shape}.",
    )
    return (a - b) / length_scale


def safe_sqrt(s: jax.Array) -> jax.Array:
    """Square root whose gradient at 0 is 0 instead of infinite."""
    positive = s > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, s, 1.0)), 0.0)


def products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Matrix of inner products `<x_i, y_j>`, `(n, m)`, in full precision on every device."""
    return jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)


@jax.custom_jvp
def squared_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """Matrix `|x_i - y_j|^2` between `(n, dim)` and `(m, dim)`, with no `(n, m, dim)` temporary.

    Up to 32 dimensions, differences are squared and added one dimension at a time: coincident points are
    exactly at distance 0, and float32 keeps its relative precision far from the origin. Above, one matrix
    product of centred points is much faster; what it cannot tell from 0 is 0. Derivatives are matrix
    products, `d s_ij = 2 (x_i - y_j).(dx_i - dy_j)`.
    """
    return _by_differences(x, y) if x.shape[1] <= FEW else _by_products(x, y)


@squared_distances.defjvp
def _squared_distances_jvp(points, tangents):
    (x, y), (dx, dy) = points, tangents
    distances = squared_distances(x, y)
    x, y = _centred(x, y)
    own = jnp.sum(x * dx, axis=1)[:, None] + jnp.sum(y * dy, axis=1)[None, :]
    return distances, 2.0 * (own - products(x, dy) - products(dx, y))


@partial(jax.jit, inline=True)  # a loop outside of a program would be compiled anew in each call
def _by_differences(x, y):
    def add(total, columns):
        a, b = columns
        return total + jnp.square(a[:, None] - b[None, :]), None

    start = jnp.zeros((x.shape[0], y.shape[0]), jnp.result_type(x, y))
    return jax.lax.scan(add, start, (x.T, y.T), unroll=4)[0]


@partial(jax.jit, inline=True)
def _by_products(x, y):
    """`|x|^2 + |y|^2 - 2 x.y`; rounding errors of the products are about `eps sqrt(dim)` of the norms."""
    x, y = _centred(x, y)
    own = jnp.sum(jnp.square(x), axis=1)[:, None] + jnp.sum(jnp.square(y), axis=1)[None, :]
    distances = own - 2.0 * products(x, y)
    return jnp.where(distances > _resolution(x) * own, distances, 0.0)


def _resolution(x) -> float:
    """Relative error of a squared distance that is multiplied out."""
    return float(4.0 * x.shape[1] ** 0.5 * np.finfo(x.dtype).eps)


def _centred(x, y):
    """Both point sets shifted alike: distances and their derivatives stay, and lose fewer digits."""
    centre = jax.lax.stop_gradient(jnp.mean(x, axis=0, keepdims=True))
    return x - centre, y - centre


def squared_distances_on_host(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`squared_distances` by NumPy, `(n, m)`, as one matrix product of points that are near 0; nothing is checked."""
    found = a @ (-2.0 * b.T)
    found += np.sum(a * a, axis=1)[:, None]
    found += np.sum(b * b, axis=1)[None, :]
    return np.maximum(found, 0.0, out=found)


def uniform_weights(points: PointSet) -> jax.Array:
    """Weights `1 / n`, in the precision of the points."""
    n = num_points(points)
    return jnp.full((n,), 1.0 / n, jnp.result_type(jax.tree.leaves(points)[0], float))


def split(points: PointSet, size: int) -> PointSet:
    """Cut `(n, ...)` into `(blocks, size, ...)`; the last point fills the last block up."""
    pad = -num_points(points) % size

    def cut(leaf):
        leaf = jnp.asarray(leaf)
        leaf = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], pad, axis=0)]) if pad else leaf
        return leaf.reshape(-1, size, *leaf.shape[1:])

    return jax.tree.map(cut, points)


@jax.jit
@full_precision
def matvec(kernel: Kernel, x: PointSet, y: PointSet, vectors: jax.Array) -> jax.Array:
    """Product `sum_j k(x_i, y_j) v_j`, `(n,)` or `(n, columns)`, in blocks of rows."""
    n, m = num_points(x), num_points(y)
    # matrix entries in a block of whole rows
    rows = max(1, min(n, 2**17 // m))
    if rows == n:
        return kernel.gram(x, y) @ vectors
    product = jax.lax.map(jax.checkpoint(lambda block: kernel.gram(block, y) @ vectors), split(x, rows))
    return product.reshape(-1, *product.shape[2:])[:n]


@jax.jit
@full_precision
def weighted_sum(kernel: Kernel, x: PointSet, v: jax.Array, y: PointSet, w: jax.Array) -> jax.Array:
    """Scalar `sum_ij v_i w_j k(x_i, y_j)`."""
    if max(num_points(x), num_points(y)) <= TILE:
        return v @ kernel.gram(x, y) @ w
    x_blocks, y_blocks = (split(x, TILE), _split_weights(v)), (split(y, TILE), _split_weights(w))
    shape = (num_points(x_blocks), num_points(y_blocks))
    rows, columns = (index.ravel() for index in np.indices(shape))
    return _sum_tiles(kernel, x_blocks, y_blocks, rows, columns, np.ones(rows.shape))


@jax.jit
@full_precision
def weighted_self_sum(kernel: Kernel, x: PointSet, w: jax.Array) -> jax.Array:
    """Scalar `sum_ij w_i w_j k(x_i, x_j)` of a symmetric kernel, from the tiles on and above the diagonal."""
    if num_points(x) <= TILE:
        return w @ kernel.gram(x) @ w
    blocks = (split(x, TILE), _split_weights(w))
    rows, columns = np.triu_indices(num_points(blocks))
    return _sum_tiles(kernel, blocks, blocks, rows, columns, np.where(rows == columns, 1.0, 2.0))


def _split_weights(w):
    return jnp.pad(w, (0, -len(w) % TILE)).reshape(-1, TILE)


def _sum_tiles(kernel, x_blocks, y_blocks, rows, columns, multiples):
    dtype = jnp.result_type(x_blocks[1], y_blocks[1])

    @jax.checkpoint
    def add(total, tile):
        row, column, multiple = tile
        a, v = jax.tree.map(lambda leaf: leaf[row], x_blocks)
        b, w = jax.tree.map(lambda leaf: leaf[column], y_blocks)
        return total + (multiple * (v @ kernel.gram(a, b) @ w)).astype(dtype), None

    tiles = (rows, columns, multiples.astype(dtype))
    return jax.lax.scan(add, jnp.zeros((), dtype), tiles)[0]


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


exp2_negative.defjvps(lambda dt, value, t: float(np.log(2.0)) * value * dt)


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


def factors(length_scale: ArrayLike, x: jax.Array, y: jax.Array) -> tuple[Factors, Factors, jax.Array]:
    """Write a Gaussian kernel of this length scale between `(n, dim)` and `(m, dim)` as an `ExpProduct`.

    Points are centred and scaled so that `k(x_i, y_j) = 2^(-|a_i - b_j|^2)`, and `|a - b|^2` is multiplied
    out: an error of about `eps max(|a|^2, |b|^2)` in the exponent.

    Returns:
        The factors of `x` and `y`, and whether the error is at most `LARGEST_ERROR`.
    """
    a, b = scaled(x, y, length_scale)
    centre = jax.lax.stop_gradient(0.5 * (jnp.mean(a, axis=0, keepdims=True) + jnp.mean(b, axis=0, keepdims=True)))
    unit = jnp.sqrt(0.5 / jnp.log(2.0)).astype(jnp.result_type(a, b))
    (left, largest), (right, other) = (_factor((points - centre) * unit) for points in (a, b))
    resolution = jnp.finfo(left.left.dtype).eps
    return left, right, resolution * jnp.maximum(largest, other) <= LARGEST_ERROR


def _factor(a):
    own = jnp.sum(jnp.square(a), axis=1, keepdims=True)
    one = jnp.ones_like(own)
    return Factors(jnp.concatenate([2.0 * a, -own, -one], axis=1), jnp.concatenate([a, one, own], axis=1)), jnp.max(own)
