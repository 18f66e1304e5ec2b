"""Posterior draws: marginals of one engine or of several, and pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numpyro_kme._core import arviz, checks
from numpyro_kme.plots._panels import COLOURS, DARK, FILL, numbers, panels, pyplot

BINS = 40
CUT = 0.002


def marginals(
    engines: Any, names: Sequence[str] | None = None, *, truth: Mapping[str, Any] | None = None, prob: float = 0.9
) -> Any:
    """Marginals of posterior draws, with medians and central intervals; several engines side by side.

    Args:
        engines: An engine that has been run, or draws `{site: (n, *shape)}`, or several by label, such as
            `{"NPL-MMD": npl, "NUTS": mcmc.get_samples()}`.
        names: Of sites or of single numbers (`"theta[0]"`); all latents when left out.
        truth: Values to mark, `{site: (*shape)}`.
        prob: Mass of the intervals.
    Returns:
        A matplotlib figure.
    """
    checks.require(0.0 < prob < 1.0, f"`prob` must be between 0 and 1; got {prob}.")
    columns = {label: numbers(draws, names) for label, draws in _labelled(engines).items()}
    known = numbers({name: np.asarray(value)[None] for name, value in (truth or {}).items()})
    first = next(iter(columns.values()))
    figure, axes = panels(len(first))
    for axis, name in zip(axes, first):
        together = np.concatenate([own[name] for own in columns.values() if name in own])
        ends = np.quantile(together, [CUT, 1.0 - CUT])
        edges = np.linspace(ends[0], ends[1], BINS + 1)
        for (label, own), colour in zip(columns.items(), _cycle()):
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


def pair(engine: Any, names: Sequence[str] | None = None) -> Any:
    """Pairs of latents as ArviZ draws them, under ArviZ 0.23 and 1.x.

    Args:
        engine: An engine that has been run.
        names: Of sites; all latents when left out.
    Returns:
        A matplotlib figure.
    """
    pyplot()
    idata = engine.to_inference_data()
    if names is None and hasattr(engine, "problem"):
        names = list(engine.problem.latents)
    return arviz.pair_figure(idata, names)


def _labelled(engines: Any) -> dict[str, Mapping[str, np.ndarray]]:
    """Draws by label."""
    several = isinstance(engines, Mapping) and all(
        isinstance(value, Mapping) or hasattr(value, "get_samples") for value in engines.values()
    )
    return {label: _draws(engine) for label, engine in (engines if several else {"draws": engines}).items()}


def _draws(engine: Any) -> Mapping[str, np.ndarray]:
    """The latents' draws of an engine, or draws as they are."""
    if isinstance(engine, Mapping):
        return engine
    checks.require(
        hasattr(engine, "get_samples"),
        f"`engines` must be engines that have been run, or draws {{site: (n, *shape)}}; got {engine!r}.",
        TypeError,
    )
    samples = engine.get_samples()
    latents = engine.problem.latents if hasattr(engine, "problem") else samples
    return {name: samples[name] for name in latents}


def _cycle():
    while True:
        yield from COLOURS
