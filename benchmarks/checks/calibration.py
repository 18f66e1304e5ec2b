"""Calibration of KELFI and of kernel Bayes: ranks, coverage, TARP.

    python -m benchmarks calibration --rows FILE                    # all
    python -m benchmarks calibration --parts conjugate --sizes 300  # two minutes
    python -m benchmarks calibration --parts rounds --rows FILE

Conjugate models: a normal mean in two dimensions and in one, and an exponential rate by the mean of 15 draws. One run
learns the likelihood, and `condition` serves every data set; KELFI also on the ten problems of `helpers/problems.py`,
in one round of 300 simulations, and on three of them with 1,000 and 10,000. In rounds as the engine chooses them, each
data set has a run of its own; exact posteriors of the same data sets stand beside it. Intervals that cover more than
their level say that posteriors are too wide, which a learnt likelihood's blur makes them. Takes an hour and a half.
"""

import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.problems import PROBLEMS
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
CONJUGATE = [
    ("normal, 2 dimensions", "KELFI"),
    ("exponential-gamma, raw mean", "KELFI"),
    ("normal, 1 dimension", "kernel Bayes"),
    ("exponential-gamma, raw mean", "kernel Bayes"),
    ("normal, 2 dimensions", "KELFI, published form"),
    ("exponential-gamma, raw mean", "KELFI, published form"),
]
SIZES = (300, 1000, 10_000)
ALL_SIZES = ("mean and sd", "four modes", "counts")
"""Problems with more than 300 simulations too."""
PARTS = {
    "conjugate": [(model, engine, 300) for model, engine in CONJUGATE]
    + [(model, engine, size) for model, engine in CONJUGATE[:2] for size in SIZES[1:]],
    "problems": [(problem, "KELFI", 300) for problem in PROBLEMS]
    + [(problem, "KELFI", size) for problem in ALL_SIZES for size in SIZES[1:]],
    "rounds": [(problem, "KELFI, rounds", size) for size in SIZES[:2] for problem in ALL_SIZES],
}
REPEATS, PRIOR_DRAWS = 50, 40_000
"""Data sets that have a run of their own; draws that tell their exact posteriors."""


def named(name):
    """A model and an observation of it to begin with."""
    if name in MODELS:
        return MODELS[name]
    return PROBLEMS[name].model, PROBLEMS[name].draw(jax.random.key(0), 1)[1][0]


def one_run(model_name, engine_name, simulations, datasets):
    """Coverage and p-values of one engine on one model."""
    model, x = named(model_name)
    engine = ENGINES[engine_name](model, simulations)
    engine.run(jax.random.key(0), x=x)
    found = diagnostics.calibrate(jax.random.key(1), engine, datasets, progress_bar=False)
    tests = {f"{name} {test}": p for name, tests in found.tests.items() for test, p in tests.items()}
    return {
        "data sets": len(found.tarp),
        "refused": found.refused,
        **summary(list(found.coverage(0.9).values())),
        "p-value of all": found.p_value,
        "smallest": min(tests, key=tests.get),
    }


def in_rounds(problem_name, simulations, datasets):
    """Coverage of runs in rounds as the engine chooses them, a run for each data set."""
    theta, x, _ = PROBLEMS[problem_name].draw(jax.random.key(simulations), datasets)
    inside = []
    for i in range(datasets):
        engine = kme.KELFI(PROBLEMS[problem_name].model, simulations, progress_bar=False)
        engine.run(jax.random.key(i), x=x[i])
        low, high = np.quantile(engine.get_samples()["theta"], [0.05, 0.95], axis=0)
        inside.append((low <= theta[i]) & (theta[i] <= high))
    found = {"data sets": datasets, "refused": 0, **summary(np.mean(inside, axis=0).tolist())}
    return found | {"exact posteriors, mean": exact_coverage(problem_name, theta, x)}


def exact_coverage(problem_name, theta, x):
    """Coverage of intervals of 90 % of the exact posteriors of the same data sets, by weighted draws from the prior."""
    problem = PROBLEMS[problem_name]
    draws = problem.prior.sample(jax.random.key(0), (PRIOR_DRAWS,))
    logs = jax.lax.map(lambda one: jax.vmap(problem.log_density, (0, None))(draws, one), jnp.asarray(x))
    weights = np.asarray(jax.nn.softmax(logs, axis=1), np.float64)
    below = [w @ (np.asarray(draws) < truth) for w, truth in zip(weights, theta)]
    return float(np.mean((np.array(below) >= 0.05) & (np.array(below) <= 0.95)))


def summary(coverage):
    """Of intervals of 90 % of each parameter."""
    return {"coverage of 90 %, mean": float(np.mean(coverage)), "least": min(coverage), "most": max(coverage)}


def measured(model_name, engine_name, simulations, datasets):
    """One row, without the warnings."""
    begun = time.process_time()
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        if engine_name == "KELFI, rounds":
            found = in_rounds(model_name, simulations, REPEATS)
        else:
            found = one_run(model_name, engine_name, simulations, datasets)
    return found | {"CPU s": time.process_time() - begun}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, choices=SIZES, help="numbers of simulations")
    options = parser.parse_args()
    sections = []
    for part in options.parts:
        lines = []
        for model, engine, simulations in (row for row in PARTS[part] if row[2] in options.sizes):
            key = {"model": model, "engine": engine, "simulations": simulations}
            run = lambda key=key: measured(*key.values(), options.datasets)  # noqa: E731
            lines.append(key | options.rows.get(run, **key))
            jax.clear_caches()  # compiled programs of many shapes would use up the memory maps of a process
            text = report.table_of(lines)
            report.write("calibration", "Calibration", [*sections, (part.capitalize(), text)])
        sections.append((part.capitalize(), text))
    print(text)
