"""The toggle switch (seven parameters, draws that jump, a tenth of the data with Cauchy noise) by a bootstrap on an
emulator.

    python -m benchmarks npl_toggle                        # five data sets, 500 replicates
    python -m benchmarks npl_toggle --datasets 1 --draws 64 --simulations 2e5   # a few minutes
    python -m benchmarks npl_toggle --check 0              # without the slow brute force
    python -m benchmarks npl_toggle --check 0 --prior-draws 1  # anchored at any draw of the prior
    python -m benchmarks npl_toggle --check 0 --prior-draws 1 --prior-weight 0   # without the prior

Every run pays for its own simulations; data set `k` and its run have seed `k`. Brute force minimises the same loss,
with the same prior, of some replicates of the first data set without the emulator: Nelder and Mead on 16,384 simulated
cells with common noise, from the emulator's minimum and from the best of 20 other replicates' minima. The loss of 32
minima of every run is compared with the one of 65,536 cells. Compilation is in the first run of each kind only. The
published algorithm is timed on a few of its 1,000 steps. With other priors the table is
`results/npl_toggle_WEIGHT_DRAWS.md`. Takes about an hour.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtr

from benchmarks.helpers import report
from benchmarks.helpers.npl_models import (
    adam,
    bootstrap,
    published_loss,
    toggle,
    toggle_data,
    toggle_generator,
)
from numpyro_kme.bootstrap import Reweightings, newton
from numpyro_kme.bootstrap.fit import starting_scale
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD, QuadratureNodes
from numpyro_kme.simulators.toggle_switch import HIGH, LENGTH_SCALES, LEVELS, LOW, TRUTH
from numpyro_kme.simulators.toggle_switch import PARAMETERS as NAMES

KERNEL = sum((Gaussian(scale) for scale in LENGTH_SCALES[1:]), Gaussian(LENGTH_SCALES[0]))
GENERATOR = toggle_generator()


def natural(u):
    """Parameters in the box at normal scores `u`."""
    return LOW + (HIGH - LOW) * ndtr(u)


def nodes(seed, lattices, each=512):
    """Noise of `lattices * each` cells, one set."""
    keys = jax.random.split(jax.random.key(seed), lattices)
    values = np.concatenate([np.asarray(GENERATOR.noise.quasi_random(key, each), np.float32) for key in keys])
    return QuadratureNodes(values[None], np.full((1, len(values)), 1.0 / len(values)))


def run(seed, free, draws, simulations, prior_weight, prior_draws):
    """Replicates of one data set, the loss they minimise, scales of the prior and CPU seconds."""
    rng = np.random.default_rng(seed)
    x, starts = toggle_data(rng), rng.normal(size=(max(2048, 128 * prior_draws), 7))
    begun = time.process_time()
    bound = MMD(KERNEL, fit_proportion=free).objective(x, GENERATOR)
    settings = dict(method="emulated", prior_weight=prior_weight, prior_draws=prior_draws, num_simulations=simulations)
    found = bootstrap(seed, bound, starts, draws, **settings)
    return found, bound, starting_scale(starts), time.process_time() - begun


def losses(bound, found, cells, rows, u):
    """Losses of replicates `rows` at `u (R, p)`, by direct simulation, in units of log-likelihood."""
    reweightings = Reweightings(found.reweightings.weights[rows], None, np.zeros(len(rows), int))
    return newton.Problems(bound, cells, reweightings).values(u) / found.emulator.loss_scale


def loss_errors(bound, found, cells, count=32):
    """Emulated minus simulated losses at minima, in units of log-likelihood."""
    rows = np.arange(min(count, len(found.u)))
    return found.value[rows] / found.emulator.loss_scale - losses(bound, found, cells, rows, found.u[rows])


def brute_force(bound, found, width, prior_weight, cells, row):
    """The emulator's minimum of one replicate and the lowest one of a direct search: totals and points."""
    z = found.anchors[row]

    def total(u):
        prior = 0.5 * prior_weight * np.sum(np.square((u - z) / width))
        return float(losses(bound, found, cells, np.array([row]), u[None])[0] + prior)

    others = found.u[(row + 1 + np.arange(20) * max(len(found.u) // 21, 1)) % len(found.u)]
    elsewhere = others[np.argmin([total(u) for u in others])]
    steps = 0.3 * np.eye(7) * found.u.std(axis=0)
    searches = [
        minimize(
            total,
            u,
            method="Nelder-Mead",
            options=dict(initial_simplex=np.vstack([u, u + steps]), maxfev=150, fatol=1e-3),
        )
        for u in (found.u[row], elsewhere)
    ]
    best = min(searches, key=lambda search: search.fun)
    return total(found.u[row]), searches[0].fun, searches[1].fun, found.u[row], best.x


def published(steps):
    """CPU seconds of 1,000 Adam steps of the published algorithm with 500 cells, in float32."""
    loss = published_loss(LENGTH_SCALES)
    cast = lambda a: jnp.asarray(a, jnp.float32)  # noqa: E731
    rng = np.random.default_rng(0)
    search = jax.jit(lambda x, w, z, u: adam(toggle, loss, x, w, z, u, 0.04, steps))
    given = [cast(a) for a in (toggle_data(rng), rng.dirichlet(np.ones(2000)), rng.random((500, LEVELS)), np.zeros(7))]
    search(*given).block_until_ready()
    begun = time.process_time()
    search(*given).block_until_ready()
    return (time.process_time() - begun) * 1000 / steps


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--datasets", type=int, default=5)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--simulations", type=float, default=2.5e6)
    parser.add_argument("--check", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prior-weight", type=float, default=1.0)
    parser.add_argument("--prior-draws", type=int, default=500)
    arguments = parser.parse_args()
    baseline = published(arguments.steps)
    print("published, CPU s a replicate", baseline, flush=True)
    many, rows, checks = nodes(1000, 128), [], []
    for free in (False, True):
        for seed in range(arguments.datasets):
            given = int(arguments.simulations), arguments.prior_weight, arguments.prior_draws
            found, bound, width, cpu = run(seed, free, arguments.draws, *given)
            mean = natural(found.u).mean(axis=0)
            nmse = np.mean(np.square(mean - TRUTH)) / np.mean(TRUTH)
            error, known = loss_errors(bound, found, many), found.emulator
            name = "free" if free else "fixed"
            rows.append([name, seed, nmse, *(mean - TRUTH) / (HIGH - LOW), found.converged.mean()])
            rows[-1] += [
                known.simulations,
                known.error,
                known.resolution,
                np.median(error),
                error.std(),
                np.abs(error).max(),
                cpu,
            ]
            rows[-1] += [baseline * arguments.draws / cpu]
            print(rows[-1], flush=True)
            for row in range(arguments.check if seed == 0 else 0):
                before, near, far, u, best = brute_force(
                    bound, found, width, arguments.prior_weight, nodes(2000 + row, 32), row
                )
                checks.append([name, row, before, near, far, *(natural(best) - natural(u)) / (HIGH - LOW)])
                print(checks[-1], flush=True)
            write(rows, checks, baseline, arguments)


def write(rows, checks, baseline, arguments):
    """Tables of what there is."""
    header = [
        "mixing proportion",
        "data set",
        "NMSE",
        *(f"{name}, error" for name in NAMES),
        "converged",
        "simulations",
    ]
    header += ["held-out error", "resolution", "loss error, median", "sd", "largest", "CPU, s", "times faster"]
    means = [
        [name, np.mean([row[2] for row in rows if row[0] == name])] for name in dict.fromkeys(row[0] for row in rows)
    ]
    search = [
        "mixing proportion",
        "replicate",
        "at the emulator's minimum",
        "search from there",
        "search from elsewhere",
    ]
    search += [f"{name}, move" for name in NAMES]
    note = (
        f"{arguments.draws} replicates. Errors of the posterior mean and moves in ranges of the prior; losses in units "
        f"of log-likelihood. The published algorithm: {baseline:.1f} CPU s a replicate (1,000 steps, timed on "
        f"{arguments.steps})."
    )
    tables = [
        ("Five data sets", note + "\n\n" + report.table(header, rows)),
        ("Mean NMSE (published 0.338)", report.table(["mixing proportion", "NMSE"], means)),
        ("Brute force: losses with the prior's, 16,384 cells", report.table(search, checks)),
    ]
    other = f"_{arguments.prior_weight:g}_{arguments.prior_draws}"
    name = "npl_toggle" + ("" if other == "_1_500" else other)
    report.save(name, "Toggle switch: bootstrap on an emulator", tables)
