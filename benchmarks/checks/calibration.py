"""Calibration of KELFI and of kernel Bayes on conjugate models: ranks, coverage, TARP.

    python -m benchmarks calibration [--datasets 200] [--simulations 300]

Conjugate models: a normal mean in two dimensions and in one, and an exponential rate by the mean of 15 draws. One run
learns the likelihood; `condition` serves every data set. Intervals that cover more than their level say that posteriors
are too wide, which a learnt likelihood's blur makes them. Takes two minutes.
"""

import time
import warnings

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme import diagnostics


def noisy(rng_key, theta):
    """A normal draw around theta."""
    return theta + 0.7 * jax.random.normal(rng_key, theta.shape)


def normal(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


def normal_in_one(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


def mean_of_15(rng_key, rate):
    """The mean of 15 exponential draws."""
    return jax.random.gamma(rng_key, 15.0, (1,)) / (15.0 * rate)


def exponential(x=None):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    numpyro.sample("x", kme.Simulator(mean_of_15, rate), obs=x)


MODELS = {
    "normal, 2 dimensions": (normal, jnp.zeros(2)),
    "normal, 1 dimension": (normal_in_one, jnp.zeros(())),
    "exponential-gamma, raw mean": (exponential, jnp.array([0.25])),
}
QUIET = dict(num_samples=300, progress_bar=False)
ENGINES = {
    "KELFI": lambda model, size: kme.KELFI(model, size, num_rounds=1, **QUIET),
    "KELFI, published form": lambda model, size: kme.KELFI(model, size, form=kme.KernelMeans(), **QUIET),
    "kernel Bayes": lambda model, size: kme.KernelBayes(model, size, **QUIET),
}
RUNS = [
    ("normal, 2 dimensions", "KELFI"),
    ("exponential-gamma, raw mean", "KELFI"),
    ("normal, 1 dimension", "kernel Bayes"),
    ("exponential-gamma, raw mean", "kernel Bayes"),
    ("normal, 2 dimensions", "KELFI, published form"),
    ("exponential-gamma, raw mean", "KELFI, published form"),
]


def one_run(model_name, engine_name, datasets, simulations):
    """Coverage and p-values of one engine on one model."""
    begun = time.process_time()
    model, x = MODELS[model_name]
    engine = ENGINES[engine_name](model, simulations)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        engine.run(jax.random.key(0), x=x)
        found = diagnostics.calibrate(jax.random.key(1), engine, datasets, progress_bar=False)
    coverage = list(found.coverage(0.9).values())
    tests = {f"{name} {test}": p for name, tests in found.tests.items() for test, p in tests.items()}
    return {
        "model": model_name,
        "engine": engine_name,
        "simulations": simulations,
        "data sets": len(found.tarp),
        "refused": found.refused,
        "least coverage of 90%": min(coverage),
        "most": max(coverage),
        "p-value of all": found.p_value,
        "smallest": min(tests, key=tests.get),
        "CPU s": time.process_time() - begun,
    }


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--simulations", type=int, default=300)
    options = parser.parse_args()
    kept = options.rows
    for model_name, engine_name in RUNS:
        if not kept.has(model=model_name, engine=engine_name, simulations=options.simulations):
            kept.add(**one_run(model_name, engine_name, options.datasets, options.simulations))
        text = report.table_of(kept.rows)
        text += "\n\nOne run and one learnt likelihood for each row. "
        text += "The standard error of a coverage of 90 % is 0.021 with 200 data sets."
        report.write("calibration", "Calibration", [("Simulation-based calibration", text)])
