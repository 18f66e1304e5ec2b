"""The one style of all plots: colours, panels of one size, legends, and names of what is drawn."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import numbers
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.learnt_posterior import LearntPosterior
from numpyro_kme.engines.posterior import Posterior

COLOURS = ("#0b6e4f", "#b5493a", "#2a6fbb", "#8a6fae")
FILL, FAINT, DARK = 0.25, "0.75", "0.25"
"""Opacity of areas, and two greys."""
WIDTH, HEIGHT = 3.0, 2.4
"""Of a panel, in inches."""
LETTER = 0.065
"""Width of a letter of the legend, in inches, about."""


def pyplot() -> Any:
    """`matplotlib.pyplot`, or an error that says how to install it."""
    with checks.needs("Plots need", "matplotlib", "plots"):
        import matplotlib.pyplot as plt
    return plt


def panels(
    count: int,
    size: tuple[float, float] | None = None,
    *,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
    **settings: Any,
) -> tuple[Any, list]:
    """A figure of `count` panels, at most four in a row, and their axes.

    Args:
        count: How many.
        size: Of the figure in inches where `figsize` is left out.
        ax: Axes of one's own, as many, in place of new ones.
        figsize: Of the figure in inches.
        **settings: Of `subplots`.
    """
    checks.require(count >= 1, "There is nothing to draw: no number was named, or none varies.")
    plt = pyplot()
    if ax is not None:
        axes = [axis for axis in np.ravel(np.asarray(ax, dtype=object)) if axis is not None]
        checks.require(
            len(axes) == count and figsize is None,
            f"`ax` must hold {count} axes, one for each panel, and leave out `figsize`; got {len(axes)} axes and "
            f"figsize={figsize}.",
        )
        figure = axes[0].figure
    else:
        across = min(count, 4)
        down = ceil(count / across)
        size = figsize or size or (max(WIDTH * across, 1.4 * WIDTH), HEIGHT * down + 0.7)
        figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained", **settings)
        for unused in grid.flat[count:]:
            unused.set_axis_off()
        axes = list(grid.flat[:count])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(axes: Sequence, ax: Any) -> None:
    """What the lines are, each once: below the panels of a figure of ours, inside the first of axes `ax` that were
    given."""
    pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels())]
    found = {label: handle for handle, label in reversed(pairs)}
    found = {label: found[label] for _, label in pairs}
    how: dict[str, Any] = dict(fontsize="small", markerscale=2.0)
    if found and ax is None:
        room, wide = axes[0].figure.get_figwidth(), [0.5 + LETTER * len(label) for label in found]
        across = len(found) if sum(wide) <= room else max(1, int(room / max(wide)))
        how |= dict(loc="outside lower center", ncols=across, frameon=False)
        axes[0].figure.legend(list(found.values()), list(found), **how)
    elif found:
        axes[0].legend(list(found.values()), list(found), framealpha=0.7, edgecolor="none", **how)


def labelled(columns: Mapping[str, Any], labels: Sequence[str] | None) -> list[str]:
    """The labels of as many columns, or the names of these."""
    names = list(columns) if labels is None else list(labels)
    checks.require(len(names) == len(columns), f"`labels` must name {len(columns)} statistics; got {len(names)}.")
    return names


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


def draws_of(posterior: Any) -> Mapping[str, np.ndarray]:
    """The latents' draws of a posterior, or draws as they are."""
    if isinstance(posterior, Mapping):
        return posterior
    posterior = posterior_of(posterior)
    return {name: posterior.samples[name] for name in posterior.latents}


def learnt_posterior(found: LearntPosterior | Engine) -> LearntPosterior:
    """A posterior under a learnt likelihood, or an error."""
    what = "a posterior under a learnt likelihood, such as KELFI's"
    return checks.instance("posterior", posterior_of(found), LearntPosterior, what)


def by_label(posteriors: Any) -> dict[str, Mapping[str, np.ndarray]]:
    """Draws by label."""
    several = isinstance(posteriors, Mapping) and all(
        isinstance(value, Mapping | Posterior | Engine) for value in posteriors.values()
    )
    return {label: draws_of(one) for label, one in (posteriors if several else {"posterior": posteriors}).items()}


def from_prior(posteriors: Any) -> Mapping[str, np.ndarray]:
    """Prior draws that belong to a posterior, or to the first of several, where these keep them."""
    first = next(iter(posteriors.values())) if isinstance(posteriors, Mapping) else posteriors
    held: Mapping[str, Any] = {} if isinstance(first, Mapping) else posterior_of(first).groups.get("prior", {})
    checks.require(
        bool(held),
        "`prior` is True, and the first posterior keeps no draws from the prior. Pass draws `{site: (n, *shape)}`.",
    )
    return {name: np.asarray(value).reshape(-1, *np.shape(value)[2:]) for name, value in held.items()}
