"""The figure of `blowfly.py`: statistics, marginals and simulated series."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from numpyro_kme.simulators.blowfly import OBSERVED, PARAMETERS, PRIOR_MEAN, PRIOR_SD, STATISTICS

BLUE, GREY, ORANGE = "#0072b2", "#b8b8b8", "#d55e00"


def draw(prior, log_theta, predicted, simulated, observed=None):
    """Prior and posterior predictive statistics, posterior marginals over their priors, and a few series, below the
    observed one if it is there."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = plt.figure(figsize=(11, 7.2), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.15, 1])
    left, right = top.subfigures(1, 2, width_ratios=[1.35, 1])
    _statistics(left.subplots(), np.asarray(prior["x"]), predicted)
    _series(right.subplots(len(simulated) + (observed is not None), 1, sharex=True), simulated, observed)
    _marginals(bottom.subplots(2, 3).ravel(), np.asarray(log_theta))
    return figure


def _statistics(axis, prior, predicted):
    """Distance from the observation, in units of the prior predictive's half width (5% to 95%)."""
    low, high = np.quantile(prior, [0.05, 0.95], axis=0)
    rows = np.arange(len(OBSERVED))[::-1]
    for values, colour, label, width in ((prior, GREY, "prior", 7), (predicted, BLUE, "posterior", 3.5)):
        scaled = (values - OBSERVED) / ((high - low) / 2)
        a, middle, b = np.quantile(scaled, [0.05, 0.5, 0.95], axis=0)
        axis.hlines(rows, a, b, color=colour, linewidth=width, label=label)
        axis.plot(middle, rows, "o", color=colour, markeredgecolor="white", markersize=6)
    axis.axvline(0, color=ORANGE, linewidth=1, label="observed")
    axis.set_yticks(rows, STATISTICS)
    axis.set_xlim(-2.2, 2.2)
    axis.set_xlabel("simulated minus observed, in half widths of the prior predictive")
    axis.set_title("predictive statistics, middle 90%", fontsize=9)
    axis.legend(loc="upper right", frameon=False, fontsize=8)


def _series(axes, simulated, observed):
    title = "simulated populations, thousands"
    shown = [(counts, BLUE) for counts in simulated]
    if observed is not None:
        shown, title = [(observed, ORANGE), *shown], f"observed (orange) and {title}"
    for axis, (counts, colour) in zip(axes, shown, strict=True):
        axis.plot(2 * np.arange(len(counts)), counts / 1000, color=colour, linewidth=0.9)
        axis.set_ylim(0)
    axes[0].set_title(title, fontsize=9)
    axes[-1].set_xlabel("days")


def _marginals(axes, log_theta):
    for axis, name, mean, sd, draws in zip(axes, PARAMETERS, PRIOR_MEAN, PRIOR_SD, log_theta.T, strict=True):
        grid = np.linspace(mean - 3 * sd, mean + 3 * sd, 200)
        axis.fill_between(
            grid, np.exp(-0.5 * ((grid - mean) / sd) ** 2) / sd / np.sqrt(2 * np.pi), color=GREY, alpha=0.5
        )
        axis.hist(draws, bins=40, density=True, color=BLUE, alpha=0.9)
        axis.set_xlabel(name)
        axis.set_yticks([])
        axis.spines["left"].set_visible(False)
