"""Links from names to pages, in annotations and in text: to the API, and to JAX, NumPyro, ArviZ, NumPy and Python.

Addresses outside follow from the names, so that a build needs no network.
"""

import re
from functools import cache
from importlib import import_module
from pathlib import Path

from api_lists import listed
from docutils import nodes
from sphinx.util.nodes import make_refnode

import numpyro_kme

PAGES = [(Path(__file__).parent / name).read_text() for name in ("api.md", "simulators.md")]
LISTED = [name for page in PAGES for name in listed(page)]
"""The names of the two pages, below `numpyro_kme`."""

PYTHON = "https://docs.python.org/3/library"
NUMPYRO = "https://num.pyro.ai/en/stable"
OUTSIDE = {
    r"jax\.(numpy|random|scipy|tree|nn|lax)": "https://docs.jax.dev/en/latest/{0}.html",
    r"jax\.[\w.]+": "https://docs.jax.dev/en/latest/_autosummary/{0}.html",
    r"numpyro\.distributions\.[\w.]+": NUMPYRO + "/distributions.html#{0}",
    r"numpyro\.infer\.mcmc\.\w+": NUMPYRO + "/mcmc.html#{0}",
    r"numpyro\.primitives\.Messenger": NUMPYRO + "/handlers.html",
    r"MCMC|NUTS": NUMPYRO + "/mcmc.html",
    r"Predictive": NUMPYRO + "/utilities.html",
    r"InferenceData": "https://python.arviz.org/en/stable/api/generated/arviz.InferenceData.html",
    r"numpy\.(ndarray|random\.Generator)": "https://numpy.org/doc/stable/reference/generated/{0}.html",
    r"(collections\.abc|typing|pathlib|fractions)\.\w+": PYTHON + "/{1}.html#{0}",
    r"concurrent\.futures\._base\.Executor": PYTHON + "/concurrent.futures.html#concurrent.futures.Executor",
    r"os\.PathLike": PYTHON + "/os.html#os.PathLike",
    r"int|float|bool|complex|object|type|slice": PYTHON + "/functions.html#{0}",
    r"str|tuple|list|dict|set|frozenset|range|bytes": PYTHON + "/stdtypes.html#{0}",
    r"None": PYTHON + "/constants.html#None",
    r"[A-Z]\w+(Error|Warning|Exception)": PYTHON + "/exceptions.html#{0}",
}
"""Addresses by names; `{0}` is the name, `{1}` its first group."""


def setup(app):
    """Resolve what Sphinx does not find, and link names in text."""
    app.connect("missing-reference", resolve)
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True}


@cache
def aliases():
    """`{name: documented name}`: by the module that defines an object, and as text has it where that is clear."""
    found, short = {}, {}
    for name in LISTED:
        if name.startswith("simulators."):
            import_module(f"numpyro_kme.{name}")
        value = numpyro_kme
        for part in name.split("."):
            value = getattr(value, part)
        full = f"numpyro_kme.{name}"
        short_name = name.removeprefix("mcmc.")  # handlers stand in the package itself, too
        found |= {text: full for one in (name, short_name) for text in (one, f"kme.{one}", f"numpyro_kme.{one}")}
        if isinstance(value, type):
            found[f"{value.__module__}.{value.__qualname__}"] = full
        if name.rpartition(".")[2][0].isupper():
            short.setdefault(name.rpartition(".")[2], full)
    return short | found


def resolve(app, env, node, contnode):
    """The page of a name that Sphinx knows by another one, or an address outside."""
    target = node.get("reftarget", "")
    known = env.domaindata["py"]["objects"]
    if aliases().get(target) in known:
        name = aliases()[target]
        return make_refnode(
            app.builder, node.get("refdoc", env.docname), known[name].docname, known[name].node_id, contnode, name
        )
    address = outside(target)
    return nodes.reference("", "", contnode, internal=False, refuri=address) if address else None


def outside(name):
    """The address of a name of another project, or None."""
    for pattern, address in OUTSIDE.items():
        if match := re.fullmatch(pattern, name):
            return address.format(name, *match.groups())
    return None


def link(app, doctree, docname):
    """Make links of names in text, but for those of the page itself."""
    known = app.env.domaindata["py"]["objects"]
    for node in list(doctree.findall(nodes.literal)):
        if in_link(node):
            continue
        text = node.astext().removesuffix("()")
        name = aliases().get(text) or member(text)
        if name in known and known[name].docname != docname:
            made = make_refnode(app.builder, docname, known[name].docname, known[name].node_id, node.deepcopy(), name)
        elif not name and (text[:1].isupper() or "." in text) and (address := outside(text)):
            made = nodes.reference("", "", node.deepcopy(), internal=False, refuri=address)
        else:
            continue
        node.replace_self(made)


def member(text):
    """The documented name of a method or attribute of a documented class, `Class.name`; empty for other text."""
    head, _, last = text.rpartition(".")
    return f"{aliases()[head]}.{last}" if head in aliases() else ""


def in_link(node):
    """Whether a node is within a link, a heading or a signature."""
    while node is not None:
        if isinstance(node, nodes.reference | nodes.title):
            return True
        node = node.parent
    return False
