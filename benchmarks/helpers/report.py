"""Rows that a benchmark finished, and its table in `results/`, beside what papers print."""

import itertools
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
import warnings
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.helpers import code
from benchmarks.helpers.published import PUBLISHED

ROOT = code.ROOT
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "_static"


class Rows:
    """Finished rows of a benchmark, one JSON object a line, so that a stopped one goes on where it was.

    Args:
        path: The file; nothing is kept without one.
    """

    def __init__(self, path=None):
        self.path = Path(path) if path else None
        stored = self.path.read_text().splitlines() if self.path and self.path.exists() else []
        self.rows = [json.loads(line) for line in stored]

    def __iter__(self):
        return iter(self.rows)

    def of(self, /, **key):
        """The rows with these entries."""
        return [row for row in self.rows if all(row.get(name) == value for name, value in key.items())]

    def column(self, *path, **key):
        """The entry at this path of each row with these entries that has it, as an array."""
        found = self.of(**key)
        for name in path:
            found = [row[name] for row in found if name in row]
        return np.array(found)

    def fill(self, compute, /, **lists):
        """Add the row `compute(**key)` for each combination of entries that there is none for; returns all of them."""
        keys = [dict(zip(lists, values)) for values in itertools.product(*lists.values())]
        for key in keys:
            if not self.of(**key):
                with quiet():
                    self.add(**key, **compute(**key))
        return [row for key in keys for row in self.of(**key)]

    def add(self, **row):
        """Keep a row, at once, and print what is short of it."""
        text = json.dumps(row, default=_plain)
        row = json.loads(text)
        self.rows.append(row)
        short = {name: value for name, value in row.items() if len(str(value)) < 100}
        print({name: round(v, 4) if isinstance(v, float) else v for name, v in short.items()}, flush=True)
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(text + "\n")


def quiet():
    """A context without the warnings of the package."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def timed(function, *args, **kwargs):
    """A result, and seconds of the clock and of the CPU."""
    begun = time.perf_counter(), time.process_time()
    found = function(*args, **kwargs)
    return found, time.perf_counter() - begun[0], time.process_time() - begun[1]


def in_a_process(function, *arguments, timeout=None):
    """What a function returns in a process of its own, without warnings or a compilation cache on disk."""
    left_out = ("JAX_COMPILATION_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if name not in left_out} | {"PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "benchmarks.helpers.fresh", function.__module__, function.__name__]
    command += map(json.dumps, arguments)
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, env=env, timeout=timeout)
    return json.loads(done.stdout.splitlines()[-1])


def table(header, rows):
    """A Markdown table; numbers to three digits, columns aligned for reading as plain text."""
    cells = [list(map(str, header)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def rows_of(name, heading):
    """The rows of a kept table as dictionaries of text; the heading may be its beginning."""
    text = (RESULTS / f"{name}.md").read_text()
    section = re.search(rf"^## {re.escape(heading)}.*\n\n((?:\|.*\n)+)", text, re.M)[1]
    header, _, *lines = ([cell.strip() for cell in line[1:-1].split(" | ")] for line in section.splitlines())
    return [dict(zip(header, line)) for line in lines]


def write(name, title, sections, data=None):
    """Write sections `(heading, text)` and the figures of papers to `results/<name>.md`; returns the text.

    Args:
        name: That of the benchmark.
        title: Heading of the page.
        sections: Pairs `(heading, text)`.
        data: The `Rows` in which the functions of `published.PUBLISHED` find our figures.
    """
    text = "\n\n".join(f"## {heading}\n\n{body}" for heading, body in sections) + beside(name, data)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(f"# {title}\n\n{origin(name)}\n\n{text}\n")
    return text


def origin(name):
    """What makes a table, in one line; of a file that it was given, the name alone."""
    command = shlex.join(argument.rpartition("/")[2] for argument in sys.argv[1:])
    machine = f"{os.cpu_count()} CPU cores, {platform.machine()}, Python {platform.python_version()}"
    named = {"jax": "JAX", "numpyro": "NumPyro", "numpy": "NumPy", "numpyro-kme": "numpyro-kme"}
    versions = ", ".join(f"{label} {version(package)}" for package, label in named.items())
    date = datetime.now(UTC).date().isoformat()
    made = f"commit {code.commit()}, code {code.digest(name)}"
    return f"Made by `{f'{sys.argv[0]} {command}'.strip()}` on {date} ({made}, {machine}, {versions})."


def beside(name, data):
    """The figures of a paper, and ours from the data: a section, or nothing."""
    if name not in PUBLISHED:
        return ""
    source, figures = PUBLISHED[name]
    lines = [[what, figure, ours(data) if callable(ours) else ours] for what, figure, ours in figures]
    return f"\n\n## Beside the paper\n\n{table(['', source, 'ours'], lines)}"


def _cell(value):
    return f"{value:.3g}" if isinstance(value, float) or hasattr(value, "dtype") else str(value)


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else str(value)
