"""K2-ABC on the experiments of its paper (Park, Jitkrittum & Sejdinovic, 2016): a mixture of uniforms, and Nicholson's
blowflies.

    python -m benchmarks k2abc --series path/to/blowfly.csv --rows rows.jsonl  # both
    python -m benchmarks k2abc toy --rows rows.jsonl
    python -m benchmarks k2abc table --rows rows.jsonl  # the table alone

The toy: 400 draws from sum_i theta_i U(i - 1, i), i = 1..5, theta ~ Dirichlet(1, .., 1), at theta = (0.25, 0.04, 0.33,
0.04, 0.34); its exact posterior is Dirichlet(1 + counts). Cross-validation looks at one draw of each data set; the
learnt length scale is that of the observed data. The blowflies: 180 counts, whose order is thrown away, no statistics;
the score is that of `blowfly.py`. The series (a CSV with a column `count`) is not part of this project. Takes a quarter
of an hour for four repeats.
"""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import nmse, report
from numpyro_kme.simulators import blowfly

TRUTH, DATA = np.array([0.25, 0.04, 0.33, 0.04, 0.34]), 400
PRIORS = {
    "KELFI": (blowfly.PRIOR_MEAN, blowfly.PRIOR_SD),
    "K2-ABC": (np.array([2.0, -1.0, 5.0, -0.5, -0.5, 2.0]), np.array([2.0, 0.4, 0.5, 1.0, 1.0, 1.0])),
}


def mixture(rng_key, theta):
    """`DATA` draws."""
    which, where = jax.random.split(rng_key)
    pieces = jax.random.categorical(which, jnp.log(theta), shape=(DATA,))
    return pieces + jax.random.uniform(where, (DATA,))


def toy_model(x=None):
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(5)))
    numpyro.sample("x", kme.Simulator(mixture, theta), obs=x)


ESTIMATORS = {
    "quadratic": lambda key, kernel: kme.embeddings.Quadratic(kernel),
    "linear": lambda key, kernel: kme.embeddings.LinearTime(kernel),
    "Fourier": lambda key, kernel: kme.embeddings.Fourier.draw(key, kernel, 1, 500),
}
EPSILONS = (None, 3e-3, 1e-3)


RULES = {
    "median": lambda key: kme.MedianHeuristic(),
    "cross-validated": kme.CrossValidation,
    "learnt": kme.BayesianKernelLearning,
}


def toy(rows, repeats, simulations):
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 61])
        x = rng.choice(5, size=DATA, p=TRUTH) + rng.uniform(size=DATA)
        exact = (1.0 + np.bincount(x.astype(int), minlength=5)) / (5.0 + DATA)
        deviation = np.sqrt(np.sum(exact * (1 - exact)) / (6.0 + DATA))
        key = jax.random.fold_in(jax.random.key(61), seed)
        simulated = None
        for rule, make_rule in RULES.items():
            for name, make in ESTIMATORS.items():
                if rows.has(part="toy", seed=seed, simulations=simulations, estimator=name, rule=rule):
                    continue
                if simulated is None:
                    simulated = kme.simulate(key, kme.Problem.read(toy_model, x=x), simulations, progress_bar=False)
                    draws = np.asarray(simulated.x["x"])[:, :1], np.asarray(simulated.latents["theta"])
                by = make_rule(key)
                scale = by(*draws) if by.needs_targets else by(x[:, None])
                estimator = make(key, kme.kernels.Gaussian(float(scale)))
                engine = kme.K2ABC(toy_model, simulations=simulated, estimator=estimator)
                for epsilon in EPSILONS:
                    engine.epsilon = epsilon
                    told = dict(part="toy", seed=seed, simulations=simulations, estimator=name, rule=rule, scale=scale)
                    told["epsilon"] = epsilon
                    try:
                        engine.run(key, x=x) if epsilon is None else engine.condition(key, x=x)
                    except RuntimeError as error:
                        rows.add(**told, refused=str(error)[:80])
                        continue
                    theta = engine.posterior.get_weights()
                    mean = engine.expectation(lambda latents: latents["theta"])
                    sd = np.sqrt(theta["weight"] @ np.sum((theta["theta"] - mean) ** 2, axis=1))
                    rows.add(
                        **told,
                        used=engine.info["epsilon"],
                        size=engine.info["effective sample size"],
                        to_truth=np.linalg.norm(mean - TRUTH),
                        to_exact=np.linalg.norm(mean - exact),
                        exact_to_truth=np.linalg.norm(exact - TRUTH),
                        width=sd / deviation,
                    )


def series_model(mean, sd):
    def model(x=None):
        log_theta = numpyro.sample("log_theta", dist.Normal(mean, sd).to_event(1))
        numpyro.sample("x", kme.Simulator(lambda key, theta: blowfly.blowfly(key, theta) / 1000.0, log_theta), obs=x)

    return model


def scored(rng_key, point, denominators):
    """What rows say of a point `(6,)`."""
    simulated = nmse.simulate(rng_key, np.tile(point, (nmse.RUNS, 1)))
    ratios = nmse.squared_errors(simulated) / denominators
    distance = np.mean(np.linalg.norm(simulated - blowfly.OBSERVED, axis=1))
    return {"point": point, "ratios": ratios, "nmse": np.mean(ratios), "distance": distance}


def flies_by_kelfi(rows, repeats, count, denominators):
    """The posterior mean of `KELFI` from the ten statistics."""
    for seed in range(repeats):
        if not rows.has(part="blowfly", seed=seed, width="KELFI", simulations=count):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(63), seed), 2)
            begun = time.process_time()
            kelfi = kme.KELFI(blowfly.model, num_simulations=count, progress_bar=False)
            kelfi.run(keys[0], x=blowfly.OBSERVED)
            told = dict(part="blowfly", seed=seed, prior="KELFI", simulations=count, width="KELFI")
            seconds = time.process_time() - begun
            point = np.mean(kelfi.get_samples()["log_theta"], axis=0)
            rows.add(**told, **scored(keys[1], point, denominators), seconds=seconds)


def flies(rows, repeats, series, counts):
    x, denominators = nmse.series(series), nmse.stored_denominators()
    flies_by_kelfi(rows, repeats, 1000, denominators)
    for seed in range(repeats):
        for prior, (mean, sd) in PRIORS.items():
            model = series_model(mean, sd)
            keys = jax.random.split(jax.random.fold_in(jax.random.key(62), seed), 3)
            for count in counts:
                if rows.has(part="blowfly", seed=seed, prior=prior, simulations=count):
                    continue
                begun = time.process_time()
                simulated = kme.simulate(keys[0], kme.Problem.read(model, x=x), count, progress_bar=False)
                engine = kme.K2ABC(model, simulations=simulated)
                engine.run(keys[1], x=x)
                seconds = time.process_time() - begun
                points = {"default": engine.expectation(lambda latents: latents["log_theta"])}
                engine.epsilon = engine.info["epsilon"]
                for _ in range(8):
                    engine.epsilon = engine.epsilon / 2
                    try:
                        engine.condition(keys[1], x=x)
                    except RuntimeError:
                        break
                    points["narrowest"] = engine.expectation(lambda latents: latents["log_theta"])
                for name, point in points.items():
                    told = dict(part="blowfly", seed=seed, prior=prior, simulations=count, width=name)
                    rows.add(**told, **scored(keys[2], point, denominators), seconds=seconds)


def write(rows):
    lines = []
    sizes = sorted({r["simulations"] for r in rows if r["part"] == "toy"})
    for size, rule, name, epsilon in itertools.product(sizes, RULES, ESTIMATORS, EPSILONS):
        key = dict(part="toy", simulations=size, estimator=name, epsilon=epsilon, rule=rule)
        chosen = rows.of(**key)
        found = [r for r in chosen if "refused" not in r]
        mean = lambda key, found=found: np.mean([r[key] for r in found]) if found else float("nan")  # noqa: E731
        if chosen:
            keys = ("scale", "used", "size", "to_exact", "to_truth", "exact_to_truth", "width")
            label = "default" if epsilon is None else epsilon
            lines.append([size, rule, name, label, len(found), len(chosen) - len(found), *map(mean, keys)])
    header = ["simulations", "length scale", "estimator", "epsilon", "runs", "refused"]
    header += ["length scale used", "epsilon used", "effective size"]
    header += ["mean to exact mean", "mean to truth", "exact mean to truth", "sd / exact"]
    sections = [("Mixture of uniforms", report.table(header, lines))]
    lines, each = [], []
    groups = sorted({(r["prior"], r["simulations"], r["width"]) for r in rows if r["part"] == "blowfly"})
    for group in groups:
        found = [r for r in rows if r["part"] == "blowfly" and (r["prior"], r["simulations"], r["width"]) == group]
        scores = 100 * np.array([r["nmse"] for r in found])
        rest = [np.mean([r[name] for r in found]) for name in ("distance", "seconds")]
        lines.append([*group, len(found), scores.mean(), np.median(scores), scores.max(), *rest])
        each.append([*group, *(100 * np.mean([r["ratios"] for r in found], axis=0))])
    by = ["prior of", "simulations", "epsilon of K2-ABC, or KELFI"]
    header = [*by, "runs", "NMSE, %", "median", "largest", "distance of statistics", "CPU seconds"]
    sections.append(("Blowflies as 180 values without order", report.table(header, lines)))
    statistics = [f"s{i + 1}" for i in range(10)]
    sections.append(("Error in each statistic, % of the prior's", report.table([*by, *statistics], each)))
    report.save("k2abc", "K2-ABC", sections, {"rows": rows.rows})


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("part", nargs="?", choices=("both", "toy", "blowfly", "table"), default="both")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--series", help="CSV with a column `count`, for blowfly")
    parser.add_argument("--simulations", type=int, nargs="+", default=[1000, 10_000])
    options = parser.parse_args()
    if options.part in ("toy", "both"):
        toy(options.rows, options.repeats, max(options.simulations))
    if options.part in ("blowfly", "both"):
        flies(options.rows, options.repeats, options.series, options.simulations)
    write(options.rows)
