"""What the five papers print of the experiments in `results/`, with our figure or a function that finds it in the rows.

`report.write` ends each table with them. Only figures in text or tables are quoted; of what is in a plot alone, it is
said what it shows.
"""

from functools import partial

import numpy as np
from scipy.stats import sem, spearmanr

KELFI = "Hsu and Ramos (2019)"
KBR = "Fukumizu et al. (2013)"
SLIDES = "Sejdinovic (2016), slides on Park et al. (2016)"
LEARNING = "Sejdinovic (2016), slides on Flaxman et al. (2016)"
NOT_RUN = "not run here"


def short(value):
    """A number to three digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def mean(rows, *path, **key):
    """Mean of an entry over the rows with the entries of `key`."""
    found = rows.column(*path, **key)
    return found.mean() if len(found) else np.nan


def blowfly(form, point="draws"):
    """NMSE of a point in %, at 300 simulations."""
    return lambda rows: f"{100 * mean(rows, 'nmse', point, simulations=300, learnt=form):.2g} %"


def distances(*names):
    """W1 to exact posteriors from 100 simulations, at the best setting of each."""
    least = lambda rows, name: rows.column("errors", size=100, learnt=name).mean(axis=0).min()  # noqa: E731
    return lambda rows: " / ".join(short(least(rows, name)) for name in names) + " (W1, posterior sds)"


def theta_1(rows):
    """Intervals and means of log theta_1."""
    held = sum(run["low"][0] <= np.log(0.01) <= run["high"][0] for run in rows)
    means = " / ".join(f"{run['mean'][0]:.2f}" for run in rows)
    return f"means {means}; {held} of {len(rows.rows)} intervals hold the truth"


def gaussian(name):
    """Errors of experiment 5.1 by dimension."""
    dims = lambda rows: sorted({row["dim"] for row in rows})  # noqa: E731
    return lambda rows: " / ".join(short(mean(rows, "errors", name, dim=d)) for d in dims(rows))


def ranks(dim, n, rows):
    """Mean ranks in experiment 5.2."""
    found = {end: mean(rows, "rank", dim=dim, n=n, method=f"KBR{end}") for end in ("", *TOLERANCES)}
    return "{:.0f} (tolerance 1e-4: {:.0f}, 1e-5: {:.0f})".format(*found.values())


def crossing(kind, rows):
    """Error of the kernel Bayes filter less those of Kalman filters, by training size."""
    runs = [run for run in rows.of(part="normalised", kind=kind) if run["kernel_bayes"] is not None]
    sizes = sorted({run["size"] for run in runs})
    gap = lambda other, n: np.mean([r["kernel_bayes"] - r[other] for r in runs if r["size"] == n])  # noqa: E731
    both = {other: " / ".join(f"{gap(other, n):+.4f}" for n in sizes) for other in ("extended", "unscented")}
    return "; ".join(f"{other}: {gaps}" for other, gaps in both.items())


def kalman(rows):
    """Error of the extended Kalman filter less that of the unscented ones, by training size."""
    runs = rows.of(part="normalised", kind="oscillatory rotation")
    sizes = sorted({run["size"] for run in runs})
    gap = lambda other, n: np.mean([r["extended"] - r[other] for r in runs if r["size"] == n])  # noqa: E731
    narrow, wide = (" / ".join(f"{gap(other, n):+.4f}" for n in sizes) for other in ("unscented_narrow", "unscented"))
    return f"alpha 0.001: {narrow}; alpha 1: {wide}"


def camera(variance, name, rows):
    """Frobenius norm of the error, with its standard error."""
    norms = rows.column("norms", name, part="camera", variance=variance)
    return f"{norms.mean():.3f} ± {sem(norms):.3f} ({len(norms)} films)" if len(norms) else NOT_RUN


def scales(rule, rows):
    """The range of median length scales over ratios of eigenvalues."""
    ratios = {row["ratio"] for row in rows}
    medians = [np.median(rows.column("scale", rule=rule, ratio=ratio)) for ratio in ratios]
    return f"{short(min(medians))} to {short(max(medians))}"


def whole_series(rows):
    """NMSE of K2-ABC, and of KELFI, on the series."""
    of = {
        "K2-ABC, prior of its paper": dict(prior="K2-ABC", simulations=10_000, engine="K2-ABC"),
        "K2-ABC, KELFI's prior": dict(prior="KELFI", simulations=10_000, engine="K2-ABC"),
        "KELFI, 1,000 simulations": dict(prior="KELFI", simulations=1000, engine="KELFI"),
    }
    return "NMSE: " + "; ".join(f"{name} {100 * mean(rows, 'nmse', **key):.2g} %" for name, key in of.items())


def scored(*methods):
    """Mean NMSE of methods in %."""
    return lambda rows: " / ".join(short(mean(rows, "nmse", method=method)) for method in methods)


def surface(problem, *place):
    """Mean error over seeds at a point of the grid, or where the tied search ends."""
    return lambda rows: short(np.mean([error(run, place) for run in rows.of(problem=problem)]))


def error(run, place):
    return run["error"][place[0]][place[1]] if place else run["at found"][1]


def ranked(rows):
    """Rank correlations of objective and error by seed."""
    found = (spearmanr(np.ravel(run["log q"]), np.ravel(run["error"]))[0] for run in rows)
    return "rank correlations " + " / ".join(f"{value:.2f}" for value in found)


def engine(problem, name, budget):
    """Mean score in the table of all engines."""
    return lambda rows: f"{mean(rows, 'score', problem=problem, engine=name, budget=budget):.2g}"


TIED, FREE = "marginal likelihood, as published: tied", "marginal likelihood, everything free"
TOLERANCES = ", tolerance 1e-4", ", tolerance 1e-5"
FREEDOM = "everything free", "tied", "tied, lambda = 1e-4"
LEAVE_ONE_OUT = "published form, leave-one-out"
FILMS = {
    "KBR, Gaussian kernel": ("KBR, Gaussian, means", "0.210 ± 0.015", "0.222 ± 0.009"),
    "KBR, trace kernel": ("KBR, trace, modes", "not in our copy", "0.210 ± 0.008"),
    "Kalman, 9 dimensions": ("Kalman, 9 dim.", "1.980 ± 0.083", "1.935 ± 0.064"),
    "Kalman, quaternion": ("Kalman, quaternion", "0.557 ± 0.023", "0.541 ± 0.022"),
}
"""Names in the rows, and printed errors at the noise variances 1e-4 and 1e-3."""

PUBLISHED = {
    "all_engines": (
        "Hsu and Ramos (2019); Dellaporta et al. (2022)",
        [
            ("blowflies: KELFI, NMSE at 300, %", "below 1", engine("blowfly", "KELFI, residual form", 300)),
            ("g-and-k: NPL-MMD, NMSE", "0.00791 (sd 0.00524)", engine("g-and-k", "PosteriorBootstrap", 0)),
            ("g-and-k: Wasserstein ABC, NMSE, settings not printed", "0.00142 (sd 0.000965)", NOT_RUN),
        ],
    ),
    "blowfly": (
        KELFI,
        [
            ("KELFI, 300 simulations, mean of 10 repeats", "below 1 %", blowfly("residual form")),
            ("the same, learnt as published (marginal likelihood, tied)", "below 1 %", blowfly(TIED)),
            ("the same, at the mean under q with its negative parts", "", blowfly(TIED, "signed")),
            ("the same, marginal likelihood, everything free", "", blowfly(FREE)),
            ("the same, published form learnt by leave-one-out", "", blowfly(LEAVE_ONE_OUT)),
            ("KELFI, 280 simulations, best hyperparameters", "0.72 ± 0.02 %", "see 300 above"),
        ],
    ),
    "exponential_gamma": (
        KELFI,
        [
            (
                "100 simulations: KELFI, everything free / tied / tied, lambda = 1e-4",
                "plot only; text: nearest to the exact posterior",
                distances(*(f"marginal likelihood, {how}" for how in FREEDOM)),
            ),
            (
                "kernel ABC / K2-ABC / kernel Bayes",
                "plot only; text: wider, median heuristic",
                distances("kernel ABC", "K2-ABC", "kernel Bayes"),
            ),
            ("the published form by leave-one-out", "", distances("published form, leave-one-out")),
            ("the residual form", "", distances("residual form")),
        ],
    ),
    "blowfly_rivals": (
        KELFI,
        [
            ("KELFI, 280 simulations, NMSE, %", "0.72 ± 0.02", scored("KELFI as published: tied")),
            ("MCMC-ABC, the next best", "almost 3", scored("MCMC-ABC")),
            ("kernel Bayes, mode", "plot only: among the three best", scored("kernel Bayes, mode")),
            (
                "kernel ABC, median / scaled by 0.1 / 0.2 / 0.5",
                "plot only: scaled much better",
                scored("kernel ABC", *(f"kernel ABC, {scale} of the median" for scale in (0.1, 0.2, 0.5))),
            ),
        ],
    ),
    "surface": (
        KELFI,
        [
            ("blowflies, NMSE at the largest objective, %", "0.72 ± 0.02", surface("blowflies")),
            ("at five other points of a plot, %", "1.10, 2.07, 2.15, 1.11, 1.11", "points not printed; grid above"),
            ("at (10, 10), %", "6.28 ± 0.03", surface("blowflies", -1, -1)),
            ("Lotka-Volterra, error of log theta_1 at the largest", "plot only", surface("Lotka-Volterra")),
            ("does a higher objective mean a smaller error?", "consistently", ranked),
        ],
    ),
    "lotka_volterra": (
        KELFI,
        [
            ("log theta_1 (truth -4.605), 2,500 simulations", "plot only: mean and mode near the truth", theta_1),
            ("mixture density network, simulations", "10,000, slightly less accurate", NOT_RUN),
            ("three ABC methods, simulations", "up to 100,000", NOT_RUN),
        ],
    ),
    "kbr_gaussian": (
        KBR,
        [
            ("KBR, d = 2 to 64", "plot only: grows with d", gaussian("KBR, delta = 2 eps (default)")),
            ("density estimation", "plot only: well above KBR", gaussian("density estimation, importance weights")),
            ("KBR, 10 folds", "plot only", gaussian("KBR, length scales by 10 folds as printed")),
        ],
    ),
    "kbr_5_2": (
        KBR,
        [
            ("rank, d = 2, 200 simulations", "about 30", partial(ranks, 2, 200)),
            ("rank, d = 2, 6,000 simulations", "about 50", partial(ranks, 2, 6000)),
            ("rank, d = 6, 200 simulations", "about 180", partial(ranks, 6, 200)),
            ("rank, d = 6, 6,000 simulations", "about 1,200", partial(ranks, 6, 6000)),
        ],
    ),
    "kbr_filter": (
        KBR,
        [
            (
                "KBR less Kalman, rotation, T = 100 to 800",
                "plot only: KBR slightly worse",
                partial(crossing, "rotation"),
            ),
            ("the same, oscillatory", "plot only: KBR better for T > 200", partial(crossing, "oscillatory rotation")),
            ("extended less unscented filter, oscillatory rotation", "indistinguishably small", kalman),
            *(
                (f"camera, noise variance {variance:.0e}: {label}", figures[i], partial(camera, variance, name))
                for i, variance in enumerate((1e-4, 1e-3))
                for label, (name, *figures) in FILMS.items()
            ),
        ],
    ),
    "k2abc": (
        SLIDES,
        [("blowflies: error in the ten statistics", "plot only: below methods that use them", whole_series)],
    ),
    "kernel_learning": (
        LEARNING,
        [
            ("learnt length scale", "0.85", partial(scales, "learnt")),
            ("median heuristic", "20", partial(scales, "median")),
        ],
    ),
}
