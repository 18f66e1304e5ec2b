"""Seconds from a cold start: first fits of fresh processes, further fits, `condition`, imports.

    python -m benchmarks cold_start [--parts kelfi imports ...] [--repeats 10]

Each part runs in a process of its own, which has compiled nothing before (`helpers/cold_worker.py`); medians over
processes, and the slowest. In the second column the compilation cache on disk is that of an earlier process of the
same part. Imports are not in the rows below them, and the compilation of the user's simulator is taken off where it is
said. Longer work is measured once: `diagnostics.check`, `condition_many`, memory, and memory maps, of which Linux
allows a process 65,530. Takes five minutes a repeat, and ten.

With --neural, from the start of Python to 1,000 posterior draws from 300 and 1,000 given simulations of ten statistics
(`linear` of `residual_time`), beside neural posterior estimation by `sbi`: each in a process of its own, imports
included.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import report

PARTS = ["imports", "kelfi", "RejectionABC", "K2ABC", "KernelABC", "KernelBayes", "DistributionRegressionABC"]
PARTS += ["bootstrap", "nuts", "rounds", "predators"]
ONCE = ["check", "many", "memory", "memory10", "maps"]


def fresh(part, cache=None):
    """Seconds by name, of one part in a new process."""
    left_out = ("JAX_COMPILATION_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")
    settings = {name: value for name, value in os.environ.items() if name not in left_out}
    if cache:
        settings |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        settings |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    command = [sys.executable, "-m", "benchmarks.helpers.cold_worker", part]
    done = subprocess.run(command, cwd=report.ROOT, check=True, stdout=subprocess.PIPE, text=True, env=settings)
    return json.loads(done.stdout.splitlines()[-1])


def measured(part, repeats):
    """Seconds of each repeat by name, with an empty cache and with that of an earlier process."""
    fresh("imports")  # Python compiles the modules once for all processes
    empty = [fresh(part) for _ in range(repeats)]
    with tempfile.TemporaryDirectory() as cache:
        fresh(part, cache)
        kept = [fresh(part, cache) for _ in range(repeats)]
    return {name: [[row[name] for row in rows] for rows in (empty, kept)] for name in empty[0]}


def beside_sbi(size, repeats):
    """Seconds of whole processes, ours and `sbi`'s, from the same simulations: medians."""
    from benchmarks.kelfi import residual_time

    key = jax.random.key(size)
    model, simulator = residual_time.model_of(residual_time.linear), residual_time.linear
    simulated = kme.simulate(key, model, size, progress_bar=False)
    y = np.asarray(simulator(key, jax.random.normal(key, (10,))), np.float64)
    python, helpers = report.environment("npe", "torch==2.13.0", "sbi"), Path(report.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "simulations.npz"
        np.savez(path, theta=simulated.arguments["x"], x=simulated.x["x"], y=y)
        ours = [sys.executable, "-m", "benchmarks.helpers.cold_worker", "given", path]
        found = []
        for command in (ours, [python, helpers / "npe_worker.py", path]):
            times = []
            for _ in range(repeats):
                begun = time.perf_counter()
                subprocess.run(command, cwd=report.ROOT, check=True, stdout=subprocess.PIPE)
                times.append(time.perf_counter() - begun)
            found.append(float(np.median(times)))
    return {"simulations": size, "KELFI": found[0], "NPE": found[1], "NPE / KELFI": found[1] / found[0]}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--parts", nargs="+", default=PARTS + ONCE, choices=PARTS + ONCE)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--neural", action="store_true")
    options = parser.parse_args()
    header = ["", "empty cache", "slowest", "cache of an earlier process", "slowest "]
    lines, once, text = [], [], ""
    for part in options.parts:
        if part in ONCE:
            once += options.rows.get(lambda part=part: fresh(part), part=part).items()
        else:
            run = lambda part=part: measured(part, options.repeats)  # noqa: E731
            for name, columns in options.rows.get(run, part=part, repeats=options.repeats).items():
                lines.append([name, *(float(f(column)) for column in columns for f in (np.median, np.max))])
        sections = [
            ("Seconds", report.table(header, lines)),
            ("Once, with an empty cache", report.table(["", ""], once)),
        ]
        if options.neural and part == options.parts[-1]:
            runs = [
                options.rows.get(
                    lambda size=size: beside_sbi(size, options.repeats), size=size, repeats=options.repeats
                )
                for size in (300, 1000)
            ]
            sections.append(("From the start of Python to 1,000 draws", report.table_of(runs)))
        text = report.write("cold_start", "Cold starts", sections)
    print(text)
