"""Thumbnails of the gallery: `python docs/thumbnails.py lynx light` runs pages, keeps a figure each.

The last figure of a page, or the one that `FIGURES` names, goes to `docs/_static/gallery/`, 480 pixels wide.
"""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parent
FIGURES = {"blowflies": 1, "digits": 1, "quantiles": 1}
"""Which figure of a page, counted from 1, where it is not the last; cells behind it are not run."""
WIDTH = 480


def cells(text):
    """The code cells of a page."""
    return re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", text, flags=re.M | re.S)


def picture(page):
    """Run a page and save its figure."""
    plt.close("all")
    names = {"__name__": "__main__"}
    for code in cells((DOCS / "gallery" / f"{page}.md").read_text()):
        lines = "".join(line for line in code.splitlines(keepends=True) if not line.startswith(":"))
        exec(compile(lines, f"{page}.md", "exec"), names)
        if len(plt.get_fignums()) == FIGURES.get(page):
            break
    figure = plt.figure(plt.get_fignums()[-1])
    to = DOCS / "_static" / "gallery" / f"{page}.png"
    to.parent.mkdir(exist_ok=True)
    figure.savefig(to, dpi=WIDTH / figure.get_size_inches()[0])
    print(to)


if __name__ == "__main__":
    for page in sys.argv[1:]:
        picture(page)
