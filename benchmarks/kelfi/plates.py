"""Independent draws along a plate: KELFI's posterior against the exact one, in one round and as the engine chooses.

    python -m benchmarks plates

Normal draws with unknown mean and log standard deviation, priors N(0, 1) and N(0, 0.5^2), data sets from these priors.
The exact posterior is by quadrature. Errors of means are root mean squares over data sets, in exact posterior standard
deviations; `told` counts data sets with a warning that the simulations do not resolve the posterior. Takes ten minutes.
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


def draw(rng_key, mean, log_sd):
    return mean + jnp.exp(log_sd) * jax.random.normal(rng_key)


def model(size, x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    log_sd = numpyro.sample("log_sd", dist.Normal(0.0, 0.5))
    with numpyro.plate("draws", size):
        numpyro.sample("x", kme.Simulator(draw, mean, log_sd), obs=x)


def exact(x):
    """Means and standard deviations of the posterior, by quadrature on a fine grid."""
    mean, log_sd = np.linspace(-4.0, 4.0, 1601)[:, None], np.linspace(-2.5, 2.5, 1201)[None]
    squares = np.sum((x - x.mean()) ** 2) + len(x) * (x.mean() - mean) ** 2
    log_p = -0.5 * mean**2 - 2.0 * log_sd**2 - len(x) * log_sd - 0.5 * squares * np.exp(-2.0 * log_sd)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    return {
        name: (m := np.sum(p * value), np.sqrt(np.sum(p * (value - m) ** 2)))
        for name, value in (("mean", mean), ("log_sd", log_sd))
    }


def score(size, simulations, rounds, number):
    """One data set."""
    rng, begun = np.random.default_rng(number), time.process_time()
    x = (rng.normal() + np.exp(0.5 * rng.normal()) * rng.normal(size=size)).astype(np.float32)
    engine = kme.KELFI(model, simulations, num_rounds=rounds, progress_bar=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run(jax.random.key(number), size, x=x)
    draws, found = engine.get_samples(), {"told": any("do not resolve" in str(w.message) for w in caught)}
    for name, (mean, sd) in exact(x.astype(float)).items():
        found |= {f"{name}, error": (draws[name].mean() - mean) / sd, f"{name}, sd": draws[name].std() / sd}
    return found | {"seconds": time.process_time() - begun}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--data-sets", type=int, default=10)
    options = parser.parse_args()
    lines = []
    for size in (4, 20, 50):
        for rounds in (1, None):
            key = {"draws": size, "simulations": 300, "rounds": rounds or "as chosen"}
            for number in range(options.data_sets):
                if not options.rows.has(**key, number=number):
                    options.rows.add(**key, number=number, **score(size, 300, rounds, number))
            of = lambda name, key=key: np.array(options.rows.values(name, **key), float)  # noqa: E731
            errors = [of(f"{name}, error") for name in ("mean", "log_sd")]
            sds = [of(f"{name}, sd").mean() for name in ("mean", "log_sd")]
            row = [np.sqrt(np.mean(e**2)) for e in errors] + [np.abs(e).max() for e in errors] + sds
            told = int(of("told").sum())
            lines.append([size, rounds or "as chosen", *map(float, row), told, float(of("seconds").mean())])
    header = ["draws", "rounds", "error of mean", "of log sd", "largest of mean", "of log sd", "sd ratio of mean"]
    table = report.table([*header, "of log sd", "told", "CPU s"], lines)
    title = f"300 simulations, {options.data_sets} data sets, errors in exact posterior sd"
    print(report.write("plates", "Draws along plates", [(title, table)]))


if __name__ == "__main__":
    main()
