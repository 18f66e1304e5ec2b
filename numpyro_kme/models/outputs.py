"""What one call of a simulator gives: its shape, the names of its numbers, and observations of it as arrays."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from numpyro_kme._core import checks, compat, numbers
from numpyro_kme.models.simulator_functions import FromNoise, Joined, Padded, Shape, fits, name

Names = Sequence[str] | Mapping[str, int | Shape] | None


def shapes_of(names: Mapping[str, int | Shape]) -> dict[str, Shape]:
    """Shapes of the entries of a dictionary that are declared by their lengths or shapes."""
    for entry, one in names.items():
        checks.instance(f"names[{entry!r}]", one, int | np.integer | tuple | list, "a length or a shape")
    return {entry: (one,) if isinstance(one, int | np.integer) else tuple(one) for entry, one in names.items()}


class Output(NamedTuple):
    """Shape and type of what one call of a simulator returns.

    Attributes:
        fn: The simulator; where it gives numbers by name, or of any length, one that gives an array of a fixed shape.
        shape, dtype: Of one event.
        names: Of its numbers, or of those along its last axis; may be none.
        entries: Shapes of the entries of a dictionary; empty without one.
    """

    fn: Callable
    shape: Shape
    dtype: np.dtype
    names: tuple[str, ...]
    entries: dict[str, Shape]

    @classmethod
    def traced(cls, fn: Callable, shapes: Sequence[Shape], dtypes: Sequence, names: Names) -> "Output":
        """Find the output of a JAX simulator `fn(key, *params)`, with parameters of these shapes and dtypes."""
        event, entries = traced_event(fn, shapes, dtypes)
        if entries:
            fn = fn.joined if isinstance(fn, FromNoise) else Joined(fn)
        return cls(fn, event.shape, np.dtype(event.dtype), (), entries)._named(names)

    @classmethod
    def declared(cls, fn: Callable, shape: int | Shape | None, dtype: Any, names: Names) -> "Output":
        """Output of a black-box simulator, as declared; as long as its names where no shape is given."""
        if shape is None and names is not None:
            shape = sum(map(math.prod, shapes_of(names).values())) if isinstance(names, Mapping) else len(names)
        shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape or ())
        shapes = tuple(shapes_of(names).values()) if isinstance(names, Mapping) else ()
        fn = fn if names is None else Joined(fn, tuple(names), shapes)
        return cls(fn, shape, np.dtype(dtype), (), {})._named(names)

    def _named(self, names: Names) -> "Output":
        """With names of the numbers, checked; by default those of the entries."""
        entries, columns = self.entries, self.shape[-1] if self.shape else 1
        if isinstance(names, Mapping):
            declared, total = shapes_of(names), sum(map(math.prod, shapes_of(names).values()))
            checks.require(
                (not entries or ([*entries] == [*declared] and all(map(fits, entries.values(), declared.values()))))
                and self.shape == (total,),
                f"`names` declares {total} numbers, {declared}, and simulator `{name(self.fn)}` gives "
                f"{entries or self.shape}. Give each entry the shape that the simulator returns, in its order.",
            )
            entries, names = declared, None
        elif names is not None and set(names) == set(entries):
            names = None
        if names is not None and not entries and self.shape == (len(names),):
            entries = dict.fromkeys(names, ())
        arrays = {entry: np.empty(shape) for entry, shape in entries.items()}
        found = tuple(numbers(arrays, lead=0) if names is None else names)
        checks.require(
            not found or len(found) in (columns, math.prod(self.shape)),
            f"`names` must name the {columns} numbers along the last axis of the output of `{name(self.fn)}`, of shape "
            f"{self.shape}; got {list(found)[:8]}. Declare arrays with their lengths, names={{'quantiles': 3}}.",
        )
        checks.require(
            self.dtype.kind in "bfiu" and math.prod(self.shape) > 0,
            f"Simulator `{name(self.fn)}` returns shape {self.shape} and dtype {self.dtype}; it must return at "
            "least one real number, integer or truth value.",
        )
        return self._replace(names=found, entries=entries)

    def ragged(self, black_box: bool) -> "Output":
        """Let outputs end before the last row of their shape."""
        checks.require(
            self.dtype.kind == "f" and len(self.shape) > 0,
            f"Simulator `{name(self.fn)}` has ragged=True, shape {self.shape} and dtype {self.dtype}: NaN at the end "
            "says that an output ends there, so it needs a first axis, of the longest length, and dtype=float.",
        )
        return self._replace(fn=Padded(self.fn, self.shape)) if black_box else self


_known: ContextVar[dict[tuple, tuple[Any, dict[str, Shape]]] | None] = ContextVar("known", default=None)


def unchanged():
    """Trace each simulator once inside this block, in all threads that copy its context: for a model that is run again
    and again, while what its functions refer to stays as it is."""
    return checks.setting(_known, {} if _known.get() is None else _known.get())


def traced_event(fn: Callable, shapes: Sequence[Shape], dtypes: Sequence) -> tuple[Any, dict[str, Shape]]:
    """Shape and dtype of what `fn(key, *params)` returns, found by tracing it, and the shapes of its entries where that
    is a dictionary, in its own order."""
    kept, call = _known.get(), (fn, tuple(shapes), tuple(map(str, dtypes)), jax.enable_x64.value)
    if kept is not None and call in kept:
        return kept[call]
    structs = map(jax.ShapeDtypeStruct, shapes, dtypes)
    inputs = jax.eval_shape(random.key, 0), *structs
    entries: dict[str, Shape] = {}
    # JAX keeps the trace of a jitted function
    bare = getattr(fn, "__wrapped__", fn) if isinstance(fn, jax.stages.Wrapped) else fn

    def traced(*args):
        with compat.shielded():
            event = bare(*args)  # as it is now
        if not isinstance(event, Mapping):
            return event
        entries.update({str(entry): np.shape(value) for entry, value in event.items()})
        return jnp.concatenate([jnp.ravel(value) for value in event.values()])

    try:
        program, event = jax.make_jaxpr(partial(traced), return_shape=True)(*inputs)
        again = jax.make_jaxpr(partial(traced))(*inputs)  # what it draws by NumPy is drawn anew
    except Exception as error:
        why = str(error).partition("\n")[0]  # what follows is of JAX, and stands above
        why = why or f"{type(error).__name__}. Sites of NumPyro in it need handlers.seed(rng_seed=key)."
        raise checks.explained(
            f"JAX could not trace simulator `{name(fn)}` as fn(key, *params) with parameters of shapes {list(shapes)}: "
            f"{why}\nA JAX simulator draws one event a call, from JAX operations only; declare a NumPy simulator "
            "fn(rng, *params) by passing shape, or names and dtype. If these shapes are of a batch, pass event_dims."
        ) from error
    single = isinstance(event, jax.ShapeDtypeStruct)
    checks.require(single, f"Simulator `{name(fn)}` must return one array, or arrays by name; got {event}.")
    checks.require(
        _written(program) == _written(again),
        f"Simulator `{name(fn)}` draws random numbers of NumPy, which JAX would keep for all simulations. Draw from "
        "the key, or declare a NumPy simulator fn(rng, *params) by passing shape.",
    )
    if kept is not None:
        kept[call] = event, entries
    return event, entries


def _written(program: Any) -> tuple[str, list[bytes]]:
    """A traced program as text, however things are addressed, and its constants, but for keys and traced ones."""
    constants = [np.asarray(one) for one in program.consts if checks.is_concrete(one) and not checks.is_key(one)]
    return re.sub("0x[0-9a-f]+", "", str(program)), list(map(np.ndarray.tobytes, constants))


def vector(value: Any, who: str, names: tuple[str, ...], entries: Mapping[str, Shape], event_shape: Shape) -> Any:
    """An observation `(*batch, *event)` of the simulator `who`: see `Simulator.vector`."""
    if type(value).__module__.partition(".")[0] == "pandas" and names:
        value = np.asarray(value[list(names)])
    if not isinstance(value, Mapping):
        return value
    checks.require(
        bool(entries),
        f"The observation of `{who}` has the entries {[*value]}. Its output has no names: pass an array, or give "
        "Simulator `names`.",
    )
    lacking = [entry for entry in entries if entry not in value]
    advice = f" Write NaN for what was not observed, {{{lacking[0]!r}: np.nan}}." if lacking else ""
    same = set(value) == set(entries)
    checks.require(same, f"The observation of `{who}` must have the entries {[*entries]}; got {[*value]}.{advice}")
    parts = []
    for entry, shape in entries.items():
        array = np.asarray(value[entry]) if checks.is_concrete(value[entry]) else value[entry]
        array = array[..., None] if shape == (1,) != array.shape[-1:] else array  # one number may be a scalar
        lead = array.ndim - len(shape)
        alike = lead >= 0 and array.shape[lead:] == shape
        checks.require(alike, f"Entry {entry!r} observed of `{who}` must have shape {shape}; got {array.shape}.")
        parts.append(array.reshape(*array.shape[:lead], -1))
    xp: Any = np if all(isinstance(part, np.ndarray) for part in parts) else jnp
    return xp.concatenate(parts, axis=-1).reshape(*parts[0].shape[:-1], *event_shape)
