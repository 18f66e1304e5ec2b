"""Third-party tasks with reference posteriors: how well a classifier tells KELFI's draws from the reference (C2ST).

    python -m benchmarks sbi_tasks --metrics path/to/posterior_metrics.py --references path/to/posteriors
    python -m benchmarks sbi_tasks ... --tasks sir --simulations 300 1000 --seeds 3 --forms residual

0.5: the classifier cannot tell; 1: it always can. Raw statistics in, and defaults: the engine makes rounds, for each
observation anew. With `--rounds 1` one fit for each task, seed and number of simulations serves all observations
through `KELFI.condition`. `posterior_metrics.py` has `c2st`, `mmd_permutation_test` and `moment_errors`; a reference
`<task>.npz` has `observation`, `reference`, `ref_mean` and `ref_std`. C2ST cannot see a mean shift of half a standard
deviation in five dimensions: moment errors, ratios of standard deviations (all parameters, observations and seeds) and
the p-value of an MMD test stand beside it. Seconds are CPU seconds, of the first observation (simulating, learning,
compiling, drawing) and of each further one. Takes half an hour for a seed of 100 to 1,000 simulations.
"""

import itertools
import time
import warnings
from pathlib import Path

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.sbi_models import TASKS

FORMS = {"residual": kme.ResidualKernelMeans, "published": kme.KernelMeans}
COMPARED = 2000
"""Draws, as many as a reference holds."""


def judged(metrics, reference, i, draws):
    """Scores of draws against the reference posterior of observation `i`."""
    truth, draws = reference["reference"][i][:COMPARED], draws[:COMPARED]
    mean, sd = metrics.moment_errors(reference["ref_mean"][i], reference["ref_std"][i], draws)
    return {
        "C2ST": metrics.c2st(reference["reference"][i], draws, n=COMPARED, seed=1),
        "mean error": mean,
        "log sd error": sd,
        "sd ratios": (draws.std(axis=0) / reference["ref_std"][i]).tolist(),
        "MMD p": metrics.mmd_permutation_test(truth, draws)[1],
    }


def one_fit(task, form, size, seed, options, metrics):
    """Learn once, or in rounds for each observation, and judge the posterior of each."""
    reference = np.load(Path(options.references) / f"{task}.npz")
    settings = dict(form=FORMS[form](), num_samples=COMPARED, num_rounds=options.rounds, progress_bar=False)
    kelfi = kme.KELFI(TASKS[task], size, **settings)
    fit = {"task": task, "form": named(form, options.rounds), "simulations": size, "seed": seed}
    missing = [i for i in range(options.observations) if not options.rows.has(**fit, observation=i + 1)]
    if missing and options.rounds == 1:
        missing = sorted({0, *missing})  # the first observation is the one that all others are learnt with
    for i in missing:
        begun, infer = time.process_time(), kelfi.condition if i > 0 and options.rounds == 1 else kelfi.run
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            infer(jax.random.key(1000 * seed + i), x=np.asarray(reference["observation"][i], np.float64))
        seconds = time.process_time() - begun
        scores = judged(metrics, reference, i, kelfi.get_samples()["theta"])
        if not options.rows.has(**fit, observation=i + 1):
            options.rows.add(**fit, observation=i + 1, **scores, seconds=seconds)


def named(form, rounds):
    """The form, and the number of rounds if there are several."""
    return f"{form}, {'own rounds' if rounds is None else 'one round' if rounds == 1 else f'{rounds} rounds'}"


def write(rows):
    """One line for each task, size and form."""
    header = ["task", "simulations", "form", "fits", "C2ST", "least", "most", "mean error", "log sd error"]
    header += ["sd ratios, 10 to 90 %", "fraction with MMD p < 0.05", "seconds, first", "seconds, further"]
    lines = []
    for key in dict.fromkeys((row["task"], row["simulations"], row["form"]) for row in rows):
        own = [row for row in rows if (row["task"], row["simulations"], row["form"]) == key]
        column = lambda name, own=own: np.array([row[name] for row in own])  # noqa: E731
        first = column("observation") == 1
        scores = column("C2ST")
        lines.append([*key, int(first.sum()), float(scores.mean()), float(scores.min()), float(scores.max())])
        lines[-1] += [float(column("mean error").mean()), float(column("log sd error").mean())]
        low, high = np.quantile(column("sd ratios"), [0.1, 0.9])
        lines[-1] += [f"{low:.2f} to {high:.2f}"]
        lines[-1] += [float(np.mean(column("MMD p") < 0.05)), float(column("seconds")[first].mean())]
        lines[-1] += [float(column("seconds")[~first].mean()) if not first.all() else "-"]
    sections = [("Means over observations and seeds", report.table(header, lines))]
    return report.write("sbi_tasks", "Tasks with reference posteriors", sections)


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--metrics", required=True)
    parser.add_argument("--references", required=True)
    parser.add_argument(
        "--tasks", nargs="+", default=["gaussian_mixture", "sir", "gaussian_linear_uniform"], choices=TASKS
    )
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--simulations", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--observations", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    metrics = report.imported(options.metrics)
    for form, seed, size, task in itertools.product(
        options.forms, range(options.seeds), options.simulations, options.tasks
    ):
        one_fit(task, form, size, seed, options, metrics)
        text = write(options.rows)
        jax.clear_caches()  # compiled programs of many shapes would use up the memory maps of a process
    print(text)
