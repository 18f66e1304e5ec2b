"""What a GPU does for KELFI: whole runs, dense steps of learning, and what runs on JAX's device after it.

    python -m benchmarks devices [--platforms cpu cuda] [--sizes 10000 100000] [--problems NAME ...] [--rows FILE]

Every cell is a process of its own with `JAX_PLATFORMS` set, in 32 bits as NumPyro's sessions are. A run is
`KELFI(model, num_rounds=1)` for 1,000 draws, of 10,000 simulations a second time with another key and data; "off" is
how far the means of its posterior are from those of the first platform with the same key, in standard deviations. A
step is one of the thousands that learning takes: held-out predictions of a ridge regression of `m` simulations and `r`
inducing points, and the gradient of their log density by all hyperparameters; by NumPy, as the package does it, and by
JAX with the same formulas, automatic differentiation and all inputs on the device; beside it, how far its gradient is
from that of NumPy, as a part of it. Rounding is of what users evaluate in 32 bits, beside 64 on the same device. Takes
ten minutes.
"""

import argparse
import itertools
import json
import os
import resource
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import log_density

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.posteriors import four_chains
from benchmarks.helpers.problems import PROBLEMS
from numpyro_kme.embeddings.mmd import squared_mmd
from numpyro_kme.likelihoods.residual.smoothness import INTERCEPT, JITTER, RIDGE, Inputs, Smoothness, features

STEPS = (300, 100), (2000, 240), (6000, 240), (100_000, 256)
LARGE = 100_000
COLUMNS = "first, s", "first, CPU s", "second, s", "second, CPU s", "host, GB", "device, GB"
MMD_POINTS = 20_000


def timed(function):
    """A result, and seconds of the clock and of the CPU until it is there."""
    begun = np.array([time.perf_counter(), time.process_time()])
    found = jax.block_until_ready(function())
    return found, *(np.array([time.perf_counter(), time.process_time()]) - begun).tolist()


def run(name, size):
    """Two whole runs: seconds, memory, means and standard deviations of the first posterior."""
    problem, found = PROBLEMS[name], {}
    for i, which in enumerate(("first", "second") if int(size) < LARGE else ("first",)):
        x = np.asarray(problem.draw(jax.random.key(7 + i), 1)[1][0])
        kelfi = kme.KELFI(problem.model, int(size), num_rounds=1, progress_bar=False)
        _, *seconds = timed(lambda kelfi=kelfi, x=x, i=i: kelfi.run(jax.random.key(i), x=x))
        found[f"{which}, s"], found[f"{which}, CPU s"] = seconds
        if i == 0:
            draws = np.asarray(kelfi.get_samples()["theta"], np.float64)
            found |= {"means": draws.mean(axis=0).tolist(), "sds": draws.std(axis=0).tolist()}
    memory = jax.devices()[0].memory_stats() or {}
    found["host, GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return found | {"device, GB": memory.get("peak_bytes_in_use", 0) / 1e9}


def held_out_loss(hyper, features, z, points, noise, target):
    """Minus the log density of held-out residuals, by the formulas of `smoothness` and `ridge`."""
    linear, rbf, length, log_noise = hyper
    gram = lambda a, b: jnp.exp(-0.5 * ((a[:, None] - b) ** 2 * jnp.exp(-2.0 * length)).sum(axis=-1))  # noqa: E731
    half = jnp.linalg.cholesky(gram(points, points) + RIDGE * jnp.eye(len(points), dtype=z.dtype))
    near = jax.scipy.linalg.solve_triangular(half, gram(z, points).T, lower=True).T
    columns = [jnp.full((len(z), 1), INTERCEPT, z.dtype), features * jnp.exp(linear), jnp.exp(rbf) * near]
    variance = (jnp.exp(2.0 * log_noise) + JITTER) * noise
    scaled = jnp.concatenate(columns, axis=1) / jnp.sqrt(variance)[:, None]
    factor = jnp.linalg.cholesky(jnp.eye(scaled.shape[1], dtype=z.dtype) + scaled.T @ scaled)
    beside = jax.scipy.linalg.solve_triangular(factor, scaled.T, lower=True).T
    inverse = (1.0 - jnp.sum(beside**2, axis=1)) / variance
    weighted = target / jnp.sqrt(variance)
    residual = (weighted - beside @ (beside.T @ weighted)) / jnp.sqrt(variance) / inverse
    return 0.5 * jnp.sum(residual**2 * inverse - jnp.log(inverse))


def by_numpy(hyper, at, noise, target):
    """The same loss and its gradient by the package's own adjoints."""
    fit = hyper.regress(at, noise, target)
    residual, variance = fit.held_out.residual, fit.held_out.variance
    loss = 0.5 * np.sum(residual**2 / variance + np.log(variance))
    slope, _ = fit.gradient(residual / variance, 0.5 * (1.0 / variance - residual**2 / variance**2))
    return loss, np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(slope)])


def step(size, inducing):
    """Seconds of one step by NumPy and by JAX on this platform, and the error of its gradient, as a part of it."""
    rng, size, dim = np.random.default_rng(0), int(size), 5
    z = rng.normal(size=(size, dim))
    at = Inputs(z, z[: int(inducing)])
    target = np.sin(z @ np.ones(dim)) + 0.3 * rng.normal(size=size)
    hyper, noise = Smoothness.start(dim, noise=0.5), np.ones(size)
    least = lambda function: min(timed(function)[1] for _ in range(5))  # noqa: E731
    (_, truth), *_ = timed(lambda: by_numpy(hyper, at, noise, target))
    found = {"NumPy, s": least(lambda: by_numpy(hyper, at, noise, target))}
    for bits, dtype in ((64, jnp.float64), (32, jnp.float32)):
        with jax.enable_x64(bits == 64):
            arrays = jax.tree.map(lambda leaf, dtype=dtype: jnp.asarray(leaf, dtype), jax.tree.leaves(hyper))
            rest = [jnp.asarray(a, dtype) for a in (features(z), z, at.inducing_points, noise, target)]
            taken = jax.jit(jax.value_and_grad(held_out_loss))
            (_, slopes), first, _ = timed(lambda taken=taken, arrays=arrays, rest=rest: taken(arrays, *rest))
            slopes = np.concatenate([np.ravel(leaf) for leaf in slopes])
            found[f"JAX in {bits} bits, s"] = least(lambda t=taken, arrays=arrays, rest=rest: t(arrays, *rest))
            found[f"compiling {bits}, s"] = first
            found[f"gradient off, {bits}"] = float(np.linalg.norm(slopes - truth) / np.linalg.norm(truth))
    return found


def normal(x=None):
    """400 values of a normal distribution."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("n", 400):
        numpyro.sample("x", kme.Simulator(lambda key, u: u[0] + jnp.exp(u[1]) * jax.random.normal(key), theta), obs=x)


def sampling():
    """Seconds of second calls: NUTS on a learnt likelihood, the bootstrap, a squared MMD."""
    problem = PROBLEMS["twenty dimensions"]
    kelfi = kme.KELFI(problem.model, 1000, num_rounds=1, progress_bar=False)
    data = [np.asarray(problem.draw(jax.random.key(i), 1)[1][0], np.float32) for i in range(2)]
    kelfi.run(jax.random.key(0), x=data[0])
    learnt = kme.handlers.surrogate(problem.model, {"x": kelfi.likelihoods["x"]})

    @jax.jit  # vectorised chains run a second time only so
    def chains(key, x):
        mcmc = four_chains(learnt, 500, 500)
        mcmc.run(key, x=x)
        return mcmc.get_samples()

    boot = kme.PosteriorBootstrap(normal, num_samples=100, progress_bar=False)
    x = np.random.default_rng(0).normal(size=(2, 400)).astype(np.float32)
    points = [jax.random.normal(jax.random.key(i), (MMD_POINTS, 10)) for i in range(2)]
    calls = {
        "NUTS, 4 chains of 1,000 steps": lambda i: chains(jax.random.key(i), data[i]),
        "bootstrap, 100 replicates": lambda i: boot.run(jax.random.key(i), x=x[i]),
        f"squared MMD, {MMD_POINTS:,} points": lambda i: squared_mmd(kme.kernels.Gaussian(3.0), *points),
    }
    return {name: [timed(lambda c=call, i=i: c(i))[1] for i in range(2)][1] for name, call in calls.items()}


def rounding():
    """Largest errors of 32 bits beside 64 on the same device: Gram matrices, a squared MMD, learnt log densities."""
    points = 3.0 + np.random.default_rng(0).normal(size=(2, 2000, 10))

    def found(learnt, draws, x):
        z = jnp.asarray(points)
        values = {name: getattr(kme.kernels, name)(2.0).gram(*z) for name in ("Gaussian", "Matern52", "Laplace")}
        values["squared MMD"] = squared_mmd(kme.kernels.Gaussian(2.0), *z)
        log_p = jax.jit(jax.vmap(lambda theta: log_density(learnt, (), {"x": x}, {"theta": theta})[0]))
        values["learnt log density"] = log_p(draws)
        return jax.tree.map(lambda a: np.asarray(a, np.float64), values)

    errors = {}
    for name in ("crescents", "twenty dimensions"):
        problem = PROBLEMS[name]
        x = np.asarray(problem.draw(jax.random.key(7), 1)[1][0])
        kelfi = kme.KELFI(problem.model, 1000, num_rounds=1, progress_bar=False)
        kelfi.run(jax.random.key(0), x=x)
        learnt = kme.handlers.surrogate(problem.model, {"x": kelfi.likelihoods["x"]})
        both = []
        for wide in (True, False):
            with jax.enable_x64(wide):
                both.append(found(learnt, jnp.asarray(np.asarray(kelfi.get_samples()["theta"])), x))
        for what in both[0]:
            what_of = f"{what}, {name}" if what == "learnt log density" else what
            errors[what_of] = float(np.max(np.abs(both[1][what] - both[0][what])))
    return errors


PARTS = {"rounding": rounding, "run": run, "step": step, "sampling": sampling}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--platforms", nargs="+", default=["cpu", "cuda"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=["crescents", "twenty dimensions"])
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options, rows = (found := parser.parse_args()), found.rows
    if options.one:
        warnings.simplefilter("ignore", UserWarning)
        print(json.dumps(PARTS[options.one[0]](*options.one[1:]), default=float))
        return
    cells = [("step", *size) for size in STEPS] + [("rounding",), ("sampling",)]
    cells += [("run", *key) for key in itertools.product(options.problems, options.sizes)]
    for cell, platform in itertools.product(cells, options.platforms):
        if not rows.has(cell=list(cell), platform=platform):
            settings = os.environ | {"JAX_PLATFORMS": "cuda,cpu" if platform == "cuda" else platform}
            rows.add(cell=list(cell), platform=platform, **report.in_a_process("devices", "--one", *cell, env=settings))
    report.save("devices", "What a GPU does for KELFI", sections(rows, options))


def sections(rows, options):
    """Three tables: a column for each platform, or a row."""
    runs, steps = [], []
    for row in rows:
        kind, *what = row["cell"]
        if kind == "run":
            base = rows.of(cell=row["cell"], platform=options.platforms[0])[0]
            off = np.max(np.abs(np.subtract(row["means"], base["means"])) / base["sds"])
            left = {name: row.get(name, "") for name in COLUMNS}
            runs.append(
                {"problem": what[0], "simulations": f"{what[1]:,}", "on": row["platform"], **left, "off, sds": off}
            )
        elif kind == "step":
            left = {name: value for name, value in row.items() if name not in ("cell", "platform")}
            steps.append({"m, r": f"{what[0]:,}, {what[1]}", "on": row["platform"], **left})

    def beside(cell, what):
        last = [rows.of(cell=[cell], platform=platform)[0] for platform in options.platforms]
        names = [name for name in last[0] if name not in ("cell", "platform")]
        return report.table([what, *options.platforms], [[n, *(row[n] for row in last)] for n in names])

    return [
        ("Whole runs, one round", report.table_of(runs)),
        ("One step of learning", report.table_of(steps)),
        ("After learning", beside("sampling", "second call, s")),
        ("Rounding", beside("rounding", "largest error of 32 bits")),
    ]
