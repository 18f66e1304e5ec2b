"""Sphinx settings; the pages are MyST Markdown, their code cells run at each build."""

import os
import sys
from importlib.metadata import metadata
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for the pages that run: `sphinx-build -j 2` runs two at a time
compiled = {  # programs that pages have in common, and those of the last build; where tests keep theirs
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parents[1] / ".pytest_cache" / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
os.environ.update(compiled | os.environ)

project = "numpyro_kme"
author = "The numpyro_kme developers"
copyright = "2026, the numpyro_kme developers"
version = release = installed("numpyro-kme")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode"]
extensions += ["sphinx-mathjax-offline"]
extensions += [
    "docstrings",
    "api_examples",
    "api_lists",
    "api_links",
    "messages",
    "notebooks",
    "one_text",
    "sphinx.ext.napoleon",
    "results",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "jupyter_execute", "paper"]
templates_path = ["_templates"]
html_theme = "furo"
html_title = f"numpyro_kme {release}"
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
addresses = dict(line.split(", ", 1) for line in metadata("numpyro-kme").get_all("Project-URL"))
if "placeholder" not in addresses["Repository"]:  # links that show and edit the source of a page
    html_theme_options = {
        "source_repository": addresses["Repository"],
        "source_branch": "main",
        "source_directory": "docs/",
    }
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900
nb_output_stderr = "remove"
nb_merge_streams = True

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_default_options = {
    "members": True,
    "inherited-members": "Distribution, Messenger, MCMCKernel, ABC, Protocol, Exception, tuple",
    "member-order": "bysource",
}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
autosummary_ignore_module_all = False

copybutton_selector = "div.highlight-python pre, div.highlight-ipython3 pre, div.highlight-bash pre"
autoclass_content = "class"


def setup(app):
    # It copies files when the build has ended, and does not say that pages may be read in parallel.
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True
    app.extensions["sphinx-mathjax-offline"].parallel_write_safe = True
