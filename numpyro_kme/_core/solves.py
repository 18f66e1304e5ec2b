"""Ridge regression, BLAS threads, and calls from JAX back to NumPy."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.typing import ArrayLike
from threadpoolctl import threadpool_limits

from numpyro_kme._core import checks

Array = jax.Array | np.ndarray
"""An array leaf of a fitted object: NumPy as it was learnt, JAX where it is traced."""


class _OneBlasThread:
    """Let NumPy's and SciPy's BLAS use one thread inside this block, by threadpoolctl, which serves nothing else.

    For loops over matrices of some hundred rows, and for the small triangular solves that XLA hands to it: the threads
    of OpenBLAS wait for each other by spinning, and several take longer than one. The limit holds for the whole
    process, from the first block that is entered, in any thread, until the last is left. A thread of its own sets and
    lifts it, because no thread can change a limit that another has set (threadpoolctl 3.8), and no error tells.
    """

    def __init__(self):
        self._lock, self._entered = Lock(), 0

    def __enter__(self):
        with self._lock:
            if self._entered == 0:
                self._keeper, self._limit = ThreadPoolExecutor(1), ExitStack()
                limit = self._keeper.submit(threadpool_limits, limits=1, user_api="blas").result()
                self._keeper.submit(self._limit.enter_context, limit).result()
            self._entered += 1

    def __exit__(self, *_):
        with self._lock:
            self._entered -= 1
            if self._entered == 0:
                self._keeper.submit(self._limit.close).result()
                self._keeper.shutdown()


one_blas_thread = _OneBlasThread()

AT_ONCE = 32_768
"""Bytes of an argument that JAX certainly copies at once."""


def call_back(function: Callable, shape: tuple[int, ...], dtype, *args, vmap_method: str) -> jax.Array:
    """Call a NumPy function from inside JAX, as `jax.pure_callback` does, safely for large arrays.

    Larger arguments than `AT_ONCE` would be copied by the pool of threads to which the thread that calls back belongs,
    and on one CPU it would wait for itself for ever (JAX 0.9, jax-ml/jax#25861); so they travel in pieces.

    Args:
        function: Takes NumPy arrays; returns an array of the declared shape.
        shape, dtype: What the result has.
        args: JAX arrays.
        vmap_method: "sequential" calls once for each element; "broadcast_all" once, with leading axes on every argument
            and the result.
    """
    leaves, structure = jax.tree.flatten(args)

    def run(*leaves):
        return np.asarray(function(*structure.unflatten(leaves)), dtype, order="C")

    @custom_vmap
    def call(*leaves):
        return _call_in_pieces(run, shape, dtype, *leaves)

    @call.def_vmap
    def _(size, batched, *leaves):
        given = [leaf if over else jnp.broadcast_to(leaf, (size, *leaf.shape)) for leaf, over in zip(leaves, batched)]
        return call_back(run, (size, *shape), dtype, *given, vmap_method=vmap_method), True

    leaves = list(map(jnp.asarray, leaves))
    return call(*leaves) if vmap_method == "broadcast_all" else _call_in_pieces(run, shape, dtype, *leaves)


def _call_in_pieces(function: Callable, shape: tuple[int, ...], dtype, *leaves: jax.Array) -> jax.Array:
    sizes, shapes = [AT_ONCE // leaf.dtype.itemsize for leaf in leaves], [leaf.shape for leaf in leaves]
    pieces = [
        [leaf.ravel()[start : start + size] for start in range(0, max(1, leaf.size), size)]
        for leaf, size in zip(leaves, sizes)
    ]

    def run(pieces):
        return function(*(np.concatenate(list(map(np.asarray, piece))).reshape(s) for piece, s in zip(pieces, shapes)))

    return jax.pure_callback(run, jax.ShapeDtypeStruct(shape, dtype), pieces, vmap_method="sequential")


def require_factorised(done: bool, what: str) -> None:
    """Raise where a Cholesky factorisation of what is named failed."""
    checks.require(
        done,
        f"The Cholesky factorisation of {what} failed: the matrix is not positive definite to working precision. "
        "Increase the regularisation, or remove duplicated points.",
        np.linalg.LinAlgError,
    )


def require_resolved(added: float, trace: float, what: str) -> None:
    """Require that float64 sees what regularisation adds beside a positive semi-definite matrix of this trace.

    Raises:
        numpy.linalg.LinAlgError: If it does not: the solve would be rounding, blown up.
    """
    least = np.finfo(np.float64).eps * trace
    checks.require(
        bool(added > least),
        f"{what} cannot be solved: with c = {added:.3g}, number of points times regularisation, it is singular to "
        f"working precision ({least:.3g}). Increase the regularisation.",
        np.linalg.LinAlgError,
    )


def ridges(
    factor: Array, targets: np.ndarray, regularisations: ArrayLike
) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    r"""Kernel ridge regression for each `lam` from one eigendecomposition: `(lam, coefficients, held-out residuals)`.

    With $G = U U^\top$ and $H = U (U^\top U + n \lambda I)^{-1} U^\top$: predictions at `t` are `phi(t)' c`,
    $c = (U^\top U + n \lambda I)^{-1} U^\top t$, `(r, p)`, and leaving one out
    $t_i - \hat t_{-i}(x_i) = [(I - H) t]_i / (1 - H_{ii})$, `(n, p)`.

    Args:
        factor: `U`, `(n, r)`.
        targets: `(n, p)`.
        regularisations: Each `lam`.
    Cost: `2 n r^2 + 9 r^3`, then `n r p` for each `lam`.
    """
    factor = np.asarray(factor)
    square = factor.T @ factor
    values, vectors = np.linalg.eigh(square)
    rotated = factor @ vectors
    for lam in np.asarray(regularisations):
        added = len(factor) * lam
        require_resolved(added, float(np.trace(square)), "U U' + c I")
        inverse = 1.0 / (np.maximum(values, 0.0) + added)
        within = inverse[:, None] * (rotated.T @ targets)
        leverage = np.square(rotated) @ inverse
        yield lam, vectors @ within, (targets - rotated @ within) / (1.0 - leverage)[:, None]


def ridge(factor: Array, added: float, right: np.ndarray) -> np.ndarray:
    """`(U U' + c I)^-1 b` by Woodbury's formula, for `U` `(n, r)` and `b` `(n, ...)`. Cost: `n r^2`."""
    factor = np.asarray(factor)
    return (right - factor @ np.linalg.solve(inner(factor, added), factor.T @ right)) / added


def inner(factor: Array, added: float) -> np.ndarray:
    """`U'U + c I`, `(r, r)`, checked: with a `c` below rounding, what is solved with it is noise."""
    factor = np.asarray(factor)
    square = factor.T @ factor
    require_resolved(added, float(np.trace(square)), "U U' + c I")
    return square + added * np.eye(len(square))
