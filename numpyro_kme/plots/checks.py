"""Calibration as curves with bands, predictions, and witness functions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from numpyro_kme._core import checks
from numpyro_kme.diagnostics.calibration import Calibration
from numpyro_kme.diagnostics.predictive import PredictiveCheck
from numpyro_kme.diagnostics.uniformity import simultaneous_band
from numpyro_kme.plots._style import COLOURS, DARK, FAINT, FILL, HEIGHT, WIDTH, chosen, labelled, legend, panels

GRID = 201
"""Points of a curve."""

SINGLE = 12
"""Most numbers that a predictive check draws in panels of their own."""


def ranks(
    calibration: Calibration,
    names: Sequence[str] | None = None,
    *,
    prob: float = 0.95,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
    **style: Any,
) -> Any:
    """Empirical distribution of the ranks less the uniform one, with a band for the whole curve.

    Calibrated posteriors stay in the band with probability `prob`, at all ranks together: it has the same width in
    standard deviations everywhere, so that ends show as well as the middle. A hill: posteriors lie too high; a valley:
    too low; first above and then below: too narrow; the reverse: too wide.

    Args:
        calibration: From `diagnostics.calibrate`.
        names: Of latents or of single numbers; all, and TARP, when left out.
        prob: Probability of the band (`diagnostics.uniformity.simultaneous_band`).
        ax: As many axes as there are numbers, in place of a new figure.
        figsize: Size of the figure in inches.
        **style: Of the curves, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    References: Saeilynoja, Buerkner and Vehtari (2022), Statistics and Computing 32.
    """
    checks.instance("calibration", calibration, Calibration, "from diagnostics.calibrate")
    size, curves = len(calibration.tarp), {}
    for name, value in _columns(calibration, names).items():
        stairs = np.repeat(np.concatenate([[0.0], np.sort(value), [1.0]]), 2)[1:-1]
        curves[name] = stairs, np.repeat(np.arange(size + 1) / size, 2) - stairs
    grid, low, high = simultaneous_band(size, prob)
    band, expected = (grid, low - grid, high - grid), ([0.0, 1.0], [0.0, 0.0])
    axes = "rank", "ECDF less rank"
    return _with_band(curves, band, expected, axes, f"{prob:.0%} of calibrated curves", (ax, figsize), style)


def coverage(
    calibration: Calibration,
    names: Sequence[str] | None = None,
    *,
    prob: float = 0.95,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
    **style: Any,
) -> Any:
    """Coverage of central intervals against their level, with a band at each level, and TARP's credible regions.

    Above the diagonal posteriors are too wide, below it too narrow.

    Args:
        calibration: From `diagnostics.calibrate`.
        names: Of latents or of single numbers; all, and TARP, when left out.
        prob: Probability of the band at each level, by the binomial distribution.
        ax: As many axes as there are numbers, in place of a new figure.
        figsize: Size of the figure in inches.
        **style: Of the curves, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    checks.instance("calibration", calibration, Calibration, "from diagnostics.calibrate")
    levels, curves = calibration.coverage_curve(np.linspace(0.0, 1.0, GRID))
    size = len(calibration.tarp)
    low, high = scipy.stats.binom.ppf([[0.5 - prob / 2], [0.5 + prob / 2]], size, levels) / size
    shown = {name: (levels, curves[name]) for name in _columns(calibration, names)}
    band, expected = (levels, low, high), ([0.0, 1.0], [0.0, 1.0])
    return _with_band(shown, band, expected, ("level", "coverage"), f"{prob:.0%} at each level", (ax, figsize), style)


def predictive(
    check: PredictiveCheck,
    names: Sequence[str] | None = None,
    *,
    site: str | None = None,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
    **style: Any,
) -> Any:
    """The observation among predictions at posterior draws: histograms of up to twelve numbers, or for longer outputs
    bands of a half and nine tenths of the predictions along them.

    Args:
        check: From `diagnostics.predictive_check`, or `Check.predictive`.
        names: Names of the statistics; those of the simulator when left out.
        site: A simulator site; the first when left out.
        ax: As many axes as there are panels, in place of a new figure.
        figsize: Size of the figure in inches.
        **style: Of the observation, `matplotlib.axes.Axes.plot` or `axvline`.
    Returns:
        A matplotlib figure.
    """
    checks.instance("check", check, PredictiveCheck, "from predictive_check")
    site = next(iter(check.observed)) if site is None else site
    checks.require(site in check.observed, f"`site` must be among {list(check.observed)}; got {site!r}.")
    predicted, seen = np.asarray(check.predicted[site], np.float64), np.asarray(check.observed[site], np.float64)
    how: dict[str, Any] = dict(color=DARK, linewidth=1.4) | style
    if seen.size > SINGLE:
        return _along(predicted.reshape(len(predicted), -1), seen.reshape(-1), site, how, ax, figsize)
    columns = chosen({site: predicted})
    own = check.names.get(site)
    labels = labelled(columns, names or (own if own and len(own) == len(columns) else None))
    figure, axes = panels(len(columns), ax=ax, figsize=figsize)
    for axis, label, values, y in zip(axes, labels, columns.values(), seen.reshape(-1)):
        axis.hist(values[np.isfinite(values)], 30, color=COLOURS[0], alpha=2 * FILL, label="predictions")
        if np.isfinite(y):
            axis.axvline(y, label="observed", **how)
        axis.set(xlabel=label, yticks=[])
    legend(axes, ax)
    return figure


def _along(predicted, seen, site, how, ax, figsize) -> Any:
    """Bands of predictions along a long output, and the observation."""
    figure, (axis,) = panels(1, (2.2 * WIDTH, 1.1 * HEIGHT), ax=ax, figsize=figsize)
    place = np.flatnonzero(~np.isnan(predicted).all(axis=0))
    low, first, middle, third, high = np.nanquantile(predicted[:, place], [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    axis.fill_between(place, low, high, color=COLOURS[0], alpha=FILL, linewidth=0, label="90% of predictions")
    axis.fill_between(place, first, third, color=COLOURS[0], alpha=2 * FILL, linewidth=0, label="50%")
    axis.plot(place, middle, color=COLOURS[0], linewidth=0.8, label="median")
    axis.plot(np.arange(len(seen)), seen, label="observed", **how)
    axis.set(xlabel=f"number along {site}", ylabel=site)
    legend([axis], ax)
    return figure


def witness(
    x: Any,
    y: Any,
    labels: Sequence[str] | None = None,
    *,
    length_scale: Any = None,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
    **style: Any,
) -> Any:
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
        figsize: Size of the figure in inches.
        **style: Of the curves, `matplotlib.axes.Axes.plot`.
    Returns:
        A matplotlib figure.
    """
    checks.real("x", np.asarray(x))
    checks.real("y", np.asarray(y))
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    y = y[None] if y.ndim == x.ndim - 1 else y
    checks.require(
        x.ndim >= 1 and x.shape[1:] == y.shape[1:] and len(x) > 1 and len(y) > 0,
        f"`x` and `y` must hold points of one shape, several in `x`; got shapes {x.shape} and {y.shape}.",
    )
    columns, others = chosen({"x": x}), chosen({"x": y})
    names = labelled(columns, labels)
    if length_scale is not None:
        checks.positive("length_scale", length_scale)
    figure, axes = panels(len(columns), ax=ax, figsize=figsize)
    scales = [None] * len(columns) if length_scale is None else np.broadcast_to(length_scale, len(columns))
    for axis, name, scale, simulated, observed in zip(
        axes, names, scales, columns.values(), others.values(), strict=True
    ):
        scale = scale or max(simulated.std() / 3.0, 1e-300)
        ends = np.concatenate([np.quantile(simulated, [0.005, 0.995]), observed])
        grid = np.linspace(ends.min() - scale, ends.max() + scale, GRID)
        more, less = _smoothed(grid, simulated, scale), _smoothed(grid, observed, scale)
        axis.plot(grid, more - less, **{"color": DARK, "linewidth": 1.0} | style)
        for part, colour, label in ((np.maximum, COLOURS[0], "more in x"), (np.minimum, COLOURS[1], "more in y")):
            axis.fill_between(grid, 0.0, part(more - less, 0.0), color=colour, alpha=FILL, linewidth=0, label=label)
        bottom = axis.get_ylim()[0]
        for points, colour, length in ((simulated[:200], COLOURS[0], 6), (observed[:200], COLOURS[1], 14)):
            axis.plot(points, np.full(len(points), bottom), "|", color=colour, markersize=length, alpha=0.7)
        axis.set(xlabel=name, yticks=[], xlim=grid[[0, -1]])
    legend(axes, ax)
    return figure


def _with_band(
    curves: Mapping[str, tuple], band: tuple, expected: tuple, labels: tuple[str, str], what: str, where: tuple, style
) -> Any:
    """A panel for each curve `(x, y)`, with a band `(x, low, high)` and what is expected, `(x, y)`."""
    ax, figsize = where
    figure, axes = panels(len(curves), ax=ax, figsize=figsize, sharex=True, sharey=True)
    for axis, (name, curve) in zip(axes, curves.items()):
        axis.fill_between(*band, color=FAINT, alpha=0.5, linewidth=0, label=what)
        axis.plot(*expected, color=DARK, linewidth=0.6, label="expected")
        axis.plot(*curve, label="found", **{"color": COLOURS[0]} | style)
        axis.set_title(name, fontsize="medium")
        axis.set_xlabel(labels[0])
    axes[0].set_ylabel(labels[1])
    legend(axes, ax)
    return figure


def _columns(calibration: Calibration, names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Ranks by name, TARP among them."""
    return chosen({**calibration.ranks, "TARP": calibration.tarp}, names)


def _smoothed(grid, points, scale):
    return np.mean(np.exp(-0.5 * np.square((grid[:, None] - points[None, :]) / scale)), axis=1)
