"""What KELFI gains from more simulations in one round: ten problems whose densities are known, 300 to 10,000 of them.

    python -m benchmarks budgets [--sizes 300 1000 3000 10000] [--seeds 2] [--problems NAME ...] [--rows FILE]

The gap is the mean of `log p(x | theta) - log q(x | theta)` over 2,000 fresh simulations, in nats a data set, with its
standard error; the median is not led by the tails. Seconds are CPU seconds to learn. The problems, chosen before any
work on budgets, are in `helpers/problems.py`; few simulations that rounding puts where the density is 0 are left out.
With `--sizes 100000` a problem of few statistics takes 15 s. Takes fifteen minutes.
"""

import itertools
import time
import warnings

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.problems import PROBLEMS
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem

FRESH = 2000


def one(name, size, seed):
    """The held-out gap of one fit, and the seconds to learn."""
    problem = PROBLEMS[name]
    theta, x, _ = problem.draw(jax.random.key(2 * seed), size)
    fresh, data, exact = problem.draw(jax.random.key(2 * seed + 1), FRESH)
    coordinates = Coordinates.from_prior(jax.random.key(0), Problem.read(problem.model, x=data[0]), "x")
    begun = time.process_time()
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        fitted = kme.fit_likelihood(theta, x, coordinates=coordinates)
    seconds = time.process_time() - begun
    rows = np.array_split(np.arange(FRESH), 10)
    surrogate, z = fitted.surrogate, coordinates.table(fresh)
    gaps = exact - np.concatenate([surrogate.at_rows(data[some]).log_densities(z[some]) for some in rows])
    gaps = gaps[np.isfinite(exact)]
    error = np.std(gaps) / np.sqrt(len(gaps))
    return {"mean": np.mean(gaps), "error": error, "median": np.median(gaps), "CPU seconds": seconds}


def table(rows, names, sizes, what, spread=None):
    """A row for each problem, a column for each number of simulations: means over seeds."""
    lines = []
    for name in names:
        found = {m: rows.of(problem=name, simulations=m) for m in sizes}
        cells = [f"{np.mean([row[what] for row in own]):.3g}" if own else "" for own in found.values()]
        if spread:
            errors = (np.mean([row[spread] for row in own]) if own else 0.0 for own in found.values())
            cells = [f"{cell} ({error:.1g})" if cell else "" for cell, error in zip(cells, errors)]
        lines.append([name, *cells])
    return report.table(["problem", *(f"{m:,}" for m in sizes)], lines)


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 3000, 10_000])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    options = parser.parse_args()
    for seed, name, size in itertools.product(range(options.seeds), options.problems, options.sizes):
        if not options.rows.has(problem=name, simulations=size, seed=seed):
            options.rows.add(problem=name, simulations=size, seed=seed, **one(name, size, seed))
    sections = [
        ("Mean gap in nats, and standard error", table(options.rows, options.problems, options.sizes, "mean", "error")),
        ("Median gap", table(options.rows, options.problems, options.sizes, "median")),
        ("CPU seconds to learn", table(options.rows, options.problems, options.sizes, "CPU seconds")),
    ]
    report.save("budgets", "More simulations in one round", sections)
