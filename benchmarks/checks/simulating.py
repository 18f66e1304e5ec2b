"""Simulating in parallel: efficiency, overhead, and resuming.

    python -m benchmarks simulating [--simulations 2000] [--workers 8]

A simulator that sleeps 50 ms, on spawned processes, against the same in one process; the time to start the processes is
measured by a first small run and taken off. Overhead is what a simulation that does nothing costs. Takes two minutes.
"""

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import jax
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report

SLEEP = 0.05


def sleepy(rng, theta, seconds):
    """Waits, and draws."""
    time.sleep(float(seconds))
    return theta + rng.normal(size=1)


def model(seconds):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(sleepy, theta, seconds, shape=(1,), dtype=float))


def timed(number, seconds, **settings):
    """Wall time of a run."""
    problem = kme.Problem.read(model, seconds)
    begun = time.perf_counter()
    kme.simulate(jax.random.key(0), problem, number, progress_bar=False, **settings)
    return time.perf_counter() - begun


def measure(number, workers):
    timed(workers, 0.0)
    rows = []
    with ProcessPoolExecutor(workers, get_context("spawn")) as executor:
        begun = time.perf_counter()
        timed(4 * workers, SLEEP, executor=executor)
        start = time.perf_counter() - begun
        for name, settings in {"": {}, ", with a store": {"store": True}}.items():
            with tempfile.TemporaryDirectory() as folder:
                path = {"store": Path(folder) / "a.zarr"} if settings else {}
                one = timed(number // 20, SLEEP, **path) * 20
                path = {"store": Path(folder) / "b.zarr"} if settings else {}
                many = timed(number, SLEEP, executor=executor, **path)
                path = {"store": Path(folder) / "c.zarr"} if settings else {}
                idle = timed(number, 0.0, executor=executor, **path)
            rows.append([f"{workers} spawned processes{name}", one, many, one / many, 1e3 * idle / number])
    header = ["where", "one process, s", "all workers, s", "times faster", "overhead, ms a simulation"]
    note = (
        f"\n\n{number} simulations that sleep {1e3 * SLEEP:.0f} ms. One process: {number // 20} of them, times 20. "
        f"Starting the processes took {start:.1f} s and is not counted. Overhead: the same run with a sleep of 0."
    )
    report.save("simulating", "Simulating", [("Parallel efficiency", report.table(header, rows) + note)])


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    measure(options.simulations, options.workers)
