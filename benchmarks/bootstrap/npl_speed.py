"""Speed of the posterior bootstrap against the published algorithm, 1,000 Adam steps a replicate, in the same run.

    python -m benchmarks npl_speed                          # both models, 500 replicates
    python -m benchmarks npl_speed --steps 50               # baseline timed on fewer steps and scaled up
    python -m benchmarks npl_speed --cold                   # g-and-k by the engine in a new process, and nothing else

Times include binding the loss, the multistart, every replicate and every check; compilation is left out on both sides
(a first run on another data set compiles) and reported apart. The baseline is timed on the stated number of replicates
and steps. A cold start is a new Python process that runs `PosteriorBootstrap` on an ordinary model, imports and
compilation included; its line is kept in `results/npl_speed_cold.md`. Takes some minutes.
"""

import subprocess
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.npl_models import (
    GK,
    LOCATION,
    adam,
    bootstrap,
    g_and_k,
    gk_data,
    gk_starts,
    location,
    location_data,
    published_loss,
)
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.losses import MMD
from numpyro_kme.simulators.g_and_k import LENGTH_SCALE


def timed(function):
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def whole_run(seed, loss, x, generator, starts, draws, nodes):
    return bootstrap(seed, loss.objective(x, generator), starts, draws, num_nodes=nodes)


def baseline(simulate, length_scale, x, noise, start, steps, dtype, repeats):
    """Wall and CPU seconds of 1,000 steps of one replicate: least of `repeats`."""
    cast = lambda a: jnp.asarray(a, dtype)  # noqa: E731
    with jax.enable_x64(dtype == "float64"):
        loss = published_loss((length_scale,))
        run = jax.jit(lambda x, w, z, u: adam(simulate, loss, x, w, z, u, 0.1, steps))
        rng = np.random.default_rng(0)
        given = [(cast(x), cast(rng.dirichlet(np.ones(len(x)))), cast(noise), cast(start)) for _ in range(repeats)]
        run(*given[0]).block_until_ready()
        times = [timed(lambda one=one: run(*one).block_until_ready())[:2] for one in given]
    return np.min(times, axis=0) * 1000 / steps


SIMULATOR = kme.FromNoise(lambda z, a, b, g, log_k: g_and_k((a, b, g, log_k), z[None]), dist.Normal(0.0, 1.0))


def model(x=None):
    """g-and-k with the published prior, k by its logarithm."""
    a, b, g, k = (numpyro.sample(name, dist.Uniform(0.0, 10.0)) for name in "abgk")
    with numpyro.plate("data", 2048):
        numpyro.sample("x", kme.Simulator(SIMULATOR, a, b, g, jnp.log(k)), obs=x)


def engine_run(draws):
    """Draws from g-and-k by the engine."""
    x = gk_data(np.random.default_rng(0), 0.1)
    engine = kme.PosteriorBootstrap(model, loss=MMD(Gaussian(LENGTH_SCALE), fit_proportion=True), num_samples=draws)
    engine.run(jax.random.key(0), x=x)
    engine.print_summary()


def cold_start(draws):
    """Wall seconds of `engine_run` in a new process, with everything that it imports and compiles."""
    command = [sys.executable, "-c", f"from {__name__} import engine_run; engine_run({draws})"]
    wall, *_ = timed(lambda: subprocess.run(command, check=True, cwd=report.ROOT))
    table = report.table(["draws", "wall, s"], [[draws, wall]])
    report.save("npl_speed_cold", "Posterior bootstrap: cold start", [("g-and-k, free mixing proportion", table)])


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    arguments = parser.parse_args()
    if arguments.cold:
        return cold_start(arguments.draws)
    rng, rows = np.random.default_rng(0), []
    free = lambda scale: MMD(Gaussian(scale), fit_proportion=True)  # noqa: E731
    fixed = lambda scale: MMD(Gaussian(scale))  # noqa: E731
    cases = [
        ("g-and-k", GK, gk_data, gk_starts, fixed, g_and_k, np.full(4, 5.0), (512, 1), 512),
        ("g-and-k, free mixing proportion", GK, gk_data, gk_starts, free, g_and_k, np.full(4, 5.0), (512, 1), 512),
        ("Gaussian location", LOCATION, location_data, None, fixed, location, np.zeros(4), (200, 4), 256),
    ]
    for name, generator, make, starts, loss, simulate, start, noise, nodes in cases:
        begin = starts(rng) if starts else rng.normal(0.0, 1.0, (512, 4))
        runs = []
        for seed in range(4):
            x = make(np.random.default_rng(seed), 0.1)
            scale = LENGTH_SCALE if starts else float(median_heuristic(x))
            case = (seed, loss(scale), x, generator, begin, arguments.draws, nodes)
            runs.append(timed(partial(whole_run, *case)))
        cold = runs[0][0]
        wall, cpu, found = min(runs[1:], key=lambda run: run[0])
        for dtype in ("float32", "float64"):
            settings = arguments.steps, dtype, arguments.repeats
            base = baseline(simulate, scale, x, rng.normal(size=noise), start, *settings)
            faster = arguments.draws * base / [wall, cpu]
            checks = float(found.converged.mean()), found.quadrature.noise
            rows.append((name, arguments.draws, cold, wall, cpu, dtype, *base, *faster, *checks))
            print(rows[-1], flush=True)
    header = ("model", "draws", "first run with compilation, s", "wall, s", "CPU, s", "baseline precision")
    header += ("baseline wall, s a replicate", "baseline CPU, s a replicate", "times faster (wall)")
    header += ("times faster (CPU)", "converged", "noise (sd)")
    note = f"Baseline timed on {arguments.repeats} replicates of {arguments.steps} steps, scaled to 1,000 steps. "
    note += "Ours computes in float64; the published code in float32."
    sections = [("Against 1,000 Adam steps a replicate", note + "\n\n" + report.table(header, rows))]
    report.save("npl_speed", "Posterior bootstrap: speed", sections, {"rows": rows})
