"""The benchmark page: every table of `benchmarks/results/`, put behind the page's own text when it is read."""

import re
from collections import Counter
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


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
        texts = {path.stem: path.read_text() for path in sorted(RESULTS.glob("*.md"))}
        source[0] += f"\n{versions(texts.values())}\n\n{tables(texts)}"


def versions(texts):
    """How many tables were made with which JAX."""
    made = [re.search(r"^Made by .* JAX ([\d.]+)", text, re.M)[1] for text in texts]
    counts = ", ".join(f"{count} with {version}" for version, count in sorted(Counter(made).items()))
    return f"Tables by the JAX that made them: {counts}."


def tables(texts):
    """All results, one heading level down, with a label for links."""
    lower = {name: re.sub(r"^(#+) ", r"#\1 ", text, flags=re.M) for name, text in texts.items()}
    return "\n".join(f"({name.replace('_', '-')})=\n{text.strip()}\n" for name, text in lower.items())
