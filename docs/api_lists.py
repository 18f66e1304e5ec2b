"""The lists of the API page: a line `*folder.__all__` stands for the public names of a folder that no list has by hand.

So the `__all__` of its folder gives a new name its page. Names that stand by hand say order and group; modules do, too.
Names of the package itself are listed without the folder.
"""

import inspect
import re
import tempfile
from operator import attrgetter
from pathlib import Path

import numpyro_kme

NAME = re.compile(r"^   (\w[\w.]*)$", re.M)
REST = re.compile(r"^   \*([\w.]+)\.__all__$", re.M)


def setup(app):
    """Before Sphinx makes a page for each name."""
    app.connect("builder-inited", generate, priority=400)
    app.connect("source-read", read)
    return {"parallel_read_safe": True}


def read(app, docname, source):
    """Write the lists of a page out."""
    source[0] = expanded(source[0])


def generate(app):
    """Pages of the names that the file does not have, since Sphinx makes pages by the file."""
    from sphinx.ext.autosummary.generate import generate_autosummary_docs

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "api.md"
        page.write_text(expanded((Path(__file__).parent / "api.md").read_text()))
        generate_autosummary_docs([str(page)], output_dir=str(Path(app.srcdir) / "api"), app=app)


def listed(text):
    """The names that a page lists, below `numpyro_kme`."""
    return NAME.findall(expanded(text))


def expanded(text):
    """A page with names in place of the lines that stand for them."""
    by_hand = NAME.findall(text)
    return REST.sub(lambda found: "\n".join(f"   {name}" for name in rest(found[1], by_hand)), text)


def rest(folder, by_hand):
    """Public names of a folder, in the order of the alphabet, but for modules and what is listed by hand."""
    module, known = attrgetter(folder)(numpyro_kme), {id(attrgetter(name)(numpyro_kme)) for name in by_hand}
    above = {id(getattr(numpyro_kme, name)): name for name in numpyro_kme.__all__}
    for name in sorted(sorted(public(module), reverse=True), key=lambda name: name.replace("_", "").lower()):
        value = getattr(module, name)
        if id(value) not in known and not inspect.ismodule(value):
            yield above.get(id(value), f"{folder}.{name}")


def public(module):
    """The `__all__` of a module, or what it defines."""
    defined = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and n[0] != "_"]
    return getattr(module, "__all__", defined)
