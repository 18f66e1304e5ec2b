"""g-and-k by the posterior bootstrap: accuracy of the posterior mean, mixing proportion, and coverage.

    python -m benchmarks npl_gandk                               # 100 data sets, 200 for coverage
    python -m benchmarks npl_gandk --datasets 5 --coverage 5     # a look

A free mixing proportion is fitted with the parameters, and leaves outliers out; otherwise it is 1. Takes ten minutes of
CPU time.
"""

import itertools
from functools import partial

import numpy as np

from benchmarks.helpers import report
from benchmarks.helpers.npl_models import GK, GK_TRUTH, bootstrap, gk_data, gk_nmse, gk_starts, upright
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD
from numpyro_kme.simulators.g_and_k import LENGTH_SCALE

NAMES = ("a", "b", "g", "log k")
PUBLISHED = {0.0: 0.00791, 0.05: 0.0128, 0.1: 0.0593}
CASES = ((True, 0.0), (True, 0.1), (False, 0.0), (False, 0.1), (True, 0.05), (False, 0.05))
OWN_BIAS = {0.0: 0.0045, 0.05: 0.021, 0.1: 0.078}


def one(seed, outliers, free, draws):
    """Estimates, intervals, mixing proportion and convergence for one data set."""
    rng = np.random.default_rng([seed, round(1000 * outliers)])
    x = gk_data(rng, outliers)
    bound = MMD(Gaussian(LENGTH_SCALE), fit_proportion=free).objective(x, GK)
    found = bootstrap(seed, bound, gk_starts(rng), draws)
    u = upright(found.u)
    return {
        "mean": u.mean(axis=0),
        "minimum": upright(found.fit.u),
        "sd": u.std(axis=0),
        "interval": np.quantile(u, [0.05, 0.95], axis=0),
        "proportion": found.numbers["mixing_proportion"].mean() if free else 1.0,
        "converged": found.converged.mean(),
        "moved": found.moved.sum(),
        "noise": found.quadrature.noise,
    }


def summarise(runs, free, outliers):
    scores = np.array([gk_nmse(run["mean"]) for run in runs])
    at_minimum = np.mean([gk_nmse(run["minimum"]) for run in runs])
    bias = np.mean([run["mean"] - GK_TRUTH for run in runs], axis=0)
    return (
        "free" if free else "fixed",
        outliers,
        len(runs),
        scores.mean(),
        scores.std() / np.sqrt(len(runs)),
        at_minimum,
        0.0075 if free else OWN_BIAS[outliers],
        PUBLISHED[outliers],
        " ".join(f"{b:.3f}" for b in bias),
        float(np.mean([run["proportion"] for run in runs])),
        min(run["converged"] for run in runs),
        max(run["noise"] for run in runs),
    )


def covered(runs, kind):
    """Fraction of the 90 % intervals that hold the truth: quantiles of draws, or the same mirrored at the minimum."""
    inside = []
    for run in runs:
        low, high = np.asarray(run["interval"])
        if kind == "mirrored":
            low, high = 2 * np.asarray(run["minimum"]) - high, 2 * np.asarray(run["minimum"]) - low
        inside.append((low <= GK_TRUTH) & (high >= GK_TRUTH))
    return np.mean(inside, axis=0)


def sd_and_bias(runs):
    """Posterior sd over the standard deviation of the minimum, and the minimum's bias over it, by parameter."""
    minima = np.array([run["minimum"] for run in runs])
    sds = np.array([run["sd"] for run in runs])
    across = 0.5 * np.diff(np.quantile(minima, [0.16, 0.84], axis=0), axis=0)[0]
    return np.median(sds, axis=0) / across, (minima.mean(axis=0) - GK_TRUTH) / across


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--coverage", type=int, default=200)
    parser.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    counts = {}
    for free, outliers in CASES:
        counts[free, outliers] = max(arguments.coverage if free and outliers != 0.05 else 0, arguments.datasets)
    runs = {case: [] for case in CASES}
    for seed in range(max(counts.values())):
        for case in [case for case in CASES if seed < counts[case]]:
            key = dict(zip(("seed", "outliers", "free", "draws"), (seed, case[1], case[0], arguments.draws)))
            runs[case].append(arguments.rows.get(partial(one, **key), **key))
        table = save(runs, arguments)
    print(table)


def save(runs, arguments):
    """Write what there is so far."""
    cases = [case for case in itertools.product((False, True), (0.0, 0.05, 0.1)) if runs[case]]
    accuracy = [summarise(runs[case], *case) for case in cases]
    header = (
        "mixing proportion",
        "outliers",
        "data sets",
        "NMSE",
        "se",
        "NMSE of the minimum",
        "to compare",
        "published",
    )
    header += ("bias of a, b, g, log k", "its mean", "least converged", "most noise (sd)")
    coverage, ratios = [], []
    for free, outliers in cases:
        found = runs[free, outliers][: arguments.coverage]
        name = "free" if free else "fixed"
        coverage += [(name, outliers, kind, len(found), *covered(found, kind)) for kind in ("quantiles", "mirrored")]
        ratio, bias = sd_and_bias(found)
        ratios.append((name, outliers, len(found), *ratio, *bias))
    sections = [
        (f"Posterior means of {arguments.draws} draws", report.table(header, accuracy)),
        (
            "Coverage of 90 % intervals",
            report.table(("mixing proportion", "outliers", "interval", "data sets", *NAMES), coverage),
        ),
        (
            "Posterior sd, and bias, in standard deviations of the minimum over data sets",
            report.table(
                ("mixing proportion", "outliers", "data sets", *(f"{of} {n}" for of in ("sd", "bias") for n in NAMES)),
                ratios,
            ),
        ),
    ]
    title = "g-and-k, posterior bootstrap of the squared MMD"
    return report.write("npl_gandk", title, sections, {"accuracy": accuracy})
