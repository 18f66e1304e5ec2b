"""Lotka-Volterra by Gillespie: intervals of four parameters from 2,500 completed simulations.

    python -m benchmarks lotka_volterra [--simulations 2500] [--seeds 5]

The observation is the published one. Runs that need more than 10,000 reactions are left out and their fraction is
reported, as in the papers: the prior is then the prior given completion. Takes five minutes.
"""

from dataclasses import replace

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme.simulators import lotka_volterra as lv

ATTEMPTS = 1.25
TIMES = ("fraction completed", "seconds to simulate", "seconds to infer")


def measured(simulations, seed):
    """Simulate, learn, and read off intervals."""
    simulate_key, run_key = jax.random.split(jax.random.key(seed))
    attempts, problem = int(ATTEMPTS * simulations), kme.Problem.read(lv.model, x=lv.OBSERVED)
    settings = dict(on_failure="skip", progress_bar=False)
    made, simulating, _ = report.timed(kme.simulate, simulate_key, problem, attempts, **settings)
    assert len(made) >= simulations, f"Only {len(made)} of {attempts} runs completed; raise ATTEMPTS."
    fields = ("arguments", "x", "latents", "deterministics", "index")
    first = {name: jax.tree.map(lambda values: values[:simulations], getattr(made, name)) for name in fields}
    kelfi = kme.KELFI(lv.model, simulations=replace(made, **first), num_samples=2000, progress_bar=False)
    _, inferring, _ = report.timed(kelfi.run, run_key, x=lv.OBSERVED)
    draws = kelfi.get_samples()["log_theta"]
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    times = dict(zip(TIMES, (len(made) / attempts, simulating, inferring)))
    return {"mean": draws.mean(axis=0), "low": low, "high": high} | times


def main(rows, simulations=2500, seeds=5):
    runs = rows.fill(measured, simulations=[simulations], seed=range(seeds))
    mean, low, high = (np.array([run[name] for run in runs]) for name in ("mean", "low", "high"))
    held = (low <= lv.TRUTH) & (high >= lv.TRUTH)
    lines = [
        [run["seed"], *(f"{m:.2f} [{a:.2f}, {b:.2f}]{' *' * (not h)}" for m, a, b, h in zip(*own))]
        + [run[name] for name in TIMES]
        for run, *own in zip(runs, mean, low, high, held)
    ]
    lines.append(["truth", *(f"{value:.2f}" for value in lv.TRUTH), *[""] * len(TIMES)])
    errors = mean[:, 0] - lv.TRUTH[0]
    text = report.table(["seed", *lv.PARAMETERS, *TIMES], lines) + (
        "\n\nPosterior mean and 95 % interval; * where it misses the truth.\n\n"
        f"{held.sum()} of {held.size} intervals hold the truth. Mean of log theta_1: off by "
        f"{np.mean(np.abs(errors)):.2f} on average, {np.mean(errors):+.2f} signed."
    )
    return "Lotka-Volterra", [(f"{simulations} completed simulations", text)], rows
