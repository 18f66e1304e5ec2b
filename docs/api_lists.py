"""The lists of the API: what stands on its page, in which order, and what is folded.

A line `*folder.__all__` stands for the public names of a folder that no list has by hand. So the `__all__` of its
folder gives a new name its page. Names that stand by hand say order and group; modules do, too. Names of the package
itself are listed without the folder.
"""

import inspect
import re
import tempfile
from operator import attrgetter
from pathlib import Path

import numpyro_kme

NAME = re.compile(r"^   (\w[\w.]*)$", re.M)
REST = re.compile(r"^   \*([\w.]+)\.__all__$", re.M)

CALLED = "run print_summary get_samples to_inference_data posterior checks likelihoods refine condition condition_many"
OWN = "paper positive method plan check_settings require_amortised resolved_rounds form_at citation_note brief"
"""Members of classes that programs call, and those that authors of engines do."""
OPEN = 5
"""The first lists, of what programs call, are open."""


def setup(app):
    """Before Sphinx makes a page for each name; the order when it has made one, and folds when it has read one."""
    app.connect("builder-inited", generate, priority=400)
    app.connect("source-read", read)
    app.connect("object-description-transform", order)
    app.connect("doctree-read", fold)
    app.connect("html-page-context", fold_sidebar, priority=900)
    return {"parallel_read_safe": True}


def read(app, docname, source):
    """Write the lists of a page out."""
    source[0] = expanded(source[0])


def order(app, domain, kind, content):
    """Members of a class: first those that a program calls, last those that an author of engines does."""
    members = [node for node in content if node.tagname == "desc"]
    places = [content.index(node) for node in members]
    for place, node in zip(places, sorted(members, key=rank)):
        content[place] = node


def rank(node):
    """Place of a member in `CALLED`, of others behind it, and of those in `OWN` behind these."""
    name = node[0]["ids"][0].rpartition(".")[2] if node[0]["ids"] else ""
    called = CALLED.split()
    return called.index(name) if name in called else len(called) + (name in OWN.split())


def fold(app, doctree):
    """Lists of the page of the API, but for the first, are closed until a click opens them, without JavaScript."""
    from docutils import nodes
    from sphinx.ext.autosummary import autosummary_table

    tables = [*doctree.findall(autosummary_table)] if app.env.docname == "api" else []
    for place, table in enumerate(tables):
        names = [row[0].astext() for row in table.findall(nodes.row)]
        summary = f"<summary>{len(names)} names: {names[0]} to {names[-1]}</summary>"
        begin = nodes.raw("", f"<details{' open' if place < OPEN else ''}>{summary}", format="html")
        at = table.parent.index(table)
        table.parent[at : at + 1] = [begin, table, nodes.raw("", "</details>", format="html")]


def fold_sidebar(app, page, template, context, doctree):
    """The names of the API below its entry in the sidebar are closed, too."""
    box = re.compile(r'<input[^>]*of API reference"[^>]*>')
    tree = context.get("furo_navigation_tree") or ""
    context["furo_navigation_tree"] = box.sub(lambda found: found[0].replace('checked=""', ""), tree)


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
