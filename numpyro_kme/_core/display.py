"""How values print: a few lines for a person, or HTML in a notebook; arrays by their shape and extremes."""

import html
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

WIDTH, LINES = 80, 15
"""Most columns and lines of what is printed."""

EACH, SHORT = 3, 6
"""Most lines of a row, and of a table with its titles."""

TROUBLE = "border-left: 4px solid #d55e00; padding-left: 0.5em"
"""Style of what is wrong: a bar, since no colour of text is easy to read on white and on black."""

T = TypeVar("T", bound=type)


class Card(NamedTuple):
    """Text for a person who looks at a value.

    Attributes:
        title: What it is.
        rows: How big and how good it is, `{label: anything}`; what is None or empty text is left out.
        hint: What to do with it next; empty if there is nothing to say.
        table: Titles and rows of a table of numbers, as text.
        left: How many further rows it would have.
        trouble: Label of the row that says what is wrong; empty where nothing is.
    """

    title: str
    rows: Mapping[str, Any]
    hint: str = ""
    table: Sequence[Sequence[str]] = ()
    left: int = 0
    trouble: str = ""

    @property
    def lines(self) -> dict[str, str]:
        """The rows as text, without empty ones."""
        found = {label: row if isinstance(row, str) else short(row) for label, row in self.rows.items()}
        return {label: line for label, line in found.items() if line}


def shown(cls: T) -> T:
    """Print the values of a class by its method `_card(self) -> Card`, else by their fields; a decorator, the outermost
    one."""
    cls.__repr__ = text  # type: ignore[assignment]
    cls._repr_html_ = html_of  # type: ignore[attr-defined]
    return cls


def text(value: Any) -> str:
    """At most `LINES` lines of `WIDTH` columns."""
    card = _card_of(value)
    if card is None:
        return _expression(value)
    kept, body = card.lines, aligned(card.table, card.left, SHORT)
    wide, end = max(map(len, kept), default=0) + 2, _wrapped(card.hint, "  next: ", " " * 8)
    room, left = LINES - 1 - len(end), list(kept)
    for label, line in kept.items():
        lines = _wrapped(line, f"  {label:<{wide}}", " " * (wide + 2), EACH)
        if len(body) + len(lines) > room - (len(left) > 1):
            break
        body += lines
        left.remove(label)
    body += [f"  ... {listed(left, WIDTH - 6)}"] if left else []
    return "\n".join([_cut(card.title, WIDTH), *body, *end])


def html_of(value: Any) -> str | None:
    """The card of a value for a notebook, whose colours it takes; a wide table scrolls. None without a card."""
    card = _card_of(value)
    if card is None:
        return None
    titles, *rows = [[f"<td>{_marked(cell)}</td>" for cell in row] for row in card.table] or [[]]
    table = "".join(f"<tr>{''.join(row)}</tr>" for row in ([cell.replace("td>", "th>") for cell in titles], *rows))
    more = f" and {card.left} numbers more" if card.left else ""
    parts = [f'<div style="overflow-x: auto"><table>{table}</table>{more}</div>'] if rows else []
    for label, line in card.lines.items():
        style = f' style="{TROUBLE}"' if label == card.trouble else ""
        parts.append(f"<div{style}><b>{_marked(label)}</b>: {_marked(line)}</div>")
    end = f"<div><i>next: {_marked(card.hint)}</i></div>" if card.hint else ""
    return f"<div><b>{_marked(card.title)}</b></div>{''.join(parts)}{end}"


def _marked(line: str) -> str:
    """Text as HTML, with code where it has backticks."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(line, quote=False)).replace("\n", "<br>")


def aligned(table: Sequence[Sequence[str]], left: int, most: int | None = None) -> list[str]:
    """At most so many lines of a table, titles first, and how many rows there are more, of which `left` are not in the
    table."""
    left += len(table) - len(table[:most])
    cells = [list(row) for row in table[:most]]
    wide = [max(8, *map(len, column)) for column in zip(*cells)]
    if wide:
        wide[0] = min(max(10, wide[0]), WIDTH - sum(wide[1:]) - len(wide) + 1)
    lines = [" ".join(f"{_cut(cell, w):>{w}}" for cell, w in zip(row, wide)) for row in cells]
    return lines + ([f"{'':>{wide[0]}} and {left} numbers more"] if left else [])


def paragraphs(rows: Sequence[tuple[str, str]]) -> str:
    """Texts behind their labels, as wide as a terminal."""
    wide, lines = max(len(label) for label, _ in rows), textwrap.TextWrapper(WIDTH, break_long_words=False)
    lines.break_on_hyphens, lines.subsequent_indent = False, " " * (wide + 2)
    return "\n".join(lines.fill(f"{label:>{wide}}: {text}") for label, text in rows)


def short(value: Any, room: int = WIDTH) -> str:
    """Any value in one line: numbers to four digits, arrays by shape and extremes, functions by their names."""
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    if isinstance(value, np.ndarray | jax.Array):
        return _of_array(value)
    if isinstance(value, Mapping):
        each = (f"{key}: {short(one)}" if np.ndim(one) == 0 else f"{key} {np.shape(one)}" for key, one in value.items())
        return listed(each, room)
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):  # a named tuple prints as its class does
        return _cut(f"({', '.join(map(_argument, value[:6]))}{', ...' if len(value) > 6 else ''})", room)
    if callable(value) and isinstance(name := getattr(value, "__name__", None), str):
        return name
    card = _card_of(value)
    if card is not None:
        return _cut(card.title, room)
    if isinstance(value, str):
        return _cut(value, room)
    line = repr(value)
    return line if len(line) <= room and "\n" not in line else f"{type(value).__name__}(...)"


def names_and_shapes(arrays: Mapping[str, Any], lead: int = 1) -> str:
    """Names of arrays, with the shapes behind so many leading axes where these are not single numbers."""
    shapes = {name: np.shape(value)[lead:] for name, value in arrays.items()}
    return listed((f"{name} {shape}" if shape else name for name, shape in shapes.items()), WIDTH)


def extremes(values: Any, names: Sequence[str] = ()) -> str:
    """A long vector in a line: the least and largest with their names or numbers, and the median."""
    array = np.ravel(np.asarray(values, np.float64))
    if not np.isfinite(array).any():
        return "no finite number"
    low, high = int(np.nanargmin(array)), int(np.nanargmax(array))
    label = (lambda i: names[i]) if len(names) == array.size else (lambda i: f"[{i}]")
    ends = f"{array[low]:.3g} (at {label(low)}) to {array[high]:.3g} (at {label(high)})"
    return f"{ends}, median {np.nanmedian(array):.3g}, of {array.size}"


def _card_of(value: Any) -> Any:
    """The card of a value of a class that has cards; None of any other."""
    make = getattr(type(value), "_card", None)
    if make is None:
        return None
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))
    return Card(f"{type(value).__name__} that JAX traces", {}) if traced else make(value)


def _expression(value: Any) -> str:
    """The expression that makes a value, without fields that are as by default: a line, or one for each field."""
    name = type(value).__name__
    given = [f"{field}={_argument(found)}" for field, found in _fields(value)]
    line = f"{name}({', '.join(given)})"
    if len(line) <= WIDTH and "\n" not in line:
        return line
    lines = [_cut(f"  {' '.join(one.split())}", WIDTH - 1) + "," for one in given]
    lines = lines if len(lines) <= LINES - 2 else [*lines[: LINES - 3], "  ..."]
    return "\n".join([f"{name}(", *lines, ")"])


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Fields of a dataclass or named tuple that are not as by default."""
    if not is_dataclass(value):
        yield from value._asdict().items()
        return
    for one in fields(value):
        found = getattr(value, one.name, None)
        if one.repr and not is_default(one, found):
            yield one.name, found


def is_default(one: Field, value: Any) -> bool:
    """Tell whether a value is the default of a field."""
    default = one.default if one.default_factory is MISSING else one.default_factory()
    if value is default or isinstance(value, np.ndarray | jax.Array):
        return value is default
    return type(value) is type(default) and bool(value == default)


def _argument(value: Any) -> str:
    """A value inside an expression."""
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, np.ndarray | jax.Array) and np.ndim(value):
        return f"<{short(value)}>"
    return "None" if value is None else short(value, WIDTH - 20)


def _of_array(value: Any) -> str:
    if isinstance(value, jax.core.Tracer):
        return f"traced {value.shape}"
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return "random key" if value.shape == () else f"{value.shape} random keys"
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size == 0:
        return f"{array.shape} array of {array.dtype}"
    if array.size == 1:
        return short(array.item())
    if array.dtype.kind == "b":
        return f"{array.shape} array, {np.count_nonzero(array)} true"
    finite = array[np.isfinite(array)]
    ends = dict.fromkeys(f"{end:.3g}" for end in (finite.min(), finite.max())) if finite.size else ["nothing finite"]
    lost = array.size - finite.size
    return f"{array.shape} array, {' to '.join(ends)}" + (f", {lost} not finite" if lost else "")


def listed(parts: Iterable[str], room: int = WIDTH) -> str:
    """Join as many as fit, and say how many more there are."""
    each = list(parts)
    shown_parts: list[str] = []
    while each and len(", ".join([*shown_parts, each[0]])) <= room - 10:
        shown_parts.append(each.pop(0))
    return ", ".join(shown_parts) + (f" and {len(each)} more" if each else "")


def _cut(line: str, room: int) -> str:
    return line if len(line) <= room else line[: room - 3].rstrip() + "..."


def _wrapped(line: str, first: str, then: str, most: int | None = None) -> list[str]:
    """Lines of a text behind a label, at most so many; none of an empty one."""
    how: dict[str, Any] = dict(initial_indent=first, subsequent_indent=then, break_on_hyphens=False)
    how |= dict(max_lines=most, placeholder="...")
    return textwrap.wrap(line, WIDTH, **how) if line else []
