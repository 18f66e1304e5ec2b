"""How a simulator's function is called: traced and batched by JAX, or once a row in NumPy on the host."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import random

from numpyro_kme._core import checks, solves
from numpyro_kme._core.host import nothing_is_traced
from numpyro_kme._core.programs import Program

Shape = tuple[int, ...]


class WrongOutput(ValueError):
    """A black-box simulator returned something else than it declares."""


def name(fn: Callable) -> str:
    """Name of a function, for sentences."""
    fn = fn.func if isinstance(fn, partial) else fn
    return getattr(fn, "__name__", type(fn).__name__)


def check_function(fn: Any) -> None:
    """Require something callable that JAX can recognise when it meets it again."""
    checks.require(callable(fn), f"The first argument of Simulator must be a function; got {fn!r}.", TypeError)
    try:
        hash(fn)
    except TypeError as error:
        raise TypeError(
            f"Simulator `{name(fn)}` cannot be hashed, which JAX needs in order to recognise it. Pass a "
            "plain function, or make its class hashable, for example by @dataclass(frozen=True)."
        ) from error


def traced_event(fn: Callable, shapes: Sequence[Shape], dtypes: Sequence) -> tuple[Shape, np.dtype]:
    """Shape and dtype of what `fn(key, *params)` returns, found by tracing it."""
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes)]
    try:
        event = jax.eval_shape(lambda *args: fn(*args), jax.eval_shape(random.key, 0), *structs)  # `fn` as it is now
    except Exception as error:
        raise ValueError(
            f"JAX could not trace simulator `{name(fn)}` as fn(key, *params) with parameters of shapes "
            f"{list(shapes)}: {error}\nA JAX simulator draws one event a call, from JAX operations only; "
            "declare a NumPy simulator fn(rng, *params) by passing shape and dtype. If these shapes are "
            "those of a batch, pass event_dims."
        ) from error
    checks.require(
        isinstance(event, jax.ShapeDtypeStruct),
        f"Simulator `{name(fn)}` returns {jax.tree.structure(event)}; it must return one array. Join its "
        "outputs into one vector.",
    )
    return event.shape, np.dtype(event.dtype)


def call(fn: Callable, key: jax.Array, params: Sequence[jax.Array]) -> jax.Array:
    """One call of a JAX simulator."""
    return _anew(fn)(key, *params)


def call_rows(fn: Callable, keys: jax.Array, params: Sequence[jax.Array]) -> jax.Array:
    """One call of a JAX simulator for each key and row of the parameters."""
    return _anew(jax.vmap(fn))(keys, *params)


def _anew(fn: Callable) -> Callable:
    """`fn` as a compiled program, traced each time, and not as JAX remembers it: what it refers to may have changed."""
    return Program(lambda *args: fn(*args)) if nothing_is_traced() else fn


def call_on_host(fn: Callable, shape: Shape, dtype: np.dtype, key_data: np.ndarray, *params) -> np.ndarray:
    """One call of a black-box simulator, with the NumPy generator that belongs to the data of a JAX key.

    Parameters are handed out in float64, since NumPy computes in the precision of what it is given.

    Raises:
        WrongOutput: If the result has not the declared shape, or a dtype that does not cast to the declared one.
    """
    rng = np.random.default_rng(np.asarray(key_data, np.uint32).ravel())
    x = np.asarray(fn(rng, *map(_in_float64, params)))
    checks.require(
        x.shape == shape and np.can_cast(x.dtype, dtype, "same_kind"),
        f"Simulator `{name(fn)}` declares shape {shape} and dtype {dtype} but returned shape {x.shape} and "
        f"dtype {x.dtype}. Correct the declaration, Simulator(..., shape=..., dtype=...), or the simulator.",
        WrongOutput,
    )
    return x.astype(dtype)


def _in_float64(param: np.ndarray) -> np.ndarray:
    return param.astype(np.float64) if param.dtype.kind == "f" else param


def call_back(
    fn: Callable, shape: Shape, dtype: np.dtype, key_data: jax.Array, params: Sequence[jax.Array]
) -> jax.Array:
    """Calls of a black-box simulator from inside JAX, one for each leading index of `key_data`."""
    canonical = jax.dtypes.canonicalize_dtype(dtype)  # float64 is float32 while x64 is off

    def rows(key_data, *params):
        lead = key_data.shape[:-1]
        x = np.empty(lead + shape, canonical)
        for row in np.ndindex(lead):
            x[row] = call_on_host(fn, shape, dtype, key_data[row], *(param[row] for param in params))
        return x

    lead = key_data.shape[:-1]

    @jax.custom_jvp
    def drawn(key_data, *params):
        return solves.call_back(rows, lead + shape, canonical, key_data, *params, vmap_method="broadcast_all")

    @drawn.defjvp
    def _(primals, tangents):
        raise TypeError(
            f"Simulator `{name(fn)}` runs in NumPy, so that its draws have no derivative, which NUTS, HMC and SVI ask "
            "for. Write it in JAX, use a kernel that asks for none (PseudoMarginal, or numpyro.infer.SA), or an "
            "engine that learns the likelihood, such as KELFI."
        )

    return drawn(key_data, *params)
