"""Run by IPython before the cells of each page: warnings of the package become a part of the page."""

import html
import warnings

from IPython.display import HTML, display


def show(message, category, filename, lineno, file=None, line=None):
    """Display what the package warns of; leave out what others do."""
    sentence, _, explained = str(message).partition("\nCauses and remedies:")
    if explained:
        title = '<p class="admonition-title">The package warns</p>'
        display(HTML(f'<div class="admonition warning package">{title}<p>{html.escape(sentence)}</p></div>'))


warnings.showwarning = show
