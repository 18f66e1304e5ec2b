"""Gram matrices on the host: by NumPy for the kernels that engines choose themselves, so that nothing is compiled for
the shapes of one call; by a program for all others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from numpyro_kme._core.host import in_session, on_host
from numpyro_kme.kernels import gram as grams
from numpyro_kme.kernels.algebra import Polynomial, Sum
from numpyro_kme.kernels.base import FromCallable, Kernel, PointSet, num_points
from numpyro_kme.kernels.stationary import Gaussian

ENTRIES = 2**17
"""Of a matrix, that are computed together: they stay in the processor's cache."""


def written_out(kernel: Kernel) -> bool:
    """Whether NumPy evaluates it here: a Gaussian, a polynomial, or a sum of these, and no class derived from them."""
    return type(kernel) in FORMULAS or (type(kernel) is Sum and all(map(written_out, kernel.kernels)))


def gram(kernel: Kernel, x: PointSet, y: PointSet | None = None) -> np.ndarray:
    """Matrix `k(x_i, y_j)`, `(n, m)`, in the precision of the points; `y` is `x` when left out."""
    if not written_out(kernel):
        return _evaluated(_gram, kernel, x, y)
    return _in_blocks(_rows(kernel, x, y), num_points(x), num_points(x if y is None else y))


def matvec(kernel: Kernel, x: PointSet, y: PointSet, vectors: Any) -> np.ndarray:
    """Product `sum_j k(x_i, y_j) v_j`, `(n,)` or `(n, columns)`, in blocks of rows."""
    if not written_out(kernel):
        return _evaluated(grams.matvec, kernel, x, y, vectors)
    rows = _rows(kernel, x, y)
    return _in_blocks(lambda some: rows(some) @ np.asarray(vectors), num_points(x), num_points(y))


def row_of(kernel: Kernel, x: PointSet) -> Callable[[int], np.ndarray]:
    """The function that gives row `i` of the Gram matrix, `(n,)`, for many in turn."""
    if not written_out(kernel):  # by the program that compares one point with all
        return lambda i: _evaluated(_gram, kernel, jax.tree.map(lambda leaf: leaf[i : i + 1], x), x)[0]
    rows = _rows(kernel, x)
    return lambda i: rows(slice(i, i + 1))[0]


def diagonal(kernel: Kernel, x: PointSet) -> np.ndarray:
    """Values `k(x_i, x_i)`, `(n,)`."""
    return np.ones(num_points(x)) if type(kernel) is Gaussian else _evaluated(_diagonal, kernel, x)


def gaussian_gram(a: np.ndarray, b: np.ndarray, squared_length: float = 1.0) -> np.ndarray:
    """A Gaussian kernel between points `(r, D)` and `(s, D)`, `(r, s)`, in the precision of the points."""
    return np.exp(-0.5 / squared_length * scipy.spatial.distance.cdist(a, b, "sqeuclidean")).astype(a.dtype, copy=False)


def _in_blocks(function: Callable[[slice], np.ndarray], n: int, m: int) -> np.ndarray:
    """`function` of all rows, in blocks of `ENTRIES` entries of the matrix `(n, m)`."""
    size = max(1, ENTRIES // m)
    return np.concatenate([function(slice(start, start + size)) for start in range(0, n, size)])


def _rows(kernel, x, y=None) -> Callable[[slice], np.ndarray]:
    """The function that gives some rows of the Gram matrix of a kernel that is written out."""
    if isinstance(kernel, Sum):
        parts = [_rows(part, x, y) for part in kernel.kernels]
        return lambda some: np.sum([part(some) for part in parts], axis=0)
    a, b = grams.scaled(np.asarray(x), None if y is None else np.asarray(y), np.asarray(kernel.length_scale), np)
    return lambda some: FORMULAS[type(kernel)](kernel, a[some], b)


def _polynomial(kernel, a, b):
    return (a @ b.T + np.asarray(kernel.offset, a.dtype)) ** kernel.degree


FORMULAS: dict[type[Kernel], Callable[[Any, np.ndarray, np.ndarray], np.ndarray]] = {
    Gaussian: lambda kernel, a, b: gaussian_gram(a, b),
    Polynomial: _polynomial,
}
"""Of points `(n, dim)` and `(m, dim)` in units of the length scale."""


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
