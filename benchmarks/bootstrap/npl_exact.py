"""Agreement with exact minimisers for the same weights, found by slow brute force from several starts.

    python -m benchmarks npl_exact                      # 50 replicates a case
    python -m benchmarks npl_exact --replicates 16      # about 8 minutes

g-and-k: BFGS of SciPy on the double sum over all data and 1,024 evenly spaced noise values in [-5, 5], with no grid and
no placed nodes, from the truth, from the full-data minimum and from a prior draw. Gaussian location: the closed form of
the loss, by its fixed point from eight data points. Takes half an hour.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.stats import wasserstein_distance

from benchmarks.helpers import report
from benchmarks.helpers.npl_models import (
    GK,
    GK_TRUTH,
    LOCATION,
    bootstrap,
    g_and_k,
    gk_data,
    gk_starts,
    location_data,
)
from numpyro_kme.bootstrap import DirichletProcess
from numpyro_kme.bootstrap.weights import draw_weights
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.losses import MMD
from numpyro_kme.simulators.g_and_k import LENGTH_SCALE

NODES, REACH = 1024, 5.0


def weights_of(seed, count, data):
    """The weights that `posterior_bootstrap(key(seed), ...)` gives to its first replicates."""
    key = jax.random.split(jax.random.split(jax.random.key(seed), 3)[1])[0]
    return draw_weights(DirichletProcess(), key, np.arange(count), data)


def make_loss(free):
    z = jnp.linspace(-REACH, REACH, NODES)
    v = jnp.exp(-0.5 * z**2)
    v = v / v.sum()

    @jax.jit
    def loss(u, x, w):
        y = jax.vmap(lambda t: g_and_k(u, t[None]))(z)
        gram = lambda a: jnp.exp(-0.5 * jnp.square((a[:, None] - y[None]) / LENGTH_SCALE)) @ v  # noqa: E731
        own, cross = v @ gram(y), w @ gram(x)
        c = jnp.clip(cross / own, 0.0, 1.0) if free else 1.0
        return c * (c * own - 2.0 * cross)

    return jax.jit(jax.value_and_grad(loss))


def brute_gk(loss, x, w, starts):
    def scaled(u):
        value, gradient = loss(u, x, w)
        return 1e3 * float(value), 1e3 * np.asarray(gradient)

    found = [minimize(scaled, start, jac=True, method="BFGS", options={"gtol": 1e-6}) for start in starts]
    return min(found, key=lambda result: result.fun).x


def brute_location(x, w, scale):
    best, lowest = None, np.inf
    for start in x[:: len(x) // 8]:
        u = start
        for _ in range(2000):
            pull = w * np.exp(-np.sum((x - u) ** 2, axis=1) / (2 * (scale**2 + 1)))
            u, last = pull @ x / pull.sum(), u
            if np.abs(u - last).max() < 1e-11:
                break
        if -pull.sum() < lowest:
            best, lowest = u, -pull.sum()
    return best


def timed(function, *arguments):
    """What a function returns, and CPU seconds."""
    began = time.process_time()
    return function(*arguments), time.process_time() - began


def collect(rows, runs, **case):
    """Exact minima of the replicates, and CPU seconds of all."""
    found = [rows.get(run, **case, replicate=b) for b, run in enumerate(runs)]
    return np.array([u for u, _ in found]), sum(seconds for _, seconds in found)


def compare(name, outliers, ours, exact, seconds):
    sd = exact.std(axis=0)
    w1 = np.array([wasserstein_distance(a, b) for a, b in zip(ours.T, exact.T)]) / sd
    ratio = ours.std(axis=0) / sd
    paired = np.abs(ours - exact).max(axis=0) / sd
    return (name, outliers, len(exact), w1.max(), ratio.min(), ratio.max(), paired.max(), seconds / len(exact))


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--replicates", type=int, default=50)
    parser.add_argument("--outliers", type=float, nargs="+", default=[0.0, 0.05, 0.1], help="fractions of the data")
    arguments = parser.parse_args()
    count, rows = arguments.replicates, []
    for outliers in arguments.outliers:
        rng = np.random.default_rng(7)
        x = location_data(rng, outliers)
        scale = float(median_heuristic(x))
        ours = bootstrap(1, MMD(Gaussian(scale)).objective(x, LOCATION), rng.normal(0, 3, (64, 4)), count)
        one = [partial(timed, brute_location, x, w, scale) for w in weights_of(1, count, x)]
        exact = collect(arguments.rows, one, case="location", outliers=outliers)
        rows.append(compare("Gaussian location, 512 nodes", outliers, ours.u, *exact))
        save(rows)
    for free in (True, False):
        for outliers in arguments.outliers:
            rng = np.random.default_rng(7)
            x, starts = gk_data(rng, outliers), gk_starts(rng)
            ours = bootstrap(1, MMD(Gaussian(LENGTH_SCALE), fit_proportion=free).objective(x, GK), starts, count)
            with jax.enable_x64(True):
                loss = make_loss(free)
                scores = [float(loss(start, x, np.full(len(x), 1 / len(x)))[0]) for start in starts[:32]]
                tries = [GK_TRUTH, ours.fit.u, starts[int(np.argmin(scores))]]
                one = [partial(timed, brute_gk, loss, x, w, tries) for w in weights_of(1, count, x)]
                exact = collect(arguments.rows, one, case="g-and-k", free=free, outliers=outliers)
            name = f"g-and-k, {'free mixing proportion' if free else 'mixing proportion 1'}"
            rows.append(compare(name, outliers, upright(ours.u), upright(exact[0]), exact[1]))
            save(rows)


def upright(u):
    """The parameters `(a, b, g, log k)` of the same laws whose `b` is positive: `(a, -b, -g, log k)` is no other."""
    return u * np.stack([np.ones(len(u)), np.sign(u[:, 1]), np.sign(u[:, 1]), np.ones(len(u))], axis=1)


def save(rows):
    """Write what there is so far."""
    header = ("case", "outliers", "replicates", "largest W1 (sd)", "least sd ratio", "largest sd ratio")
    header += ("largest paired difference (sd)", "brute force, CPU s a replicate")
    report.write(
        "npl_exact",
        "Posterior bootstrap against exact minimisers for the same weights",
        [("Floors: W1 at most 0.03 sd, sd ratio in [0.97, 1.03]", report.table(header, rows))],
    )
