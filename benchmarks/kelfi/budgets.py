"""What KELFI gains from more simulations in one round: ten problems whose densities are known, 300 to 10,000 of them.

    python -m benchmarks budgets [--sizes 300 1000 3000 10000] [--seeds 2] [--problems NAME ...] [--rows FILE]

The gap is the mean of `log p(x | theta) - log q(x | theta)` over 2,000 fresh simulations, in nats a data set, with its
standard error; the median is not led by the tails. Seconds to learn are of the clock and of the CPU; each fit has a
process of its own, whose peak memory is the operating system's. The problems, chosen before any work on budgets, are in
`helpers/problems.py`; few simulations that rounding puts where the density is 0 are left out. Takes twenty minutes, and
as long again with `--sizes 100000`.
"""

import argparse
import itertools
import json
import resource
import time
import warnings
from functools import partial

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.problems import PROBLEMS
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem

FRESH = 2000


def one(name, size, seed):
    """The held-out gap of one fit, the seconds to learn, and the peak memory of this process in GB."""
    problem = PROBLEMS[name]
    theta, x, _ = problem.draw(jax.random.key(2 * seed), size)
    fresh, data, exact = problem.draw(jax.random.key(2 * seed + 1), FRESH)
    coordinates = Coordinates.from_prior(jax.random.key(0), Problem.read(problem.model, x=data[0]), "x")
    begun = np.array([time.perf_counter(), time.process_time()])
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        fitted = kme.fit_likelihood(theta, x, coordinates=coordinates)
    seconds = np.array([time.perf_counter(), time.process_time()]) - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    rows = np.array_split(np.arange(FRESH), 10)
    surrogate, z = fitted.surrogate, coordinates.table(fresh)
    gaps = exact - np.concatenate([surrogate.at_rows(data[some]).log_density(z[some]) for some in rows])
    gaps = gaps[np.isfinite(exact)]
    error = np.std(gaps) / np.sqrt(len(gaps))
    found = {"mean": np.mean(gaps), "error": error, "median": np.median(gaps)}
    return found | {"seconds": seconds[0], "CPU seconds": seconds[1], "memory": memory}


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
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, size, seed = options.one
        print(json.dumps(one(name, int(size), int(seed)), default=float))
        return
    for seed, name, size in itertools.product(range(options.seeds), options.problems, options.sizes):
        if not options.rows.has(problem=name, simulations=size, seed=seed):
            found = report.in_a_process("budgets", "--one", name, size, seed)
            options.rows.add(problem=name, simulations=size, seed=seed, **found)
    made = partial(table, options.rows, options.problems, options.sizes)
    sections = [
        ("Mean gap in nats, and standard error", made("mean", "error")),
        ("Median gap", made("median")),
        ("Seconds to learn", made("seconds")),
        ("CPU seconds to learn", made("CPU seconds")),
        ("Peak memory, GB", made("memory")),
    ]
    report.save("budgets", "More simulations in one round", sections)
