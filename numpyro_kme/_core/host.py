"""Arithmetic on the host: float64 NumPy in and out, whatever JAX is doing around it; and the threads that it takes, in
which nothing of a user's model runs.

What is factorised or searched is computed in float64, whatever the session's precision, because the relative error of
`(K + m lam I)^-1 b` is about 1e-16 / lam there and 1e-7 / lam in float32. What a user wrote runs in the session's
precision. Nothing in the package switches precision.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, nullcontext
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from threadpoolctl import threadpool_limits

from numpyro_kme._core import checks, compat, doors, progress

Given = ParamSpec("Given")
Found = TypeVar("Found")


def to_host(tree: Any, floats: type | None = None) -> Any:
    """Arrays of a pytree as NumPy arrays, floating-point ones of the type `floats` where it is given; keys and
    everything else stay as they are."""

    def on_host(leaf):
        if not isinstance(leaf, np.ndarray | jax.Array) or checks.is_key(leaf):
            return leaf
        leaf = checks.unmasked(leaf)
        return np.asarray(leaf, floats if floats and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype)

    return jax.tree.map(on_host, tree)


def numpy_function(function: Callable[Given, Any]) -> Callable[Given, Any]:
    """`function` on the host: called at once, with its floating-point arrays in float64, other arrays as NumPy's, and
    keys and everything else as they are, and with NumPy arrays as results; a decorator too.

    Raises:
        TypeError: If an argument is traced.
    """

    @doors.door
    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Any:
        if not checks.is_concrete((args, kwargs)):
            checks.concrete(**inspect.signature(function).bind(*args, **kwargs).arguments)
        args, kwargs = to_host((args, kwargs), np.float64)
        with at_once():
            return to_host(function(*args, **kwargs))

    return call


def at_once() -> AbstractContextManager:
    """A block in which JAX evaluates what is concrete, though it traces something around; elsewhere nothing changes:
    programs would be compiled anew."""
    traces = isinstance(jax.device_put(0), jax.core.Tracer)
    return jax.ensure_compile_time_eval() if traces else nullcontext()


def numpy_rng(rng_key: jax.Array) -> np.random.Generator:
    """NumPy's generator of random numbers that belongs to a JAX key: nothing is compiled for what it draws."""
    return np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).ravel())


def in_present_precision(tree: Any) -> Any:
    """Turn the NumPy arrays of numbers of a pytree into JAX arrays, constants even while JAX is tracing: what depends
    on them alone is prepared once and not at each evaluation. A distribution that is no pytree stays as it is."""

    def constant(leaf):
        numbers = isinstance(leaf, np.ndarray) and (leaf.dtype.kind in "biufc" or leaf.dtype == jnp.bfloat16)
        return jnp.asarray(in_jax_types(leaf)) if numbers else leaf

    with at_once():
        return jax.tree.map(constant, tree, is_leaf=compat.loses_attributes)


def in_jax_types(value: Any) -> Any:
    """An array of JAX as it is, anything else as an array of NumPy in a type that JAX has, in this machine's order of
    bytes and with 64 bits at most; NaN where it is masked."""
    if value is None or isinstance(value, jax.Array):
        return value
    value = np.asarray(checks.unmasked(value))
    known = value.dtype.newbyteorder("=")
    lacking = jnp.issubdtype(known, jnp.floating) and known not in (np.float16, np.float32, np.float64)
    return value.astype(np.float64 if lacking else known, copy=False)


def full_precision(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """`function` with products of float32 matrices in float32; a decorator.

    On GPUs and TPUs JAX rounds their factors to 11 or 8 bits unless it is told, which put a learnt log density of
    twenty statistics off by nats. It is told where a function is traced. On CPUs nothing changes, not a bit.
    """

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return call


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
    pieces = [[one.ravel()[i : i + size] for i in range(0, max(1, one.size), size)] for one, size in zip(leaves, sizes)]

    def run(pieces):
        return function(*(np.concatenate(list(map(np.asarray, piece))).reshape(s) for piece, s in zip(pieces, shapes)))

    return jax.pure_callback(run, jax.ShapeDtypeStruct(shape, dtype), pieces, vmap_method="sequential")


class _OneBlasThread(ContextDecorator):
    """Let NumPy's and SciPy's BLAS use one thread inside this block or function, by threadpoolctl, which serves nothing
    else.

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
    found = list(map(run, items[:1]))
    if len(items) < 3 or time.perf_counter() - begun < LONG:
        return found + list(progress.counted(map(run, items[1:]), len(items) - 1))
    keep_freed_memory()
    pool = ThreadPoolExecutor(processors())
    try:
        with one_blas_thread:
            return found + list(progress.counted(pool.map(run, items[1:]), len(items) - 1))
    finally:
        pool.shutdown(cancel_futures=True)


def require_memory(points: int) -> None:
    """Raise where the kernel between all pairs of points, in float64, with what it is computed from, a matrix each for
    distances and exponents, takes more memory than this machine has."""
    needed, found = 3 * 8 * float(points) ** 2, getattr(os, "sysconf", lambda _: np.inf)
    memory = found("SC_PAGE_SIZE") * found("SC_PHYS_PAGES")
    checks.require(
        needed < memory,
        f"The kernel between all pairs of {points:,} points takes {needed / 1e9:,.0f} GB, and this machine has "
        f"{memory / 1e9:,.0f}. Give fewer points, drawn at random; `squared_mmd` keeps no such matrix.",
    )


def processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let threads use again what they freed: by default glibc gives blocks of some 100 kB back to the system, which
    hands out new ones page by page, and arithmetic on arrays of that size takes twice as long.

    It keeps as much as the largest block that was ever freed, up to 32 MB; one that is never touched costs nothing.
    """
    np.empty(2**25 - 2**13, np.uint8)
