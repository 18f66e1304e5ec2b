"""Third-party tasks with reference posteriors: how well a classifier tells KELFI's draws from the reference (C2ST).

    python -m benchmarks sbi_tasks --references path/to/posteriors
    python -m benchmarks sbi_tasks --references path/to/posteriors --tasks sir --simulations 300 --forms residual

0.5: the classifier cannot tell; 1: it always can. Raw statistics in, and defaults: the engine makes rounds, for each
observation anew. A reference `<task>.npz` has `observation` and `reference`. C2ST cannot see a mean shift of half a
standard deviation in five dimensions: errors of means and of standard deviations (in those of the reference, means over
parameters) and ratios of these (all parameters, observations and seeds) stand beside it. Seconds are CPU seconds. Takes
half an hour for a seed of 100 to 1,000 simulations.
"""

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.guard.accuracy import reference
from benchmarks.helpers import report
from benchmarks.helpers.metrics import c2st
from benchmarks.helpers.sbi_models import TASKS

FORMS = {"residual": kme.ResidualKernelMeans, "published": kme.KernelMeans}
COMPARED = 2000
"""Draws, as many as a reference holds."""


def measured(references, task, simulations, form, seed, observation):
    """Scores of a run for one observation."""
    x, exact = reference(task, observation, references)
    kelfi = kme.KELFI(TASKS[task], simulations, form=FORMS[form](), num_samples=COMPARED, progress_bar=False)
    _, _, seconds = report.timed(kelfi.run, jax.random.key(1000 * seed + observation), x=x)
    jax.clear_caches()  # compiled programs of many shapes would use up the memory maps of a process
    draws, sd = kelfi.get_samples()["theta"], exact.std(axis=0)
    ratios = draws.std(axis=0) / sd
    shift = np.mean(np.abs(draws.mean(axis=0) - exact.mean(axis=0)) / sd)
    errors = {"mean error": shift, "log sd error": np.mean(np.abs(np.log(ratios))), "sd ratios": ratios}
    return {"C2ST": c2st(exact[:COMPARED], draws), **errors, "seconds": seconds}


def main(
    rows,
    references=None,
    tasks=("gaussian_mixture", "sir", "gaussian_linear_uniform"),
    forms=tuple(FORMS),
    simulations=(300, 1000),
    seeds=3,
    observations=5,
):
    lines = []
    for task in tasks:
        for size in simulations:
            for form in forms:
                key = dict(task=task, simulations=size, form=form)
                lists = {name: [value] for name, value in key.items()} | {"seed": range(seeds)}
                run = lambda **key: measured(references, **key)  # noqa: E731
                rows.fill(run, **lists, observation=range(observations))
                scores, ratios = rows.column("C2ST", **key), np.concatenate(rows.column("sd ratios", **key))
                low, high = np.quantile(ratios, [0.1, 0.9])
                lines.append([*key.values(), len(scores), scores.mean(), scores.min(), scores.max()])
                lines[-1] += [rows.column(name, **key).mean() for name in ("mean error", "log sd error")]
                lines[-1] += [f"{low:.2f} to {high:.2f}", rows.column("seconds", **key).mean()]
    header = ["task", "simulations", "form", "runs", "C2ST", "least", "most", "mean error", "log sd error"]
    header += ["sd ratios, 10 to 90 %", "CPU seconds"]
    return "Tasks with reference posteriors", [("Means over observations and seeds", report.table(header, lines))]
