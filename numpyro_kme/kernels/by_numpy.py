"""Gram matrices on the host: by NumPy where a kernel's formula is ours, so that nothing is compiled for the shapes of
one call; by a program for all others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import in_session, on_host
from numpyro_kme.kernels import gram as grams
from numpyro_kme.kernels.base import Kernel, PointSet
from numpyro_kme.kernels.callables import FromCallable
from numpyro_kme.kernels.gram import squared_distances

ENTRIES = 2**17
"""Entries of a matrix that are computed together: they stay in the processor's cache."""


def gram(kernel: Kernel, x: PointSet, y: PointSet | None = None) -> np.ndarray:
    """Matrix `k(x_i, y_j)`, `(n, m)`, in the precision of the points; `y` is `x` when left out."""
    if not kernel.in_numpy:
        return _evaluated(_gram, kernel, x, y)
    return _in_blocks(lambda rows: rows, kernel, x, x if y is None else y)


def matvec(kernel: Kernel, x: PointSet, y: PointSet, vectors: Any) -> np.ndarray:
    """Product `sum_j k(x_i, y_j) v_j`, `(n,)` or `(n, columns)`, in blocks of rows."""
    if not kernel.in_numpy:
        return _evaluated(grams.matvec, kernel, x, y, vectors)
    vectors = np.asarray(vectors)
    return _in_blocks(lambda rows: rows @ vectors, kernel, x, y)


def diagonal(kernel: Kernel, x: PointSet) -> np.ndarray:
    """Values `k(x_i, x_i)`, `(n,)`."""
    return np.asarray(kernel.diagonal(x)) if kernel.in_numpy else _evaluated(_diagonal, kernel, x)


def gaussian_gram(a: np.ndarray, b: np.ndarray, squared_length: float = 1.0) -> np.ndarray:
    """A Gaussian kernel between points `(r, D)` and `(s, D)`, `(r, s)`, in the precision of the points."""
    return np.exp(-0.5 / squared_length * squared_distances(a, b))


def _in_blocks(function: Callable[[np.ndarray], np.ndarray], kernel: Kernel, x: PointSet, y: PointSet) -> np.ndarray:
    """`function` of all rows of the Gram matrix, in blocks of `ENTRIES` entries."""
    x, y = np.asarray(x), np.asarray(y)
    size = max(1, ENTRIES // len(y))
    blocks = (x[start : start + size] for start in range(0, len(x), size))
    return np.concatenate([function(np.asarray(kernel.gram(block, y))) for block in blocks])


def of_a_user(kernel: Kernel) -> bool:
    """Tell whether a user wrote a kernel, or a part of it, in JAX."""
    if isinstance(kernel, FromCallable):
        return not kernel.host
    parts = jax.tree.leaves(vars(kernel), is_leaf=lambda part: isinstance(part, Kernel))
    ours = type(kernel).__module__.partition(".")[0] == __name__.partition(".")[0]
    return not ours or any(of_a_user(part) for part in parts if isinstance(part, Kernel))


def rounding(kernel: Kernel) -> float:
    """Relative error of its values, about."""
    kind = in_session(lambda: jnp.result_type(float))() if of_a_user(kernel) else np.float64
    return 8.0 * float(np.finfo(kind).eps)


def _evaluated(program: Callable, kernel: Kernel, *args: Any) -> np.ndarray:
    """By a program, in the session's precision where a user wrote the kernel, in float64."""
    return np.asarray((in_session if of_a_user(kernel) else on_host)(program)(kernel, *args), np.float64)


@jax.jit
def _gram(kernel, x, y=None):
    return kernel.gram(x, y)


@jax.jit
def _diagonal(kernel, points):
    return kernel.diagonal(points)
