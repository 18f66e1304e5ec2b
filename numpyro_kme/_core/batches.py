"""Run a batched function over rows in blocks of one width, so that no row depends on how many there are."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from numpyro_kme._core.host import to_host

BLOCK = 64
"""Rows that are computed together. Another width changes last digits: JAX vectorises over a block."""


def run(
    function: Callable[[Any], Any],
    rows: Any,
    size: int = BLOCK,
    done: Callable[[int, Any], None] | None = None,
):
    """Apply `function` to a pytree of arrays with a common leading axis, `size` rows at a time.

    The last block is padded with copies of its first row, so `function` always meets the same shapes.

    Args:
        function: Maps a pytree of `size` rows to a pytree of `size` rows.
        rows: NumPy or JAX arrays with at least one row.
        size: Width of a block.
        done: Told after each block at which row it began and what it gave, without the padding.
    Returns:
        NumPy arrays with as many rows as `rows`.
    """
    total = len(jax.tree.leaves(rows)[0])
    parts = []
    for start in range(0, total, size):
        index = np.arange(start, min(start + size, total))
        padded = np.append(index, np.full(size - len(index), start))
        part = _take(to_host(function(_take(rows, padded))), slice(len(index)))
        if done is not None:
            done(start, part)
        parts.append(part)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _take(tree: Any, index: Any) -> Any:
    """Some rows of every array of a pytree."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
