"""KELFI by its default call where the posterior is known: means, widths, and what it warns of, for each form of data.

    python -m benchmarks known_posteriors [--cases NAME ...] [--simulations 300 1000] [--keys 10]

Several draws as one vector, with heavy tails or weights that follow the parameter; many parameters; draws along a
plate; censored draws; entries that are missing; data sets of any length. Each key has a data set of its own,
from the prior. Exact moments are in closed form of normals, else sums over a grid. Errors of means are in exact
posterior standard deviations, over all parameters. Takes twenty minutes.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.posteriors import moments, normalised
from benchmarks.helpers.problems import PROBLEMS, normals, of_law
from benchmarks.helpers.sbi_models import TASKS
from numpyro_kme.kernels import EmpiricalMeasureRule
from numpyro_kme.likelihoods import KernelStatistics

LOW, HIGH, LONGEST = 0.9, 1.25, 200
GRID = np.linspace(-5.0, 5.0, 1001)


class Case(NamedTuple):
    """A model of `x` with latents of one number or vector, `draw(rng) -> (x, means, standard deviations)`, and settings
    of the engine."""

    model: Callable[..., Any]
    draw: Callable[..., Any]
    settings: Any = None


def on_grid(axes, log_p):
    """Moments of each coordinate, `(D,)`, from log densities on the grid of these axes."""
    grid, p = np.meshgrid(*axes, indexing="ij"), normalised(np.asarray(log_p, np.float64))
    return np.transpose([moments(p, values) for values in grid])


def of_problem(problem, exact=None):
    """A case of `helpers/problems.py`; without an exact posterior one by sums over six prior standard deviations."""

    def draw(rng):
        x = problem.draw(jax.random.key(rng.integers(2**31)), 1)[1][0]
        if exact:
            return x, *exact(x)
        axes = [np.linspace(-6.0 * sd, 6.0 * sd, 601) for sd in np.sqrt(np.asarray(problem.prior.variance))]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        log_p = jax.vmap(lambda t: problem.prior.log_prob(t) + problem.log_density(t, x))(points.reshape(-1, len(axes)))
        return x, *on_grid(axes, np.asarray(log_p).reshape(points.shape[:-1]))

    return Case(problem.model, draw)


def normal_draw(rng_key, mean, log_sd=0.0):
    return mean + jnp.exp(log_sd) * jax.random.normal(rng_key)


def along_a_plate(x=None):
    mean, log_sd = numpyro.sample("mean", dist.Normal(0.0, 1.0)), numpyro.sample("log_sd", dist.Normal(0.0, 0.5))
    with numpyro.plate("draws", 20):
        numpyro.sample("x", kme.Simulator(normal_draw, mean, log_sd), obs=x)


def plate_data(rng):
    x = rng.normal() + np.exp(0.5 * rng.normal()) * rng.normal(size=20)
    mean, log_sd = GRID[:, None], np.linspace(-2.5, 2.5, 801)[None]
    squares = np.sum((x - x.mean()) ** 2) + len(x) * (x.mean() - mean) ** 2
    log_p = -0.5 * mean**2 - 2.0 * log_sd**2 - len(x) * log_sd - 0.5 * squares * np.exp(-2.0 * log_sd)
    return x, *on_grid((GRID, log_sd[0]), log_p)


def censored(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("draws", 20):
        numpyro.sample("x", kme.Simulator(normal_draw, mean).within(high=0.0), obs=x)


def censored_data(rng):
    x = rng.normal() + rng.normal(size=20)
    log_p = stats.norm.logpdf(x[x >= 0.0], GRID[:, None]).sum(axis=1) - 0.5 * GRID**2
    return np.where(x < 0.0, np.nan, x), *on_grid((GRID,), log_p + np.sum(x < 0.0) * stats.norm.logcdf(-GRID))


def missing_data(rng):
    """Seven of ten normal statistics of variance 0.1 around parameters of prior variance 0.1."""
    x = np.sqrt(0.1) * (rng.normal(size=10) + rng.normal(size=10))
    x[rng.permutation(10)[:3]] = np.nan
    seen = ~np.isnan(x)
    return x, np.where(seen, 0.5 * x, 0.0), np.sqrt(np.where(seen, 0.05, 0.1))


def trials(rng, mean):
    return rng.normal(mean, 1.0, size=rng.integers(20, LONGEST + 1))


def of_any_length(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(trials, mean, shape=LONGEST, dtype=float, ragged=True), obs=x)


def trials_data(rng):
    x = trials(rng, rng.normal())
    return x, np.array([x.sum() / (len(x) + 1.0)]), np.array([(len(x) + 1.0) ** -0.5])


NARROW = of_law(normals(1), lambda t: dist.Normal(t, 0.5).to_event(1))
CONJUGATE = lambda x: (0.8 * x, np.full(len(x), np.sqrt(0.2)))  # noqa: E731 (prior variance 1, noise variance 1/4)
CASES = {
    "six Cauchy draws, location": of_problem(PROBLEMS["six Cauchy draws"]),
    "six draws of a mixture, weights": of_problem(PROBLEMS["mixture weights"]),
    "one normal location": of_problem(NARROW, CONJUGATE),
    "twenty normal locations": of_problem(PROBLEMS["twenty dimensions"], CONJUGATE),
    "20 draws along a plate": Case(along_a_plate, plate_data),
    "20 draws, those below 0 censored": Case(censored, censored_data),
    "3 of 10 statistics missing": Case(TASKS["gaussian_linear"], missing_data),
    "20 to 200 trials": Case(of_any_length, trials_data, {"form": KernelStatistics(EmpiricalMeasureRule())}),
}


def measured(case, simulations, key):
    """Errors of means, ratios of standard deviations, and warnings of one run."""
    model, draw, settings = CASES[case]
    x, mean, sd = draw(np.random.default_rng(key))
    engine = kme.KELFI(model, simulations, progress_bar=False, **settings or {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run(jax.random.key(key), x=np.asarray(x, np.float32))
    told = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    samples = engine.get_samples()
    draws = np.concatenate([samples[n].reshape(len(samples[n]), -1) for n in engine.posterior.latents], axis=1)
    return {"error": (draws.mean(axis=0) - mean) / sd, "ratio": draws.std(axis=0) / sd, "told": told}


def main(rows, cases=tuple(CASES), simulations=(300, 1000), keys=10):
    rows.fill(measured, case=cases, simulations=simulations, key=range(keys))
    lines = []
    for case in cases:
        for size in simulations:
            key = dict(case=case, simulations=size)
            error, ratio = (rows.column(name, **key) for name in ("error", "ratio"))
            told = np.array([bool(row["told"]) for row in rows.of(**key)])
            outside = (ratio < LOW) | (ratio > HIGH)
            range_of = f"{np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f})"
            rms, largest = float(np.sqrt(np.mean(error**2))), float(np.abs(error).max())
            parts = [f"{outside.mean():.0%}", f"{(outside & ~told[:, None]).mean():.0%}", f"{told.mean():.0%}"]
            lines.append([case, size, rms, largest, range_of, *parts])
    header = ["data", "simulations", "rms error of the mean, sd", "largest", "sd over the exact one, median (range)"]
    header += [f"outside {LOW} to {HIGH}", "and no warning", "runs with a warning"]
    return "Posteriors that are known", [(f"{keys} data sets each", report.table(header, lines))]
