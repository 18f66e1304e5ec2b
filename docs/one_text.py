"""The docs as one file, `llms.txt`: the pages as they are written, in the order of the contents, then every public name
with its signature and docstring. For assistants, and for whoever searches by other means than a browser."""

import inspect
import re
from operator import attrgetter
from pathlib import Path

from api_links import LISTED
from api_lists import expanded
from results import ASKED, table

import numpyro_kme

INCLUDED = re.compile(r"```\{include\} (\S+)\n```")


def setup(app):
    """Write it when the pages are there."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}


def write(app, failed):
    """Beside the first page."""
    if failed is None and app.builder.format == "html":
        texts = [*map(page, below(app.env, app.config.root_doc)), *map(entry, sorted(set(LISTED)))]
        (Path(app.outdir) / "llms.txt").write_text("\n\n".join(texts) + "\n")


def below(env, name):
    """Sources of a page and of those below it, but for what is made of docstrings."""
    path = Path(env.doc2path(name))
    if path.suffix == ".md":
        yield path
    for child in env.toctree_includes.get(name, ()):
        yield from below(env, child)


def page(path):
    """A page with the files and tables that it includes."""
    text = INCLUDED.sub(lambda match: (path.parent / match[1]).read_text(), expanded(path.read_text()))
    return ASKED.sub(lambda match: table(*match.groups()), text).strip()


def entry(name):
    """A public name."""
    value = attrgetter(name)(numpyro_kme)
    return f"## numpyro_kme.{name}{signature(value)}\n\n{inspect.getdoc(value) or ''}"


def signature(value):
    """Of a function or class; empty for what has none."""
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):  # modules, errors
        return ""
