"""Posterior draws: marginals of one engine or of several, and pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numpyro_kme._core import arviz, checks
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.plots._panels import COLOURS, DARK, FILL, numbers, panels, pyplot

BINS = 40
CUT = 0.002


def marginals(
    posteriors: Any, names: Sequence[str] | None = None, *, truth: Mapping[str, Any] | None = None, prob: float = 0.9
) -> Any:
    """Marginals of posterior draws, with medians and central intervals; several posteriors side by side.

    Args:
        posteriors: A posterior, an engine that has been run, or draws `{site: (n, *shape)}`, or several by label, such
            as `{"NPL-MMD": npl, "NUTS": mcmc.get_samples()}`.
        names: Of sites or of single numbers (`"theta[0]"`); all latents when left out.
        truth: Values to mark, `{site: (*shape)}`.
        prob: Mass of the intervals.
    Returns:
        A matplotlib figure.
    """
    checks.require(0.0 < prob < 1.0, f"`prob` must be between 0 and 1; got {prob}.")
    columns = {label: numbers(draws, names) for label, draws in _labelled(posteriors).items()}
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


def _cycle():
    while True:
        yield from COLOURS
