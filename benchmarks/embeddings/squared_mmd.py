"""Squared MMD of two large samples: time against coreax's blocked mode, and memory for 100,000 points.

    python -m benchmarks squared_mmd                     # both precisions, and 100,000 points; `pip install coreax`
    python -m benchmarks squared_mmd --points 0          # without the large sample

Compilation is left out on both sides; the least CPU time of several calls on one core is compared, both sides by the
same biased estimate. Each precision, and the large sample, runs in a process of its own. Takes three minutes.
"""

import argparse
import json
import os
import resource
import time

import numpy as np

from benchmarks.helpers import report

ONE_CORE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1"}
SCALE = 3.0


def least(function, repeats):
    function().block_until_ready()
    times = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        value = function().block_until_ready()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return (float(value), *np.min(times, axis=0).tolist())


def samples(n, dim, dtype):
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(n, dim)), dtype), jnp.asarray(rng.normal(size=(n, dim)) + 0.1, dtype)


def ours(n, dim, dtype, repeats):
    from numpyro_kme.embeddings.mmd import squared_mmd
    from numpyro_kme.kernels import Gaussian

    x, y = samples(n, dim, dtype)
    return least(lambda: squared_mmd(Gaussian(SCALE), x, y, unbiased=False), repeats)


def coreax(n, dim, dtype, block, repeats):
    import equinox
    from coreax import Data
    from coreax.kernels import SquaredExponentialKernel
    from coreax.metrics import MMD

    x, y = samples(n, dim, dtype)
    metric = MMD(SquaredExponentialKernel(length_scale=SCALE))
    compute = equinox.filter_jit(lambda a, b: metric.compute(Data(a), Data(b), block_size=block))
    value, wall, cpu = least(lambda: compute(x, y), repeats)
    return value**2, wall, cpu


def child(name, dtype, n, dim, block, repeats):
    """Run one case in this process and print it as JSON."""
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    done = ours(n, dim, dtype, repeats) if name == "numpyro_kme" else coreax(n, dim, dtype, block, repeats)
    print(json.dumps([*done, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]))


def run(*case):
    return report.in_a_process("squared_mmd", "--case", *case, env={**os.environ, **ONE_CORE})


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=10)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        name, dtype, *sizes = arguments.case
        return child(name, dtype, *map(int, sizes))
    size, dim, repeats, rows = arguments.size, arguments.dim, arguments.repeats, []
    for dtype in ("float32", "float64"):
        own = run("numpyro_kme", dtype, size, dim, 0, repeats)
        rows.append(("numpyro_kme", dtype, size, *own, 1.0))
        for block in arguments.blocks:
            other = run("coreax", dtype, size, dim, block, repeats)
            rows.append((f"coreax, blocks of {block}", dtype, size, *other, other[2] / own[2]))
    if arguments.points:
        large = run("numpyro_kme", "float32", arguments.points, dim, 0, 1)
        rows.append(("numpyro_kme", "float32", arguments.points, *large, 1.0))
    header = ("code", "precision", "n = m", "squared MMD", "wall, s", "CPU, s", "peak memory, GiB")
    header += ("CPU time, times ours",)
    title = f"Squared MMD, d = {dim}, one core"
    report.save("squared_mmd", title, [("Biased estimate", report.table(header, rows))])
