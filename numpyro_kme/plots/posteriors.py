"""Marginals of posteriors, beside the prior and known truths; pairs of latents; learnt likelihoods over parameters, and
rounds."""

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

import numpy as np

from numpyro_kme._core import arviz, checks
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.learnt_likelihoods import LearntLikelihoods
from numpyro_kme.engines.learnt_posterior import LearntPosterior
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.plots._style import (
    COLOURS,
    DARK,
    FAINT,
    FILL,
    HEIGHT,
    WIDTH,
    by_label,
    chosen,
    draws_of,
    from_prior,
    learnt_posterior,
    legend,
    panels,
    pyplot,
)


def marginals(
    posteriors: Any,
    names: Sequence[str] | None = None,
    *,
    truth: Mapping[str, Any] | None = None,
    prior: bool | Mapping[str, Any] = False,
    prob: float = 0.9,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
    **style: Any,
) -> Any:
    """Marginals of posterior draws, with medians and central intervals; several posteriors side by side.

    Args:
        posteriors: A posterior, an engine that has been run, or draws `{site: (n, *shape)}`, or several by label, such
            as `{"NPL-MMD": npl, "NUTS": mcmc.get_samples()}`.
        names: Of sites or of single numbers (`"theta[0]"`); all latents when left out.
        truth: Values to mark, `{site: (*shape)}`.
        prior: Whether to draw the prior that the first posterior was simulated from, or draws of one.
        prob: Probability of the intervals.
        ax: As many axes as there are numbers, in place of a new figure.
        figsize: Size of the figure in inches.
        **style: Of the histograms' outlines, `matplotlib.axes.Axes.hist`.
    Returns:
        A matplotlib figure.
    """
    checks.require(0.0 < prob < 1.0, f"`prob` must be between 0 and 1; got {prob}.")
    columns = {label: chosen(draws, names) for label, draws in by_label(posteriors).items()}
    known = chosen({name: np.asarray(value)[None] for name, value in (truth or {}).items()})
    before = {} if prior is False else chosen(from_prior(posteriors) if prior is True else prior)
    first = next(iter(columns.values()))
    figure, axes = panels(len(first), ax=ax, figsize=figsize)
    for axis, name in zip(axes, first):
        together = np.concatenate([own[name] for own in columns.values() if name in own])
        ends = np.quantile(together, [0.002, 0.998])
        if name in before:
            wide = np.quantile(before[name], [0.02, 0.98])
            ends = np.array([min(ends[0], wide[0]), max(ends[1], wide[1])])
        edges = np.histogram_bin_edges(together, 40, ends)
        if name in before:
            axis.hist(before[name], edges[::2], density=True, color=FAINT, alpha=0.6, label="prior")
        for (label, own), colour in zip(columns.items(), cycle(COLOURS)):
            if name in own:
                _histogram(axis, own[name], edges, colour, label, prob, len(columns) == 1, style)
        if name in known:
            axis.axvline(known[name][0], color=DARK, linewidth=1.2, linestyle="--", label="truth")
        axis.set(xlabel=name, yticks=[])
    legend(axes, ax)
    return figure


def _histogram(axis, values, edges, colour, label, prob, alone, style) -> None:
    """Draws as a histogram with their median and the ends of an interval."""
    axis.hist(values, edges, density=True, color=colour, alpha=FILL, label=label)
    axis.hist(values, edges, density=True, **{"color": colour, "histtype": "step", "linewidth": 1.2} | style)
    low, middle, high = np.quantile(values, [0.5 - prob / 2, 0.5, 0.5 + prob / 2])
    axis.axvline(middle, color=colour, linewidth=1.2, label="median" if alone else None)
    for end in (low, high):
        axis.axvline(end, color=colour, linewidth=0.8, linestyle=":", label=f"{prob:.0%} interval" if alone else None)


def pair(
    posterior: Posterior | Engine,
    names: Sequence[str] | None = None,
    *,
    figsize: tuple[float, float] | None = None,
    **style: Any,
) -> Any:
    """Pairs of latents as ArviZ draws them, under ArviZ 0.23 and 1.x, in the colours of the other plots.

    Args:
        posterior: A posterior, or an engine that has been run.
        names: Of sites; all latents when left out.
        figsize: Size of the figure in inches.
        **style: Of `arviz.plot_pair`, such as `kind="kde"` under ArviZ 0.23.
    Returns:
        A matplotlib figure.
    """
    plt = pyplot()
    posterior = posterior_of(posterior)
    shown = list(draws_of(posterior)) if names is None else names
    with plt.rc_context({"axes.prop_cycle": plt.cycler(color=COLOURS)}):
        figure = arviz.pair_figure(posterior.to_inference_data(), shown, COLOURS[0], style)
    if figsize is not None:
        figure.set_size_inches(*figsize)
    return figure


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
            colour, label = (FAINT, "first round, from the prior") if grey else (COLOURS[0], "later rounds")
            how = {"color": colour, "markersize": 2.5} | style
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
        how = {"levels": np.arange(-DEPTH, 1.0), "cmap": "Greens"} | style
        shown = axis.contourf(*grids, np.maximum(log_q, -DEPTH).T, **how)
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
    axis.plot(grid, np.exp(log_q), label="learnt likelihood", **{"color": COLOURS[0]} | style)
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
