"""List the benchmarks, or run them.

python -m benchmarks                    # what each measures, and how long it takes
python -m benchmarks NAME [options]     # one of them; NAME --help shows its options
python -m benchmarks all                # those that need no file from elsewhere, each in a process of its own
"""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

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


def load(name):
    """The module of a benchmark."""
    return importlib.import_module(f"benchmarks.{scripts()[name].parent.name}.{name}")


def run_all():
    """Run the benchmarks that need no file one after another; the exit status is the number of those that failed."""
    failed = []
    for name, path in scripts().items():
        if described(path)[2]:
            print(f"{name} is left out: it needs{described(path)[2]}.", flush=True)
        elif subprocess.run([sys.executable, "-m", "benchmarks", name], cwd=FOLDER.parent).returncode:
            failed.append(name)
    print("failed:", ", ".join(failed) or "none")
    return len(failed)


def main(name="--help", *options):
    """Run one benchmark with its options."""
    if name in ("--help", "-h"):
        print(__doc__ + listing())
    elif name == "all":
        return run_all()
    elif name in scripts():
        sys.argv = [f"python -m benchmarks {name}", *options]
        load(name).main()
    else:
        return f"There is no benchmark {name!r}; `python -m benchmarks` lists them."


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
