"""Marginals and pairs of posterior draws; informative statistics, and the learnt likelihood itself."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import ceil
from typing import Any

import numpy as np

from numpyro_kme._core import arviz, checks
from numpyro_kme.engines._learnt_posterior import LearntPosterior
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.posterior import Posterior, numbers

COLOURS = ("#0b6e4f", "#b5493a", "#2a6fbb", "#8a6fae")
FILL, FAINT, DARK = 0.25, "0.75", "0.25"
WIDTH, HEIGHT = 3.0, 2.4
DEPTH = 8.0
"""Nats below the maximum that the colours of a surface span."""
BEYOND, HATCHED = "beyond the simulations", {"facecolor": "none", "edgecolor": FAINT, "hatch": "////", "linewidth": 0.0}


def marginals(
    posteriors: Any, names: Sequence[str] | None = None, *, truth: Mapping[str, Any] | None = None, prob: float = 0.9
) -> Any:
    """Marginals of posterior draws, with medians and central intervals; several posteriors side by side.

    Args:
        posteriors: A posterior, an engine that has been run, or draws `{site: (n, *shape)}`, or several by label, such
            as `{"NPL-MMD": npl, "NUTS": mcmc.get_samples()}`.
        names: Of sites or of single numbers (`"theta[0]"`); all latents when left out.
        truth: Values to mark, `{site: (*shape)}`.
        prob: Probability of the intervals.
    Returns:
        A matplotlib figure.
    """
    checks.require(0.0 < prob < 1.0, f"`prob` must be between 0 and 1; got {prob}.")
    columns = {label: chosen(draws, names) for label, draws in _labelled(posteriors).items()}
    known = chosen({name: np.asarray(value)[None] for name, value in (truth or {}).items()})
    first = next(iter(columns.values()))
    figure, axes = panels(len(first))
    for axis, name in zip(axes, first):
        together = np.concatenate([own[name] for own in columns.values() if name in own])
        edges = np.histogram_bin_edges(together, 40, np.quantile(together, [0.002, 0.998]))
        for (label, own), colour in zip(columns.items(), cycle(COLOURS)):
            if name in own:
                axis.hist(own[name], edges, density=True, color=colour, alpha=FILL, label=label)
                axis.hist(own[name], edges, density=True, color=colour, histtype="step", linewidth=1.2)
                low, middle, high = np.quantile(own[name], [0.5 - prob / 2, 0.5, 0.5 + prob / 2])
                axis.axvline(middle, color=colour, linewidth=1.2)
                for end in (low, high):
                    axis.axvline(end, color=colour, linewidth=0.8, linestyle=":")
        if name in known:
            axis.axvline(known[name][0], color=DARK, linewidth=1.2, linestyle="--", label="truth")
        axis.set(xlabel=name, yticks=[])
    if len(columns) > 1 or known:
        axes[0].legend(frameon=False, fontsize="small")
    return figure


def pair(posterior: Posterior | Engine, names: Sequence[str] | None = None) -> Any:
    """Pairs of latents as ArviZ draws them, under ArviZ 0.23 and 1.x.

    Args:
        posterior: A posterior, or an engine that has been run.
        names: Of sites; all latents when left out.
    Returns:
        A matplotlib figure.
    """
    pyplot()
    posterior = posterior_of(posterior)
    return arviz.pair_figure(posterior.to_inference_data(), list(_draws(posterior)) if names is None else names)


def _labelled(posteriors: Any) -> dict[str, Mapping[str, np.ndarray]]:
    """Draws by label."""
    several = isinstance(posteriors, Mapping) and all(
        isinstance(value, Mapping | Posterior | Engine) for value in posteriors.values()
    )
    return {label: _draws(one) for label, one in (posteriors if several else {"draws": posteriors}).items()}


def _draws(posterior: Any) -> Mapping[str, np.ndarray]:
    """The latents' draws of a posterior, or draws as they are."""
    if isinstance(posterior, Mapping):
        return posterior
    posterior = posterior_of(posterior)
    return {name: posterior.samples[name] for name in posterior.latents}


def _learnt(found: LearntPosterior | Engine) -> LearntPosterior:
    posterior = posterior_of(found)
    checks.instance("posterior", posterior, LearntPosterior, "a posterior under a learnt likelihood, such as KELFI's")
    assert isinstance(posterior, LearntPosterior)
    return posterior


def informativeness(posterior: LearntPosterior | Engine, labels: Sequence[str] | None = None) -> Any:
    """Bars of what each statistic tells about the parameters, in nats (`LearntPosterior.informativeness`).

    Args:
        posterior: Of `KELFI`, or a `KELFI` that has been run.
        labels: Names of the statistics, where there is one site.
    Returns:
        A matplotlib figure.
    """
    measure, by_site = _learnt(posterior).informativeness()
    found = {label: float(value[0]) for label, value in chosen({s: v[None] for s, v in by_site.items()}).items()}
    names = labelled(found, labels)
    figure, (axis,) = panels(1, (1.6 * WIDTH, 0.8 + 0.24 * len(found)))
    axis.barh(np.arange(len(found)), list(found.values()), color=COLOURS[0], height=0.65)
    axis.set_yticks(np.arange(len(found)), names)
    axis.set_ylim(len(found) - 0.4, -0.6)
    axis.set_xlabel(f"{measure}, nats")
    return figure


def surrogate(
    posterior: LearntPosterior | Engine, names: Sequence[str] | None = None, *, simulations: bool = True
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
    Returns:
        A matplotlib figure.
    """
    posterior = _learnt(posterior)
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
    figure, (axis,) = panels(1, (1.5 * WIDTH, 1.4 * HEIGHT))
    marked = [made[name] for name in columns if simulations and name in made]
    if len(columns) == 1:
        _curve(axis, grids[0], log_q, next(iter(columns.values())), marked)
        axis.set(xlabel=next(iter(columns)), yticks=[])
        if outside.any():
            shade = axis.get_xaxis_transform()
            axis.fill_between(grids[0], 1.0, where=outside, transform=shade, label=BEYOND, **HATCHED)
    else:
        (first, second), (a, b) = columns, columns.values()
        shown = axis.contourf(*grids, np.maximum(log_q, -DEPTH).T, levels=np.arange(-DEPTH, 1.0), cmap="Greens")
        figure.colorbar(shown, ax=axis, label="log q(y | θ), less its maximum")
        if len(marked) == 2:
            axis.plot(*marked, ".", color=DARK, markersize=2.5, label="simulations")
        some = np.linspace(0, len(a) - 1, min(150, len(a))).astype(int)
        axis.plot(a[some], b[some], ".", color=COLOURS[1], markersize=2.5, label="posterior")
        if outside.any():
            axis.contourf(*grids, outside.T, levels=[0.5, 1.5], colors="none", hatches=["////"])
        if far.any():
            axis.plot(a[far], b[far], "x", color=COLOURS[1], markersize=4.0, label=BEYOND)
        axis.set(xlabel=first, ylabel=second, xlim=grids[0][[0, -1]], ylim=grids[1][[0, -1]])
    axis.legend(frameon=True, framealpha=0.8, edgecolor="none", fontsize="small", loc="upper right")
    return figure


def _curve(axis, grid, log_q, draws, marked):
    """Likelihood and draws over one parameter, both with a maximum of one."""
    heights, edges = np.histogram(draws, 40, (grid[0], grid[-1]))
    axis.stairs(heights / heights.max(), edges, fill=True, color=FAINT, label="posterior")
    axis.plot(grid, np.exp(log_q), color=COLOURS[0], label="learnt likelihood")
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


def pyplot() -> Any:
    """`matplotlib.pyplot`, or an error that says how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'Plots need matplotlib, which is not installed: pip install "numpyro-kme[plots]".', name="matplotlib"
        ) from error
    return plt


def panels(count: int, size: tuple[float, float] | None = None, **settings: Any) -> tuple[Any, list]:
    """A figure of `count` panels, at most four in a row, and their axes; `size` is in inches."""
    checks.require(count >= 1, "There is nothing to draw: no number was named, or none varies.")
    across = min(count, 4)
    down = ceil(count / across)
    size = size or (max(WIDTH * across, 1.4 * WIDTH), HEIGHT * down + 0.4)
    figure, axes = pyplot().subplots(down, across, figsize=size, squeeze=False, layout="constrained", **settings)
    for unused in axes.flat[count:]:
        unused.set_axis_off()
    for axis in axes.flat[:count]:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat[:count])


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
