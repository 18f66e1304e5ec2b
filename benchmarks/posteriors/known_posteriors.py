"""KELFI by its default call where the posterior is known: errors, the standard errors that it states, and warnings.

    python -m benchmarks known_posteriors [--cases NAME ...] [--simulations 300 1000] [--keys 4] [--references DIR]

Several draws as one vector, with heavy tails or weights that follow the parameter; up to twenty parameters; several
modes; bounds; counts; a posterior much narrower than the prior; draws along a plate; groups; censored draws; entries
that are missing; data sets of any length; learnt statistics; with --references three tasks of others. Each key has a
data set of its own, from the prior. Exact moments are in closed form of normals, else by sums over a grid or tempering.
Errors are of all numbers of the latents, those of standard deviations relative. Takes an hour for four keys; 3,000
simulations take another.
"""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.metrics import moments, normalised
from benchmarks.helpers.problems import PROBLEMS, TASKS, along_a_plate, normal_draw, normals, of_law
from numpyro_kme.kernels import EmpiricalMeasureRule
from numpyro_kme.likelihoods import KernelStatistics
from numpyro_kme.samplers.tempering import temper

LONGEST, GRID = 200, np.linspace(-5.0, 5.0, 1001)
LINE = np.stack([np.ones(30), np.linspace(-1.0, 1.0, 30).astype(np.float32)], axis=1)


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


def drawn(problem, rng):
    """An observation, and moments of 10,000 draws by the exact likelihood, whose prior may have bounds."""
    x = problem.draw(jax.random.key(rng.integers(2**31)), 1)[1][0]
    log_prior, log_likelihood = (
        jax.jit(jax.vmap(f)) for f in (problem.prior.log_prob, lambda t: problem.log_density(t, x))
    )

    def log_densities(u):
        u = np.asarray(u, np.float32)
        prior = np.asarray(log_prior(u))
        return prior, np.where(np.isfinite(prior), np.asarray(log_likelihood(u)), -np.inf)

    start = np.asarray(problem.prior.sample(jax.random.key(0), (40_000,)))
    draws = temper(jax.random.key(1), log_densities, start).particles
    return x, draws.mean(axis=0), draws.std(axis=0)


def summed(problem, rng):
    """An observation, and moments by sums over six prior standard deviations."""
    x = problem.draw(jax.random.key(rng.integers(2**31)), 1)[1][0]
    axes = [np.linspace(-6.0 * sd, 6.0 * sd, 601) for sd in np.sqrt(np.asarray(problem.prior.variance))]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    log_p = jax.vmap(lambda t: problem.prior.log_prob(t) + problem.log_density(t, x))(points.reshape(-1, len(axes)))
    return x, *on_grid(axes, np.asarray(log_p).reshape(points.shape[:-1]))


def regressed(design, variance, prior, rng):
    """An observation of `x = design @ theta + noise`, normal of these variances, and moments in closed form."""
    precision = design.T @ design / variance + np.eye(design.shape[1]) / prior
    theta = np.sqrt(prior) * rng.normal(size=design.shape[1])
    x = design @ theta + np.sqrt(variance) * rng.normal(size=len(design))
    return x, np.linalg.solve(precision, design.T @ x / variance), np.sqrt(np.diagonal(np.linalg.inv(precision)))


PRIORS = {"mean": dist.Normal(0.0, 1.0), "log_sd": dist.Normal(0.0, 0.5)}
PLATE = along_a_plate(lambda key, mean, log_sd: normal_draw(key, mean, jnp.exp(log_sd)), 20, **PRIORS)


def plate_data(rng):
    x = rng.normal() + np.exp(0.5 * rng.normal()) * rng.normal(size=20)
    mean, log_sd = GRID[:, None], np.linspace(-2.5, 2.5, 801)[None]
    squares = np.sum((x - x.mean()) ** 2) + len(x) * (x.mean() - mean) ** 2
    log_p = -0.5 * mean**2 - 2.0 * log_sd**2 - len(x) * log_sd - 0.5 * squares * np.exp(-2.0 * log_sd)
    return x, *on_grid((GRID, log_sd[0]), log_p)


def groups(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", 5):
        own = numpyro.sample("own", dist.Normal(mean, 1.0))
        numpyro.sample("x", kme.Simulator(normal_draw, own, event_dims=0), obs=x)


def groups_data(rng):
    """The latents are affine functions of six normal numbers, the mean and what each group adds."""
    design = np.concatenate([np.ones((5, 1)), np.eye(5)], axis=1)
    x = design @ rng.normal(size=6) + rng.normal(size=5)
    latents, covariance = np.concatenate([np.eye(6)[:1], design]), np.linalg.inv(design.T @ design + np.eye(6))
    return x, latents @ covariance @ design.T @ x, np.sqrt(np.diagonal(latents @ covariance @ latents.T))


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


def uniform_data(rng):
    """Ten normal statistics of variance 0.1 around parameters between -1 and 1."""
    x, sd = rng.uniform(-1.0, 1.0, 10) + np.sqrt(0.1) * rng.normal(size=10), np.sqrt(0.1)
    found = stats.truncnorm((-1.0 - x) / sd, (1.0 - x) / sd, x, sd)
    return x, found.mean(), found.std()


def mixture_data(rng):
    """Two normal statistics with a standard deviation of 1 or 0.1, and parameters between -10 and 10."""
    x = rng.uniform(-10.0, 10.0, 2) + rng.choice([1.0, 0.1]) * rng.normal(size=2)
    axes = [np.linspace(max(-10.0, one - 6.0), min(10.0, one + 6.0), 1201) for one in x]
    squares = (axes[0][:, None] - x[0]) ** 2 + (axes[1][None] - x[1]) ** 2
    return x, *on_grid(axes, np.logaddexp(-0.5 * squares, -50.0 * squares + np.log(100.0)))


def trials(rng, mean):
    return rng.normal(mean, 1.0, size=rng.integers(20, LONGEST + 1))


def of_any_length(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(trials, mean, shape=LONGEST, dtype=float, ragged=True), obs=x)


def trials_data(rng):
    x = trials(rng, rng.normal())
    return x, np.array([x.sum() / (len(x) + 1.0)]), np.array([(len(x) + 1.0) ** -0.5])


def referenced(folder, name, rng):
    """An observation of a task with its reference posterior."""
    with np.load(Path(folder) / f"{name}.npz") as kept:
        row = rng.integers(len(kept["observation"]))
        return kept["observation"][row], kept["ref_mean"][row], kept["ref_std"][row]


def line(rng_key, level, slope):
    return level + slope * jnp.float32(LINE[:, 1]) + 2.0 * jax.random.normal(rng_key, (30,))


def series(x=None):
    level, slope = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("level", "slope"))
    numpyro.sample("x", kme.Simulator(line, level, slope), obs=x)


def normal(design, variance, prior=1.0):
    """A case whose statistics are normal around `design @ theta`."""
    law = lambda t: dist.Normal(jnp.asarray(design, jnp.float32) @ t, np.sqrt(variance)).to_event(1)  # noqa: E731
    model = of_law(normals(design.shape[1], np.sqrt(prior)), law).model
    return Case(model, partial(regressed, design, variance, prior))


HEAVY = of_law(normals(2), lambda t: dist.StudentT(3.0, t[0] + t[1] * np.linspace(-1, 1, 6), 0.5).to_event(1))
ANSWERS = of_law(normals(1, 1.5), lambda t: dist.Binomial(20, logits=t).to_event(1))
SETS = {"form": KernelStatistics(EmpiricalMeasureRule())}
LEARNT = {"statistics": kme.SemiAutomaticStatistics()}
GRIDS = {
    "six Cauchy draws, location": PROBLEMS["six Cauchy draws"],
    "six draws of a mixture, weights": PROBLEMS["mixture weights"],
    **{name: PROBLEMS[name] for name in ("mean and sd", "four modes", "smallest and largest", "counts", "distractors")},
    "Student draws around a line": HEAVY,
    "twenty answers": ANSWERS,
}
CASES = {
    **{name: Case(problem.model, partial(summed, problem)) for name, problem in GRIDS.items()},
    **{name: Case(PROBLEMS[name].model, partial(drawn, PROBLEMS[name])) for name in ("crescents", "slcp")},
    "one normal location": normal(np.eye(1), 0.25),
    "twenty normal locations": normal(np.eye(20), 0.25),
    "posterior of a 200th of the prior's width": normal(np.eye(1), 0.0025, 100.0),
    "regression, five slopes": normal(np.random.default_rng(5).normal(size=(10, 5)), 1.0),
    "ten parameters with bounds": Case(TASKS["gaussian_linear_uniform"], uniform_data),
    "mixture of two normals": Case(TASKS["gaussian_mixture"], mixture_data),
    "20 draws along a plate": Case(PLATE, plate_data),
    "five groups": Case(groups, groups_data),
    "20 draws, those below 0 censored": Case(censored, censored_data),
    "3 of 10 statistics missing": Case(TASKS["gaussian_linear"], missing_data),
    "20 to 200 trials": Case(of_any_length, trials_data, SETS),
    "a series, learnt statistics": Case(series, partial(regressed, LINE, 4.0, 1.0), LEARNT),
}
REFERENCED = ("bernoulli_glm", "sir", "lotka_volterra")


def measured(references, case, simulations, key):
    """Errors of means and of standard deviations, and the stated ones, and warnings of one run."""
    own = Case(TASKS[case], partial(referenced, references, case)) if case in REFERENCED else CASES[case]
    x, mean, sd = own.draw(np.random.default_rng(key))
    engine = kme.KELFI(own.model, simulations, progress_bar=False, **own.settings or {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run(jax.random.key(key), x=np.asarray(x, np.float32))
    told = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    samples, posterior = engine.get_samples(), engine.posterior
    draws = np.concatenate([samples[n].reshape(len(samples[n]), -1) for n in posterior.latents], axis=1)
    stated, found = posterior.errors.of_moments(draws.astype(np.float64)), draws.std(axis=0)
    of_mean, of_sd = (draws.mean(axis=0) - mean) / sd, 1.0 - sd / found
    return {"mean": of_mean, "stated": stated[0] / sd, "sd": of_sd, "stated sd": stated[1], "told": told}


def main(rows, cases=(), simulations=(300, 1000), keys=4, references=None):
    cases = tuple(cases) or (*CASES, *(REFERENCED if references else ()))
    rows.fill(partial(measured, references), case=cases, simulations=simulations, key=range(keys))
    lines = []
    for size in simulations:
        for case in (*cases, "all"):
            key = dict(simulations=size) | ({} if case == "all" else dict(case=case))
            mean, stated, sd, stated_sd = (
                np.concatenate([row[name] for row in rows.of(**key)]) for name in ("mean", "stated", "sd", "stated sd")
            )
            shares = []
            for error, own in ((mean, stated), (sd, stated_sd)):
                inside = np.abs(error) <= 2.0 * own
                ratio = np.median(own / np.maximum(np.abs(error), 1e-9))
                shares += [float(np.sqrt(np.mean(error**2))), f"{inside.mean():.0%}", f"{ratio:.1f}"]
            told = np.mean([bool(row["told"]) for row in rows.of(**key)])
            lines.append([case, size, *shares, f"{told:.0%}"])
    header = ["data", "simulations", "rms error of means, sd", "within twice the stated", "median stated / true"]
    header += ["of sds, relative", "within twice", "stated / true", "runs with a warning"]
    return "Posteriors that are known", [(f"{keys} data sets each", report.table(header, lines))]
