"""Options of a benchmark, rows that it finished, and its table in `results/`, beside what papers print."""

import argparse
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.helpers.published import PUBLISHED

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "_static"


class Rows:
    """Finished rows of a long benchmark, one JSON object a line, so that a stopped one goes on where it was.

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

    def has(self, /, **key):
        """Whether there is a row with these entries."""
        return bool(self.of(**key))

    def values(self, name, /, **key):
        """The entry `name` of all rows with these entries."""
        return [row[name] for row in self.of(**key)]

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

    def get(self, compute, /, **key):
        """The `found` of the row with these entries, which is made by `compute()` if there is none."""
        if not self.has(**key):
            self.add(**key, found=compute())
        return self.values("found", **key)[0]


def parser(doc, resumes=False):
    """Options of a benchmark with this docstring; `--rows FILE` for one that goes on where it was stopped."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if resumes:
        text = "JSON lines that keep finished rows; those in the file are not computed again"
        made.add_argument("--rows", type=Rows, default=Rows(), metavar="FILE", help=text)
    return made


def in_a_process(name, *arguments, **settings):
    """The last line that a benchmark prints in a process of its own, read as JSON."""
    command = [sys.executable, "-m", "benchmarks", name, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, **settings)
    return json.loads(done.stdout.splitlines()[-1])


def imported(path):
    """A module of another project, by its file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment(name, *packages):
    """The Python of a virtual environment with some packages, which is made at the first call."""
    python = ROOT / "outputs" / "environments" / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        for package in packages:
            subprocess.run([python, "-m", "pip", "install", "-q", package], check=True)
    return python


def table(header, rows):
    """A Markdown table; numbers to three digits, columns aligned for reading as plain text."""
    cells = [list(map(str, header)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def table_of(rows):
    """A Markdown table of dictionaries with the same keys."""
    return table(list(rows[0]), [list(row.values()) for row in rows])


def rows_of(name, heading):
    """The rows of a kept table as dictionaries of text; the heading may be its beginning."""
    text = (RESULTS / f"{name}.md").read_text()
    section = re.search(rf"^## {re.escape(heading)}.*\n\n((?:\|.*\n)+)", text, re.M)[1]
    header, _, *lines = ([cell.strip() for cell in line[1:-1].split(" | ")] for line in section.splitlines())
    return [dict(zip(header, line)) for line in lines]


def mean_and_sd(cell):
    """The two numbers of a cell such as `0.03 (0.10)`."""
    mean, sd = cell.rstrip(")").split(" (")
    return float(mean), float(sd)


def save_figure(drawn, name):
    """Write a figure of the pages."""
    drawn.savefig(FIGURES / f"{name}.png", dpi=130)


def save(name, title, sections, data=None):
    """Print sections `(heading, text)`, and write them to `results/`."""
    print(write(name, title, sections, data))


def write(name, title, sections, data=None):
    """Write sections `(heading, text)` and the figures of papers to `results/<name>.md`; returns the text.

    Args:
        name: That of the benchmark.
        title: Heading of the page.
        sections: Pairs `(heading, text)`.
        data: Rows in which the functions of `published.PUBLISHED` find our figures.
    """
    text = "\n\n".join(f"## {heading}\n\n{body}" for heading, body in sections) + beside(name, data)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(f"# {title}\n\n{origin()}\n\n{text}\n")
    return text


def origin():
    """What makes a table, in one line; of a file that it was given, the name alone."""
    command = shlex.join(argument.rpartition("/")[2] for argument in sys.argv[1:])
    machine = f"{os.cpu_count()} CPU cores, {platform.machine()}, Python {platform.python_version()}"
    named = {"jax": "JAX", "numpyro": "NumPyro", "numpy": "NumPy", "numpyro-kme": "numpyro-kme"}
    versions = ", ".join(f"{label} {version(package)}" for package, label in named.items())
    date = datetime.now(UTC).date().isoformat()
    return f"Made by `{f'{sys.argv[0]} {command}'.strip()}` on {date} ({machine}, {versions})."


def beside(name, data):
    """The figures of a paper, and ours from the data: a section, or nothing."""
    if name not in PUBLISHED:
        return ""
    data = json.loads(json.dumps(data, default=_plain))
    lines = [[what, figure, ours(data), source] for what, figure, source, ours in PUBLISHED[name]]
    return f"\n\n## Beside the paper\n\n{table(['', 'published', 'ours', 'paper'], lines)}"


def _cell(value):
    return f"{value:.3g}" if isinstance(value, float) or hasattr(value, "dtype") else str(value)


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else str(value)
