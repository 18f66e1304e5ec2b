"""Calibration as curves with bands, predictions, and witness functions."""

from typing import Any

import numpy as np
import scipy

from numpyro_kme._core import checks, door
from numpyro_kme.diagnostics.calibration import Calibration
from numpyro_kme.diagnostics.predictive import PredictiveCheck, names_of_numbers
from numpyro_kme.plots._style import COLOURS, DARK, FAINT, FILL, MOST, Names, chosen, labelled, legend, outline, panels

GRID = 201
"""Points of a curve."""


@door
def ranks(calibration: Calibration, names: Names = None, *, prob: float = 0.95, ax: Any = None, **style: Any) -> Any:
    """Empirical distribution of the ranks minus the uniform one, with a band for the whole curve.

    Calibrated posteriors stay in the band with probability `prob`, at all ranks together (Kolmogorov-Smirnov). A hill:
    posteriors lie too high; a valley: too low; first above and then below: too narrow; the reverse: too wide.

    Args:
        calibration: From `diagnostics.calibrate`.
        names: Of latents or of single numbers; all, and TARP, when left out.
        prob: Probability of the band.
        ax: As many axes as there are numbers, in place of a new figure.
        **style: Of the curves, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    return _against_uniform(calibration, names, ("rank", "ECDF less rank"), 0.0, prob, ax, style)


@door
def coverage(calibration: Calibration, names: Names = None, *, prob: float = 0.95, ax: Any = None, **style: Any) -> Any:
    """Coverage of central intervals against their level, with a band for the whole curve, and TARP's credible regions.

    Above the diagonal posteriors are too wide, below it too narrow.

    Args:
        calibration: From `diagnostics.calibrate`.
        names: Of latents or of single numbers; all, and TARP, when left out.
        prob: Probability of the band.
        ax: As many axes as there are numbers, in place of a new figure.
        **style: Of the curves, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    return _against_uniform(calibration, names, ("level", "coverage"), 1.0, prob, ax, style)


def _against_uniform(
    calibration: Calibration, names: Names, labels: tuple[str, str], slope: float, prob: float, ax: Any, style: dict
) -> Any:
    """Empirical distribution functions beside that of uniform numbers: of ranks, with a slope of 0, or of the levels of
    the central intervals that end at the truth, with a slope of 1."""
    checks.instance("calibration", calibration, Calibration, "from diagnostics.calibrate")
    checks.fraction("prob", prob)
    ranks = {name: np.abs(2.0 * rank - 1.0) if slope else rank for name, rank in calibration.ranks.items()}
    shown = chosen({**ranks, "TARP": calibration.tarp}, names)
    figure, axes = panels(len(shown), ax, sharex=True, sharey=True)
    ends = np.array([0.0, 1.0])
    for axis, (name, values) in zip(axes, shown.items()):
        places = np.repeat(np.concatenate([[0.0], np.sort(values), [1.0]]), 2)[1:-1]
        heights = np.repeat(np.arange(len(values) + 1) / len(values), 2)
        reach = scipy.stats.kstwo.ppf(prob, len(values))
        band = dict(color=FAINT, alpha=0.5, linewidth=0, label=f"{prob:.0%} of calibrated curves")
        axis.fill_between(ends, slope * ends - reach, slope * ends + reach, **band)
        axis.plot(ends, slope * ends, color=DARK, linewidth=0.6, label="expected")
        axis.plot(places, heights - (1.0 - slope) * places, label="found", **{"color": COLOURS[0]} | style)
        axis.set_title(name, fontsize="medium")
        axis.set_xlabel(labels[0])
        axis.margins(y=FILL)
        if slope:
            axis.set_ylim(0.0, 1.0)
    axes[0].set_ylabel(labels[1])
    legend(axes, ax)
    return figure


@door
def predictive(
    check: PredictiveCheck, names: Names = None, *, site: str | None = None, ax: Any = None, **style: Any
) -> Any:
    """The observation among predictions at posterior draws: densities of up to twelve numbers, or for longer outputs
    bands of a half and nine tenths of the predictions along them.

    Args:
        check: From `diagnostics.predictive_check`, or `Check.predictive`.
        names: Names of the statistics; those of the simulator when left out.
        site: A simulator site; the first when left out.
        ax: As many axes as there are panels, in place of a new figure.
        **style: Of the observation, `matplotlib.axes.Axes.plot` or `axvline`.
    Returns:
        A matplotlib figure.
    """
    checks.instance("check", check, PredictiveCheck, "from predictive_check")
    site = next(iter(check.observed)) if site is None else site
    checks.require(site in check.observed, f"`site` must be among {list(check.observed)}; got {site!r}.")
    predicted, observed = (np.asarray(part[site], np.float64) for part in (check.predicted, check.observed))
    how: dict[str, Any] = dict(color=DARK, linewidth=1.4, label="observed") | style
    if observed.size > MOST:
        return _along(predicted.reshape(len(predicted), -1), observed.reshape(-1), site, how, ax)
    columns = chosen({site: predicted})
    labels = labelled(columns, names or names_of_numbers(site, observed.shape, check.names.get(site, ())))
    figure, axes = panels(len(columns), ax)
    for axis, label, values, y in zip(axes, labels, columns.values(), observed.reshape(-1)):
        corners = outline(values, *np.nanquantile(values, [0.005, 0.995]))
        axis.fill_between(*corners, color=COLOURS[0], alpha=2 * FILL, linewidth=0, label="predictions")
        if np.isfinite(y):
            axis.axvline(y, **how)
        axis.set(xlabel=label, yticks=[], ylim=(0.0, None))
    legend(axes, ax)
    return figure


def _along(predicted: np.ndarray, observed: np.ndarray, site: str, how: dict, ax: Any) -> Any:
    """Bands of predictions along a long output, and the observation."""
    figure, (axis,) = panels(1, ax, (2.2, 1.1))
    place = np.flatnonzero(~np.isnan(predicted).all(axis=0))
    low, first, middle, third, high = np.nanquantile(predicted[:, place], [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    axis.fill_between(place, low, high, color=COLOURS[0], alpha=FILL, linewidth=0, label="90% of predictions")
    axis.fill_between(place, first, third, color=COLOURS[0], alpha=2 * FILL, linewidth=0, label="50%")
    axis.plot(place, middle, color=COLOURS[0], linewidth=0.8, label="median")
    axis.plot(np.arange(len(observed)), observed, **how)
    axis.set(xlabel=f"number along {site}", ylabel=site)
    legend([axis], ax)
    return figure


@door
def witness(x: Any, y: Any, labels: Names = None, *, length_scale: Any = None, ax: Any = None, **style: Any) -> Any:
    r"""Where two samples differ, statistic by statistic: the witness function of the maximum mean discrepancy.

    $f(t) = \frac1n \sum_i k(t, x_i) - \frac1m \sum_j k(t, y_j)$ with a Gaussian `k`, on each statistic alone: positive
    where `x` has more, such as simulations from the posterior predictive, negative where `y` has more, such as the
    data.

    Args:
        x: `(n, *event)`.
        y: `(m, *event)`, or one observation `(*event)`.
        labels: Names of the statistics.
        length_scale: Of `k`, for all statistics or for each; a third of the standard deviation of `x` when left out.
        ax: As many axes as there are statistics, in place of a new figure.
        **style: Of the curves, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    checks.sound("x", np.asarray(x))
    checks.sound("y", np.asarray(y))
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    y = y[None] if y.ndim == x.ndim - 1 else y
    alike = x.ndim >= 1 and x.shape[1:] == y.shape[1:] and len(x) > 1 and len(y) > 0
    checks.require(alike, f"`x` and `y` must hold points of one shape, several in `x`; got {x.shape} and {y.shape}.")
    checks.optional(checks.positive, "length_scale", length_scale)
    columns, others = chosen({"x": x}), chosen({"x": y})
    fits = checks.expands(np.shape(length_scale), (len(columns),))
    checks.require(fits, f"`length_scale` must be one number, or {len(columns)}; got shape {np.shape(length_scale)}.")
    usual = [max(values.std() / 3.0, 1e-300) for values in columns.values()]
    scales = np.broadcast_to(usual if length_scale is None else length_scale, len(columns))
    figure, axes = panels(len(columns), ax)
    shown = zip(axes, labelled(columns, labels), scales, columns.values(), others.values())
    for axis, name, scale, more, less in shown:
        ends = np.concatenate([np.quantile(more, [0.005, 0.995]), less])
        grid = np.linspace(ends.min() - scale, ends.max() + scale, GRID)
        found = _smoothed(grid, more, scale) - _smoothed(grid, less, scale)
        axis.plot(grid, found, **{"color": DARK, "linewidth": 1.0} | style)
        bottom = axis.get_ylim()[0]
        parts = (more, np.maximum, COLOURS[0], 6, "more in x"), (less, np.minimum, COLOURS[1], 14, "more in y")
        for points, part, colour, length, label in parts:
            axis.fill_between(grid, 0.0, part(found, 0.0), color=colour, alpha=FILL, linewidth=0, label=label)
            rug = dict(color=colour, markersize=length, alpha=0.7)
            axis.plot(points[:200], np.full(len(points[:200]), bottom), "|", **rug)
        axis.set(xlabel=name, yticks=[], xlim=grid[[0, -1]])
    legend(axes, ax)
    return figure


def _smoothed(grid, points, scale):
    return np.mean(np.exp(-0.5 * np.square((grid[:, None] - points[None, :]) / scale)), axis=1)
