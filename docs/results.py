"""The pages of benchmarks: every table of `benchmarks/results/` on one, and on the other those that it asks for.

A line `% table NAME K PATTERN` stands for table `K` of `NAME`, with the rows whose first cell has the pattern.
"""

import re
from collections import Counter
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
ASKED = re.compile(r"^% table (\w+) (\d+) ?(.*)$", re.M)


def setup(app):
    """Fill the pages at each build."""
    app.connect("source-read", fill)
    app.connect("env-get-outdated", always)
    return {"parallel_read_safe": True}


def always(app, env, added, changed, removed):
    """The tables may have changed where the pages have not."""
    return sorted({"benchmarks", "benchmark_tables"} & env.found_docs)


def fill(app, name, source):
    """Put tables where a page asks for them, and all behind the page that has all."""
    source[0] = ASKED.sub(lambda found: table(*found.groups()), source[0])
    if name == "benchmark_tables":
        texts = {path.stem: path.read_text() for path in sorted(RESULTS.glob("*.md"))}
        source[0] += f"\n{versions(texts.values())}\n\n{tables(texts)}"


def table(name, number, pattern):
    """One table of a file, counted from 1: its head, and the rows whose first cell has the pattern."""
    found = re.findall(r"(?:^\|.*\n?)+", (RESULTS / f"{name}.md").read_text(), re.M)
    head, rule, *rows = found[int(number) - 1].splitlines()
    return "\n".join([head, rule, *(row for row in rows if re.search(pattern, row.split("|")[1]))])


def versions(texts):
    """How many tables were made with which JAX."""
    made = [re.search(r"^Made by .* JAX ([\d.]+)", text, re.M)[1] for text in texts]
    counts = ", ".join(f"{count} with {version}" for version, count in sorted(Counter(made).items()))
    return f"Tables by the JAX that made them: {counts}."


def tables(texts):
    """All results, one heading level down, with a label for links."""
    lower = {name: re.sub(r"^(#+) ", r"#\1 ", text, flags=re.M) for name, text in texts.items()}
    return "\n".join(f"({name.replace('_', '-')})=\n{text.strip()}\n" for name, text in lower.items())
