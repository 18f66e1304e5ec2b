"""Calibration as bands, and witness functions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from numpyro_kme._core import checks
from numpyro_kme.diagnostics.calibration import Calibration
from numpyro_kme.plots.posteriors import COLOURS, DARK, FAINT, FILL, chosen, labelled, panels

GRID = 201


def ranks(calibration: Calibration, names: Sequence[str] | None = None, *, prob: float = 0.95) -> Any:
    """Empirical distribution of the ranks less the uniform one, with a band for the whole curve.

    Calibrated posteriors stay in the band with probability `prob`. A hill: posteriors lie too high; a valley: too low;
    first above and then below: too narrow; the reverse: too wide.

    Args:
        calibration: From `diagnostics.calibrate`.
        names: Of latents or of single numbers; all, and TARP, when left out.
        prob: Probability of the band, by the Kolmogorov-Smirnov distribution.
    Returns:
        A matplotlib figure.
    """
    size, curves = len(calibration.tarp), {}
    reach = scipy.stats.kstwo.ppf(prob, size)
    for name, value in _columns(calibration, names).items():
        stairs = np.repeat(np.concatenate([[0.0], np.sort(value), [1.0]]), 2)[1:-1]
        curves[name] = stairs, np.repeat(np.arange(size + 1) / size, 2) - stairs
    band, expected = ([0.0, 1.0], -reach, reach), ([0.0, 1.0], [0.0, 0.0])
    return _with_band(curves, band, expected, "rank of the truth", "fraction below, less rank")


def coverage(calibration: Calibration, names: Sequence[str] | None = None, *, prob: float = 0.95) -> Any:
    """Coverage of central intervals against their level, with a band at each level, and TARP's credible regions.

    Above the diagonal posteriors are too wide, below it too narrow.

    Args:
        calibration: From `diagnostics.calibrate`.
        names: Of latents or of single numbers; all, and TARP, when left out.
        prob: Probability of the band at each level, by the binomial distribution.
    Returns:
        A matplotlib figure.
    """
    levels, curves = calibration.coverage_curve(np.linspace(0.0, 1.0, GRID))
    size = len(calibration.tarp)
    low, high = scipy.stats.binom.ppf([[0.5 - prob / 2], [0.5 + prob / 2]], size, levels) / size
    shown = {name: (levels, curves[name]) for name in _columns(calibration, names)}
    return _with_band(shown, (levels, low, high), ([0.0, 1.0], [0.0, 1.0]), "level", "coverage")


def witness(x: Any, y: Any, labels: Sequence[str] | None = None, *, length_scale: Any = None) -> Any:
    r"""Where two samples differ, statistic by statistic: the witness function of the maximum mean discrepancy.

    $f(t) = \frac1n \sum_i k(t, x_i) - \frac1m \sum_j k(t, y_j)$ with a Gaussian `k`, on each statistic alone: positive
    where `x` has more, such as simulations from the posterior predictive, negative where `y` has more, such as the
    data.

    Args:
        x: `(n, *event)`.
        y: `(m, *event)`, or one observation `(*event)`.
        labels: Names of the statistics.
        length_scale: Of `k`, for all statistics or for each; a third of the standard deviation of `x` when left out.
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
    figure, axes = panels(len(columns))
    scales = [None] * len(columns) if length_scale is None else np.broadcast_to(length_scale, len(columns))
    for axis, name, scale, simulated, observed in zip(
        axes, names, scales, columns.values(), others.values(), strict=True
    ):
        scale = scale or max(simulated.std() / 3.0, 1e-300)
        ends = np.concatenate([np.quantile(simulated, [0.005, 0.995]), observed])
        grid = np.linspace(ends.min() - scale, ends.max() + scale, GRID)
        more, less = _smoothed(grid, simulated, scale), _smoothed(grid, observed, scale)
        axis.plot(grid, more - less, color=DARK, linewidth=1.0)
        for part, colour, label in ((np.maximum, COLOURS[0], "more x"), (np.minimum, COLOURS[1], "more y")):
            axis.fill_between(grid, 0.0, part(more - less, 0.0), color=colour, alpha=FILL, linewidth=0, label=label)
        bottom = axis.get_ylim()[0]
        for points, colour, length in ((simulated[:200], COLOURS[0], 6), (observed[:200], COLOURS[1], 14)):
            axis.plot(points, np.full(len(points), bottom), "|", color=colour, markersize=length, alpha=0.7)
        axis.set(xlabel=name, yticks=[], xlim=grid[[0, -1]])
    axes[0].legend(frameon=False, fontsize="small")
    return figure


def _with_band(curves: Mapping[str, tuple], band: tuple, expected: tuple, xlabel: str, ylabel: str) -> Any:
    """A panel for each curve `(x, y)`, with a band `(x, low, high)` and what is expected, `(x, y)`."""
    figure, axes = panels(len(curves), sharex=True, sharey=True)
    for axis, (name, curve) in zip(axes, curves.items()):
        axis.fill_between(*band, color=FAINT, alpha=0.5, linewidth=0)
        axis.plot(*expected, color=DARK, linewidth=0.6)
        axis.plot(*curve, color=COLOURS[0])
        axis.set_title(name, fontsize="medium")
        axis.set_xlabel(xlabel)
    axes[0].set_ylabel(ylabel)
    return figure


def _columns(calibration: Calibration, names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Ranks by name, TARP among them."""
    return chosen({**calibration.ranks, "TARP": calibration.tarp}, names)


def _smoothed(grid, points, scale):
    return np.mean(np.exp(-0.5 * np.square((grid[:, None] - points[None, :]) / scale)), axis=1)
