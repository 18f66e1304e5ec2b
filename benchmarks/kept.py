"""Rows of a benchmark, written as soon as they are made, so that a run that is stopped goes on where it was."""

import json
from pathlib import Path


class Kept:
    """Rows by key, in a file of JSON lines `{"key": [...], "row": {...}}`; in memory alone where there is no file."""

    def __init__(self, path=None):
        self.path = path and Path(path)
        self.rows = {}
        if self.path and self.path.exists():
            for line in self.path.read_text().splitlines():
                kept = json.loads(line)
                self.rows[tuple(kept["key"])] = kept["row"]

    def row(self, key, make):
        """The row of a key: the one that is kept, or `make()`."""
        if key not in self.rows:
            row = {name: _plain(value) for name, value in make().items()}
            self.rows[key] = row
            print(*key, {name: value for name, value in row.items() if not isinstance(value, list)}, flush=True)
            if self.path:
                with self.path.open("a") as file:
                    file.write(json.dumps({"key": key, "row": row}) + "\n")
        return self.rows[key]


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else value
