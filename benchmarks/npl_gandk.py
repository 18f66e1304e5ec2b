"""g-and-k: accuracy of the posterior mean, share of the data explained, coverage, and the published bound.

    python benchmarks/npl_gandk.py                               # 100 data sets, 200 for coverage; about
    20 minutes python benchmarks/npl_gandk.py --datasets 5 --coverage 5     # a look

Writes `results/npl_gandk.md` and `results/npl_gandk.json`.
"""

import argparse
import itertools
import time

import jax
import numpy as np
import report
from npl_models import GK, GK_LENGTH_SCALE, GK_TRUTH, bootstrap, gk_data, gk_nmse, gk_starts, upright

from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD
from numpyro_kme.losses.direct_mmd import potential

NAMES = ("a", "b", "g", "log k")
PUBLISHED = {0.0: 0.00791, 0.05: 0.0128, 0.1: 0.0593}
OWN_BIAS = {0.0: 0.0045, 0.05: 0.021, 0.1: 0.078}


def one(seed, share, free, draws):
    """Mean, sd, 90 % interval, share explained and convergence for one data set."""
    rng = np.random.default_rng([seed, round(1000 * share)])
    x = gk_data(rng, share)
    bound = MMD(Gaussian(GK_LENGTH_SCALE), free_mass=free).objective(x, GK)
    found = bootstrap(seed, bound, gk_starts(rng), draws)
    u = upright(found.u)
    return {
        "mean": u.mean(axis=0),
        "minimum": upright(found.fit.u),
        "sd": u.std(axis=0),
        "interval": np.quantile(u, [0.05, 0.95], axis=0),
        "share": float(found.numbers["share"].mean()) if free else 1.0,
        "converged": float(found.converged.mean()),
        "moved": int(found.moved.sum()),
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


def covered(runs):
    inside = [(run["interval"][0] <= GK_TRUTH) & (run["interval"][1] >= GK_TRUTH) for run in runs]
    return np.mean(inside, axis=0)


def bound_curve(datasets, draws):
    """Root mean squared MMD to the truth at the posterior mean, against 2 / sqrt(n)."""
    rows = []
    z = np.linspace(-6.5, 6.5, 4001)
    weights = np.exp(-0.5 * z**2)
    weights /= weights.sum()
    law = lambda u: np.asarray(jax.vmap(lambda t: GK.simulate(u, t))(z[:, None]))  # noqa: E731
    for n in (250, 500, 1000, 2000, 4000):
        squared = []
        for seed in range(datasets):
            rng = np.random.default_rng([seed, n])
            bound = MMD(Gaussian(GK_LENGTH_SCALE)).objective(gk_data(rng, 0.0, n), GK)
            mean = upright(bootstrap(seed, bound, gk_starts(rng), draws).u).mean(axis=0)
            points = np.concatenate([law(mean), law(GK_TRUTH)])[:, None]
            signed = np.concatenate([weights, -weights])
            squared.append(float(signed @ potential(Gaussian(GK_LENGTH_SCALE), points, points, signed)))
        rows.append((n, float(np.sqrt(np.mean(squared))), 2.0 / np.sqrt(n)))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--coverage", type=int, default=200)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--curve", type=int, default=10)
    arguments = parser.parse_args()
    runs, began = {}, time.perf_counter()
    for free in (True, False):
        for share in (0.1, 0.0, 0.05):
            count = max(arguments.coverage if free and share != 0.05 else 0, arguments.datasets)
            runs[free, share] = [one(seed, share, free, arguments.draws) for seed in range(count)]
            print(free, share, f"{time.perf_counter() - began:.0f} s", flush=True)
            save(runs, arguments, [], time.perf_counter() - began)
    if arguments.curve:
        save(runs, arguments, bound_curve(arguments.curve, arguments.draws), time.perf_counter() - began)


def save(runs, arguments, curve, seconds):
    """Write what there is so far."""
    cases = [case for case in itertools.product((False, True), (0.0, 0.05, 0.1)) if case in runs]
    accuracy = [summarise(runs[case][: arguments.datasets], *case) for case in cases]
    header = ("mass", "outliers", "data sets", "NMSE", "se", "NMSE of the minimum", "to compare", "published")
    header += ("bias of a, b, g, log k", "share explained", "least converged", "most noise (sd)")
    covers = [(share, runs[True, share][: arguments.coverage]) for share in (0.0, 0.1) if (True, share) in runs]
    coverage = [(share, len(found), *covered(found)) for share, found in covers]
    sections = [
        (f"Posterior means of {arguments.draws} draws", report.table(header, accuracy)),
        ("Coverage of 90 % intervals, free mass", report.table(("outliers", "data sets", *NAMES), coverage)),
    ]
    if curve:
        table = report.table(("n", "root mean squared MMD", "2/sqrt(n)"), curve)
        sections.append(("MMD to the truth against 2/sqrt(n)", table))
    data = {"accuracy": accuracy, "coverage": coverage, "curve": curve, "seconds": seconds}
    report.save("npl_gandk", "g-and-k, posterior bootstrap of the squared MMD", sections, data)


if __name__ == "__main__":
    main()
