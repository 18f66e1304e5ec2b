"""Ridge regression by NumPy, and the threads that long work of NumPy takes; none of a user's model runs in them."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from threadpoolctl import threadpool_limits

from numpyro_kme._core import checks
from numpyro_kme._core.host import numpy_function

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

LONG = 0.2
"""Seconds of one item from which threads pay: shorter ones are small matrices, for which threads take turns at Python
(ten statistics of 1,000 simulations: 1.9 s with two threads, 1.6 s without; forty of 4,000: 45 s and 59 s)."""


def in_parallel(function: Callable[[Any], Any], items: Iterable) -> list:
    """`[function(item) for item in items]` on the host, by a thread for each processor where one item takes `LONG`.

    Args:
        function: A function of NumPy arrays and settings, evaluated as `numpy_function` does.
        items: Its arguments, one for each call.
    """
    items, run = list(items), numpy_function(function)
    begun = time.perf_counter()
    found = [run(item) for item in items[:1]]
    if len(items) < 3 or time.perf_counter() - begun < LONG:
        return found + [run(item) for item in items[1:]]
    keep_freed_memory()
    pool = ThreadPoolExecutor(processors())
    try:
        with one_blas_thread:
            return found + list(pool.map(run, items[1:]))
    finally:
        pool.shutdown(cancel_futures=True)


def processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let threads use again what they freed: by default glibc gives blocks of some 100 kB back to the system, which
    hands out new ones page by page, and arithmetic on arrays of that size takes twice as long.

    It keeps as much as the largest block that was ever freed, up to 32 MB; one that is never touched costs nothing.
    """
    np.empty(2**25 - 2**13, np.uint8)


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
