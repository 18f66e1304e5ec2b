"""Learnt likelihoods over parameters, and rounds."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.engines._learning import LearntLikelihoods
from numpyro_kme.engines._learnt_posterior import LearntPosterior
from numpyro_kme.engines.base import Engine
from numpyro_kme.plots._style import COLOURS, DARK, FAINT, HEIGHT, WIDTH, chosen, learnt_posterior, legend, panels

DEPTH = 8.0
"""Nats below the maximum that the colours of a surface span."""
BEYOND, HATCHED = "beyond the simulations", {"facecolor": "none", "edgecolor": FAINT, "hatch": "////", "linewidth": 0.0}


def rounds(
    engine: Engine,
    names: Sequence[str] | None = None,
    *,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
    **style: Any,
) -> Any:
    """Where each round simulated, and the posterior after the last: parameters against the number of the simulation.

    Args:
        engine: A `KELFI` that has been run.
        names: Of latents or of single numbers; all when left out.
        ax: As many axes as there are numbers, in place of a new figure.
        figsize: Size of the figure in inches.
        **style: Of the points, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    checks.instance("engine", engine, Engine, "a KELFI that has been run")
    posterior = learnt_posterior(engine)
    learnt: LearntLikelihoods = engine.trained.learnt
    sizes = [size for size, _ in learnt.history]
    known = posterior.simulations.latents
    columns = chosen({name: known[name] for name in posterior.latents if name in known}, names)
    draws = chosen({name: posterior.samples[name] for name in posterior.latents})
    ends = np.minimum(np.cumsum([0, *sizes]), len(posterior.simulations))
    figure, axes = panels(len(columns), ax=ax, figsize=figsize)
    for axis, (name, values) in zip(axes, columns.items()):
        for number, (start, end) in enumerate(pairwise(ends)):
            grey = number == 0
            how: dict[str, Any] = dict(color=FAINT if grey else COLOURS[0], markersize=2.5) | style
            label = "first round, from the prior" if grey else "later rounds"
            axis.plot(np.arange(start, end), values[start:end], ".", label=label, **how)
            if not grey:
                axis.axvline(start - 0.5, color=DARK, linewidth=0.5, linestyle=":")
        low, high = np.quantile(draws[name], [0.05, 0.95])
        axis.axhspan(low, high, color=COLOURS[1], alpha=0.25, linewidth=0, label="posterior, 90%")
        axis.set(xlabel="simulation", ylabel=name)
    legend(axes, ax)
    return figure


def surrogate(
    posterior: LearntPosterior | Engine,
    names: Sequence[str] | None = None,
    *,
    simulations: bool = True,
    truth: Mapping[str, Any] | None = None,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
    **style: Any,
) -> Any:
    r"""The learnt likelihood $q(y \mid \theta)$ of the observation over one or two parameters, posterior draws, and
    the simulations.

    Other parameters stay at their posterior medians: a slice. Where a signed surrogate is negative nothing is drawn. A
    surface shows the log likelihood, 8 nats from its maximum down. Hatching covers what lies beyond the simulated
    parameters, and crosses mark the draws there (`LearntPosterior.beyond`).

    Args:
        posterior: Of `KELFI`, or a `KELFI` that has been run.
        names: One or two single numbers, such as `["a", "theta[1]"]`; the first two when left out.
        simulations: Whether to mark the simulations that were learnt from.
        truth: Values to mark, `{site: (*shape)}`.
        ax: One axis, in place of a new figure.
        figsize: Size of the figure in inches.
        **style: Of the surface, `matplotlib.axes.Axes.contourf`, or of the curve, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    posterior = learnt_posterior(posterior)
    latents = {name: np.asarray(posterior.samples[name]) for name in posterior.problem.latents}
    columns = chosen(latents, names)
    if names is None:
        columns = dict(list(columns.items())[:2])
    checks.require(1 <= len(columns) <= 2, f"`names` must be of one or two numbers; got {list(columns)}.")
    known = posterior.simulations.latents
    made = chosen({name: known[name] for name in latents if name in known})
    grids = [_around(draws) for draws in columns.values()]
    points = np.stack([part.ravel() for part in np.meshgrid(*grids, indexing="ij")], axis=1)
    tables = _slice(latents, list(columns), points)
    shape = [len(grid) for grid in grids]
    log_q = _log_likelihood(posterior, tables).reshape(shape)
    outside, far = posterior.beyond(tables).reshape(shape), posterior.beyond(latents)
    figure, (axis,) = panels(1, (1.5 * WIDTH, 1.4 * HEIGHT), ax=ax, figsize=figsize)
    true = chosen({name: np.asarray(value)[None] for name, value in (truth or {}).items()})
    marked = [made[name] for name in columns if simulations and name in made]
    if len(columns) == 1:
        _curve(axis, grids[0], log_q, next(iter(columns.values())), marked, style)
        axis.set(xlabel=next(iter(columns)), yticks=[])
        if outside.any():
            shade = axis.get_xaxis_transform()
            axis.fill_between(grids[0], 1.0, where=outside, transform=shade, label=BEYOND, **HATCHED)
    else:
        (first, second), (a, b) = columns, columns.values()
        surface: dict[str, Any] = dict(levels=np.arange(-DEPTH, 1.0), cmap="Greens") | style
        shown = axis.contourf(*grids, np.maximum(log_q, -DEPTH).T, **surface)
        figure.colorbar(shown, ax=axis, label="log q, less its maximum")
        if len(marked) == 2:
            axis.plot(*marked, ".", color=DARK, markersize=2.5, label="simulations")
        some = np.linspace(0, len(a) - 1, min(150, len(a))).astype(int)
        axis.plot(a[some], b[some], ".", color=COLOURS[1], markersize=2.5, label="posterior")
        if outside.any():
            axis.contourf(*grids, outside.T, levels=[0.5, 1.5], colors="none", hatches=["////"])
        if far.any():
            axis.plot(a[far], b[far], "x", color=COLOURS[1], markersize=4.0, label=BEYOND)
        axis.set(xlabel=first, ylabel=second, xlim=grids[0][[0, -1]], ylim=grids[1][[0, -1]])
    places = [true[name][0] for name in columns if name in true]
    if len(columns) == 1 and places:
        axis.axvline(places[0], color=DARK, linewidth=1.2, linestyle="--", label="truth")
    elif len(places) == 2:
        axis.plot(*places, "*", color=DARK, markersize=9, label="truth")
    legend([axis], ax)
    return figure


def _curve(axis, grid, log_q, draws, marked, style):
    """Likelihood and draws over one parameter, both with a maximum of one."""
    heights, edges = np.histogram(draws, 40, (grid[0], grid[-1]))
    axis.stairs(heights / heights.max(), edges, fill=True, color=FAINT, label="posterior")
    how: dict[str, Any] = dict(color=COLOURS[0]) | style
    axis.plot(grid, np.exp(log_q), label="learnt likelihood", **how)
    if marked:
        inside = marked[0][(marked[0] >= grid[0]) & (marked[0] <= grid[-1])]
        axis.plot(inside, np.full(len(inside), -0.03), "|", color=DARK, markersize=5, label="simulations")


def _around(draws: np.ndarray) -> np.ndarray:
    """A grid over the draws and half their range on either side, that does not cross zero unless they do."""
    low, high = np.quantile(draws, [0.005, 0.995])
    margin = 0.5 * (high - low)
    start, end = low - margin, high + margin
    if draws.min() > 0:
        start = max(start, 0.5 * draws.min())
    if draws.max() < 0:
        end = min(end, 0.5 * draws.max())
    return np.linspace(start, end, 60)


def _slice(latents, names, points) -> dict[str, np.ndarray]:
    """Latents at points of the named numbers, others at their medians."""
    tables = {name: np.repeat(np.median(value, axis=0)[None], len(points), axis=0) for name, value in latents.items()}
    for column, label in enumerate(names):
        name, _, index = label.partition("[")
        place = [int(part) for part in index.rstrip("]").split(",")] if index else []
        rows: tuple[Any, ...] = (slice(None), *place)
        tables[name][rows] = points[:, column]
    return tables


def _log_likelihood(posterior, tables) -> np.ndarray:
    """`log q(y | theta)` at latents, less its largest value; NaN outside."""
    log_q, possible = posterior.log_likelihood(tables), np.isfinite(posterior.problem.log_prior(tables))
    log_q = np.where(np.isfinite(log_q) & possible, log_q, np.nan)
    checks.require(bool(np.isfinite(log_q).any()), "The surrogate is positive nowhere on the grid of these parameters.")
    return log_q - np.nanmax(log_q)
