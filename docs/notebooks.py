"""A link at the end of each page that runs: the page as a notebook, outputs included."""

RUNS = "---\nfile_format: mystnb"


def setup(app):
    """Append the link when a page is read."""
    app.connect("source-read", append)
    return {"parallel_read_safe": True}


def append(app, name, source):
    """A link to what the build has executed."""
    if source[0].startswith(RUNS):
        file = f"{name.rpartition('/')[2]}.ipynb"
        source[0] += f"\n\n```{{container}} notebook\n{{nb-download}}`this page as a notebook <{file}>`\n```\n"
