"""The guard: numbers that a change must not spoil, beside their floors.

    python -m benchmarks guard --references path/to/posteriors           # 25 minutes on two cores
    python -m benchmarks guard --only bootstrap                          # the rows whose name has this in it
    python -m benchmarks guard --references path/to/posteriors --full    # more data sets and seeds: hours

A row is a function of `benchmarks/guard/` that returns what it measured, its floor, and whether that holds; one that
raises an error counts as failed, and the others go on. The references are posteriors of the tasks of
`helpers/problems.py`. Rows of seconds want a quiet machine. With --keep the table is written to `results/guard.md`,
where the column "before" stays. Takes 25 minutes.
"""

import importlib
import os
from types import SimpleNamespace

from benchmarks.helpers import report

THEMES = ("bootstrap", "accuracy", "formulas", "speed")
HEADING, COLUMNS = "Rows", ("row", "now", "before", "floor", "holds", "CPU, s")
BEFORE = """Commit 3cad9536, before the second edition, row by row on a busy machine, seconds too; the toggle switch by
`npl_toggle`, from three data sets."""


def rows(only=""):
    """Functions by theme and name."""
    modules = {theme: importlib.import_module(f"benchmarks.guard.{theme}") for theme in THEMES}
    named = {f"{theme}: {name}": row for theme, module in modules.items() for name, row in module.ROWS.items()}
    return {name: row for name, row in named.items() if only.lower() in name.lower()}


def measured(row, options):
    """What a row finds, its floor and whether it holds, or the error that it ends with."""
    try:
        with report.quiet():
            found, floor, ok = row(options)
    except Exception as error:
        text = " ".join(str(error).split()).replace("|", "/")
        found, floor, ok = f"{type(error).__name__}: {text[-80:]}", "", False
    return found, floor, "yes" if ok else "NO"


def cpu_seconds():
    """Of this process and those that it waited for."""
    return sum(os.times()[:4])


def main(only="", references=None, full=False, keep=False):
    options = SimpleNamespace(references=references, full=full)
    kept, chosen = {row["row"]: row for row in report.rows_of("guard", HEADING)}, rows(only)
    for name, row in chosen.items():
        begun, before = cpu_seconds(), kept.get(name, {"before": "-"})["before"]
        found, floor, ok = measured(row, options)
        cells = name, found, before, floor, ok, f"{cpu_seconds() - begun:.0f}"
        print(" | ".join(cells), flush=True)
        kept[name] = dict(zip(COLUMNS, cells))
        if keep:
            table = report.table(COLUMNS, [kept[name].values() for name in rows() if name in kept])
            report.write("guard", "The guard", [(HEADING, table), ("Before", BEFORE)])
    print("\n" + report.table(COLUMNS, [kept[name].values() for name in chosen]))
