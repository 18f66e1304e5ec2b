"""The benchmark page: every table of `benchmarks/results/`, put behind the page's own text when it is read."""

import json
import re
from collections import Counter
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
LEFT_OUT = re.compile(r"^## Each .*?(?=^## |\Z)", re.M | re.S)


def setup(app):
    """Fill the page `benchmarks` at each build."""
    app.connect("source-read", fill)
    app.connect("env-get-outdated", always)
    return {"parallel_read_safe": True}


def always(app, env, added, changed, removed):
    """The tables may have changed where the page has not."""
    return ["benchmarks"] if "benchmarks" in env.found_docs else []


def fill(app, name, source):
    """Append the tables to the source of the page."""
    if name == "benchmarks":
        source[0] += f"\n{versions()}\n\n{tables()}"


def versions():
    """How many tables were made with which JAX."""
    made = [json.loads(path.read_text())["made"]["versions"]["jax"] for path in sorted(RESULTS.glob("*.json"))]
    counts = ", ".join(f"{count} with {version}" for version, count in sorted(Counter(made).items()))
    return f"Tables by the JAX that made them: {counts}."


def tables():
    """All results, one heading level down, with a label for links."""
    parts = []
    for path in sorted(RESULTS.glob("*.md")):
        text = LEFT_OUT.sub("", path.read_text())
        text = re.sub(r"^(#+) ", r"#\1 ", text, flags=re.M)
        parts.append(f"({path.stem.replace('_', '-')})=\n{text.strip()}\n")
    return "\n".join(parts)
