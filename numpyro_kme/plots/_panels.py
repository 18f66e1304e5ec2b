"""Figures, colours, and the numbers of a dictionary of arrays that are drawn."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.engines.posterior import numbers

COLOURS = ("#0b6e4f", "#b5493a", "#2a6fbb", "#8a6fae")
FILL, FAINT, DARK = 0.25, "0.75", "0.25"
WIDTH, HEIGHT = 3.0, 2.4
MOST_ACROSS = 4


def pyplot() -> Any:
    """`matplotlib.pyplot`, or an error that says how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'Plots need matplotlib, which is not installed: pip install "numpyro-kme[plots]".', name="matplotlib"
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


def chosen(arrays: Mapping[str, Any], names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Each number by name, `{name[i]: (n,)}`; `names` may be of arrays or of single numbers.

    Args:
        arrays: `{name: (n, *shape)}`.
        names: Which; all when left out.
    """
    found = numbers(arrays)
    if names is None:
        return found
    unknown = [name for name in names if name not in arrays and name not in found]
    checks.require(not unknown, f"`names` must be among {list(arrays)}; got {unknown}.")
    return {label: value for label, value in found.items() if label in names or label.split("[")[0] in names}
