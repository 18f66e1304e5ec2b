"""Learnt statistics beside hand-made ones and a network: errors of posterior means; slcp with and without distractors.

    python -m benchmarks learnt_statistics --metrics path/to/posterior_metrics.py [--neural] [--seeds 2]

Four problems with raw outputs (`helpers/raw_problems.py`), coordinates of the parameters standard normal a priori: for
each seed 1,000 simulations, one round, and fifty data sets of parameters from the prior. The error is the root of the
mean square of posterior mean less truth, over coordinates and data sets, so that most of it is the posterior standard
deviation, which no method falls below. With `--neural`, neural posterior estimation by `sbi` on the same simulations:
a convolutional embedding network and a masked autoregressive flow with its defaults; of counts it gets the logarithms.
Ninety-two distractors beside the eight numbers of slcp, a mixture of twenty t-distributions with two degrees of freedom
as in `sbibm`: C2ST against exact draws, five observations for each seed. Takes half an hour.
"""

import itertools
import json
import subprocess
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.raw_problems import PROBLEMS
from benchmarks.kelfi.slcp import exact_posterior
from numpyro_kme.simulators import slcp

SIZE, DATA_SETS, DRAWS, FIRST_SEED = 1000, 50, 500, 500
HAND_MADE, LEARNT, NETWORK = "hand-made", "learnt", "embedding network"
DISTRACTORS, COMPONENTS, OBSERVATIONS, COMPARED = 92, 20, 5, 1000
ALONE, SELECTED = "eight numbers", "eight and 92 distractors, SelectedStatistics()"


def errors(name, method, seed):
    """Squared errors of posterior means, `(data sets, dim)`, and CPU seconds of learning."""
    problem = PROBLEMS[name]
    z, x, s = problem.draw(jax.random.key(seed), SIZE)
    truth, y, own = problem.draw(jax.random.fold_in(jax.random.key(seed), 1), DATA_SETS)
    if method == NETWORK:
        means, seconds = by_network(z, *(np.log1p(part) if problem.counts else part for part in (x, y)))
    else:
        made = method == HAND_MADE
        means, seconds = by_kelfi(problem.model(made), z, *((s, own) if made else (x, y)), made)
    squares = np.square(means - truth)
    return {"squares": squares.mean(axis=1), "by coordinate": squares.mean(axis=0), "seconds": seconds}


def by_kelfi(model, z, x, y, made):
    """Posterior means of KELFI, `(data sets, dim)`, and CPU seconds of the first run."""
    statistics = None if made else kme.SemiAutomaticStatistics()
    settings = dict(num_samples=DRAWS, num_rounds=1, progress_bar=False)
    kelfi = kme.KELFI(model, simulations=kme.Simulations.from_table(z, x), statistics=statistics, **settings)
    begun = time.process_time()
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        kelfi.run(jax.random.key(0), x=y[0])
        seconds = time.process_time() - begun
        many = kelfi.condition_many(jax.random.key(1), {"x": y})
    return np.asarray(many.get_samples()["z"]).mean(axis=1), seconds


def by_network(z, x, y):
    """The same of neural posterior estimation with an embedding network."""
    python = report.environment("npe", "torch==2.13.0", "sbi")
    x, y = (np.moveaxis(part, -1, 1) if part.shape[-1] == 2 else part[:, None] for part in (x, y))
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "simulations.npz", theta=z, x=x, y=y)
        command = [python, report.__file__.replace("report", "npe_worker"), Path(folder) / "simulations.npz"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    found = json.loads(done.stdout.splitlines()[-1])
    return np.array(found["mean"]), found["cpu"]


def with_distractors(seed):
    """The simulator of slcp's eight numbers and 92 others, in a random order."""
    rng = np.random.default_rng(seed)
    centres = 15.0 * rng.normal(size=(COMPONENTS, DISTRACTORS))
    scales = 3.0 * np.tril(rng.normal(size=(COMPONENTS, DISTRACTORS, DISTRACTORS)), -1)
    scales += np.exp(rng.normal(size=(COMPONENTS, DISTRACTORS)))[:, :, None] * np.eye(DISTRACTORS)
    order, scales = rng.permutation(slcp.POINTS * 2 + DISTRACTORS), scales.astype(np.float32)

    def simulator(rng_key, theta):
        keys = jax.random.split(rng_key, 4)
        chosen = jax.random.randint(keys[1], (), 0, COMPONENTS)
        tail = jax.numpy.sqrt(2.0 / jax.random.chisquare(keys[2], 2.0))
        noise = jax.numpy.asarray(scales)[chosen] @ jax.random.normal(keys[3], (DISTRACTORS,)) * tail
        others = jax.numpy.asarray(centres, noise.dtype)[chosen] + noise
        return jax.numpy.concatenate([slcp.points(keys[0], theta), others])[order]

    return simulator, np.argsort(order)[: 2 * slcp.POINTS]


def slcp_scores(metrics, name, method, seed):
    """C2ST of each observation, and which numbers were kept."""
    simulator, informative = with_distractors(seed)
    theta, x = (np.asarray(part) for part in drawn(simulator, seed, SIZE))
    _, y = (np.asarray(part) for part in drawn(simulator, seed + 1000, OBSERVATIONS))
    alone = method == ALONE
    given = slice(None) if not alone else informative

    def model(x=None):
        theta = numpyro.sample("theta", slcp.prior())
        made = kme.Simulator(lambda rng_key, theta: simulator(rng_key, theta)[given], theta)
        numpyro.sample("x", made, obs=x)

    kelfi = kme.KELFI(
        model,
        simulations=kme.Simulations.from_table(theta, x[:, given]),
        statistics=None if alone else kme.SelectedStatistics(),
        num_rounds=1,
        num_samples=COMPARED,
        progress_bar=False,
    )
    scores, sizes, costs = [], [], []
    for i, row in enumerate(y):
        begun, infer = time.process_time(), kelfi.run if i == 0 else kelfi.condition
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            infer(jax.random.key(i), x=row[given])
        costs.append(time.process_time() - begun)
        exact, size = exact_posterior(np.random.default_rng([seed, i]), row[informative].reshape(-1, 2))
        scores.append(float(metrics.c2st(exact, np.asarray(kelfi.get_samples()["theta"]), n=COMPARED, seed=1)))
        sizes.append(float(size))
    kept = range(8) if alone else kelfi.likelihoods["x"].surrogate.statistics.kept
    informative = range(8) if alone else informative.tolist()
    found = {"informative": len(set(kept) & set(informative)), "distractors": len(set(kept) - set(informative))}
    return {"C2ST": scores, "effective": sizes, "seconds": costs[0]} | found


def drawn(simulator, seed, number):
    """Parameters from the prior, and an output of each."""
    prior_key, key = jax.random.split(jax.random.key(seed))
    theta = dist.Uniform(-3.0, 3.0).expand([5]).sample(prior_key, (number,))
    return theta, jax.jit(jax.vmap(simulator))(jax.random.split(key, number), theta)


def error_rows(rows):
    """For each problem and method the error, and its ratio to that of hand-made statistics with a standard error."""
    lines = []
    for name, method in itertools.product(PROBLEMS, (HAND_MADE, LEARNT, NETWORK)):
        found = rows.values("found", problem=name, method=method)
        if found:
            own = np.concatenate([one["squares"] for one in found])
            other = rows.values("found", problem=name, method=HAND_MADE)[: len(found)]
            base = np.concatenate([one["squares"] for one in other])
            some = np.random.default_rng(0).integers(len(own), size=(1000, len(own)))
            ratios = np.sqrt(own[some].mean(axis=1) / base[some].mean(axis=1))
            ratio = "1" if method == HAND_MADE else f"{np.sqrt(own.mean() / base.mean()):.2f} +- {ratios.std():.2f}"
            parts = np.sqrt(np.mean([one["by coordinate"] for one in found], axis=0))
            each = " ".join(f"{part:.2f}" for part in parts)
            seconds = float(np.mean([one["seconds"] for one in found]))
            lines.append([name, method, len(found), len(own), float(np.sqrt(own.mean())), ratio, each, seconds])
    header = ["problem", "statistics", "seeds", "data sets", "error", "over hand-made", "by coordinate", "CPU seconds"]
    return report.table(header, lines)


def slcp_rows(rows):
    """Means of C2ST over observations and seeds."""
    lines = []
    for method in (ALONE, SELECTED):
        found = rows.values("found", problem="slcp", method=method)
        if found:
            scores = np.concatenate([one["C2ST"] for one in found])
            kept = [f"{one['informative']} and {one['distractors']}" for one in found]
            cost = float(np.mean([one["seconds"] for one in found]))
            lines.append([method, len(found), len(scores), float(scores.mean()), ", ".join(kept), cost])
    header = ["statistics", "seeds", "observations", "C2ST", "kept of the eight, and of the others", "CPU seconds"]
    return report.table(header, lines)


def write(rows):
    sections = [("Errors of posterior means", error_rows(rows))]
    sections += [("slcp and distractors", slcp_rows(rows))] * rows.has(problem="slcp")
    return report.write("learnt_statistics", "Learnt statistics", sections)


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--metrics", required=True)
    parser.add_argument("--neural", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    metrics, text = report.imported(options.metrics), ""
    runs = [(name, method, errors) for name, method in itertools.product(PROBLEMS, (HAND_MADE, LEARNT))]
    runs += [("slcp", method, partial(slcp_scores, metrics)) for method in (ALONE, SELECTED)]
    runs += [(name, NETWORK, errors) for name in PROBLEMS if options.neural]
    for seed, (name, method, measure) in itertools.product(range(FIRST_SEED, FIRST_SEED + options.seeds), runs):
        options.rows.get(partial(measure, name, method, seed), problem=name, method=method, seed=seed)
        text = write(options.rows)
        jax.clear_caches()  # compiled programs of many shapes would use up the memory maps of a process
    print(text)
