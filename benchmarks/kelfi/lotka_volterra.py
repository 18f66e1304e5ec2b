"""Lotka-Volterra by Gillespie: intervals of four parameters from 2,500 completed simulations.

    python -m benchmarks lotka_volterra [--simulations 2500] [--seeds 5]

The observation is the published one. Runs that need more than 10,000 reactions are left out and their fraction is
reported, as in the papers: the prior is then the prior given completion. Takes five minutes.
"""

import time

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.subsets import first
from numpyro_kme.simulators import lotka_volterra as lv

ATTEMPTS = 1.25


def completed(rng_key, count):
    """The first `count` runs that completed, and the fraction of all runs that did."""
    attempts = int(ATTEMPTS * count)
    problem = kme.Problem.read(lv.model, x=lv.OBSERVED)
    simulated = kme.simulate(rng_key, problem, attempts, on_failure="skip", progress_bar=False)
    assert len(simulated) >= count, f"Only {len(simulated)} of {attempts} runs completed; raise ATTEMPTS."
    return first(simulated, count), len(simulated) / attempts


def one_seed(seed, count):
    """Simulate, learn, and read off intervals."""
    simulate_key, run_key = jax.random.split(jax.random.key(seed))
    begun = time.perf_counter()
    simulations, fraction = completed(simulate_key, count)
    simulated = time.perf_counter()
    kelfi = kme.KELFI(lv.model, simulations=simulations, num_samples=2000, progress_bar=False)
    kelfi.run(run_key, x=lv.OBSERVED)
    draws = kelfi.get_samples()["log_theta"]
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    return {
        "seed": seed,
        "fraction completed": fraction,
        "seconds to simulate": simulated - begun,
        "seconds to infer": time.perf_counter() - simulated,
        "mean": draws.mean(0),
        "sd": draws.std(0),
        "low": low,
        "high": high,
        "covered": (low <= lv.TRUTH) & (high >= lv.TRUTH),
    }


def interval(run, i):
    """Mean and interval of one parameter, with a star where it misses the truth."""
    star = "" if run["covered"][i] else " *"
    return f"{run['mean'][i]:.2f} [{run['low'][i]:.2f}, {run['high'][i]:.2f}]{star}"


def all_seeds(count, seeds):
    """All seeds, one table."""
    runs = []
    for seed in range(seeds):
        runs.append(one_seed(seed, count))
        print(f"seed {seed}: {int(runs[-1]['covered'].sum())} of 4 intervals hold the truth", flush=True)
    times = ("fraction completed", "seconds to simulate", "seconds to infer")
    rows = [[run["seed"], *(interval(run, i) for i in range(4)), *(run[name] for name in times)] for run in runs]
    rows.append(["truth", *(f"{value:.2f}" for value in lv.TRUTH), *[""] * len(times)])
    errors = np.array([run["mean"][0] - lv.TRUTH[0] for run in runs])
    summary = (
        f"{sum(int(run['covered'].sum()) for run in runs)} of {4 * seeds} intervals hold the truth. "
        f"Mean of log theta_1: off by {np.mean(np.abs(errors)):.2f} on average, {np.mean(errors):+.2f} signed."
    )
    text = report.table(["seed", *lv.PARAMETERS, *times], rows)
    text += "\n\nPosterior mean and 95 % interval; * where it misses the truth.\n\n" + summary
    sections = [(f"{count} completed simulations", text)]
    report.save("lotka_volterra", "Lotka-Volterra", sections, {"runs": runs})


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--simulations", type=int, default=2500)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    all_seeds(options.simulations, options.seeds)
