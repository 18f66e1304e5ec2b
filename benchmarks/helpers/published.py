"""What the five papers print of the experiments in `results/`, with a function that finds our figure in the stored
data.

`report.write` ends each table with them. Only figures in text or tables are quoted; of what is in a plot alone, it is
said what it shows.
"""

import numpy as np

KELFI = "Hsu and Ramos (2019)"
NPL = "Dellaporta et al. (2022)"
KBR = "Fukumizu et al. (2013)"
SLIDES = "Sejdinovic (2016), slides on Park et al. (2016)"
LEARNING = "Sejdinovic (2016), slides on Flaxman et al. (2016)"


def short(value):
    """A number to three digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def mean(rows, value, **key):
    """Mean of an entry over the rows with the entries of `key`."""
    found = [row[value] for row in rows if all(row.get(name) == given for name, given in key.items())]
    return np.mean(found) if found else np.nan


def blowfly(form, point="draws", size=300):
    """NMSE of a point in %."""

    def ours(data):
        found = [r["nmse"][point] for r in data["runs"] if (r["simulations"], r["learnt by"]) == (size, form)]
        return f"{100 * np.mean(found):.2g} %"

    return ours


def entries(table, *start, place):
    """An entry of the rows of a list that start with some entries, joined."""

    def ours(data):
        found = [row[place] for row in data[table] if tuple(row[: len(start)]) == start]
        found = found or [row[place] for row in data[table] if row[0] == start[0]]
        return " / ".join(map(short, found))

    return ours


def wasserstein(data):
    """W1 to exact posteriors on the raw mean of 100 simulations."""
    named = {"KELFI as published": "published form and objective", "kernel ABC": "kernel ABC, median heuristic"}
    named["residual form"] = "residual form"
    found = data["mean, m = 100"]
    return "; ".join(f"{name} {np.mean(found[key]):.2g}" for name, key in named.items()) + " (W1, posterior sds)"


def theta_1(data):
    """Intervals and means of log theta_1."""
    runs = data["runs"]
    held = sum(run["low"][0] <= np.log(0.01) <= run["high"][0] for run in runs)
    means = " / ".join(f"{run['mean'][0]:.2f}" for run in runs)
    return f"means {means}; {held} of {len(runs)} intervals hold the truth"


def gaussian(*names):
    """Errors of experiment 5.1 by dimension."""

    def ours(data):
        dims = sorted({row["dim"] for row in data["rows"]})
        errors = {
            name: [np.mean([r["errors"][name] for r in data["rows"] if r["dim"] == d]) for d in dims] for name in names
        }
        return "; ".join(" / ".join(map(short, of)) for of in errors.values())

    return ours


def ranks(dim, size):
    """Mean ranks in experiment 5.2."""

    def ours(data):
        coarse, fine = (
            mean(data["rows"], "rank", dim=dim, n=size, method=f"KBR{end}") for end in ("", ", tolerance 1e-4")
        )
        return f"{coarse:.0f} (tolerance 1e-4: {fine:.0f})"

    return ours


def crossing(kind):
    """Error of the kernel Bayes filter less those of Kalman filters, by training size."""

    def ours(data):
        rows = [row for row in data["rows"] if row["part"] == "normalised" and row["kernel_bayes"] is not None]
        rows = [row for row in rows if row["kind"] == kind]
        gaps = []
        for other in ("extended", "unscented"):
            found = [
                np.mean([r["kernel_bayes"] - r[other] for r in rows if r["size"] == size])
                for size in (100, 200, 400, 800)
            ]
            gaps.append(f"{other}: " + " / ".join(f"{gap:+.4f}" for gap in found))
        return "; ".join(gaps)

    return ours


def camera(variance, name):
    """Frobenius norm of the error, with its standard error."""

    def ours(data):
        norms = [
            r["norm"]
            for r in data["rows"]
            if (r["part"], r.get("variance"), r.get("name")) == ("camera", variance, name)
        ]
        error = np.std(norms, ddof=1) / np.sqrt(len(norms)) if len(norms) > 1 else np.nan
        return f"{np.mean(norms):.3f} ± {error:.3f} ({len(norms)} films)"

    return ours


def scales(rule):
    """The range of median length scales over ratios of eigenvalues."""

    def ours(data):
        rows = [row for row in data["rows"] if row.get("rule") == rule and "ratio" in row]
        medians = [np.median([r["scale"] for r in rows if r["ratio"] == ratio]) for ratio in {r["ratio"] for r in rows}]
        return f"{short(min(medians))} to {short(max(medians))}"

    return ours


def whole_series(data):
    """NMSE of K2-ABC, and of KELFI, on the series."""
    rows = data["rows"]
    of = {
        "K2-ABC, prior of its paper": dict(prior="K2-ABC", simulations=10_000, width="default"),
        "K2-ABC, KELFI's prior": dict(prior="KELFI", simulations=10_000, width="default"),
        "KELFI, 1,000 simulations": dict(prior="KELFI", simulations=1000, width="KELFI"),
    }
    return "NMSE: " + "; ".join(f"{name} {100 * mean(rows, 'nmse', **key):.2g} %" for name, key in of.items())


def engine(problem, name, budget):
    """Mean score in the table of all engines."""
    return lambda data: f"{mean(data['rows'], 'score', problem=problem, engine=name, budget=budget):.2g}"


NOT_RUN = lambda data: "not run here"  # noqa: E731
ABOVE = lambda data: "see above"  # noqa: E731
TIED, FREE = "marginal likelihood, as published: tied", "marginal likelihood, everything free"
LEAVE_ONE_OUT = "published form, leave-one-out"

PUBLISHED = {
    "all_engines": [
        (
            "blowflies: KELFI, mean NMSE, 300 simulations, %",
            "below 1",
            KELFI,
            engine("blowfly", "KELFI, residual form", 300),
        ),
        ("the only method below 1 % with 1,000", "KELFI", KELFI, ABOVE),
        (
            "g-and-k: NPL-MMD, no outliers, NMSE",
            "0.00791 (sd 0.00524)",
            NPL,
            engine("g-and-k", "PosteriorBootstrap", None),
        ),
        ("g-and-k: Wasserstein ABC, NMSE, settings not printed", "0.00142 (sd 0.000965)", NPL, NOT_RUN),
    ],
    "blowfly": [
        ("KELFI, 300 simulations, mean of 10 repeats", "below 1 %", KELFI, blowfly("residual form")),
        ("the same, learnt as published (marginal likelihood, tied)", "below 1 %", KELFI, blowfly(TIED)),
        ("the same, at the mean under q with its negative parts", "", KELFI, blowfly(TIED, "signed")),
        ("the same, marginal likelihood, everything free", "", KELFI, blowfly(FREE)),
        ("the same, published form learnt by leave-one-out", "", KELFI, blowfly(LEAVE_ONE_OUT)),
        ("KELFI, 280 simulations, best hyperparameters", "0.72 ± 0.02 %", KELFI, lambda data: "see 200 and 300 above"),
        ("five other settings, and (10, 10)", "1.10, 2.07, 2.15, 1.11, 1.11 %; 6.28 %", KELFI, NOT_RUN),
        ("next best, 280 simulations (MCMC-ABC)", "almost 3 %", KELFI, NOT_RUN),
        ("nearest ten of 300 simulations", "", KELFI, blowfly("residual form", "ten nearest")),
        ("NMSE by number of simulations", "plot only: KELFI lowest, then KBR and GPS-ABC", KELFI, ABOVE),
        ("informativeness of the statistics", "plot only: first irrelevant, numbers of maxima relevant", KELFI, ABOVE),
    ],
    "exponential_gamma": [
        (
            "posterior from 100 simulations",
            "plot only: KELFI nearest, kernel ABC, K2-ABC, KBR wider",
            KELFI,
            wasserstein,
        )
    ],
    "lotka_volterra": [
        ("log theta_1 (truth -4.605), 2,500 simulations", "plot only: mean and mode near the truth", KELFI, theta_1),
        ("mixture density network, simulations", "10,000, slightly less accurate", KELFI, NOT_RUN),
        ("three ABC methods, simulations", "up to 100,000", KELFI, NOT_RUN),
    ],
    "kbr_gaussian": [
        (
            "KBR; density estimation with importance weights, d = 2 to 64",
            "plot only: KBR well below, both grow with d",
            KBR,
            gaussian("KBR, delta = 2 eps (default)", "density estimation, importance weights"),
        ),
        ("KBR, length scales by 10 folds", "plot only", KBR, gaussian("KBR, length scales by 10 folds as printed")),
    ],
    "kbr_5_2": [
        ("rank, d = 2, 200 simulations", "about 30", KBR, ranks(2, 200)),
        ("rank, d = 2, 6,000 simulations", "about 50", KBR, ranks(2, 6000)),
        ("rank, d = 6, 200 simulations", "about 180", KBR, ranks(6, 200)),
        ("rank, d = 6, 6,000 simulations", "about 1,200", KBR, ranks(6, 6000)),
        ("error against time", "plot only: conditional mean best, KBR next, rejection ABC last", KBR, ABOVE),
    ],
    "kbr_filter": [
        (
            "KBR less Kalman, rotation, T = 100 / 200 / 400 / 800",
            "plot only: KBR slightly worse",
            KBR,
            crossing("rotation"),
        ),
        ("the same, oscillatory rotation", "plot only: KBR better for T > 200", KBR, crossing("oscillatory rotation")),
        *(
            (f"camera, noise variance {text}: {label}", figure, KBR, camera(variance, name))
            for text, variance, figures in (
                ("1e-4", 1e-4, ("0.210 ± 0.015", "not in our copy", "1.980 ± 0.083", "0.557 ± 0.023")),
                ("1e-3", 1e-3, ("0.222 ± 0.009", "0.210 ± 0.008", "1.935 ± 0.064", "0.541 ± 0.022")),
            )
            for (label, name), figure in zip(
                (
                    ("KBR, Gaussian kernel", "KBR, Gaussian, means"),
                    ("KBR, trace kernel", "KBR, trace, modes"),
                    ("Kalman, 9 dimensions", "Kalman, 9 dim."),
                    ("Kalman, quaternion", "Kalman, quaternion"),
                ),
                figures,
            )
        ),
    ],
    "k2abc": [
        (
            "blowflies: error in the ten statistics at the posterior mean",
            "plot only: below synthetic-likelihood ABC and other methods that use them",
            SLIDES,
            whole_series,
        ),
        ("mixture of uniforms", "no figure in our copies", SLIDES, ABOVE),
    ],
    "kernel_learning": [
        ("learnt length scale", "0.85", LEARNING, scales("learnt")),
        ("median heuristic", "20", LEARNING, scales("median")),
    ],
}
