"""Keys of `jax.random` made on the host, by NumPy: no program is compiled for them, however many they are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

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
