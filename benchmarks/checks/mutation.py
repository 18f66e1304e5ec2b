"""Mutation testing of the package: does a test that executes a line fail when the line is changed?

`python -m benchmarks mutation --cover` runs the default tests once and notes which of them execute which line, and how
long they take. `python -m benchmarks mutation` draws mutants, runs for each the tests that execute its line, those
that execute least else first, until one fails, and writes the table; it goes on where it was stopped. A mutant has
survived if no default test executes its line, or if none failed among the first tests of `MOST` seconds: the score is
a lower bound. Cosmic Ray makes the mutants (`pip install cosmic-ray pytest-cov`). Takes hours.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from queue import Queue

import parso.tree  # noqa: F401  (Cosmic Ray's operators do not load before it)
import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from coverage.numbits import numbits_to_nums

from benchmarks.helpers.report import Rows, save, table

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "numpyro_kme"
LEFT_OUT = ("BitOr", "BitAnd", "BitXor", "Shift", "FloorDiv", "_Mod", "Invert", "_Is", "Variable", "NoOp")
"""Operators that Python refuses on numbers, that make what type checkers see, or nothing."""

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["jax", "numpyro", "arviz", "optax", "scipy.stats", "pytest"])
"""A process for each mutant begins with what it would import."""
CACHED = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""What conftest says, too late for a process in which JAX is imported."""
TOLD = "told.txt"

SLOWEST, START = 4.0, 120.0
"""A run that takes so many times its usual seconds, and these, hangs: the mutant is killed."""
MOST = 90.0
"""Seconds of tests for one mutant."""
SURVIVORS = Path(__file__).with_name("survivors.json")
"""What became of the mutants that survived a sample: the test that was written and seen to fail under the mutant, that
the code is gone, or why nothing that can be observed changes."""


def cover(folder: Path) -> None:
    """Run the default tests with a record of the lines that each executes."""
    rc = folder / "coveragerc"
    rc.write_text(f"[run]\nsource = {PACKAGE}\ndata_file = {folder / 'coverage.db'}\n")
    command = ["-m", "pytest", "-n", "auto", "--dist", "worksteal", f"--cov={PACKAGE}", f"--cov-config={rc}"]
    command += ["--cov-context=test", "--cov-report="]
    subprocess.run([sys.executable, *command, f"--junitxml={folder / 'tests.xml'}"], cwd=ROOT, check=True)


class Covered:
    """Which tests execute a line, and how long each takes."""

    def __init__(self, folder: Path):
        database = sqlite3.connect(folder / "coverage.db")
        contexts = dict(database.execute("select id, context from context"))
        files = dict(database.execute("select id, path from file"))
        self.tests: dict[tuple[str, int], set[str]] = {}
        self.breadth: Counter[str] = Counter()
        for file, context, bits in database.execute("select file_id, context_id, numbits from line_bits"):
            test = contexts[context].rpartition("|")[0]
            path = str(Path(files[file]).relative_to(ROOT))
            lines = numbits_to_nums(bits)
            self.breadth[test] += len(lines)
            for line in lines:
                self.tests.setdefault((path, line), set()).update([test] if test else [])
        self.seconds = {
            name_of(case): float(case.get("time")) for case in ElementTree.parse(folder / "tests.xml").iter("testcase")
        }
        unknown = sorted(self.breadth.keys() - self.seconds.keys() - {""})
        assert not unknown, f"pytest would not find {unknown}, and that would count as killed"

    def of(self, path: str, first: int, last: int) -> list[str]:
        """Tests of lines, those that execute least else first, as many as take `MOST` seconds.

        Lines that run when a file is imported have the tests of the whole file. A fixture of a module, or a program
        that JAX traces once, executes its lines in one test and serves others: the further tests of the same modules
        come after.
        """
        found = set().union(*(self.tests.get((path, line), set()) for line in range(first, last + 1)))
        if not found:  # a constant, a default or a decorator: importing the file executes it, and its tests use it
            found = set().union(*(tests for (file, _), tests in self.tests.items() if file == path))
            found |= {test for test in self.seconds if test.startswith("tests/test_imports.py")}
        modules = {test.partition("::")[0] for test in found}
        served = {test for test in self.seconds if test.partition("::")[0] in modules} - found
        ordered = sorted(found | served, key=lambda test: (test in served, self.breadth[test], test))
        begun = accumulate((self.seconds.get(test, 1.0) for test in ordered), initial=0.0)
        return [test for test, before in zip(ordered, begun) if before < MOST]


def name_of(case: ElementTree.Element) -> str:
    """What pytest calls a test of its report."""
    module, _, inside = case.get("classname").partition(".Test")
    return "::".join([f"{module.replace('.', '/')}.py", *([f"Test{inside}"] if inside else []), case.get("name")])


def positions() -> list[tuple[str, tuple[int, int], list[tuple[str, int]]]]:
    """Places of the package that can be changed, with the operators that change them and their occurrence."""
    found: dict[tuple, list[tuple[str, int]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree, name = get_ast_from_path(path), str(path.relative_to(ROOT))
        for operator_name in sorted(plugins.operator_names()):
            operator_class = plugins.get_operator(operator_name)
            if any(part in operator_name for part in LEFT_OUT) or operator_class.arguments():
                continue
            places = (p for node in ast_nodes(tree) for p in operator_class().mutation_positions(node))
            for occurrence, place in enumerate(places):
                found.setdefault((name, *place), []).append((operator_name, occurrence))
    return [(name, (start[0], end[0]), changes) for (name, start, end), changes in sorted(found.items())]


def drawn(seed: int, number: int):
    """`number` mutants: a place, each with the same probability, and one of its changes; another one where Cosmic Ray
    cannot write that change."""
    rng, places = random.Random(seed), positions()
    found = [(path, lines, *rng.choice(changes)) for path, lines, changes in rng.sample(places, number)]
    for i, mutant in enumerate(found):
        while changed(*mutant) is None:
            path, lines, changes = rng.choice(places)
            found[i] = mutant = path, lines, *rng.choice(changes)
    return found


def changed(path: str, lines: tuple[int, int], operator: str, occurrence: int) -> str | None:
    """A file of the package after the change; None where Cosmic Ray fails, as at exceptions with dotted names."""
    try:
        return mutate_code((ROOT / path).read_text(), plugins.get_operator(operator)(), occurrence)
    except AttributeError:
        return None


def run_tests(copy: Path, tests: list[str]) -> None:
    """Run tests of a copy in this process, which has imported everything but the package, and end it."""
    os.setsid()  # a mutant that kills its group of processes ends here
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with open(TOLD, "w") as told:
        os.dup2(told.fileno(), 1)
        os.dup2(told.fileno(), 2)
        code = pytest.main(["-x", "-q", "--no-header", "--tb=no", "-rfE", "-p", "no:cacheprovider", *tests])
        told.flush()
    os._exit(int(code))


def judge(copy: Path, covered: Covered, mutant) -> dict:
    """Whether tests kill a mutant, which, and what it was."""
    path, (first, last), operator, _ = mutant
    source, code = (ROOT / path).read_text(), changed(*mutant)
    lines = [new for old, new in zip(source.splitlines(), code.splitlines()) if old != new]
    row = {"path": path, "line": first, "operator": operator.partition("/")[2], "now": " ".join(lines)[:160].strip()}
    tests = covered.of(path, first, last)
    if not tests:
        return {**row, "killed": False, "by": "no test executes it", "seconds": 0.0}
    (copy / path).write_text(code)
    limit, begin = START + SLOWEST * sum(covered.seconds.get(test, 1.0) for test in tests), time.monotonic()
    run = PROCESSES.Process(target=run_tests, args=(copy, tests))
    run.start()
    run.join(limit)
    if run.is_alive():
        run.kill()
        run.join()
        killed, by = True, "time"
    else:
        killed = run.exitcode not in (0, 5)
        failed = [line for line in (copy / TOLD).read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
        by = failed[0].split(" - ")[0] if failed else f"exit {run.exitcode}"
    (copy / path).write_text(source)
    return {**row, "killed": killed, "by": by if killed else f"{len(tests)} tests", "seconds": time.monotonic() - begin}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cover", action="store_true")
    parser.add_argument("--mutants", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".pytest_cache" / "mutation", help="what is kept to go on"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.cover:
        return cover(options.folder)
    os.environ |= CACHED
    covered, rows = Covered(options.folder), Rows(options.folder / f"mutants-{options.seed}.jsonl")
    copies: Queue[Path] = Queue()
    for _ in range(options.workers):
        copy = Path(tempfile.mkdtemp()) / "main"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "mutation", "*.pyc", "_build", "outputs"))
        copies.put(copy)

    def one(item):
        number, mutant = item
        copy = copies.get()
        try:
            rows.add(number=number, **judge(copy, covered, mutant))
        finally:
            copies.put(copy)

    pending = [(i, m) for i, m in enumerate(drawn(options.seed, options.mutants)) if not rows.has(number=i)]
    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(one, pending))
    report(sorted(rows, key=lambda row: row["number"]), options.seed)


def report(rows, seed):
    """Write the table: the score, and every mutant that survived, with what became of it (`survivors.json`)."""
    kept = json.loads(SURVIVORS.read_text())
    since = kept["since"] if kept["seed"] == seed else {}
    killed = sum(row["killed"] for row in rows)
    became = Counter(since.get(str(row["number"]), "open").partition(":")[0] for row in rows if not row["killed"])
    gone, equivalent, unseen = (became.pop(name, 0) for name in ("gone", "equivalent", "open"))
    tested = became.total()
    survived = [
        [f"{r['path']}:{r['line']}", r["operator"], f"`{r['now']}`", r["by"], since.get(str(r["number"]), "open")]
        for r in rows
        if not r["killed"]
    ]
    heads = ["mutants", "killed", "share", "killed by a new test", "gone with the code", "equivalent", "open"]
    heads += ["share now, of those not gone"]
    now = (killed + tested) / (len(rows) - gone)
    score = table(heads, [[len(rows), killed, killed / len(rows), tested, gone, equivalent, unseen, now]])
    listed = table(["place", "change", "the line then", "executed by", "since"], survived)
    sections = [(f"Drawn at random with seed {seed}, of commit {kept['commit']}", score), ("Survived", listed)]
    save("mutation", "Mutants that tests kill", sections, {"seed": seed, "rows": rows})


if __name__ == "__main__":
    main()
