"""The page of errors: every error and warning of the package, read from its source when the page is read."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "numpyro_kme"
WARNS = ("checks.warn", "warnings.warn", "warn")
ASKS = ("checks.require", "require", "checks.given")
GIVES = ("checks.explained", "explained")
INNER = ("NotExact",)
"""Errors that the package itself catches."""


def setup(app):
    """Fill the page `errors` at each build."""
    app.connect("source-read", fill)
    app.connect("env-get-outdated", lambda *_: ["errors"])
    return {"parallel_read_safe": True}


def fill(app, name, source):
    """Append the messages to the source of the page."""
    if name == "errors":
        known = explanations(source[0])
        source[0] += "\n" + "\n".join(section(room, found, known) for room, found in messages().items())


def explanations(page):
    """`{words of a message: anchor}`: the quotations of the page, and the heading that each stands below."""
    found, anchor = {}, ""
    for line in page.splitlines():
        if line.startswith("### "):
            anchor = re.sub(r"[^\w\- ]", "", line[4:].lower()).replace(" ", "-")
        elif line.startswith("> "):
            found[line[2:].replace("\\<", "<")] = anchor
    return found


def messages():
    """`{room: {(kind, text)}}`, by the folders of the package, in the order of their names."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for kind, text in of_module(ast.parse(path.read_text())):
            found.setdefault(path.relative_to(PACKAGE).parts[0], {})[kind, text] = None
    return {room: list(pairs) for room, pairs in found.items()}


def of_module(tree):
    """Kinds and texts, from top to bottom; a name has the value that its own function gives it."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            kind, message = ast.unparse(node.exc.func), node.exc.args[0]
            if kind in GIVES:
                continue  # the call comes by itself
        elif isinstance(node, ast.Call) and (called := ast.unparse(node.func)) in WARNS + ASKS + GIVES:
            place = 1 if called in ASKS else 0
            error = (*node.args[place + 1 : place + 2], ast.Name("ValueError"))[0]
            kind = "warning" if called in WARNS else ast.unparse(error)
            message = node.args[place]
        elif isinstance(node, ast.FunctionDef) and node.name.endswith("_message") and node.args.args[0].arg != "self":
            kind = "warning" if "warning" in ast.get_docstring(node) else "ValueError"
            message = node.body[-1].value
        else:
            continue
        around = [f for f in functions if f.lineno <= node.lineno <= f.end_lineno][-1:]
        text = " ".join(rendered(message, assigned(*around)).split())
        if re.search(r"[a-z]{2} .*[a-z]{2}", re.sub("<.*?>", "", text)) and kind not in INNER:
            yield kind.rpartition(".")[2], text


def raised_by_hand(tree):
    """Kinds of the errors that a module raises with a message and without the page of errors."""
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    kinds = [ast.unparse(call.func) for call in calls if call.args]
    return [kind for kind in kinds if kind not in GIVES and kind[:1].isupper() and kind not in INNER]


def assigned(*functions):
    """`{name: expression}` of functions."""
    nodes = (node for function in functions for node in ast.walk(function) if isinstance(node, ast.Assign))
    return {target.id: node.value for node in nodes for target in node.targets if is_name(target)}


def rendered(node, names):
    """The text of an expression, with `<name>` for what is known only when it is raised."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(rendered(value, names) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return rendered(node.left, names) + rendered(node.right, names)
    if isinstance(node, ast.FormattedValue):
        node = node.value
    if is_name(node) and isinstance(names.get(node.id), ast.Constant | ast.JoinedStr):
        return rendered(names[node.id], {})
    if isinstance(node, ast.IfExp) and all(
        isinstance(n, ast.Constant | ast.JoinedStr) for n in (node.body, node.orelse)
    ):
        return rendered(node.body, names)
    words = [n.id if is_name(n) else n.attr for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)]
    return f"<{words[0].strip('_')}>" if words else "<...>"


def is_name(node):
    """Whether an expression is one name."""
    return isinstance(node, ast.Name)


def section(room, found, known):
    """The messages of one room, with links to what the page says of them."""
    lines = []
    for kind, text in sorted(found, key=lambda pair: pair[1].lower()):
        anchor = next((anchor for words, anchor in known.items() if words in text), "")
        lines.append(f"- **{kind}**: {escaped(text)}" + (f" ([cause and remedy](#{anchor}))" if anchor else ""))
    return f"### `{room}`\n\n" + "\n".join(lines) + "\n"


def escaped(text):
    """Markdown in which only code is markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*_\[\]<>$\\#|])", r"\\\1", p) for p in parts)


if __name__ == "__main__":
    for room, found in messages().items():
        print(room, len(found))
        for kind, text in found:
            print("  ", kind, text)
