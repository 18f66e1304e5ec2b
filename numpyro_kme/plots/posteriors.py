"""Marginals of posteriors, beside the prior and known truths, and pairs of latents."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from numpyro_kme._core import arviz, checks
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.plots._style import COLOURS, DARK, FAINT, FILL, by_label, chosen, draws_of, from_prior, legend, panels
from numpyro_kme.plots._style import pyplot as pyplot


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
    outline: dict[str, Any] = dict(color=colour, histtype="step", linewidth=1.2) | style
    axis.hist(values, edges, density=True, **outline)
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
