"""Calibration as bands, and witness functions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from numpyro_kme._core import checks
from numpyro_kme.diagnostics.calibration import Calibration
from numpyro_kme.plots.posteriors import COLOURS, DARK, FAINT, FILL, chosen, panels

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
    columns = _columns(calibration, names)
    figure, axes = panels(len(columns), sharex=True, sharey=True)
    for axis, (name, value) in zip(axes, columns.items()):
        size = len(value)
        reach = stats.kstwo.ppf(prob, size)
        axis.fill_between([0.0, 1.0], -reach, reach, color=FAINT, alpha=0.5, linewidth=0)
        axis.axhline(0.0, color=DARK, linewidth=0.6)
        jumps = np.concatenate([[0.0], np.sort(value), [1.0]])
        heights = np.concatenate([np.arange(size + 1) / size, [1.0]])
        axis.plot(*_stairs(jumps, heights), color=COLOURS[0])
        axis.set_title(name, fontsize="medium")
    for axis in axes:
        axis.set_xlabel("rank of the truth")
    axes[0].set_ylabel("fraction below, less rank")
    return figure


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
    columns = _columns(calibration, names)
    size = len(calibration.tarp)
    low, high = stats.binom.ppf([[0.5 - prob / 2], [0.5 + prob / 2]], size, levels) / size
    figure, axes = panels(len(columns), sharex=True, sharey=True)
    for axis, name in zip(axes, columns):
        axis.fill_between(levels, low, high, color=FAINT, alpha=0.5, linewidth=0)
        axis.plot([0, 1], [0, 1], color=DARK, linewidth=0.6)
        axis.plot(levels, curves[name], color=COLOURS[0])
        axis.set_title(name, fontsize="medium")
        axis.set_xlabel("level")
    axes[0].set_ylabel("coverage")
    return figure


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
    names = list(columns) if labels is None else list(labels)
    checks.require(len(names) == len(columns), f"`labels` must name {len(columns)} statistics; got {len(names)}.")
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


def _columns(calibration: Calibration, names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Ranks by name, TARP among them."""
    return chosen({**calibration.ranks, "TARP": calibration.tarp}, names)


def _stairs(jumps, heights):
    """The lines of a step function less the diagonal."""
    x = np.repeat(jumps, 2)[1:-1]
    return x, np.repeat(heights[:-1], 2) - x


def _smoothed(grid, points, scale):
    return np.mean(np.exp(-0.5 * np.square((grid[:, None] - points[None, :]) / scale)), axis=1)
