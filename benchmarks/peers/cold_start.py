"""Seconds from a cold start: first fits of fresh processes, further fits, `condition`, imports.

    python -m benchmarks cold_start [--parts kelfi imports ...] [--repeats 10]

Each part runs in a process of its own, which has compiled nothing before (`helpers/cold_worker.py`); medians over
processes, and the slowest. Imports are not in the rows below them, and the compilation of the user's simulator is
taken off where it is said. Takes five minutes a repeat.

With --neural, from the start of Python to 1,000 posterior draws from 300 and 1,000 given simulations of ten statistics
with as many parameters, beside neural posterior estimation by `sbi`: each in a process of its own, imports
included.
"""

import os
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import cold_worker, report
from numpyro_kme.simulators.gaussian_linear import gaussian_linear

PARTS = tuple(cold_worker.ROWS)
WORKER = [sys.executable, "-m", "benchmarks.helpers.cold_worker"]


def measured(repeats, part):
    """Seconds of each repeat by name, without a compilation cache on disk."""
    left_out = ("JAX_COMPILATION_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")
    settings = {name: value for name, value in os.environ.items() if name not in left_out}
    runs = [report.last_line([*WORKER, part], env=settings) for _ in range(repeats)]
    return {"found": {name: [run[name] for run in runs] for name in runs[0]}}


def beside_sbi(repeats, size):
    """Seconds of whole processes, ours and `sbi`'s, from the same simulations: medians."""
    key = jax.random.key(size)
    made = kme.simulate(key, cold_worker.linear, size, progress_bar=False)
    y = np.asarray(gaussian_linear(key, jax.random.normal(key, (10,))), np.float64)
    theirs = [report.environment("npe", "torch==2.13.0", "sbi"), Path(report.__file__).with_name("npe_worker.py")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "simulations.npz"
        np.savez(path, theta=made.arguments["x"], x=made.x["x"], y=y)
        commands = [*WORKER, "given", path], [*theirs, path]
        ours, npe = (
            float(np.median([report.timed(report.last_line, command)[1] for _ in range(repeats)]))
            for command in commands
        )
    return {"KELFI": ours, "NPE": npe, "NPE / KELFI": npe / ours}


def main(rows, parts=PARTS, repeats=10, neural=False):
    rows.fill(lambda part: measured(repeats, part), part=parts)
    found = {part: rows.of(part=part)[0]["found"] for part in parts}
    lines = [[name, np.median(column), max(column)] for part in parts for name, column in found[part].items()]
    sections = [("Seconds", report.table(["", "median", "slowest"], lines))]
    if neural:
        runs = rows.fill(lambda size: beside_sbi(repeats, size), size=(300, 1000))
        sections.append(("From the start of Python to 1,000 draws", report.table_of(runs)))
    return "Cold starts", sections
