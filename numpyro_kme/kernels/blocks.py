"""Sums over pairs of points in tiles: no full Gram matrix is held, nor kept for the gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme.kernels.base import Kernel, Points, num_points

TILE = 256
"""Points along each side of a tile."""
ROW_ENTRIES = 2**17
"""Matrix entries in a block of whole rows."""


def uniform_weights(points: Points) -> jax.Array:
    """Weights `1 / n`, in the precision of the points."""
    n = num_points(points)
    return jnp.full((n,), 1.0 / n, jnp.result_type(jax.tree.leaves(points)[0], float))


def split(points: Points, size: int) -> Points:
    """Cut `(n, ...)` into `(blocks, size, ...)`; the last point fills the last block up."""
    pad = -num_points(points) % size

    def cut(leaf):
        leaf = jnp.asarray(leaf)
        leaf = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], pad, axis=0)]) if pad else leaf
        return leaf.reshape(-1, size, *leaf.shape[1:])

    return jax.tree.map(cut, points)


@jax.jit
def matvec(kernel: Kernel, x: Points, y: Points, vectors: jax.Array) -> jax.Array:
    """Product `sum_j k(x_i, y_j) v_j`, `(n,)` or `(n, columns)`, in blocks of rows."""
    n, m = num_points(x), num_points(y)
    rows = max(1, min(n, ROW_ENTRIES // m))
    if rows == n:
        return kernel.gram(x, y) @ vectors
    product = jax.lax.map(jax.checkpoint(lambda block: kernel.gram(block, y) @ vectors), split(x, rows))
    return product.reshape(-1, *product.shape[2:])[:n]


@jax.jit
def weighted_sum(kernel: Kernel, x: Points, v: jax.Array, y: Points, w: jax.Array) -> jax.Array:
    """Scalar `sum_ij v_i w_j k(x_i, y_j)`."""
    if max(num_points(x), num_points(y)) <= TILE:
        return v @ kernel.gram(x, y) @ w
    x_blocks, y_blocks = (split(x, TILE), _split_weights(v)), (split(y, TILE), _split_weights(w))
    shape = (num_points(x_blocks), num_points(y_blocks))
    rows, columns = (index.ravel() for index in np.indices(shape))
    return _sum_tiles(kernel, x_blocks, y_blocks, rows, columns, np.ones(rows.shape))


@jax.jit
def weighted_self_sum(kernel: Kernel, x: Points, w: jax.Array) -> jax.Array:
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
