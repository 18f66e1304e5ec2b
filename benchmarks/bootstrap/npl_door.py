"""g-and-k written as `fn(rng_key, theta)`, as users write it, beside the same model with its noise declared.

    python -m benchmarks npl_door --rows FILE

Default settings with the published kernel and a fitted mixing proportion, prior uniform with log k in [-5, 3], the same
data sets and keys by both doors. Takes a quarter of an hour.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.npl_models import g_and_k, gk_data, gk_nmse
from numpyro_kme.simulators.g_and_k import LENGTH_SCALE

LOW, HIGH = np.array([0.0, 0.0, 0.0, -5.0]), np.array([10.0, 10.0, 10.0, 3.0])


def ordinary(rng_key, theta):
    """One draw."""
    return g_and_k(theta, jax.random.normal(rng_key, (1,)))


def of_noise(z, theta):
    """The same, of its noise."""
    return g_and_k(theta, z[None])


SIMULATORS = {"fn(rng_key, theta)": ordinary, "FromNoise": kme.FromNoise(of_noise, dist.Normal(0.0, 1.0))}


def model(simulator, x):
    theta = numpyro.sample("theta", dist.Uniform(LOW, HIGH).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


MODELS = {name: partial(model, simulator) for name, simulator in SIMULATORS.items()}


def measure(door, outliers, seed):
    """One data set."""
    x = gk_data(np.random.default_rng(seed), outliers)
    loss = kme.MMD(kme.kernels.Gaussian(LENGTH_SCALE), fit_proportion=True)
    engine = kme.PosteriorBootstrap(MODELS[door], loss, num_samples=200, progress_bar=False)
    began = time.perf_counter()
    engine.run(jax.random.key(seed), jnp.asarray(x))
    seconds = time.perf_counter() - began
    share = engine.replicates.numbers["mixing_proportion"]
    return {
        "nmse": float(gk_nmse(engine.get_samples()["theta"].mean(axis=0))),
        "converged": float(engine.replicates.converged.mean()),
        "noise": float(engine.replicates.quadrature.noise),
        "share": float(share.mean()),
        "largest share": float(share.max()),
        "seconds": seconds,
        "lifted": engine.info["noise"],
    }


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--data-sets", type=int, default=40)
    parser.add_argument("--outliers", type=float, nargs="+", default=[0.0, 0.05, 0.1])
    arguments, rows = parser.parse_args(), []
    for outliers in arguments.outliers:
        found: dict[str, list] = {door: [] for door in MODELS}
        for seed in range(arguments.data_sets):
            for door in MODELS:
                one = partial(measure, door, outliers, seed)
                found[door].append(arguments.rows.get(one, door=door, outliers=outliers, seed=seed))
        for door, runs in found.items():
            of = {name: np.array([run[name] for run in runs]) for name in runs[0] if name != "lifted"}
            rows.append(
                (
                    door,
                    outliers,
                    len(runs),
                    of["nmse"].mean(),
                    of["nmse"].std() / np.sqrt(len(runs)),
                    of["converged"].min(),
                    of["noise"].max(),
                    of["share"].mean(),
                    of["largest share"].max(),
                    np.median(of["seconds"][1:]),
                    runs[0]["lifted"],
                )
            )
    header = ("door", "outliers", "data sets", "mean NMSE", "se", "least converged", "most noise (sd)", "mean share")
    header += ("largest share", "later runs, s", "noise")
    report.write(
        "npl_door",
        "g-and-k by the natural door",
        [("Floors: NMSE at most 0.0075, within 2 % of FromNoise, 1.2 times its seconds", report.table(header, rows))],
    )
