"""What the numbers that tune the default form are worth: each halved and doubled, on ten problems of known density.

    python -m benchmarks constants [--size 300] [--problems NAME ...] [--only weights.NEGLIGIBLE ...] [--rows FILE]

Every number at the top of a module of `likelihoods/residual`, and the one by which searches end, is halved and doubled
alone; entries of dictionaries one by one. The gap is the mean of `log p(x | theta) - log q(x | theta)` over 2,000 fresh
simulations, in nats, as in `budgets`; its change is told in the mean over the ten problems of `helpers/problems.py`,
and where it is largest: a positive one is worse. What modules compute of a number when they are read stays as it was.
Another size
than 300 has a table of its own. Takes an hour and a half.
"""

import ast
import functools
import importlib
import inspect
import os
import pkgutil
import sys
import warnings

import numpy as np

from benchmarks.helpers import report
from benchmarks.helpers.problems import PROBLEMS
from benchmarks.kelfi.budgets import one
from numpyro_kme.likelihoods import descent, residual

FACTORS = {"halved": 0.5, "doubled": 2.0}


def numbers():
    """Where each number stands: `{"module.NAME" or "module.NAME[key]": [(namespace, key), ...]}`, the module's own
    first, and then those of modules that import it."""
    own = [descent, *(importlib.import_module(f"{residual.__name__}.{m.name}") for m in _modules())]
    found = {}
    for module in own:
        short = module.__name__.rpartition(".")[2]
        for name in filter(str.isupper, _assigned(module)):
            value = getattr(module, name)
            if isinstance(value, dict):
                found |= {f"{short}.{name}[{key}]": [(value, key)] for key in value if _is_number(value[key])}
            elif _is_number(value):
                found[f"{short}.{name}"] = [(vars(other), name) for other in (module, *_importing(module, name))]
    return found


def _modules():
    return pkgutil.iter_modules(residual.__path__)


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _assigned(module):
    """Names that a module assigns to at its top."""
    tree = ast.parse(inspect.getsource(module))
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _importing(module, name):
    """Modules of the package that import a name from one."""
    others = [other for key, other in sys.modules.items() if key.startswith("numpyro_kme.")]
    return [other for other in others if (module.__name__, name) in _imported(other)]


@functools.cache
def _imported(module):
    """What a module imports at its top, as pairs of a module and a name."""
    nodes = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ImportFrom)]
    return {(node.module, alias.name) for node in nodes for alias in node.names}


def changed(places, factor):
    """Multiply a number in all its places, whole ones rounded and at least 1; returns what undoes it."""
    before = places[0][0][places[0][1]]
    value = max(1, round(before * factor)) if isinstance(before, int) else before * factor
    for namespace, key in places:
        namespace[key] = value
    return lambda: [namespace.__setitem__(key, before) for namespace, key in places]


def gaps(size, rows, label, problems):
    """Gap and CPU seconds of each problem, or the error that a fit ends with; finished ones are kept under a label."""
    for name in problems:
        if not rows.has(label=label, size=size, problem=name):
            try:
                found = one(name, size, 0)
            except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
                found = {"fails": f"{type(error).__name__}: {error}"}
            rows.add(label=label, size=size, problem=name, **found)
    return {name: rows.of(label=label, size=size, problem=name)[0] for name in problems}


def line(name, value, usual, by_factor):
    """A row of the table: what halving and doubling change in the mean, and where most."""
    cells = [name, f"{value:.4g}"]
    for found in by_factor.values():
        failed = [problem for problem, row in found.items() if "fails" in row]
        if failed:
            cells += [f"fails: {', '.join(failed)}", "", ""]
            continue
        change = {problem: row["mean"] - usual[problem]["mean"] for problem, row in found.items()}
        most = max(change, key=lambda problem: abs(change[problem]))
        mean = np.mean(list(change.values()))
        seconds = [sum(row["CPU seconds"] for row in some.values()) for some in (found, usual)]
        where = f"{change[most]:+.3f}, {most}" if change[most] else ""
        cells += [f"{mean:+.4f}" if where else "0", where, f"{seconds[0] / seconds[1]:.2f}"]
    return cells


def main():
    parser = report.parser(__doc__, resumes=True)
    places = numbers()
    parser.add_argument("--size", type=int, default=300)
    parser.add_argument("--only", nargs="+", choices=places, default=list(places), metavar="MODULE.NAME")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["NUMPYRO_KME_WORKERS"] = "0"  # other processes have the numbers as they are
    one("four modes", options.size, 0)  # warms up
    usual = gaps(options.size, options.rows, "as it is", options.problems)
    lines = []
    for name in options.only:
        found = {}
        for word, factor in FACTORS.items():
            undo = changed(places[name], factor)
            found[word] = gaps(options.size, options.rows, f"{name} {word}", options.problems)
            undo()
        namespace, key = places[name][0]
        lines.append(line(name, namespace[key], usual, found))
    columns = [f"{word}{what}" for word in FACTORS for what in (", mean change", ", most", ", CPU seconds")]
    total = np.mean([row["mean"] for row in usual.values()])
    heading = f"Change of the gap in nats at {options.size} simulations; as it is it is {total:.3f} in the mean"
    name = "constants" if options.size == 300 else f"constants_{options.size}"
    report.save(name, "Numbers of the default form", [(heading, report.table(["number", "is", *columns], lines))])
