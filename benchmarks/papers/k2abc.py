"""K2-ABC on the experiments of its paper (Park, Jitkrittum & Sejdinovic, 2016): a mixture of uniforms, and Nicholson's
blowflies.

    python -m benchmarks k2abc --series path/to/blowfly.csv   # both
    python -m benchmarks k2abc --parts toy --rows rows.jsonl

The toy: 400 draws from sum_i theta_i U(i - 1, i), i = 1..5, theta ~ Dirichlet(1, .., 1), at theta = (0.25, 0.04, 0.33,
0.04, 0.34); its exact posterior is Dirichlet(1 + counts). Cross-validation looks at one draw of each data set; the
learnt length scale is that of the observed data. The blowflies: 180 counts, whose order is thrown away, no statistics;
the score is that of `blowfly.py`. The series (a CSV with a column `count`) is not part of this project. Takes a quarter
of an hour for four repeats.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import nmse, report
from benchmarks.helpers.problems import Problem
from numpyro_kme.simulators import blowfly

TRUTH, DATA = np.array([0.25, 0.04, 0.33, 0.04, 0.34]), 400
PRIORS = {
    "KELFI": dist.Normal(blowfly.PRIOR_MEAN, blowfly.PRIOR_SD).to_event(1),
    "K2-ABC": dist.Normal(
        np.array([2.0, -1.0, 5.0, -0.5, -0.5, 2.0]), np.array([2.0, 0.4, 0.5, 1.0, 1.0, 1.0])
    ).to_event(1),
}
RULES = {
    "median": lambda key: kme.MedianHeuristic(),
    "cross-validated": kme.CrossValidation,
    "learnt": kme.BayesianKernelLearning,
}
TOY = ("scale", "used", "size", "to_exact", "to_truth", "exact_to_truth", "width")


def mixture(rng_key, theta):
    """`DATA` draws."""
    which, where = jax.random.split(rng_key)
    pieces = jax.random.categorical(which, jnp.log(theta), shape=(DATA,))
    return pieces + jax.random.uniform(where, (DATA,))


toy_model = Problem(dist.Dirichlet(jnp.ones(5)), mixture).model


def toy(seed, simulations, rule):
    """Distances of the posterior mean to the exact one and to the truth, and the width."""
    rng = np.random.default_rng([seed, 61])
    x = rng.choice(5, size=DATA, p=TRUTH) + rng.uniform(size=DATA)
    exact = (1.0 + np.bincount(x.astype(int), minlength=5)) / (5.0 + DATA)
    key = jax.random.fold_in(jax.random.key(61), seed)
    made = kme.simulate(key, kme.Problem.read(toy_model, x=x), simulations, progress_bar=False)
    by, draws = RULES[rule](key), (np.asarray(made.x["x"])[:, :1], np.asarray(made.latents["theta"]))
    scale = float(by(*draws) if by.needs_targets else by(x[:, None]))
    engine = kme.K2ABC(toy_model, simulations=made, estimator=kme.embeddings.Quadratic(kme.kernels.Gaussian(scale)))
    engine.run(key, x=x)
    weighted = engine.posterior.get_weights()
    mean = weighted["weight"] @ weighted["theta"]
    sd = np.sqrt(weighted["weight"] @ np.sum((weighted["theta"] - mean) ** 2, axis=1))
    sizes = engine.info["epsilon"], engine.info["effective sample size"]
    apart = (np.linalg.norm(a - b) for a, b in ((mean, exact), (mean, TRUTH), (exact, TRUTH)))
    width = sd / np.sqrt(np.sum(exact * (1 - exact)) / (6.0 + DATA))
    return dict(zip(TOY, (scale, *sizes, *apart, width)))


def scored(rng_key, point, seconds):
    simulated = nmse.simulate(rng_key, np.tile(point, (nmse.RUNS, 1)))
    ratios = nmse.squared_errors(simulated) / nmse.stored_denominators()
    distance = np.mean(np.linalg.norm(simulated - blowfly.OBSERVED, axis=1))
    return {"ratios": ratios, "nmse": np.mean(ratios), "distance": distance, "seconds": seconds}


def flies(series, seed, prior, simulations, engine):
    """The score of K2-ABC without statistics."""
    x, model = nmse.series(series), Problem(PRIORS[prior], nmse.in_thousands).model
    keys = jax.random.split(jax.random.fold_in(jax.random.key(62), seed), 3)
    made = kme.simulate(keys[0], kme.Problem.read(model, x=x), simulations, progress_bar=False)
    found = kme.K2ABC(model, simulations=made)
    _, _, seconds = report.timed(found.run, keys[1], x=x)
    point = found.posterior.expectation(lambda latents: latents["theta"])
    return scored(keys[2], point, seconds)


def by_kelfi(seed, prior, simulations, engine):
    """The posterior mean of `KELFI` from the ten statistics."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(63), seed), 2)
    kelfi = kme.KELFI(blowfly.model, simulations, progress_bar=False)
    _, _, seconds = report.timed(kelfi.run, keys[0], x=blowfly.OBSERVED)
    return scored(keys[1], np.mean(blowfly.vector(kelfi.get_samples()), axis=0), seconds)


def main(rows, parts=("toy", "blowfly"), repeats=10, series=None, simulations=(1000, 10_000)):
    seeds, sections = range(repeats), []
    if "toy" in parts:
        rows.fill(toy, seed=seeds, simulations=[max(simulations)], rule=RULES)
        mean = lambda name, rule: rows.column(name, simulations=max(simulations), rule=rule).mean()  # noqa: E731
        lines = [[max(simulations), rule, repeats, *(mean(name, rule) for name in TOY)] for rule in RULES]
        header = ["simulations", "length scale", "runs", "length scale used", "epsilon", "effective size"]
        header += ["mean to exact mean", "mean to truth", "exact mean to truth", "sd / exact"]
        sections.append(("Mixture of uniforms", report.table(header, lines)))
    if "blowfly" in parts:
        rows.fill(by_kelfi, seed=seeds, prior=["KELFI"], simulations=[1000], engine=["KELFI"])
        rows.fill(partial(flies, series), seed=seeds, prior=PRIORS, simulations=simulations, engine=["K2-ABC"])
        lines = []
        for group in sorted({(r["prior"], r["simulations"], r["engine"]) for r in rows if "prior" in r}):
            runs = rows.of(**dict(zip(("prior", "simulations", "engine"), group)))
            scores = 100 * np.array([run["nmse"] for run in runs])
            rest = [np.mean([run[name] for run in runs]) for name in ("distance", "seconds")]
            each = 100 * np.mean([run["ratios"] for run in runs], axis=0)
            lines.append([*group, len(runs), scores.mean(), np.median(scores), scores.max(), *rest, *each])
        header = ["prior of", "simulations", "engine", "runs", "NMSE, %", "median", "largest"]
        header += ["distance of statistics", "CPU seconds", *(f"s{i + 1}, % of the prior's" for i in range(10))]
        sections.append(("Blowflies as 180 values without order", report.table(header, lines)))
    return "K2-ABC", sections, rows
