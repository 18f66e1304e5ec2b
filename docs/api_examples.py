"""The examples of the API pages: scripts of `api/examples`, run at each build, each cell behind its docstring.

A script begins with what its cells share; `# %% name` begins the cell of a public name. A page shows a cell with the
lines above that it needs, so that it runs as it stands, and what it printed. `python docs/api_examples.py` runs all, or
the scripts that are named, and prints what they print, as JSON.
"""

import ast
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

SCRIPTS = sorted((Path(__file__).parent / "api" / "examples").glob("*.py"))


def cells(script):
    """What is shared, and the cells, `{name: code}`."""
    shared, *rest = re.split(r"^# %% ([\w.]+)\n", script.read_text(), flags=re.M)
    return shared.strip(), {name: code.strip() for name, code in zip(rest[::2], rest[1::2])}


def shown(shared, code):
    """A cell behind the statements that it needs, in their order."""
    needed, kept = used(ast.parse(code)), []
    for statement in reversed(ast.parse(shared).body):
        if made(statement) & needed:
            needed |= used(statement)
            kept.append(ast.get_source_segment(shared, statement))
    imports = [text for text in kept if text.startswith(("import", "from"))]
    rest = [text for text in kept if text not in imports]
    lines = [*reversed(imports), "", *map(spaced, reversed(rest)), "", code]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def spaced(text):
    """Empty lines around functions."""
    return f"\n{text}\n" if text.startswith("def ") else text


def used(tree):
    """All names that are read somewhere in it."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def made(statement):
    """What a statement defines, imports or assigns."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def run(script):
    """What each cell prints."""
    shared, code = cells(script)
    names, printed = {"__name__": "__main__"}, {}
    exec(compile(shared, script.name, "exec"), names)
    for name, text in code.items():
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(text, f"{script.name}: {name}", "exec"), names)
        printed[name] = out.getvalue().rstrip()
    return printed


def setup(app):
    """Run all, and put each behind the docstring of its name."""
    app.connect("builder-inited", collect)
    app.connect("autodoc-process-docstring", append)
    return {"parallel_read_safe": True}


def collect(app):
    """Code and output of each name."""
    where = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(where)}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"an example of the API fails:\n{done.stderr}")
    printed = json.loads(done.stdout)
    app.api_examples = {}
    for script in SCRIPTS:
        shared, code = cells(script)
        app.api_examples |= {f"numpyro_kme.{n}": (shown(shared, c), printed[n]) for n, c in code.items()}


def append(app, what, name, obj, options, lines):
    """Add the example to the docstring."""
    if name in app.api_examples:
        code, printed = app.api_examples[name]
        lines += ["", ".. rubric:: Example", "", *block("python", code), *(block("none", printed) if printed else [])]


def block(language, text):
    """Lines of a literal block."""
    return [f".. code-block:: {language}", "", *(f"   {line}" for line in text.splitlines()), ""]


if __name__ == "__main__":
    scripts = [script for script in SCRIPTS if script.stem in (sys.argv[1:] or script.stem)]
    print(json.dumps({name: text for script in scripts for name, text in run(script).items()}, indent=1))
