"""The one style of all plots: colours, panels of one size, legends, and names of what is drawn."""

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from numpyro_kme._core import checks, numbers
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.learnt_posterior import LearntPosterior

Names = Sequence[str] | None
Learnt = LearntPosterior | Engine

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
FILL, FAINT, DARK = 0.25, "0.75", "0.25"
"""Opacity of areas, and two greys."""
WIDTH, HEIGHT = 3.0, 2.4
"""Of a panel, in inches."""
MOST = 12
"""Most numbers that get panels of their own unasked."""
LABEL = 2.0
"""Width of a label of the legend, in inches, at most about."""
POINTS, MANY, WHOLE = 201, 2000, 60
"""Points of a density, and quantiles that stand for the draws where these are more; the widest range of whole numbers
that have a step each."""


def pyplot() -> Any:
    """Import `matplotlib.pyplot`, or raise an error that says how to install it."""
    with checks.needs("Plots need", "matplotlib"):
        import matplotlib.pyplot as plt
    return plt


def panels(count: int, ax: Any, size: tuple[float, float] | None = None, **settings: Any) -> tuple[Any, list]:
    """A figure of `count` panels, at most four in a row, and their axes, of a size in panels; `ax` are the user's own,
    in place of these."""
    checks.require(count >= 1, "There is nothing to draw: no number was named, or none varies.")
    plt = pyplot()
    if ax is None:
        across = min(count, 4)
        down = ceil(count / across)
        wide, high = size or (max(across, 1.4), down + 0.3)
        how = dict(figsize=(WIDTH * wide, HEIGHT * high), squeeze=False, layout="constrained", **settings)
        _, grid = plt.subplots(down, across, **how)
        for unused in grid.flat[count:]:
            unused.set_axis_off()
        axes = list(grid.flat[:count])
    else:
        several = isinstance(ax, np.ndarray | list | tuple)
        axes = list(np.ravel(np.asarray(ax, dtype=object))) if several else [ax]
        for axis in axes:
            checks.instance("ax", axis, plt.Axes, "axes of matplotlib, as `plt.subplots()` gives them")
        checks.require(len(axes) == count, f"`ax` must hold {count} axes, one for each panel; got {len(axes)}.")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return axes[0].figure, axes


def legend(axes: Sequence, ax: Any) -> None:
    """Name the lines, each once: below the panels of a figure of ours, inside the first of the user's axes."""
    found = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels())}
    how: dict[str, Any] = dict(fontsize="small", markerscale=2.0)
    if found and ax is None:
        figure = axes[0].figure
        place = dict(loc="outside lower center", ncols=int(figure.get_figwidth() / LABEL), frameon=False)
        figure.legend(list(found.values()), list(found), **place, **how)
    elif found:
        axes[0].legend(list(found.values()), list(found), framealpha=0.7, edgecolor="none", **how)


def labelled(names: Collection[str], labels: Names) -> list[str]:
    """The labels of as many statistics, or their names."""
    found = list(labels or names)
    checks.require(len(found) == len(names), f"`labels` must name {len(names)} statistics; got {len(found)}.")
    return found


def chosen(arrays: Mapping[str, Any], names: Names = None) -> dict[str, np.ndarray]:
    """Each number of arrays `{name: (n, *shape)}` by name, `{name[i]: (n,)}`; all, or those of some arrays or names."""
    found = numbers(arrays)
    if names is None:
        return found
    checks.require(not isinstance(names, str), f"`names` must be a list, such as [{names!r}]; got {names!r}.")
    each = all(isinstance(name, str) for name in names)
    checks.require(each, f"`names` must be a list of text; got {checks.line(names)}.", TypeError)
    unknown = [name for name in names if name not in arrays and name not in found]
    checks.require(not unknown, f"`names` must be among {list(arrays)}; got {unknown}.")
    return {label: value for label, value in found.items() if label in names or label.split("[")[0] in names}


def marked(truth: Mapping[str, Any] | None, arrays: Collection[str]) -> dict[str, Any]:
    """Each number of the values to mark, by name; an error for those of sites that are not shown anywhere."""
    checks.instance("truth", truth, Mapping | None, "values to mark, {site: value}")
    unknown = [name for name in truth or {} if name not in arrays]
    checks.require(not unknown, f"`truth` must have values of {list(arrays)}; got {unknown} too. Leave these out.")
    return numbers(truth or {}, lead=0)


def outline(values: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the density of draws `(n,)` between two places: smoothed by a Gaussian kernel, and reflected at the
    smallest and largest draw, so that a bound keeps its mass; of few whole numbers a step for each."""
    values = np.sort(values[np.isfinite(values)])
    first, last, size = values[0], values[-1], len(values)
    if np.array_equal(values, np.rint(values)) and last - first < WHOLE:
        edges = np.arange(first, last + 2.0) - 0.5
        heights = np.repeat(np.histogram(values, edges)[0] / size, 2)
        return np.repeat(edges, 2), np.concatenate([[0.0], heights, [0.0]])
    some = np.quantile(values, (np.arange(min(size, MANY)) + 0.5) / min(size, MANY))
    quarter, deviation = np.min(values[size // 4 :] - values[: size - size // 4]) / 0.637, values.std()
    scale = np.sqrt(min(quarter, deviation) * deviation) or deviation or 1.0  # so that neither modes nor tails are lost
    width = 0.9 * scale * len(np.unique(values)) ** -0.2  # of Silverman's rule
    grid = np.unique([*np.linspace(low, high, POINTS), *(end for end in (first, last) if low < end < high)])
    points = np.concatenate([some, 2.0 * first - some, 2.0 * last - some])
    heights = np.exp(-0.5 * np.square((grid[:, None] - points) / width)).sum(axis=1)
    heights *= (grid >= first) & (grid <= last)
    return grid, heights / (len(some) * width * np.sqrt(2.0 * np.pi))


def as_learnt(found: Learnt) -> LearntPosterior:
    """A posterior under a learnt likelihood, or an error."""
    return checks.instance("posterior", posterior_of(found), LearntPosterior, "under a learnt likelihood, as KELFI's")
