"""Many simulations: memory, time and error of the dense and the low-rank solve, and a whole KELFI run.

    python -m benchmarks many_simulations [--quick]

Two parameters with a standard normal prior, three statistics, given hyperparameters (`beta` 0.5, `eps` 0.3, `m lam`
10). Every row is a process of its own, whose peak memory is the operating system's. Times are of the processor, one
thread; the first observation compiles, the second is what others cost. Errors are of the posterior mean against the
dense solve of the same simulations, in posterior standard deviations. The last row learns its hyperparameters and draws
1,000 times, by the default form. Takes about five minutes.
"""

import argparse
import json
import resource
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.likelihoods.published.hyperparameters import Hyperparameters

Y = np.array([0.6, 0.3, 0.2])
CASES = [("dense", 10_000), ("low rank", 10_000), ("dense", 20_000), ("low rank", 20_000), ("low rank", 100_000)]
SOLVES = {"dense": kme.likelihoods.DenseSolve(), "low rank": kme.likelihoods.LowRankSolve()}


def draw(rng_key, z):
    """Three noisy statistics of two parameters."""
    means = jnp.stack([z[0] + z[1] ** 2 / 2, z[1] - z[0] / 2, z[0] * z[1]])
    return means + 0.4 * jax.random.normal(rng_key, (3,), means.dtype)


def model(x=None):
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(draw, z), obs=x)


def case(name, number):
    """One row: a fit with given hyperparameters, and two observations."""
    simulated = kme.simulate(jax.random.key(0), model, number, progress_bar=False)
    z, x = simulated.arguments["x"], simulated.x["x"]
    beta, eps = kme.kernels.Gaussian(np.full(2, 0.5)), kme.kernels.Gaussian(np.full(3, 0.3))
    hyper = Hyperparameters(beta, eps, np.array(10.0 / number))
    begun = time.process_time()
    surrogate = kme.KernelMeans(hyperparameters=hyper, solve=SOLVES[name]).fit(z, x)
    fitted = time.process_time()
    kme.likelihoods.KernelMeansPosterior(surrogate, Y + 0.1, standard_normal(2)).mean()
    first = time.process_time()
    posterior = kme.likelihoods.KernelMeansPosterior(surrogate, Y, standard_normal(2))
    found = dict(mean=posterior.mean().tolist(), sd=np.sqrt(np.diag(posterior.covariance())).tolist())
    times = dict(fit=fitted - begun, first=first - fitted, another=time.process_time() - first)
    solve = surrogate.describe().get("solve", "exact")
    return found | times | dict(solve=solve, memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def kelfi(number):
    """One row: everything learnt, from simulating to draws."""
    begun = time.process_time()
    engine = kme.KELFI(model, num_simulations=number, num_rounds=1, progress_bar=False)
    engine.run(jax.random.key(0), x=Y)
    draws = engine.get_samples()["z"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    found = dict(mean=draws.mean(axis=0).tolist(), sd=draws.std(axis=0).tolist(), memory=memory)
    return found | dict(fit=time.process_time() - begun)


def exact():
    """Posterior mean and standard deviations by quadrature."""
    grid = np.stack(np.meshgrid(*[np.linspace(-5, 5, 801)] * 2), axis=-1).reshape(-1, 2)
    means = np.stack([grid[:, 0] + grid[:, 1] ** 2 / 2, grid[:, 1] - grid[:, 0] / 2, grid[:, 0] * grid[:, 1]], axis=1)
    logs = -0.5 * np.sum(((Y - means) / 0.4) ** 2, axis=1) - 0.5 * np.sum(grid**2, axis=1)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ grid
    return mean, np.sqrt(weights @ (grid - mean) ** 2)


def all_rows(quick):
    in_a_process = partial(report.in_a_process, "many_simulations", "--one")
    cases = [(name, number // 10 if quick else number) for name, number in CASES]
    found = {(name, number): in_a_process(name, number) for name, number in cases}
    rows = []
    for (name, number), row in found.items():
        dense = found.get(("dense", number))
        error = np.max(np.abs(np.subtract(row["mean"], dense["mean"])) / dense["sd"]) if dense else "no dense solve"
        rows.append([number, name, row["memory"], row["fit"], row["first"], row["another"], error, row["solve"]])
    small, large = (found["low rank", number] for number in (cases[1][1], cases[-1][1]))
    cost = lambda row: row["fit"] + row["another"]  # noqa: E731
    header = ["simulations", "solve", "peak GB", "fit, s", "first observation, s", "another, s", "error, sd"]
    header.append("what it says")
    whole = in_a_process("kelfi", cases[-1][1])
    mean, sd = exact()
    error = np.max(np.abs(np.subtract(whole["mean"], mean)) / sd)
    text = [
        f"Time ratio of {cases[-1][1]} to {cases[1][1]} simulations by low rank, fit and another observation: "
        f"{cost(large) / cost(small):.1f}.",
        f"`KELFI(model, {cases[-1][1]})` with nothing given: {whole['fit']:.0f} s and {whole['memory']:.2f} GB; "
        f"posterior mean {np.round(whole['mean'], 3).tolist()}, sd "
        f"{np.round(whole['sd'], 3).tolist()}, where quadrature gives {np.round(mean, 3).tolist()} and "
        f"{np.round(sd, 3).tolist()}: {error:.2f} sd away at most.",
    ]
    sections = [("Solves", report.table(header, rows)), ("Together", "\n\n".join(text))]
    if quick:
        print("\n".join(map(str, sections)))
    else:
        report.save("many_simulations", "Many simulations", sections)


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the simulations, nothing written")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        jax.config.update("jax_enable_x64", True)
        name, number = options.one[0], int(options.one[1])
        print(json.dumps(kelfi(number) if name == "kelfi" else case(name, number)))
    else:
        all_rows(options.quick)
