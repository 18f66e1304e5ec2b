"""How often `diagnostics.check` alarms where nothing is wrong, and where posteriors are off by known amounts.

    python -m benchmarks verdict --rows verdict.jsonl [--runs 70] [--datasets 200]

Each run has a key of its own: parameters and an observation are drawn from the model, an engine simulates, learns and
is checked on further data sets from its prior. Nothing is planted, so that an alarm at level 0.05 in more than 0.05 of
the runs says that the engine errs by more than the margin, or that the tests do not keep their level. A second table
has the power of the verdict against posteriors of one parameter that are normal and off by known amounts, by 1,000
sets of ranks each. Takes half an hour for 46 runs of each engine.
"""

from contextlib import suppress
from functools import partial

import jax
import numpy as np
import numpyro.distributions as dist
from scipy.special import ndtr

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.problems import along_a_plate, normal_draw, normals, of_law
from numpyro_kme import diagnostics
from numpyro_kme.diagnostics.calibration import MARGIN
from numpyro_kme.engines import EffectiveSampleSizeError

QUIET = dict(num_samples=200, progress_bar=False)


DATA_SET = along_a_plate(normal_draw, 10, theta=dist.Normal(0.0, 1.0))
NORMALS = {dim: of_law(normals(dim), lambda t: dist.Normal(t, 0.7).to_event(1)).model for dim in (1, 2)}
ENGINES = {
    "KELFI, normal, 1 dimension": lambda: kme.KELFI(NORMALS[1], 300, num_rounds=1, **QUIET),
    "KELFI, normal, 2 dimensions": lambda: kme.KELFI(NORMALS[2], 300, num_rounds=1, **QUIET),
    "kernel ABC, normal, 1 dimension": lambda: kme.KernelABC(NORMALS[1], 1000, **QUIET),
    "kernel Bayes, normal, 1 dimension": lambda: kme.KernelBayes(NORMALS[1], 1000, **QUIET),
    "rejection ABC, normal, 1 dimension": lambda: kme.RejectionABC(NORMALS[1], 5000, **QUIET),
    "K2-ABC, 10 normal draws": lambda: kme.K2ABC(DATA_SET, 2000, **QUIET),
}
FAULTS = {
    "off by 0.5 sd": (0.5, 1.0),
    "off by 0.4 sd": (0.4, 1.0),
    "half too wide": (0.0, 1 / 1.5),
    "a third too narrow": (0.0, 1.5),
}


def measured(datasets, engine, seed):
    """Draw an observation that the engine serves, run, check."""
    key = jax.random.fold_in(jax.random.key(list(ENGINES).index(engine)), seed)
    truth_key, run_key, check_key = jax.random.split(key, 3)
    fitted = ENGINES[engine]()
    for y in kme.simulate(truth_key, kme.Problem.read(fitted.model), 20, progress_bar=False).x["x"]:
        with suppress(EffectiveSampleSizeError):
            fitted.run(run_key, x=y)
            break
    check = partial(diagnostics.check, check_key, fitted, datasets, progress_bar=False)
    found, _, seconds = report.timed(check)
    return {"p": found.p_value, "refused": found.calibration.refused, "CPU s": seconds}


def power(number, mean, scale, repeats=1000):
    """Fraction of flags at 0.001 and 0.05 where the truth has this mean and standard deviation, in those of the
    posterior."""
    rng, values = np.random.default_rng(0), []
    for _ in range(repeats):
        ranks, data = ndtr(mean + scale * rng.normal(size=number)), {"x": rng.normal(size=(number, 2))}
        values.append(2 * diagnostics.Calibration({"a": ranks}, rng.uniform(size=number), {}, data).p_value)
    return [float(np.mean(np.array(values) < level)) for level in (0.001, 0.05)]


def main(rows, runs=70, datasets=200, engines=tuple(ENGINES)):
    rows.fill(partial(measured, datasets), engine=engines, seed=range(runs))
    lines = []
    for engine in (*engines, "all"):
        own = rows.of(engine=engine) or list(rows)
        p, seconds = (np.array([row[name] for row in own]) for name in ("p", "CPU s"))
        refused = f"{sum(row['refused'] for row in own)} of {datasets * len(own)}"
        lines.append([engine, len(own), np.mean(p < 0.05), np.mean(p < 0.001), refused, np.median(seconds)])
    header = ["engine", "runs", "alarms at 0.05", "at 0.001"]
    note = f"\n\nErrors of up to {MARGIN:g} posterior standard deviations are let pass."
    found = [[what, n, *power(n, *fault)] for what, fault in FAULTS.items() for n in (100, 200)]
    sections = [
        ("Alarms", report.table([*header, "refused", "CPU s"], lines) + note),
        ("Power", report.table(["posterior", "data sets", "flagged at 0.001", "at 0.05"], found)),
    ]
    return "The verdict without a fault", sections
