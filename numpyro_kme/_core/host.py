"""Arithmetic on the host: float64 NumPy in and out, whatever JAX is doing around it.

What is factorised or searched is computed in float64, whatever the session's precision, because the relative error of
`(K + m lam I)^-1 b` is about 1e-16 / lam there and 1e-7 / lam in float32. What a user wrote runs in the session's
precision. Nothing else in the package switches precision than `on_host`, for formulas that JAX differentiates.
"""

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.compat import nothing_is_traced
from numpyro_kme._core.contexts import setting

Given = ParamSpec("Given")
Found = TypeVar("Found")

_session: ContextVar[bool | None] = ContextVar("session", default=None)
"""Inside the gateway, whether the session has 64 bits; None outside."""


def numpy_function(function: Callable[Given, Any]) -> Callable[Given, Any]:
    """`function` on the host: called at once, with its floating-point arrays in float64, other arrays as NumPy's, and
    keys and everything else as they are, and with NumPy arrays as results; a decorator too.

    While JAX traces something around it, it is called all the same, with arguments that are concrete, in a thread of
    its own: a thread has its own trace.

    Raises:
        TypeError: If an argument is traced.
    """

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Any:
        if not checks.is_concrete((args, kwargs)):
            checks.concrete(**inspect.signature(function).bind(*args, **kwargs).arguments)
        args, kwargs = jax.tree.map(_float64, (args, kwargs))
        return to_host(at_once(partial(function, *args, **kwargs)))

    return call


def on_host(function: Callable[Given, Any]) -> Callable[Given, Any]:
    """`numpy_function` for a formula of this package that JAX evaluates: in 64 bits, on copies of its arrays, since JAX
    remembers what it made of an array. Nothing that a user wrote runs in it (`in_session`)."""

    @wraps(function)
    def formula(*args: Given.args, **kwargs: Given.kwargs) -> Any:
        given = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, (args, kwargs))
        session = jax.enable_x64.value if _session.get() is None else _session.get()

        def run():
            with setting(_session, session):
                return to_host(function(*given[0], **given[1]))

        return in_precision(run, True)

    return numpy_function(formula)


def in_session(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """`function` in the session's precision, inside `on_host` too; a decorator.

    For what the user wrote: a model, a simulator, a kernel. What they close over is read in one precision alone, since
    JAX remembers what it made of an array.
    """

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        session = _session.get()
        if session is None or session == jax.enable_x64.value:
            return function(*args, **kwargs)
        args, kwargs = to_host((args, kwargs))
        return in_precision(partial(function, *args, **kwargs), session)

    return call


def numpy_rng(rng_key: jax.Array) -> np.random.Generator:
    """NumPy's generator of random numbers that belongs to a JAX key: nothing is compiled for what it draws."""
    return np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).ravel())


def keep_freed_memory() -> None:
    """Let threads use again what they freed: by default glibc gives blocks of some 100 kB back to the system, which
    hands out new ones page by page, and arithmetic on arrays of that size takes twice as long.

    It keeps as much as the largest block that was ever freed, up to 32 MB; one that is never touched costs nothing.
    """
    np.empty(2**25 - 2**13, np.uint8)


def constants(tree: Any) -> Any:
    """NumPy arrays of a pytree in the precision in force, as constants even while JAX is tracing, so that what depends
    on them alone is prepared once and not at each evaluation."""
    return at_once(partial(in_present_precision, tree))


def at_once(run: Callable[[], Found]) -> Found:
    """`run()` in the precision in force, evaluated at once even while JAX is tracing."""
    return in_precision(run, jax.enable_x64.value)


def in_present_precision(tree: Any) -> Any:
    """Turn the NumPy arrays of a pytree into JAX arrays of the precision in force.

    For what is evaluated in any precision and holds NumPy arrays that are not arguments of a jitted function.
    """
    return jax.tree.map(lambda leaf: jnp.asarray(native(leaf)) if _is_numbers(leaf) else leaf, tree)


def in_jax_types(value: Any) -> Any:
    """An array of JAX as it is, anything else as an array of NumPy in a type that JAX has; NaN where it is masked."""
    if value is None or isinstance(value, jax.Array):
        return value
    return native(value.astype(float).filled(np.nan) if np.ma.is_masked(value) else np.asarray(value))


def native(value: np.ndarray) -> np.ndarray:
    """Numbers in a type that JAX has: in this machine's order of bytes, and with 64 bits at most."""
    known = value.dtype.newbyteorder("=")
    lacking = jnp.issubdtype(known, jnp.floating) and known not in (np.float16, np.float32, np.float64)
    return value.astype(np.float64 if lacking else known, copy=False)


def in_precision(run: Callable[[], Found], x64: bool) -> Found:
    """`run()` in a precision, in a thread of its own if JAX is tracing here.

    (`jax.ensure_compile_time_eval` inside `jax.enable_x64` passes float32 buffers to float64 executables in JAX 0.10
    and 0.12.)
    """

    def switched():
        with jax.enable_x64(x64):
            return run()

    if nothing_is_traced():
        return switched()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, switched).result()


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


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array) and not checks.is_key(leaf)


def _is_numbers(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and (leaf.dtype.kind in "biufc" or leaf.dtype == jnp.bfloat16)


def _float64(leaf: Any) -> Any:
    if not _is_array(leaf):
        return leaf
    return np.asarray(leaf, np.float64 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype)


def to_host(tree: Any) -> Any:
    """JAX arrays of a pytree as NumPy arrays; keys and everything else stay as they are."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if _is_array(leaf) else leaf, tree)
