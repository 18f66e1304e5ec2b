"""What KELFI gains from more simulations in one round: ten problems whose densities are known, 300 to 10,000 of them.

    python -m benchmarks budgets [--sizes 300 1000 3000 10000] [--seeds 2] [--problems NAME ...]

The gap is the mean of `log p(x | theta) - log q(x | theta)` over 2,000 fresh simulations, in nats a data set, with its
standard error; the median is not led by the tails. Seconds to learn are of the clock and of the CPU; each fit has a
process of its own, whose peak memory is the operating system's. The problems, chosen before any work on budgets, are in
`helpers/problems.py`; few simulations that rounding puts where the density is 0 are left out. Takes twenty minutes, and
as long again with `--sizes 100000`.
"""

import resource

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
    fitted, wall, cpu = report.timed(kme.fit_likelihood, theta, x, coordinates=coordinates)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    surrogate, z = fitted.surrogate, coordinates.table(fresh)
    rows = np.array_split(np.arange(FRESH), 10)
    gaps = exact - np.concatenate([surrogate.at_rows(data[some]).log_density(z[some]) for some in rows])
    gaps = gaps[np.isfinite(exact)]
    found = {"mean": np.mean(gaps), "error": np.std(gaps) / np.sqrt(len(gaps)), "median": np.median(gaps)}
    return found | {"seconds": wall, "CPU seconds": cpu, "memory": memory}


def main(rows, sizes=(300, 1000, 3000, 10_000), seeds=2, problems=tuple(PROBLEMS)):
    fresh = lambda problem, simulations, seed: report.in_a_process(one, problem, simulations, seed)  # noqa: E731
    rows.fill(fresh, problem=problems, simulations=sizes, seed=range(seeds))

    def table(what, spread=None):
        of = lambda name, p, m: np.mean(rows.column(name, problem=p, simulations=m))  # noqa: E731
        cell = lambda p, m: f"{of(what, p, m):.3g}" + (f" ({of(spread, p, m):.1g})" if spread else "")  # noqa: E731
        lines = [[problem, *(cell(problem, m) for m in sizes)] for problem in problems]
        return report.table(["problem", *(f"{m:,}" for m in sizes)], lines)

    sections = [("Mean gap, nats (standard error)", table("mean", "error")), ("Median gap, nats", table("median"))]
    sections += [(f"{name[0].upper()}{name[1:]} to learn", table(name)) for name in ("seconds", "CPU seconds")]
    return "More simulations in one round", [*sections, ("Peak memory, GB", table("memory"))]
