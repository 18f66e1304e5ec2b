"""List the benchmarks, or run them.

python -m benchmarks                    # what each measures, and how long it takes
python -m benchmarks NAME [options]     # one of them; NAME --help shows its options
python -m benchmarks papers [--series path/to/blowfly.csv]   # all of the papers; a stopped one goes on

A benchmark is a file with a function `main`, whose parameters are the options, and which returns the title and the
sections of its table, and what its figures beside those of a paper are read from.
"""

import argparse
import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.helpers import code, report

FOLDER = Path(__file__).parent


def scripts():
    """The file of each benchmark by its name, theme by theme."""
    found = sorted(path for path in FOLDER.glob("*/*.py") if path.parent.name not in ("helpers", "guard"))
    return {path.stem: path for path in found}


def described(path):
    """What a benchmark measures, how long it takes, and the files that it cannot do without, by its docstring."""
    text = ast.get_docstring(ast.parse(path.read_text()))
    first, takes = (re.search(pattern, text, re.S)[1] for pattern in (r"(.+?)[.]?\n\n", r"Takes\s([^.;]+)"))
    needs = re.search(rf"python -m benchmarks {path.stem}((?: --\w+ path/to/\S+)*)", text)[1]
    return " ".join(first.split()), " ".join(takes.split()), needs


def listing():
    """All benchmarks as text."""
    lines = []
    for theme in sorted({path.parent.name for path in scripts().values()}):
        lines.append(f"\n{theme}/")
        for name, path in scripts().items():
            if path.parent.name == theme:
                what, takes, needs = described(path)
                lines.append(f"  {name + needs}\n      {what} ({takes}).")
    return "\n".join(lines)


def parsed(main, doc):
    """The options of a benchmark, by the parameters of its function and their defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, parameter in inspect.signature(main).parameters.items():
        flag, default = "--" + name.replace("_", "-"), parameter.default
        if name == "rows":
            text = "JSON lines that keep finished rows; those in the file are not computed again"
            parser.add_argument(flag, type=report.Rows, default=report.Rows(), metavar="FILE", help=text)
        elif isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, nargs="*", type=type(default[0]) if default else str, default=default)
        else:
            parser.add_argument(flag, type=str if default is None else type(default), default=default)
    return vars(parser.parse_args())


def papers(series=None):
    """Make each table of the papers in a process of its own, from rows in `outputs/papers/` that the same code made.

    Benchmarks that need the blowfly counts are left out without them.
    """
    for name, path in scripts().items():
        needs = ["--series", series] if described(path)[2] else []
        if path.parent.name == "papers" and None not in needs:
            rows = f"outputs/papers/{name}-{code.digest(name)}.jsonl"
            subprocess.run([sys.executable, "-m", "benchmarks", name, "--rows", rows, *needs], check=True)


def main(name="--help", *options):
    """Run one benchmark with its options, and keep its table."""
    if name in ("--help", "-h"):
        return print(__doc__ + listing())
    sys.argv = [f"python -m benchmarks {name}", *options]
    if name == "papers":
        papers(**parsed(papers, papers.__doc__))
    elif name in scripts():
        module = importlib.import_module(f"benchmarks.{scripts()[name].parent.name}.{name}")
        made = module.main(**parsed(module.main, module.__doc__))
        if made:
            print(report.write(name, *made))
    else:
        return f"There is no benchmark {name!r}; `python -m benchmarks` lists them."


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
