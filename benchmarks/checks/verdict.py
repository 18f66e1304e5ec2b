"""How often `diagnostics.check` alarms where nothing is wrong: its verdict over runs without a fault.

    python -m benchmarks verdict --rows verdict.jsonl [--runs 70] [--datasets 200] [--engines KELFI "kernel Bayes"]

Each run has a key of its own: parameters and an observation are drawn from the model, an engine simulates, learns and
is checked on further data sets from its prior. Nothing is planted, so that an alarm at level 0.05 in more than 0.05 of
the runs says that the engine errs by more than the margin, or that the tests do not keep their level; the columns
`location` and `log sd` say which, by the mean and the logarithm of the standard deviation of the normal scores over all
runs, with the largest of a run's own. Margins other than the one in force are computed from the same ranks. A second
table has the power of the verdict against posteriors of one parameter that are normal and off by known amounts, by
1,000 sets of ranks each. Takes half an hour for 46 runs of each engine.
"""

import dataclasses
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import ndtr, ndtri

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme import diagnostics
from numpyro_kme.diagnostics.uniformity import MARGIN
from numpyro_kme.engines import EffectiveSampleSizeError

MARGINS = (0.0, 0.05, 0.1, 0.15)
QUIET = dict(num_samples=200, progress_bar=False)


def noisy(rng_key, theta):
    """A normal draw around theta."""
    return theta + 0.7 * jax.random.normal(rng_key, theta.shape)


def normal(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


def normal_in_one(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


def one_of_many(rng_key, theta):
    """One draw of a data set."""
    return theta + jax.random.normal(rng_key, (), jnp.result_type(theta))


def data_set(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("draws", 10):
        numpyro.sample("x", kme.Simulator(one_of_many, theta), obs=x)


ROWS = {
    ("KELFI", "normal, 1 dimension"): lambda: kme.KELFI(normal_in_one, 300, num_rounds=1, **QUIET),
    ("KELFI", "normal, 2 dimensions"): lambda: kme.KELFI(normal, 300, num_rounds=1, **QUIET),
    ("kernel ABC", "normal, 1 dimension"): lambda: kme.KernelABC(normal_in_one, 1000, **QUIET),
    ("kernel Bayes", "normal, 1 dimension"): lambda: kme.KernelBayes(normal_in_one, 1000, **QUIET),
    ("rejection ABC", "normal, 1 dimension"): lambda: kme.RejectionABC(normal_in_one, 5000, **QUIET),
    ("K2-ABC", "10 normal draws"): lambda: kme.K2ABC(data_set, 2000, **QUIET),
}


def one_run(engine_name, model_name, seed, datasets):
    """Draw an observation, run, check."""
    begun = time.process_time()
    key = jax.random.fold_in(jax.random.key(list(ROWS).index((engine_name, model_name))), seed)
    truth_key, run_key, check_key = jax.random.split(key, 3)
    engine = ROWS[engine_name, model_name]()
    observations = kme.simulate(truth_key, kme.Problem.read(engine.model), 20, progress_bar=False).x["x"]
    unserved = 0
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        for y in observations:
            try:
                engine.run(run_key, x=y)
                break
            except EffectiveSampleSizeError:
                unserved += 1
        found = diagnostics.check(check_key, engine, datasets, progress_bar=False)
    scores = np.stack([ndtri(ranks) for ranks in found.calibration.columns.values()])
    margins = [dataclasses.replace(found.calibration, margin=margin) for margin in MARGINS]
    return {
        "engine": engine_name,
        "model": model_name,
        "seed": seed,
        "data sets": datasets,
        "p of calibration by margin": [made.p_value for made in margins],
        "p of observation": found.misspecification["x"].p_value,
        "smallest": min(((p, f"{n} {t}") for n, ts in found.calibration.tests.items() for t, p in ts.items()))[1],
        "means": scores.mean(axis=1),
        "sds": scores.std(axis=1),
        "refused": found.calibration.refused,
        "observations refused": unserved,
        "CPU s": time.process_time() - begun,
    }


def power(num_datasets, mean, scale, repeats=1000):
    """Fraction of flags at 0.001 and 0.05 where the truth has this mean and standard deviation, in those of the
    posterior."""
    rng = np.random.default_rng(0)
    values = []
    for _ in range(repeats):
        ranks, data = ndtr(mean + scale * rng.normal(size=num_datasets)), {"x": rng.normal(size=(num_datasets, 2))}
        values.append(2 * diagnostics.Calibration({"a": ranks}, rng.uniform(size=num_datasets), {}, data).p_value)
    return [float(np.mean(np.array(values) < level)) for level in (0.001, 0.05)]


def write(rows):
    """One line for each engine and model, and one for all."""
    lines = []
    for engine, model in [*ROWS, ("all", "")]:
        runs = [row for row in rows if engine == "all" or (row["engine"], row["model"]) == (engine, model)]
        if runs:
            by_margin = np.array([row["p of calibration by margin"] for row in runs])
            of_model = np.array([row["p of observation"] for row in runs])
            p = 2 * np.minimum(by_margin, of_model[:, None])
            means, log_sds = (
                np.concatenate([f(row[name]) for row in runs]) for name, f in (("means", np.asarray), ("sds", np.log))
            )
            tested = sum(row["data sets"] for row in runs)
            lines.append([engine, model, len(runs), *np.mean(p < 0.05, axis=0)])
            lines[-1].append(float(np.mean(p[:, MARGINS.index(MARGIN)] < 0.001)))
            lines[-1] += [
                f"{means.mean():.3f}; {np.abs(means).max():.2f}",
                f"{log_sds.mean():.3f}; {np.abs(log_sds).max():.2f}",
            ]
            lines[-1] += [
                f"{sum(row['refused'] for row in runs)} of {tested}",
                float(np.median([row["CPU s"] for row in runs])),
            ]
    header = ["engine", "model", "runs", *(f"alarms at 0.05, margin {margin:g}" for margin in MARGINS)]
    header.append(f"at 0.001, margin {MARGIN:g}")
    header += ["location (mean; largest)", "log sd (mean; largest)", "refused", "CPU s"]
    text = report.table(header, lines) + f"\n\nThe margin in force is {MARGIN:g} posterior standard deviations."
    faults = {
        "off by 0.5 sd": (0.5, 1.0),
        "off by 0.4 sd": (0.4, 1.0),
        "half too wide": (0.0, 1 / 1.5),
        "a third too narrow": (0.0, 1.5),
    }
    found = [[what, n, *power(n, *fault)] for what, fault in faults.items() for n in (100, 200)]
    sections = [
        ("Alarms", text),
        ("Power", report.table(["posterior", "data sets", "flagged at 0.001", "at 0.05"], found)),
    ]
    report.save("verdict", "The verdict without a fault", sections)


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--table", action="store_true", help="write the table of what is kept, and run nothing")
    parser.add_argument("--runs", type=int, default=70, help="runs of each engine and model")
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--engines", nargs="+", default=sorted({engine for engine, _ in ROWS}))
    options = parser.parse_args()
    kept = options.rows
    for seed in range(0 if options.table else options.runs):
        for engine, model in ROWS:
            wanted = {"engine": engine, "model": model, "seed": seed, "data sets": options.datasets}
            if engine in options.engines and not kept.has(**wanted):
                kept.add(**one_run(engine, model, seed, options.datasets))
    write(kept.rows)
