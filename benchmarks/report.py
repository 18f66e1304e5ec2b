"""Tables of a benchmark, kept in `results/` as Markdown and JSON with what made them."""

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


class Kept:
    """Rows of a long benchmark, each written at once to a file of JSON lines, so that a stopped run goes on where it was.

    Args:
        path: The file, or None to keep rows in memory alone.
    """

    def __init__(self, path=None):
        self.path = None if path is None else Path(path)
        there = self.path is not None and self.path.exists()
        self.rows = [json.loads(line) for line in self.path.read_text().splitlines()] if there else []

    def __contains__(self, wanted):
        return any(all(row.get(name) == value for name, value in wanted.items()) for row in self.rows)

    def add(self, row):
        """Keep one row, and print it."""
        row = json.loads(json.dumps(row, default=_plain))
        self.rows.append(row)
        print({name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()}, flush=True)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


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
    text = "\n\n".join(f"## {heading}\n\n{body}" for heading, body in sections)
    RESULTS.mkdir(exist_ok=True)
    origin = f"Made by `{made['command']}` on {made['date']} ({made['machine']})."
    (RESULTS / f"{name}.md").write_text(f"# {title}\n\n{origin}\n\n{text}\n")
    (RESULTS / f"{name}.json").write_text(json.dumps({"made": made, **data}, indent=1, default=_plain) + "\n")
    return text


def _cell(value):
    return f"{value:.3g}" if isinstance(value, float) or hasattr(value, "dtype") else str(value)


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else str(value)
