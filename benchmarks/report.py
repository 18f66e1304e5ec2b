"""Tables of a benchmark, kept in `results/` as Markdown and JSON with what made them, and beside what papers print.

`python benchmarks/report.py` writes the first line of the tables that are there anew, and puts the figures of the
papers behind them.
"""

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from published import PUBLISHED

RESULTS = Path(__file__).parent / "results"
BESIDE = "## Beside the paper"


class Kept:
    """Numbers that were computed, by key, in a file of JSON lines: a run that was stopped goes on from there.

    Args:
        path: The file; nothing is kept without one.
    """

    def __init__(self, path=None):
        self.path = Path(path) if path else None
        lines = self.path.read_text().splitlines() if self.path and self.path.exists() else []
        self.found = {json.dumps(key): value for key, value in map(json.loads, lines)}

    def get(self, key, compute):
        """The numbers kept for a key, or those of `compute()`, as JSON returns them."""
        text = json.dumps(key)
        if text not in self.found:
            line = json.dumps([key, compute()], default=_plain)
            self.found[text] = json.loads(line)[1]
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(line + "\n")
        return self.found[text]


def add_runs(parser):
    """Add the option `--runs FILE`: where finished numbers are kept."""
    parser.add_argument("--runs", type=Kept, default=Kept(), help="JSON lines to resume from")


class Rows:
    """Finished rows of a long benchmark, one JSON object a line, so that a stopped one goes on where it was."""

    def __init__(self, path):
        self.path = Path(path) if path else None
        stored = self.path.read_text().splitlines() if self.path and self.path.exists() else []
        self.rows = [json.loads(line) for line in stored]

    def __iter__(self):
        return iter(self.rows)

    def has(self, **key):
        """Whether there is a row with these entries."""
        return any(all(row.get(name) == value for name, value in key.items()) for row in self.rows)

    def add(self, **row):
        """Keep a row, at once, and print it."""
        text = json.dumps(row, default=_plain)
        print({name: round(v, 4) if isinstance(v, float) else v for name, v in json.loads(text).items()}, flush=True)
        self.rows.append(json.loads(text))
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(text + "\n")

    def values(self, name, **key):
        """The entry `name` of all rows with these entries."""
        return [row[name] for row in self.rows if all(row.get(k) == v for k, v in key.items())]


def table(header, rows):
    """A Markdown table; numbers to three digits, columns aligned for reading as plain text."""
    cells = [list(map(str, header)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def save(name, title, sections, data):
    """Print sections `(heading, text)`, and write them and the data to `results/`."""
    print(write(name, title, sections, data))


def write(name, title, sections, data):
    """Write sections `(heading, text)` to `results/<name>.md`, data to `results/<name>.json`; returns the text."""
    made = {
        "command": " ".join(["python", *map(shlex.quote, sys.argv)]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": {package: version(package) for package in ("numpyro-kme", "numpyro", "jax", "numpy")},
    }
    text = "\n\n".join(f"## {heading}\n\n{body}" for heading, body in sections) + beside(name, data)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(f"# {title}\n\n{origin(made)}\n\n{text}\n")
    (RESULTS / f"{name}.json").write_text(json.dumps({"made": made, **data}, indent=1, default=_plain) + "\n")
    return text


def origin(made):
    """What made a table, in one line."""
    return f"Made by `{made['command']}` on {made['date']} ({made['machine']}, JAX {made['versions']['jax']})."


def beside(name, data):
    """The figures of a paper, and ours from the data: a section, or nothing."""
    if name not in PUBLISHED:
        return ""
    data = json.loads(json.dumps(data, default=_plain))
    lines = [[what, figure, ours(data), source] for what, figure, source, ours in PUBLISHED[name]]
    return f"\n\n{BESIDE}\n\n{table(['', 'published', 'ours', 'paper'], lines)}"


def _cell(value):
    return f"{value:.3g}" if isinstance(value, float) or hasattr(value, "dtype") else str(value)


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else str(value)


if __name__ == "__main__":
    for path in sorted(RESULTS.glob("*.md")):
        title, _, kept = path.read_text().split(f"\n\n{BESIDE}")[0].rstrip().split("\n\n", 2)
        data = json.loads(path.with_suffix(".json").read_text())
        path.write_text(f"{title}\n\n{origin(data['made'])}\n\n{kept}{beside(path.stem, data)}\n")
