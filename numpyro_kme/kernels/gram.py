"""Gram matrices: squared distances, products with vectors, and sums over pairs in tiles, by NumPy or JAX."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.typing import ArrayLike

from numpyro_kme._core import Array, checks, full_precision
from numpyro_kme.kernels.base import Kernel, PointSet, namespace, num_points, take

TILE = 256
"""Points along each side of a tile."""

ENTRIES = 2**17
"""Entries of a Gram matrix that are computed together: they stay in the processor's cache."""


def scaled(x: Any, y: Any, length_scale: ArrayLike) -> tuple[Any, Any]:
    """Points in units of the length scale, a scalar or `(dim,)`; `y` is `x` when left out."""
    checks.table("x", x)
    dim = jnp.shape(x)[1]
    if y is not None:
        checks.table("y", y, columns=dim)
    xp = namespace(x, y, length_scale)
    scale = one_per_dimension(length_scale, dim, xp)
    with np.errstate(over="ignore"):
        x, y = x / scale, None if y is None else y / scale
    advice = "Their numbers cannot be held: give the data, or the length scale, in other units."
    checks.sound("points in units of the length scale", (x, y), advice)
    return x, x if y is None else y


def one_per_dimension(length_scale: ArrayLike, dim: int, xp: Any = jnp) -> Any:
    """A length scale that is a scalar or `(dim,)` as `(1, dim)`."""
    shape = jnp.shape(length_scale)
    fits = shape in ((), (1,), (dim,))
    checks.require(fits, f"`length_scale` must be a scalar or have shape ({dim},), one per column; got {shape}.")
    return xp.broadcast_to(xp.asarray(length_scale), (1, dim))


def safe_sqrt(s: Any) -> Any:
    """Square root whose gradient at 0 is 0 instead of infinite."""
    xp, positive = namespace(s), s > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, s, 1.0)), 0.0)


def products(x: Any, y: Any) -> Any:
    """Matrix of inner products `<x_i, y_j>`, `(n, m)`, in full precision on every device."""
    if namespace(x, y) is np:
        return x @ y.T
    return jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)


def squared_distances(x: Any, y: Any) -> Any:
    """Matrix `|x_i - y_j|^2` between `(n, dim)` and `(m, dim)`, with no `(n, m, dim)` temporary.

    Differences are squared and added one dimension at a time: coincident points are exactly at distance 0, and float32
    keeps its relative precision far from the origin. Derivatives are matrix products,
    `d s_ij = 2 (x_i - y_j).(dx_i - dy_j)`.
    """
    if namespace(x, y) is np:
        return scipy.spatial.distance.cdist(x, y, "sqeuclidean").astype(np.result_type(x, y), copy=False)
    return _squared_distances(x, y)


@jax.custom_jvp
@partial(jax.jit, inline=True)  # a loop outside of a program would be compiled anew in each call
def _squared_distances(x, y):
    def add(total, columns):
        a, b = columns
        return total + jnp.square(a[:, None] - b[None, :]), None

    start = jnp.zeros((x.shape[0], y.shape[0]), jnp.result_type(x, y))
    return jax.lax.scan(add, start, (x.T, y.T), unroll=4)[0]


@_squared_distances.defjvp
def _squared_distances_jvp(points, tangents):
    (x, y), (dx, dy) = points, tangents
    distances = _squared_distances(x, y)
    centre = jnp.mean(x, axis=0, keepdims=True)  # distances and derivatives stay, and lose fewer digits
    x, y = x - jax.lax.stop_gradient(centre), y - jax.lax.stop_gradient(centre)
    own = jnp.sum(x * dx, axis=1)[:, None] + jnp.sum(y * dy, axis=1)[None, :]
    return distances, 2.0 * (own - products(x, dy) - products(dx, y))


def squared_distances_on_host(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`squared_distances` by NumPy, `(n, m)`, as one matrix product of points that are near 0; nothing is checked."""
    found = a @ (-2.0 * b.T)
    found += np.sum(a * a, axis=1)[:, None]
    found += np.sum(b * b, axis=1)[None, :]
    return np.maximum(found, 0.0, out=found)


def gaussian_gram(a: np.ndarray, b: np.ndarray, squared_length: float = 1.0) -> np.ndarray:
    """A Gaussian kernel between points `(r, D)` and `(s, D)`, `(r, s)`, in the precision of the points."""
    return np.exp(-0.5 / squared_length * squared_distances(a, b))


def uniform_weights(points: PointSet) -> Any:
    """Weights `1 / n`, in the namespace and precision of the points."""
    n, xp = num_points(points), namespace(points)
    return xp.full((n,), 1.0 / n, jnp.result_type(jax.tree.leaves(points)[0], float) if xp is jnp else float)


def split(points: PointSet, size: int) -> PointSet:
    """Cut `(n, ...)` into `(blocks, size, ...)`; the last point fills the last block up."""
    pad = -num_points(points) % size

    def cut(leaf):
        leaf = jnp.asarray(leaf)
        leaf = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], pad, axis=0)]) if pad else leaf
        return leaf.reshape(-1, size, *leaf.shape[1:])

    return jax.tree.map(cut, points)


def matvec(kernel: Kernel, x: PointSet, y: PointSet, vectors: Any) -> Any:
    """Product `sum_j k(x_i, y_j) v_j`, `(n,)` or `(n, columns)`, in blocks of rows."""
    n, rows = num_points(x), max(1, ENTRIES // num_points(y))
    if namespace(kernel, x, y, vectors) is jnp:
        return _matvec(kernel, x, y, vectors, rows)
    blocks = (take(x, slice(start, start + rows)) for start in range(0, n, rows))
    return np.concatenate([np.asarray(kernel.gram(block, y)) @ vectors for block in blocks])


@partial(jax.jit, static_argnames="rows")
@full_precision
def _matvec(kernel, x, y, vectors, rows):
    n = num_points(x)
    if rows >= n:
        return kernel.gram(x, y) @ vectors
    product = jax.lax.map(jax.checkpoint(lambda block: kernel.gram(block, y) @ vectors), split(x, rows))
    return product.reshape(-1, *product.shape[2:])[:n]


@jax.jit
@full_precision
def weighted_sum_and_rest(
    kernel: Kernel, x: PointSet, v: Array, y: PointSet = None, w: Array | None = None, constant: ArrayLike = 0.0
) -> tuple[jax.Array, jax.Array]:
    """The sum `sum_ij v_i w_j (k(x_i, y_j) - c)` with a constant `c`, and what its rounding leaves out.

    Where `y` is left out it is `x`, of a symmetric kernel, from the tiles on and above the diagonal. Tiles are added by
    Knuth's two-sum: tens of thousands of like numbers, each rounded alike, otherwise lose three digits of float32.
    """
    own = y is None
    y, w = (x, v) if y is None or w is None else (y, w)
    if max(num_points(x), num_points(y)) <= TILE:
        return v @ (kernel.gram(x, None if own else y) - constant) @ w, jnp.zeros((), jnp.result_type(v, w))
    x_blocks, y_blocks = (split(x, TILE), _split_weights(v)), (split(y, TILE), _split_weights(w))
    shape = num_points(x_blocks), num_points(y_blocks)
    rows, columns = np.triu_indices(shape[0]) if own else (index.ravel() for index in np.indices(shape))
    dtype = jnp.result_type(v, w)

    @jax.checkpoint
    def add(carry, tile):
        row, column, multiple = tile
        (a, left), (b, right) = take(x_blocks, row), take(y_blocks, column)
        return two_sum(*carry, (multiple * (left @ (kernel.gram(a, b) - constant) @ right)).astype(dtype)), None

    multiples = np.where(own & (rows != columns), 2.0, 1.0)
    zero = jnp.zeros((), dtype)
    return jax.lax.scan(add, (zero, zero), (rows, columns, multiples.astype(dtype)))[0]


def two_sum(total: jax.Array, rest: jax.Array, added: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A sum of two numbers as it is rounded, and the rest with what the rounding leaves out."""
    new = total + added
    back = new - total
    return new, rest + ((total - (new - back)) + (added - back))


def _split_weights(w):
    return jnp.pad(w, (0, -len(w) % TILE)).reshape(-1, TILE)
