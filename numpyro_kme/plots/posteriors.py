"""Marginals of posteriors, beside the prior and known truths; learnt likelihoods over parameters; rounds."""

from collections.abc import Mapping, Sequence
from itertools import chain, cycle, pairwise
from typing import Any

import numpy as np

from numpyro_kme._core import checks, door, listed, numbers
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.learnt_posterior import LearntPosterior
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.plots._style import (
    COLOURS,
    DARK,
    FAINT,
    FILL,
    Learnt,
    Names,
    as_learnt,
    chosen,
    legend,
    marked,
    outline,
    panels,
)

DEPTH = 8.0
"""Nats below the maximum that the colours of a surface span."""
BEYOND = "beyond the simulations"
TRUTH: dict[str, Any] = dict(color=DARK, linewidth=1.2, linestyle="--", label="truth")


@door
def marginals(
    posteriors: Any,
    names: Names = None,
    *,
    truth: Mapping[str, Any] | None = None,
    prior: bool | Mapping[str, Any] = False,
    prob: float = 0.9,
    ax: Any = None,
    **style: Any,
) -> Any:
    """Marginal densities of posterior draws, with medians and central intervals; several posteriors side by side.

    Args:
        posteriors: A posterior, an engine that has been run, or draws `{site: (n, *shape)}`, or several by label, such
            as `{"NPL-MMD": npl, "NUTS": mcmc.get_samples()}`.
        names: Of sites or of single numbers (`"theta[0]"`); all latents when left out.
        truth: Values to mark, `{site: (*shape)}`.
        prior: Whether to draw the prior that the first posterior was simulated from, or draws of one.
        prob: Probability of the intervals.
        ax: As many axes as there are numbers, in place of a new figure.
        **style: Of the outlines of the densities, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    checks.fraction("prob", prob)
    kinds = (Mapping, Posterior, Engine)
    several = isinstance(posteriors, Mapping) and any(isinstance(one, kinds) for one in posteriors.values())
    by_label = posteriors if several else {"posterior": posteriors}
    draws = {label: _draws(one) for label, one in by_label.items()}
    columns = {label: chosen(own, names) for label, own in draws.items()}
    first, known = next(iter(columns.values())), marked(truth, list(dict.fromkeys(chain(*draws.values()))))
    before = chosen(_from_prior(next(iter(by_label.values()))) if prior is True else prior or {})
    figure, axes = panels(len(first), ax)
    for axis, name in zip(axes, first):
        shown = {label: own[name] for label, own in columns.items() if name in own}
        checks.sound(name, shown)
        low, high = np.quantile(np.concatenate(list(shown.values())), [0.002, 0.998])
        if name in before:
            ends = np.quantile(before[name], [0.02, 0.98])
            low, high = min(low, ends[0]), max(high, ends[1])
            axis.fill_between(*outline(before[name], low, high), color=FAINT, alpha=0.6, linewidth=0, label="prior")
        for (label, values), colour in zip(shown.items(), cycle(COLOURS)):
            corners = outline(values, low, high)
            axis.fill_between(*corners, color=colour, alpha=FILL, linewidth=0, label=label)
            axis.plot(*corners, **{"color": colour, "linewidth": 1.2} | style)
            told = ("median", f"{prob:.0%} interval", None) if len(columns) == 1 else (None,) * 3
            for level, width, line, what in zip((0.5, 0.5 - prob / 2, 0.5 + prob / 2), (1.2, 0.8, 0.8), "-::", told):
                axis.axvline(np.quantile(values, level), color=colour, linewidth=width, linestyle=line, label=what)
        if name in known:
            axis.axvline(float(known[name]), **TRUTH)
        axis.set(xlabel=name, yticks=[], ylim=(0.0, None))
    legend(axes, ax)
    return figure


def _draws(posterior: Any) -> Mapping[str, np.ndarray]:
    """The latents' draws of a posterior, or draws as they are."""
    if isinstance(posterior, Mapping):
        checks.draws("posteriors", posterior)
        return posterior
    posterior = posterior_of(posterior)
    return {name: posterior.samples[name] for name in posterior.latents}


def _from_prior(posterior: Any) -> dict[str, np.ndarray]:
    """Prior draws that belong to a posterior, where it keeps them."""
    held = {} if isinstance(posterior, Mapping) else posterior_of(posterior).groups.get("prior", {})
    checks.require(bool(held), "`prior` is True, and the first posterior keeps no draws from the prior. Pass draws.")
    return {name: np.asarray(value).reshape(-1, *np.shape(value)[2:]) for name, value in held.items()}


@door
def rounds(engine: Engine, names: Names = None, *, ax: Any = None, **style: Any) -> Any:
    """Show where each round simulated, and the posterior after the last: each parameter by number of the simulation.

    Args:
        engine: A `KELFI` that has been run.
        names: Of latents or of single numbers; all when left out.
        ax: As many axes as there are numbers, in place of a new figure.
        **style: Of the points, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    checks.instance("engine", engine, Engine, "a KELFI that has been run")
    posterior = as_learnt(engine)
    known = posterior.simulations.latents
    columns = chosen({name: known[name] for name in posterior.latents if name in known}, names)
    draws = chosen(_draws(posterior))
    ends = np.cumsum([0, *engine.method.made])
    figure, axes = panels(len(columns), ax)
    for axis, (name, values) in zip(axes, columns.items()):
        for start, end in pairwise(ends):
            colour, label = (COLOURS[0], "later rounds") if start else (FAINT, "first round, from the prior")
            how = {"color": colour, "markersize": 2.5} | style
            axis.plot(np.arange(start, end), values[start:end], ".", label=label, **how)
            if start:
                axis.axvline(start - 0.5, color=DARK, linewidth=0.5, linestyle=":")
        band = dict(color=COLOURS[1], alpha=FILL, linewidth=0, label="posterior, 90%")
        axis.axhspan(*np.quantile(draws[name], [0.05, 0.95]), **band)
        axis.set(xlabel="simulation", ylabel=name)
    legend(axes, ax)
    return figure


@door
def surrogate(
    posterior: Learnt, names: Names = None, *, truth: Mapping[str, Any] | None = None, ax: Any = None, **style: Any
) -> Any:
    r"""The learnt likelihood $q(y \mid \theta)$ of the observation over one or two parameters, posterior draws, and
    the simulations.

    Other parameters stay at their posterior medians: a slice. Where a signed surrogate is negative nothing is drawn. A
    surface shows the log likelihood, 8 nats from its maximum down. Hatching covers what lies beyond the simulated
    parameters, and crosses mark the draws there (`LearntPosterior.beyond`).

    Args:
        posterior: Of `KELFI`, or a `KELFI` that has been run.
        names: One or two single numbers, such as `["a", "theta[1]"]`; the first two when left out.
        truth: Values to mark, `{site: (*shape)}`.
        ax: One axis, in place of a new figure.
        **style: Of the surface, `matplotlib.axes.Axes.contourf`, or of the curve, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    posterior = as_learnt(posterior)
    latents = {name: np.asarray(posterior.samples[name]) for name in posterior.problem.latents}
    columns, true = chosen(latents, names), marked(truth, latents)
    if names is None:
        columns = dict(list(columns.items())[:2])
    checks.require(1 <= len(columns) <= 2, f"`names` must be of one or two numbers; got {list(columns)}.")
    known = posterior.simulations.latents
    made = chosen({name: known[name] for name in latents if name in known})
    simulated = [made[name] for name in columns if name in made]
    grids = [_around(draws) for draws in columns.values()]
    points = np.stack([part.ravel() for part in np.meshgrid(*grids, indexing="ij")], axis=1)
    tables, shape = _slice(latents, list(columns), points), [len(grid) for grid in grids]
    log_q, outside = _log_likelihood(posterior, tables).reshape(shape), posterior.beyond(tables).reshape(shape)
    draws = list(columns.values())
    places = [float(true[name]) for name in columns if name in true]
    figure, (axis,) = panels(1, ax, (1.5, 1.4))
    if len(columns) == 1:
        _curve(axis, grids[0], log_q, draws[0], simulated, outside, places, style)
    else:
        _surface(axis, grids, log_q, draws, simulated, outside, posterior.beyond(latents), places, style)
    axis.set(**dict(zip(("xlabel", "ylabel"), columns)))
    others = [name for name in numbers(latents) if name not in columns]
    if others:
        axis.set_title(f"at the posterior median of {listed(others, 40)}", fontsize="small")
    legend([axis], ax)
    return figure


def _curve(axis, grid, log_q, draws, simulated, outside, places, style) -> None:
    """Likelihood and draws over one parameter, both with a maximum of one."""
    heights, edges = np.histogram(draws, 40, (grid[0], grid[-1]))
    axis.stairs(heights / heights.max(), edges, fill=True, color=FAINT, label="posterior")
    axis.plot(grid, np.exp(log_q), label="learnt likelihood", **{"color": COLOURS[0]} | style)
    for points in simulated:
        inside = points[(points >= grid[0]) & (points <= grid[-1])]
        axis.plot(inside, np.full(len(inside), -0.03), "|", color=DARK, markersize=5, label="simulations")
    if outside.any():
        hatched = dict(facecolor="none", edgecolor=FAINT, hatch="////", linewidth=0.0, label=BEYOND)
        axis.fill_between(grid, 1.0, where=outside, transform=axis.get_xaxis_transform(), **hatched)
    for place in places:
        axis.axvline(place, **TRUTH)
    axis.set_yticks([])


def _surface(axis, grids, log_q, draws, simulated, outside, far, places, style) -> None:
    """Log likelihood over two parameters, with draws and simulations as points."""
    how = {"levels": np.arange(-DEPTH, 1.0), "cmap": "Blues"} | style
    shown = axis.contourf(*grids, np.maximum(log_q, -DEPTH).T, **how)
    axis.figure.colorbar(shown, ax=axis, label="log q, less its maximum")
    (a, b), point = draws, dict(color=COLOURS[1], linestyle="none")
    if len(simulated) == 2:
        axis.plot(*simulated, "+", color=DARK, markersize=3.5, markeredgewidth=0.6, label="simulations")
    some = np.linspace(0, len(a) - 1, min(150, len(a))).astype(int)
    axis.plot(a[some], b[some], marker=".", markersize=2.5, label="posterior", **point)
    if outside.any():
        axis.contourf(*grids, outside.T, levels=[0.5, 1.5], colors="none", hatches=["////"])
    if far.any():
        axis.plot(a[far], b[far], marker="x", markersize=4.0, label=BEYOND, **point)
    if len(places) == 2:
        axis.plot(*places, "*", color=DARK, markersize=9, label="truth")
    axis.set(xlim=grids[0][[0, -1]], ylim=grids[1][[0, -1]])


def _around(draws: np.ndarray) -> np.ndarray:
    """A grid over the draws and half their range on either side, that does not cross zero unless they do."""
    low, high = np.quantile(draws, [0.005, 0.995])
    start, end = low - 0.5 * (high - low), high + 0.5 * (high - low)
    start = max(start, 0.5 * draws.min()) if draws.min() > 0 else start
    end = min(end, 0.5 * draws.max()) if draws.max() < 0 else end
    return np.linspace(start, end, 60)


def _slice(latents: Mapping[str, np.ndarray], names: Sequence[str], points: np.ndarray) -> dict[str, np.ndarray]:
    """Latents at points of the named numbers, others at their medians."""
    tables = {name: np.repeat(np.median(value, axis=0)[None], len(points), axis=0) for name, value in latents.items()}
    for label, column in zip(names, points.T):
        chosen(tables)[label][:] = column  # a view
    return tables


def _log_likelihood(posterior: LearntPosterior, tables: Mapping[str, np.ndarray]) -> np.ndarray:
    """`log q(y | theta)` at latents, less its largest value; NaN outside."""
    log_q, possible = posterior.log_likelihood(tables), np.isfinite(posterior.problem.log_prior(tables))
    log_q = np.where(np.isfinite(log_q) & possible, log_q, np.nan)
    checks.require(bool(np.isfinite(log_q).any()), "The surrogate is positive nowhere on the grid of these parameters.")
    return log_q - np.nanmax(log_q)
