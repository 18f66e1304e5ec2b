"""Read docstrings written in plain text with `code`, $formulas$ and Google sections, for Sphinx."""

import re

LABEL = re.compile(r"( *)(Cost|References): \S")
MARKUP = re.compile(r"\.\. math:: [^\n]+|``.+?``|:\w+:`.+?`|\$\$.+?\$\$|\$.+?\$|`[^`]+`", re.S)
DISPLAYED = re.compile(r"^( *)\$\$((?:(?!\$\$).)+)\$\$ *$", re.M | re.S)
"""A formula between lines of text."""


def setup(app):
    """Come before napoleon, which reads the sections."""
    app.connect("autodoc-process-docstring", process, priority=400)
    app.connect("autodoc-process-signature", signed)
    return {"parallel_read_safe": True}


def signed(app, what, name, obj, options, signature, returns):
    """Functions that are defaults by their names; `...` for what is made anew each time. As they print, Sphinx cannot
    read them."""
    short = re.sub(r"<function (\w+)( at 0x\w+)?>", r"\1", signature or "").replace("<factory>", "...")
    return short or signature, returns


def process(app, what, name, obj, options, lines):
    """Rewrite the lines in place. Those of a property begin with an empty comment, or napoleon takes what stands before
    a colon for its type."""
    text = DISPLAYED.sub(_displayed, "\n".join(_labelled(lines)))
    pieces, end = [], 0
    for match in MARKUP.finditer(text):
        pieces += [_plain(text[end : match.start()]), _marked(match.group())]
        end = match.end()
    lines[:] = _separated(("".join(pieces) + _plain(text[end:])).split("\n"))
    lines[:0] = ["..", ""] if what in ("property", "attribute") else []


def _displayed(match):
    """A block of its own, at the indentation of the formula."""
    margin, formula = match.groups()
    return f"\n{margin}.. math:: {' '.join(formula.split())}\n"


def _marked(text):
    """Code and formulas in reStructuredText; what is written in it already stays."""
    if text.startswith(".. math"):
        return text
    if text.startswith("$"):
        return f":math:`{' '.join(text.strip('$').split())}`"
    return text if text.startswith((":", "``")) else f"`{text}`"


def _plain(text):
    """Text in which single stars and bars mean themselves."""
    return re.sub(r"(?<![*\\])\*(?![*])|\|", r"\\\g<0>", text)


def _labelled(lines):
    """Costs and references that begin on the line of their label: a paragraph each, not a list of definitions."""
    paragraphs, margin = [], None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        label = LABEL.match(line)
        if margin is not None and (label or not line.strip() or indent <= margin):
            paragraphs.append("")
            margin = None
        if label:
            paragraphs.append("")
            margin = indent
        paragraphs.append(line if margin is None else " " * margin + line.lstrip())
    return paragraphs


def _separated(lines):
    """An empty line wherever text goes back to the margin after an indented block."""
    separated = []
    for line in lines:
        if line[:1].strip() and separated and separated[-1][:1].isspace():
            separated.append("")
        separated.append(line)
    return separated
