"""Seconds from a cold start: first fits of fresh processes, further fits, `condition`, imports.

    python -m benchmarks cold_start [--parts kelfi imports ...] [--repeats 10]

Each part runs in a process of its own, which has compiled nothing before (`helpers/cold_worker.py`); medians over
processes, and the slowest. Imports are not in the rows below them, and the compilation of the user's simulator is
taken off where it is said. Takes five minutes a repeat.
"""

import numpy as np

from benchmarks.helpers import cold_worker, report

PARTS = tuple(cold_worker.ROWS)


def measured(repeats, part):
    """Seconds of each repeat by name."""
    runs = [report.in_a_process(*cold_worker.ROWS[part]) for _ in range(repeats)]
    return {"found": {name: [run[name] for run in runs] for name in runs[0]}}


def main(rows, parts=PARTS, repeats=10):
    rows.fill(lambda part: measured(repeats, part), part=parts)
    found = {part: rows.of(part=part)[0]["found"] for part in parts}
    lines = [[name, np.median(column), max(column)] for part in parts for name, column in found[part].items()]
    return "Cold starts", [("Seconds", report.table(["", "median", "slowest"], lines))]
