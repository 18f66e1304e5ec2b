"""Determinism: the same numbers from other processes and threads, and what single precision changes.

    python -m benchmarks determinism

Every run is a process of its own with a fixed key. The first table says whether all numbers of a run agree with those
of the first, bit by bit; the second how far results in float32 are from those in float64, in posterior standard
deviations (means and standard deviations of draws) or relative to the largest value (everything else). Simulations in
float32 come from other random bits; the other rows start from the same table. The last column is the Monte Carlo error
that other draws would make. Takes about ten minutes.
"""

import argparse
import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report

KEY = jax.random.key(5)
DATA = np.random.default_rng(5).normal(1.0, 1.0, size=60)
Y = np.array([0.8])


def shifted(rng_key, theta):
    """One draw around theta."""
    return theta + 0.5 * jax.random.normal(rng_key, (1,), jnp.result_type(theta))


def shift(noise, theta):
    """One point of a data set, from its noise."""
    return theta + noise


def boxed(rng, theta):
    """One draw around theta, in NumPy."""
    return theta + 0.5 * rng.normal(size=1)


LOCATION = kme.FromNoise(shift, dist.Normal(0.0, 1.0))


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(shifted, theta), obs=x)


def black_box(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(boxed, theta, shape=(1,), dtype=float), obs=x)


def iid(x):
    theta = numpyro.sample("theta", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(LOCATION, theta), obs=x)


def table():
    """A fixed table of parameters and outputs, the same in both precisions."""
    rng = np.random.default_rng(6)
    theta = rng.normal(size=(200, 1))
    return kme.Simulations.from_table(theta, theta + 0.5 * rng.normal(size=(200, 1)))


def draws(engine, *args, **kwargs):
    engine.run(KEY, *args, **kwargs)
    return {"draws": engine.get_samples()["theta"]}


def simulations(executor=None):
    return kme.simulate(KEY, black_box, 200, executor=executor, progress_bar=False)


def surrogate(form):
    """Log density of the learnt likelihood of one output on a grid of parameters, evaluated in the session's
    precision."""
    simulated = table()
    fitted = kme.fit_likelihood(simulated.arguments["x"], simulated.x["x"], form=form)
    return {"values": jax.vmap(lambda theta: fitted(theta).log_prob(Y))(jnp.linspace(-1.0, 2.0, 31)[:, None])}


WEIGHTED = dict(simulations=table(), num_samples=500)
RUNS = {
    "simulate, one process": lambda: {"values": simulations().x["x"]},
    "simulate, 3 threads": lambda: {"values": simulations(ThreadPoolExecutor(3)).x["x"]},
    "KELFI, residual form": lambda: draws(kme.KELFI(model, simulations=table()), x=Y),
    "KELFI, published form": lambda: draws(kme.KELFI(model, simulations=table(), form=kme.KernelMeans()), x=Y),
    "residual form, log density": lambda: surrogate(kme.ResidualKernelMeans()),
    "published form, log density": lambda: surrogate(kme.KernelMeans()),
    "KernelABC": lambda: draws(kme.KernelABC(model, **WEIGHTED), x=Y),
    "PosteriorBootstrap": lambda: draws(kme.PosteriorBootstrap(iid, num_samples=200), DATA),
    "squared MMD": lambda: {"values": kme.squared_mmd(kme.kernels.Gaussian(1.0), DATA[:30, None], DATA[30:, None])},
}
SAME = {"simulate, 3 threads": "simulate, one process"}


def in_a_process(name, double):
    """The numbers of a run, from a process of its own."""
    found = report.in_a_process("determinism", "--one", name, int(double))
    return {key: np.asarray(value) for key, value in found.items()}


def one(name, double):
    jax.config.update("jax_enable_x64", double)
    warnings.simplefilter("ignore")
    print(json.dumps({key: np.asarray(value, float).tolist() for key, value in RUNS[name]().items()}))


def agreement(name, first, again):
    same = all(np.array_equal(first[key], again[key]) for key in first)
    return [name, "the same, bit by bit" if same else "not the same"]


def distance(name, double, single):
    if "values" in double:
        a, b = double["values"], single["values"]
        return [name, float(np.max(np.abs(a - b)) / np.max(np.abs(a))), "relative to the largest", "none"]
    a, b = double["draws"], single["draws"]
    found = max(abs(a.mean() - b.mean()), abs(a.std() - b.std())) / a.std()
    return [name, float(found), "posterior sd", f"{np.sqrt(2.0 / len(a)):.2g}"]


def all_runs():
    double = {name: in_a_process(name, True) for name in RUNS}
    again = {name: in_a_process(name, True) for name in RUNS if name not in SAME}
    agree = [agreement(name, double[name], again[name]) for name in again]
    agree += [agreement(f"{name}, against {other}", double[other], double[name]) for name, other in SAME.items()]
    differ = [distance(name, double[name], in_a_process(name, False)) for name in again]
    header = ["result", "difference", "in units of", "Monte Carlo error of the difference"]
    sections = [
        ("The same key in another process, and with other numbers of workers", report.table(["result", "is"], agree)),
        ("float32 against float64", report.table(header, differ)),
    ]
    report.save("determinism", "Determinism", sections)


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one[0], options.one[1] == "1")
    else:
        all_runs()
