"""What each statistic tells about the parameters, what was learnt of it, and statistics that were learnt."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from numpyro_kme._core import checks, door
from numpyro_kme.diagnostics.predictive import names_of_numbers
from numpyro_kme.likelihoods.learnt_statistics import StatisticsSurrogate, cosines_of_ranks, orthonormal
from numpyro_kme.likelihoods.residual.surrogate import ResidualSurrogate
from numpyro_kme.plots._style import COLOURS, DARK, MOST, Learnt, Names, as_learnt, chosen, labelled, legend, panels


def _learnt_names(site: str, surrogate: StatisticsSurrogate) -> tuple[str, ...]:
    """Name each learnt statistic; `x[7]` where it is a number of the output that has no name."""
    return tuple(f"{site}[{name}]" if name.isdigit() else name for name in surrogate.statistics.names)


@door
def informativeness(posterior: Learnt, labels: Names = None, *, ax: Any = None, **style: Any) -> Any:
    """Bars of what each statistic tells about the parameters, in nats (`LearntPosterior.informativeness`).

    Args:
        posterior: Of `KELFI`, or a `KELFI` that has been run.
        labels: Names of the statistics, where there is one site; those of the simulator when left out.
        ax: One axis, in place of a new figure.
        **style: Of the bars, `matplotlib.axes.Axes.barh`.
    Returns:
        A matplotlib figure.
    """
    posterior = as_learnt(posterior)
    measure, by_site = posterior.informativeness()
    known: list[str] = []
    for site, values in by_site.items():
        found = posterior.likelihoods[site].surrogate if site in posterior.likelihoods else None
        usual = posterior.statistics.get(site, ())
        own = _learnt_names(site, found) if isinstance(found, StatisticsSurrogate) else usual
        known += own if len(own) == np.size(values) else names_of_numbers(site, np.shape(values))
    parts = {measure: np.concatenate([np.ravel(values) for values in by_site.values()])}
    figure, axis = _bars(parts, labelled(known, labels), ax, style)
    axis.set_xlabel(f"{measure}, nats")
    return figure


@door
def learnt(posterior: Learnt, site: str | None = None, labels: Names = None, *, ax: Any = None, **style: Any) -> Any:
    """Bars of what was learnt of each statistic: by how many nats its location, its scale and its dependence on those
    before it improve the held-out log score of a simulation.

    A statistic without bars says nothing about the parameters by the likelihood that was learnt. A bar below zero is
    noise of the held-out score.

    Args:
        posterior: Of `KELFI` in its default form, or a `KELFI` that has been run.
        site: A simulator site; the only one when left out.
        labels: Names of the statistics; those of the simulator when left out.
        ax: One axis, in place of a new figure.
        **style: Of the bars, `matplotlib.axes.Axes.barh`.
    Returns:
        A matplotlib figure.
    """
    posterior = as_learnt(posterior)
    site = posterior.problem.site(site, "by `site=`")
    surrogate = posterior.likelihoods[site].surrogate
    if isinstance(surrogate, StatisticsSurrogate):
        labels = labels or _learnt_names(site, surrogate)
        surrogate = surrogate.inner
    residual: ResidualSurrogate = checks.instance("posterior", surrogate, ResidualSurrogate, "of the default form")
    found, transform = residual.improvements, residual.transform
    parts = {name: np.asarray(found[name]) for name in ("location", "scale", "decorrelation")}
    names = labelled([transform.label(number) for number in transform.kept], labels)
    figure, axis = _bars(parts, names, ax, style)
    axis.axvline(0.0, color=DARK, linewidth=0.6)
    axis.set_xlabel("held-out improvement, nats")
    legend([axis], ax)
    return figure


@door
def statistics(posterior: Learnt, site: str | None = None, names: Names = None, *, ax: Any = None, **style: Any) -> Any:
    """Each learnt statistic of the simulations, held out, against the coordinate that it depends on most, and that of
    the observation as a line.

    The narrower the cloud around the line, the more the statistic says at this observation; a line beyond all points is
    an observation unlike the simulations. Coordinates are the parameters, standard normal under the prior.

    Args:
        posterior: Of `KELFI(model, statistics=...)`, or such a `KELFI` that has been run.
        site: A simulator site; the only one when left out.
        names: Of the statistics; the first twelve when left out.
        ax: As many axes as there are statistics, in place of a new figure.
        **style: Of the points, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    posterior = as_learnt(posterior)
    site = posterior.problem.site(site, "by `site=`")
    fitted = posterior.likelihoods[site]
    what = "with learnt statistics, KELFI(..., statistics=...)"
    surrogate: StatisticsSurrogate = checks.instance("posterior", fitted.surrogate, StatisticsSurrogate, what)
    labels = _learnt_names(site, surrogate)
    columns = dict(zip(labels, np.asarray(surrogate.simulated).T))
    rows = np.asarray(posterior.problem.observations[site], np.float64).reshape(-1, *fitted.event_shape)
    observed = dict(zip(labels, surrogate.statistics(rows.reshape(len(rows), -1)).T))
    shown = chosen(columns, names or labels[:MOST])
    z = np.asarray(fitted.simulated)
    waves = [orthonormal(cosines_of_ranks(column)) for column in z.T]
    figure, axes = panels(len(shown), ax)
    for axis, (name, values) in zip(axes, shown.items()):
        own = orthonormal(cosines_of_ranks(values))
        most = int(np.argmax([np.sum(np.square(own.T @ one)) for one in waves]))
        how = {"color": COLOURS[0], "markersize": 2.5} | style
        axis.plot(z[:, most], values, ".", label="simulations", **how)
        for value in observed[name]:
            axis.axhline(value, color=COLOURS[1], linewidth=1.2, label="observation")
        axis.set(xlabel=f"{fitted.coordinates.names[most]}, standardised", ylabel=name)
    legend(axes, ax)
    return figure


def _bars(parts: Mapping[str, Any], names: list[str], ax: Any, style: dict) -> tuple[Any, Any]:
    """Horizontal bars for each name, those of several parts side by side."""
    high = 0.8 / max(len(parts), 1.2)
    figure, (axis,) = panels(1, ax, (1.6, 0.33 + 0.05 * len(names) * (1 + len(parts))))
    for i, (part, values) in enumerate(parts.items()):
        place = np.arange(len(names)) + high * (i - 0.5 * (len(parts) - 1))
        axis.barh(place, values, label=part, **{"color": COLOURS[i], "height": high} | style)
    axis.set_yticks(np.arange(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    return figure, axis
