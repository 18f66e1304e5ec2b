"""Pages that run: each has a link to itself as a notebook, and shows what the package warns of."""

import os
import shutil
import tempfile
from pathlib import Path

from docutils import nodes
from sphinx.util import logging

RUNS = "---\nfile_format: mystnb"


def setup(app):
    """Let IPython run `before_pages.py` first; append the link when a page is read, and look for warnings then."""
    startup = Path(tempfile.mkdtemp()) / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "before_pages.py", startup)
    os.environ["IPYTHONDIR"] = str(startup.parents[1])
    app.connect("source-read", append)
    app.connect("doctree-read", require_declared)
    return {"parallel_read_safe": True}


def append(app, name, source):
    """A link to what the build has executed."""
    if source[0].startswith(RUNS):
        file = f"{name.rpartition('/')[2]}.ipynb"
        source[0] += f"\n\n```{{container}} notebook\n{{nb-download}}`this page as a notebook <{file}>`\n```\n"


def require_declared(app, doctree):
    """A page on which the package warns has to say `warns: true` at its top, and in its text why."""
    name = app.env.docname
    warned = [raw for raw in doctree.findall(nodes.raw) if "admonition warning package" in raw.astext()]
    if bool(warned) != ("warns" in app.env.metadata[name]):
        told = f"{'Its runs warn' if warned else 'No run warns'}; `warns: true` declares that they do."
        logging.getLogger(__name__).warning(told, location=name)
