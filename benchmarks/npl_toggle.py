"""Toggle switch with Cauchy noise on one measurement in ten: accuracy, brute force on some replicates, speed.

    python benchmarks/npl_toggle.py                                # 5 data sets, both losses; hours on two cores
    python benchmarks/npl_toggle.py --datasets 1 --draws 16        # a look

The simulator is used without derivatives: its draws switch basin, so that those along a path are not those of the law.
Brute force: SciPy's Nelder-Mead on the same loss for the same weights, from the replicate's own minimum moved by a
posterior standard deviation and from the full-data minimum. Writes `results/npl_toggle.md` and
`results/npl_toggle.json` after each data set.
"""

import argparse
import functools
import operator
import time

import jax
import jax.numpy as jnp
import numpy as np
import report
from npl_models import (
    TOGGLE_HIGH,
    TOGGLE_LENGTH_SCALES,
    TOGGLE_LOW,
    TOGGLE_TRUTH,
    adam,
    bootstrap,
    published_loss,
    toggle,
    toggle_data,
    toggle_generator,
)
from scipy.optimize import minimize
from scipy.special import ndtr

from numpyro_kme.bootstrap import DirichletProcess, lanes
from numpyro_kme.bootstrap.replicates import draw_tasks
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD
from numpyro_kme.losses.generator import num_sets

KERNEL = functools.reduce(operator.add, map(Gaussian, TOGGLE_LENGTH_SCALES))
WIDTH = TOGGLE_HIGH - TOGGLE_LOW


def parameters(u):
    """Parameters in the box prior."""
    return TOGGLE_LOW + WIDTH * ndtr(u)


def one(seed, free, arguments):
    """A posterior bootstrap, its time, and brute force on some replicates."""
    rng = np.random.default_rng([seed, 11])
    x, starts = toggle_data(rng), rng.normal(size=(arguments.starts, 7))
    generator = toggle_generator()
    began = time.process_time()
    bound = MMD(KERNEL, free_mass=free).objective(x, generator)
    found = bootstrap(seed, bound, starts, arguments.draws, num_nodes=arguments.nodes)
    seconds = time.process_time() - began
    theta = parameters(found.u)
    gap = brute(seed, bound, found, arguments.brute) if arguments.brute else np.zeros((0, 7))
    print(seed, free, f"{seconds:.0f} CPU s", theta.mean(axis=0).round(3), gap.round(3), flush=True)
    return {
        "mean": theta.mean(axis=0),
        "sd": theta.std(axis=0),
        "minimum": parameters(found.fit.u),
        "share": found.numbers["share"].mean() if free else 1.0,
        "converged": found.converged.mean(),
        "noise": found.quadrature.noise,
        "gap": gap,
        "seconds": seconds,
        "others": len(found.fit.others),
    }


def brute(seed, bound, found, count):
    """Distances of our minima from those of Nelder-Mead, in posterior standard deviations of the normal scores."""
    key = jax.random.split(jax.random.key(seed), 3)[1]
    tasks = draw_tasks(key, bound, DirichletProcess(), np.arange(count), num_sets(found.nodes))
    sd, gaps = found.u.std(axis=0), []
    rng = np.random.default_rng(seed)
    for b in range(count):
        task = tasks.rows(np.array([b]))
        loss = lambda u, task=task: 1e6 * float(lanes.values(bound, found.nodes, task, u)[0])  # noqa: E731
        runs = []
        for start in (found.u[b] + sd * rng.normal(size=7), found.fit.u):
            simplex = np.concatenate([start[None], start + np.diag(sd)])
            options = {"initial_simplex": simplex, "maxfev": 600, "xatol": 1e-3 * sd.min(), "fatol": 1e-4}
            runs.append(minimize(loss, start, method="Nelder-Mead", options=options))
        best = min(runs, key=lambda run: run.fun)
        gaps.append(np.append((found.u[b] - best.x) / sd, loss(found.u[b]) - best.fun))
    return np.array(gaps)


def baseline(x, steps):
    """CPU seconds of 2,000 steps of the published algorithm for one replicate, in float32, from a few steps."""
    rng = np.random.default_rng(0)
    loss = published_loss(TOGGLE_LENGTH_SCALES)
    run = jax.jit(lambda x, w, z, u: adam(toggle, loss, x, w, z, u, 0.04, steps))
    weights = rng.dirichlet(np.ones(len(x)))
    given = [jnp.asarray(a, jnp.float32) for a in (x, weights, rng.normal(size=(500, 601)), np.zeros(7))]
    run(*given).block_until_ready()
    began = time.process_time()
    run(*given).block_until_ready()
    return (time.process_time() - began) * 2000 / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=5)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--starts", type=int, default=128)
    parser.add_argument("--brute", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--mass", nargs="+", choices=("fixed", "free"), default=("fixed", "free"))
    arguments = parser.parse_args()
    runs = {mass: [] for mass in arguments.mass}
    cost = baseline(toggle_data(np.random.default_rng(0)), arguments.steps)
    print(f"baseline {cost:.0f} CPU s a replicate", flush=True)
    for seed in range(arguments.datasets):
        for mass in arguments.mass:
            runs[mass].append(one(seed, mass == "free", arguments))
            text = save(runs, cost, arguments)
    print(text)


def save(runs, cost, arguments):
    """Write what there is so far."""
    accuracy, errors, checks = [], [], []
    for mass, found in ((mass, found) for mass, found in runs.items() if found):
        means = np.array([run["mean"] for run in found])
        nmse = np.mean((means - TOGGLE_TRUTH) ** 2, axis=1) / TOGGLE_TRUTH.mean()
        seconds = np.mean([run["seconds"] for run in found])
        share = float(np.mean([run["share"] for run in found]))
        converged = float(np.mean([run["converged"] for run in found]))
        ratio = cost * arguments.draws / seconds
        accuracy.append((mass, len(found), nmse.mean(), np.median(nmse), share, converged, seconds, ratio))
        errors.append((mass, *np.sqrt(np.mean(((means - TOGGLE_TRUTH) / WIDTH) ** 2, axis=0))))
        gaps = np.concatenate([run["gap"] for run in found if len(run["gap"])] or [np.zeros((0, 8))])
        if len(gaps):
            checks.append((mass, len(gaps), *np.sqrt(np.mean(gaps[:, :7] ** 2, axis=0)), gaps[:, 7].max()))
    names = ("alpha1", "alpha2", "beta1", "beta2", "mu", "sigma", "gamma")
    header = ("mass", "data sets", "NMSE", "median", "share explained", "converged", "CPU, s", "times faster (CPU)")
    note = f"{arguments.draws} draws of {2 * arguments.nodes} nodes. Floor: NMSE .338, 50 times faster. Baseline: "
    note += (
        f"{cost:.0f} CPU s a replicate, from {arguments.steps} steps scaled to 2,000; compilation is in our time only."
    )
    sections = [
        ("Posterior means", note + "\n\n" + report.table(header, accuracy)),
        ("Root mean squared error in widths of the prior", report.table(("mass", *names), errors)),
        (
            "Distance from Nelder-Mead for the same weights, root mean square, in posterior sd of the normal scores",
            report.table(("mass", "replicates", *names, "largest excess of the loss, 1e-6"), checks),
        ),
    ]
    data = {"accuracy": accuracy, "errors": errors, "checks": checks, "runs": runs, "baseline": cost}
    return report.write("npl_toggle", "Toggle switch, posterior bootstrap of the squared MMD", sections, data)


if __name__ == "__main__":
    main()
