"""Compiled programs, shared by functions that do the same and run over rows in blocks of one width; and random keys,
for which none is compiled."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from math import prod
from operator import itemgetter
from threading import Lock
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from numpyro_kme._core import checks
from numpyro_kme._core.host import full_precision, to_host

KEPT = 8
"""So many programs are kept for others, the last ones."""

LIGHT = {"xla_backend_optimization_level": 1}
"""Options of XLA with which a program compiles sooner and runs longer, for what runs a short time in any case."""

_shared: OrderedDict[tuple, Callable] = OrderedDict()
_lock = Lock()


class Recomputed:
    """Base of dataclasses with cached properties, which are left out when one is pickled: a compiled program stays in
    its process."""

    def __getstate__(self) -> dict[str, Any]:
        cached = {name for name in vars(self) if isinstance(getattr(type(self), name, None), cached_property)}
        return {name: value for name, value in vars(self).items() if name not in cached}


class Program:
    """`jax.jit(function)` in the session's precision, with the compiled program of an earlier function that does the
    same with the same numbers.

    A model that is run again is a new function to JAX, and may be another one: what it refers to may have changed. It
    is traced and lowered, which shows all that it computes and every constant, and takes a tenth of the time of
    compiling it. Programs that call back to Python do not show what they call, and are not shared.

    Args:
        function: What is compiled.
        thorough: Whether XLA optimises all it can, for what runs longer than it compiles.
    """

    def __init__(self, function: Callable, *, thorough: bool = False):
        self._options = {} if thorough else LIGHT
        self._function = jax.jit(full_precision(function), compiler_options=self._options)
        self._compiled: dict[tuple, Callable] = {}

    def __call__(self, *args: Any) -> Any:
        """`function(*args)`, compiled at most once for each structure, shapes, precision and device."""
        if getattr(jax.config, "jax_disable_jit", False):
            return self._function(*args)
        leaves, structure = jax.tree.flatten(args)
        each = [(np.shape(leaf), str(jnp.result_type(leaf)), getattr(leaf, "sharding", None)) for leaf in leaves]
        kind = structure, jnp.result_type(float), getattr(jax.config, "jax_default_device", None), *each
        if kind not in self._compiled:
            self._compiled[kind] = self._compile(args, kind)
        return self._compiled[kind](*args)

    def _compile(self, args: tuple, kind: tuple) -> Callable:
        lowered = self._function.lower(*args)
        text = lowered.as_text()
        if "callback" in text or getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
            return self._function
        key = sha256(text.encode()).hexdigest(), lowered.out_tree, kind, *self._options
        with _lock:
            found = _shared.pop(key, None)
        found = lowered.compile() if found is None else found
        with _lock:
            _shared[key] = found
            while len(_shared) > KEPT:
                _shared.popitem(last=False)
        return found


def jitted(function: Callable, **settings: Any) -> Callable:
    """`jax.jit(function, **settings)` with products of matrices in full precision."""
    return jax.jit(full_precision(function), **settings)


BLOCK = 64
"""Rows that are computed together. Another width changes last digits: JAX vectorises over a block."""


def in_blocks(function: Callable[[Any], Any], rows: Any, size: int = BLOCK) -> Any:
    """Apply `function` to a pytree of arrays with a common leading axis, `size` rows at a time.

    The last block is padded with copies of its first row, so `function` always meets the same shapes.

    Args:
        function: Maps a pytree of `size` rows to a pytree of `size` rows.
        rows: NumPy or JAX arrays with at least one row.
        size: Width of a block.
    Returns:
        NumPy arrays with as many rows as `rows`.
    """
    total, parts = len(jax.tree.leaves(rows)[0]), []
    checks.require(total > 0, "There must be at least one row, one point or draw, to compute with; got none.")
    for start in range(0, total, size):
        index = np.arange(start, min(start + size, total))
        padded = np.append(index, np.full(size - len(index), start))
        found = to_host(function(jax.tree.map(itemgetter(padded), rows)))
        parts.append(jax.tree.map(itemgetter(slice(len(index))), found))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def pieces(flat: Any, shapes: Iterable[tuple[int, ...]]) -> list[Any]:
    """Cut `(*lead, total)` into arrays `(*lead, *shape)`, one after another."""
    shapes = list(shapes)
    ends = np.cumsum(list(map(prod, shapes)))[:-1].tolist()
    parts = (np if isinstance(flat, np.ndarray) else jnp).split(flat, ends, axis=-1)
    return [part.reshape((*part.shape[:-1], *shape)) for part, shape in zip(parts, shapes)]


ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""Rotations of the rounds of Threefry-2x32 (Salmon et al., 2011)."""


def data_of(rng_key: jax.Array) -> np.ndarray:
    """The words of a key, `(w,)`."""
    return np.asarray(random.key_data(rng_key))


def fold_in(data: np.ndarray, numbers: np.ndarray | int) -> np.ndarray:
    """The words `(..., w)` of `jax.random.fold_in(key, number)`, for words `(..., w)` of keys and numbers `(...)`.

    JAX's default keys have two words, which the hash Threefry-2x32 of 20 rounds turns into those of another key, with
    the number as its counter. Keys of another length are left to JAX.

    References: Salmon et al. (2011), Parallel random numbers: as easy as 1, 2, 3.
    """
    numbers = np.asarray(numbers).astype(np.uint32)
    lead = np.broadcast_shapes(data.shape[:-1], numbers.shape)
    if data.shape[-1] != 2:
        rows = np.broadcast_to(data, (*lead, data.shape[-1])).reshape(-1, data.shape[-1])
        keys = random.wrap_key_data(jnp.asarray(rows))
        found = jax.vmap(random.fold_in)(keys, np.broadcast_to(numbers, lead).ravel())
        return np.asarray(random.key_data(found)).reshape(*lead, -1)
    words = data[..., 0], data[..., 1], data[..., 0] ^ data[..., 1] ^ np.uint32(0x1BD11BDA)
    with np.errstate(over="ignore"):  # sums are modulo 2^32
        left, right = np.broadcast_to(words[0], lead), numbers + words[1]
        for step in range(5):
            for rotation in ROTATIONS[step % 2]:
                left = left + right
                right = left ^ (right << np.uint32(rotation) | right >> np.uint32(32 - rotation))
            left = left + words[(step + 1) % 3]
            right = right + (words[(step + 2) % 3] + np.uint32(step + 1))
    return np.stack([left, right], axis=-1)


def child(rng_key: jax.Array, number: int) -> jax.Array:
    """`jax.random.fold_in(rng_key, number)`."""
    words: Any = fold_in(data_of(rng_key), number)
    return random.wrap_key_data(words)


def split(rng_key: jax.Array, num: int = 2) -> list[jax.Array]:
    """Keys for `num` purposes: child `i` of the key, which is the one that `jax.random.split` gives."""
    return list(map(random.wrap_key_data, fold_in(data_of(rng_key), np.arange(num))))


def numbers(
    arrays: Mapping[str, Any], lead: int = 1, along: Mapping[str, Sequence[Sequence]] = MappingProxyType({})
) -> dict[str, np.ndarray]:
    """Each number of arrays `{name: (n, *shape)}` by its name and index, `{name[i,j]: (n,)}`; of so many leading
    axes. An array may have other names than 0, 1, ... `along` its axes."""
    found = {}
    for name, value in arrays.items():
        shape = np.shape(value)[lead:]
        for index in np.ndindex(shape):
            named = [str(names[i]) for names, i in zip(along.get(name) or [*map(range, shape)], index)]
            label = name + (f"[{','.join(named)}]" if index else "")
            found[label] = np.asarray(value)[(*(slice(None),) * lead, *index)]
    return found
