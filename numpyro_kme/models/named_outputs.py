"""Outputs and observations whose numbers have names: dictionaries, rows and tables of pandas, as vectors."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks

Shape = tuple[int, ...]


def name(fn: Callable) -> str:
    """Name of a function, for sentences."""
    fn = fn.func if isinstance(fn, partial) else fn
    return getattr(fn, "__name__", type(fn).__name__)


@dataclass(frozen=True)
class Joined:
    """A simulator that gives numbers by name, as one that gives them in one vector.

    Args:
        fn: It returns a dictionary of arrays; a black box may return a row or a table of pandas too.
        names: Which entries, in their order; those of the dictionary in its own order when left out.
    """

    fn: Callable
    names: tuple[str, ...] = ()

    @property
    def __name__(self) -> str:
        return name(self.fn)

    def __call__(self, key: Any, *params):
        """One event as a vector; a table with named columns as a matrix; anything else as it is."""
        found = self.fn(key, *params)
        if isinstance(found, Mapping):
            missing = [one for one in self.names if one not in found]
            checks.require(not missing, f"Simulator `{self.__name__}` gives {list(found)}, without {missing}.")
            each = [found[one] for one in self.names or found]
            xp: Any = jax.numpy if any(isinstance(one, jax.Array) for one in each) else np
            return xp.concatenate([xp.ravel(one) for one in each])
        if type(found).__module__.partition(".")[0] == "pandas":
            return np.asarray(found[list(self.names)])
        return found


def labels(entries: Mapping[str, Shape]) -> tuple[str, ...]:
    """A name for each number of named entries of some shapes, `max`, `acf[0]`, `acf[1]`, ..., in their order."""
    return tuple(
        entry + (f"[{','.join(map(str, index))}]" if index else "")
        for entry, shape in entries.items()
        for index in np.ndindex(*shape)
    )


def along(names: tuple[str, ...], shape: Shape) -> tuple[str, ...]:
    """A name for each number of an array of a shape, flattened, from names of all of them or of the last axis."""
    rows = math.prod(shape) // max(len(names), 1)
    return names if rows == 1 or not names else tuple(f"{one}[{row}]" for row in range(rows) for one in names)


def vector(value: Any, who: str, names: tuple[str, ...], entries: Mapping[str, Shape], event_shape: Shape) -> Any:
    """An observation `(*batch, *event)` of the simulator `who`: see `Simulator.vector`."""
    if type(value).__module__.partition(".")[0] == "pandas" and names:
        value = np.asarray(value[list(names)])
    if not isinstance(value, Mapping):
        return value
    checks.require(
        set(value) == set(entries),
        f"The observation of simulator `{who}` must have the entries {list(entries)}; got {list(value)}.",
    )
    parts = []
    for entry, shape in entries.items():
        array = np.asarray(value[entry]) if checks.is_concrete(value[entry]) else value[entry]
        lead = array.ndim - len(shape)
        checks.require(
            lead >= 0 and array.shape[lead:] == shape,
            f"The entry {entry!r} of the observation of simulator `{who}` must have the shape {shape} behind those of "
            f"plates; got {array.shape}.",
        )
        parts.append(array.reshape(*array.shape[:lead], -1))
    xp: Any = np if all(isinstance(part, np.ndarray) for part in parts) else jnp
    return xp.concatenate(parts, axis=-1).reshape(*parts[0].shape[:-1], *event_shape)
