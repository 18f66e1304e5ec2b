"""Censored data: KELFI's posterior against the exact one, of normal draws and of counts with a detection limit.

    python -m benchmarks censored

Twenty draws of `N(theta, 1)`, those below 0 known to be below it, under a plate; and five Poisson counts of mean
`exp(1.5 + theta / 2)` in one output, of which 0, 1 and 2 are not told apart. The prior is `N(0, 1)`, and data sets are
drawn from it. Moments of the learnt and of the exact posterior are sums on a grid, so that there is no noise of a
sampler. Takes five minutes.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

import numpyro_kme as kme
from benchmarks.helpers import report

GRID = np.linspace(-4.0, 4.0, 801)


def draw(rng_key, theta):
    return theta + jax.random.normal(rng_key)


def counts(rng_key, theta):
    return jax.random.poisson(rng_key, jnp.exp(1.5 + 0.5 * theta), (5,))


def normal(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("draws", 20):
        numpyro.sample("x", kme.Simulator(draw, theta).within(high=0.0), obs=x)


def poisson(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(counts, theta).within(0, 2), obs=x)


def normal_data(rng):
    """Draws with gaps, and the exact log likelihood on the grid."""
    x = rng.normal() + rng.normal(size=20)
    seen = stats.norm.logpdf(x[x >= 0.0], GRID[:, None]).sum(axis=1)
    return np.where(x < 0.0, np.nan, x), seen + np.sum(x < 0.0) * stats.norm.logcdf(-GRID)


def poisson_data(rng):
    """Counts with gaps, and the exact log likelihood on the grid."""
    x, rate = rng.poisson(np.exp(1.5 + 0.5 * rng.normal()), 5).astype(float), np.exp(1.5 + 0.5 * GRID)
    seen = stats.poisson.logpmf(x[x > 2], rate[:, None]).sum(axis=1)
    return np.where(x <= 2, np.nan, x), seen + np.sum(x <= 2) * stats.poisson.logcdf(2, rate)


PROBLEMS = {"20 normal draws, below 0": (normal, normal_data), "5 counts, up to 2": (poisson, poisson_data)}


def moments(log_likelihood):
    """Mean and standard deviation of the posterior."""
    log_p = log_likelihood - 0.5 * np.square(GRID)
    p = np.exp(log_p - log_p.max())
    mean = np.sum(p * GRID) / np.sum(p)
    return mean, np.sqrt(np.sum(p * np.square(GRID - mean)) / np.sum(p))


def score(problem, simulations, number):
    """Shift of the mean in exact standard deviations, ratio of standard deviations, and how much is censored."""
    model, data = PROBLEMS[problem]
    x, exact = data(np.random.default_rng(number))
    engine = kme.KELFI(model, simulations, progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine.run(jax.random.key(number), x=x)
    (mean, sd), (own, width) = moments(exact), moments(engine.posterior.log_likelihood({"theta": GRID}))
    return {"shift": (own - mean) / sd, "ratio": width / sd, "censored": int(np.isnan(x).sum())}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--data-sets", type=int, default=10)
    options, lines = parser.parse_args(), []
    for problem in PROBLEMS:
        for simulations in (1000, 3000, 10_000):
            found = [
                options.rows.get(
                    lambda key=(problem, simulations, number): score(*key),
                    problem=problem,
                    simulations=simulations,
                    number=number,
                )
                for number in range(options.data_sets)
            ]
            shift, ratio, gone = (np.array([row[name] for row in found]) for name in ("shift", "ratio", "censored"))
            errors = np.sqrt(np.mean(shift**2)), np.abs(shift).max(), ratio.min(), ratio.max()
            lines.append([problem, simulations, f"{gone.min()} to {gone.max()}", *map(float, errors)])
    header = ["data", "simulations", "censored", "rms shift", "largest", "least sd ratio", "most"]
    title = f"{options.data_sets} data sets, each with a key of its own; shifts in exact posterior standard deviations"
    print(report.write("censored", "Censored data", [(title, report.table(header, lines))]))


if __name__ == "__main__":
    main()
