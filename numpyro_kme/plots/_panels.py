"""Figures, colours, and the numbers of a dictionary of arrays by name."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from numpyro_kme._core import checks

COLOURS = ("#0b6e4f", "#b5493a", "#2a6fbb", "#8a6fae")
FILL, FAINT, DARK = 0.25, "0.75", "0.25"
WIDTH, HEIGHT = 3.0, 2.4
MOST_ACROSS = 4


def pyplot() -> Any:
    """`matplotlib.pyplot`, or a sentence."""
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'Pictures need matplotlib, which is not installed: pip install "numpyro-kme[plots]".', name="matplotlib"
        ) from error
    return plt


def panels(count: int, **settings: Any) -> tuple[Any, list]:
    """A figure of `count` panels, at most four in a row, and their axes."""
    checks.require(count >= 1, "There is nothing to draw: no number was named, or none varies.")
    across = min(count, MOST_ACROSS)
    down = ceil(count / across)
    size = (max(WIDTH * across, 1.4 * WIDTH), HEIGHT * down + 0.4)
    figure, axes = pyplot().subplots(down, across, figsize=size, squeeze=False, layout="constrained", **settings)
    for unused in axes.flat[count:]:
        unused.set_axis_off()
    for axis in axes.flat[:count]:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat[:count])


def numbers(arrays: Mapping[str, Any], names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Each number by name, `{name[i]: (n,)}`; `names` may be of arrays or of single numbers.

    Args:
        arrays: `{name: (n, *shape)}`.
        names: Which; all when left out.
    """
    found: dict[str, np.ndarray] = {}
    for name, value in arrays.items():
        value = np.asarray(value)
        for index in np.ndindex(value.shape[1:]):
            label = name + (f"[{','.join(map(str, index))}]" if index else "")
            if names is None or name in names or label in names:
                found[label] = value[(slice(None), *index)]
    unknown = [name for name in names or () if not any(name in (label, label.split("[")[0]) for label in found)]
    checks.require(not unknown, f"`names` must be among {list(arrays)}; got {unknown}.")
    return found
