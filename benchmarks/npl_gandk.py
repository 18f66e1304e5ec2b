"""g-and-k: accuracy of the posterior mean, share of the data explained, and coverage.

    python benchmarks/npl_gandk.py                               # 100 data sets, 200 for coverage; about 10 CPU minutes
    python benchmarks/npl_gandk.py --datasets 5 --coverage 5     # a look
    python benchmarks/npl_gandk.py --runs runs.jsonl             # keeps each data set's numbers, and resumes from them

Writes `results/npl_gandk.md` and `results/npl_gandk.json` as it goes.
"""

import argparse
import itertools
import time
from functools import partial

import numpy as np
import report
from npl_models import GK, GK_LENGTH_SCALE, GK_TRUTH, bootstrap, gk_data, gk_nmse, gk_starts, upright

from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD

NAMES = ("a", "b", "g", "log k")
PUBLISHED = {0.0: 0.00791, 0.05: 0.0128, 0.1: 0.0593}
CASES = ((True, 0.0), (True, 0.1), (False, 0.0), (False, 0.1), (True, 0.05), (False, 0.05))
OWN_BIAS = {0.0: 0.0045, 0.05: 0.021, 0.1: 0.078}


def one(seed, share, free, draws):
    """Estimates, intervals, share explained and convergence for one data set."""
    rng = np.random.default_rng([seed, round(1000 * share)])
    x = gk_data(rng, share)
    bound = MMD(Gaussian(GK_LENGTH_SCALE), fit_proportion=free).objective(x, GK)
    found = bootstrap(seed, bound, gk_starts(rng), draws)
    u = upright(found.u)
    explained = found.numbers["mixing_proportion"] if free else np.ones(draws)
    return {
        "mean": u.mean(axis=0),
        "minimum": upright(found.fit.u),
        "sd": u.std(axis=0),
        "interval": np.quantile(u, [0.05, 0.95], axis=0),
        "share": explained.mean(),
        "share_interval": np.quantile(explained, [0.05, 0.95]),
        "converged": found.converged.mean(),
        "moved": found.moved.sum(),
        "noise": found.quadrature.noise,
    }


def summarise(runs, free, share):
    scores = np.array([gk_nmse(run["mean"]) for run in runs])
    at_minimum = np.mean([gk_nmse(run["minimum"]) for run in runs])
    bias = np.mean([run["mean"] - GK_TRUTH for run in runs], axis=0)
    return (
        "free" if free else "fixed",
        share,
        len(runs),
        scores.mean(),
        scores.std() / np.sqrt(len(runs)),
        at_minimum,
        0.0075 if free else OWN_BIAS[share],
        PUBLISHED[share],
        " ".join(f"{b:.3f}" for b in bias),
        float(np.mean([run["share"] for run in runs])),
        min(run["converged"] for run in runs),
        max(run["noise"] for run in runs),
    )


def covered(runs, kind):
    """Share of the 90 % intervals that hold the truth: quantiles of the draws, or the same mirrored at the minimum."""
    inside = []
    for run in runs:
        low, high = np.asarray(run["interval"])
        if kind == "mirrored":
            low, high = 2 * np.asarray(run["minimum"]) - high, 2 * np.asarray(run["minimum"]) - low
        inside.append((low <= GK_TRUTH) & (high >= GK_TRUTH))
    return np.mean(inside, axis=0)


def spread(runs):
    """Posterior sd over the standard deviation of the minimum, and the minimum's bias over it, by parameter."""
    minima = np.array([run["minimum"] for run in runs])
    sds = np.array([run["sd"] for run in runs])
    across = 0.5 * np.diff(np.quantile(minima, [0.16, 0.84], axis=0), axis=0)[0]
    return np.median(sds, axis=0) / across, (minima.mean(axis=0) - GK_TRUTH) / across


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--coverage", type=int, default=200)
    parser.add_argument("--draws", type=int, default=200)
    report.add_runs(parser)
    arguments = parser.parse_args()
    began, counts = time.perf_counter(), {}
    for free, share in CASES:
        counts[free, share] = max(arguments.coverage if free and share != 0.05 else 0, arguments.datasets)
    runs = {case: [] for case in CASES}
    for seed in range(max(counts.values())):
        for case in [case for case in CASES if seed < counts[case]]:
            free, share = case
            key = (seed, share, free, arguments.draws)
            runs[case].append(arguments.runs.get(key, partial(one, *key)))
        table = save(runs, arguments, time.perf_counter() - began)
    print(table)


def save(runs, arguments, seconds):
    """Write what there is so far."""
    cases = [case for case in itertools.product((False, True), (0.0, 0.05, 0.1)) if runs[case]]
    accuracy = [summarise(runs[case], *case) for case in cases]
    header = ("mass", "outliers", "data sets", "NMSE", "se", "NMSE of the minimum", "to compare", "published")
    header += ("bias of a, b, g, log k", "share explained", "least converged", "most noise (sd)")
    coverage, spreads = [], []
    for free, share in cases:
        found = runs[free, share][: arguments.coverage]
        name = "free" if free else "fixed"
        coverage += [(name, share, kind, len(found), *covered(found, kind)) for kind in ("quantiles", "mirrored")]
        ratio, bias = spread(found)
        spreads.append((name, share, len(found), *ratio, *bias))
    sections = [
        (f"Posterior means of {arguments.draws} draws", report.table(header, accuracy)),
        (
            "Coverage of 90 % intervals",
            report.table(("mass", "outliers", "interval", "data sets", *NAMES), coverage),
        ),
        (
            "Posterior sd, and bias, in standard deviations of the minimum over data sets",
            report.table(
                ("mass", "outliers", "data sets", *(f"sd {n}" for n in NAMES), *(f"bias {n}" for n in NAMES)), spreads
            ),
        ),
    ]
    data = {"accuracy": accuracy, "coverage": coverage, "spread": spreads, "seconds": seconds}
    return report.write("npl_gandk", "g-and-k, posterior bootstrap of the squared MMD", sections, data)


if __name__ == "__main__":
    main()
