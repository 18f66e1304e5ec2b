"""The architecture as a table: a folder imports from rows above its own. CONTRIBUTING.md walks through it."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from abc import ABC
from dataclasses import dataclass
from inspect import getsource, isclass
from pathlib import Path
from textwrap import dedent

import pytest

from numpyro_kme._core import display
from numpyro_kme.engines import Engine
from numpyro_kme.kernels.base import register

PACKAGE = Path(__file__).parents[1] / "numpyro_kme"

TABLE = """
_core        jax numpy numpyro arviz xarray scipy threadpoolctl tqdm
kernels      jax numpy scipy
embeddings   jax numpy scipy
models       jax numpy scipy numpyro
simulators   jax numpy scipy numpyro
simulations  jax numpy joblib tqdm cloudpickle xarray
samplers     jax numpy
likelihoods  jax numpy scipy
losses       jax numpy scipy ot
bootstrap    jax numpy scipy optax
abc          jax numpy scipy
mcmc         jax numpy scipy numpyro
engines      jax numpy scipy numpyro
diagnostics  jax numpy scipy numpyro
plots        numpy scipy matplotlib
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
ROW = {name: number for number, (name, *_) in enumerate(ROWS)}
OUTSIDE = {name: set(outside) for name, *outside in ROWS}
DISTRIBUTIONS = {"likelihoods.distribution"}
"""The module of `likelihoods` that knows NumPyro and its models; the others are mathematics."""
COMMON = ["base", "learnt_", "posterior", "reference_table", "rounds", "weight", "_"]
SHARED = tuple(f"engines.{name}" for name in COMMON)
"""What engines share: none imports another."""
MATHEMATICS = {"kernels", "embeddings", "samplers", "likelihoods", "losses", "bootstrap", "abc"}


@dataclass(frozen=True)
class Import:
    line: int
    name: str


def module_name(path: Path) -> str:
    """`kernels/base.py` is `kernels.base`; a package's `__init__.py` is the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, package: str) -> list[Import]:
    """Every import in the source, also inside functions, with relative ones resolved against `package`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *filter(None, [node.module])])
            found += [Import(node.lineno, f"{origin}.{alias.name}") for alias in node.names]
    return found


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """What the table forbids, as sentences."""
    top = module.split(".")[0]
    if not module:
        return []
    full = f"numpyro_kme.{module}"
    if top not in ROW:
        return [f"{full} is not in the table of tests/test_imports.py: put it into a folder."]
    meets = module in DISTRIBUTIONS or (is_package and module == "likelihoods")
    allowed = OUTSIDE[top] | ({"numpyro"} if meets else set())
    sentences = []
    for found in imports(source, full if is_package else full.rpartition(".")[0]):
        outside, _, inside = found.name.partition(".")
        target, where = inside.split(".")[0], f"{full}, line {found.line}, imports {found.name}"
        if outside != "numpyro_kme":
            if outside not in allowed and outside not in sys.stdlib_module_names:
                sentences.append(f"{where}; outside packages allowed there: {sorted(allowed)}.")
        elif target not in ROW:
            sentences.append(f"{where}; import from the module that defines the name, not from the package.")
        elif target == top:
            if top == "engines" and not is_package and not inside.startswith(SHARED):
                sentences.append(f"{where}; no engine imports another.")
            elif not meets and inside.startswith(tuple(DISTRIBUTIONS)):
                sentences.append(f"{where}; mathematics knows nothing of distributions.")
        elif ROW[target] > ROW[top]:
            sentences.append(f"{where}, which stands below it in the table.")
        elif top in MATHEMATICS and target in ("models", "simulations") and not meets:
            sentences.append(f"{where}; mathematics knows nothing of models.")
    return sentences


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: module_name(path) or "numpyro_kme")
def test_imports_follow_the_table(path):
    found = violations(module_name(path), path.read_text(), is_package=path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_what_is_imported_is_declared():
    """The dependencies are what the table allows, which is what is imported; what is optional stands in extras."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = {word for name in ("transport", "executor", "plots") for word in declared(extras[name])}
    assert declared(project["dependencies"]).isdisjoint(optional)
    used = {i.name.split(".")[0] for path in PACKAGE.rglob("*.py") for i in imports(path.read_text(), "numpyro_kme")}
    used -= {*sys.stdlib_module_names, "numpyro_kme"}
    assert declared(project["dependencies"]) | optional == used == set().union(*OUTSIDE.values())


def declared(requirements: list[str]) -> set[str]:
    """Names under which what is required is imported."""
    return {re.match(r"[\w-]+", line)[0].replace("pot", "ot") for line in requirements}


def test_what_takes_long_to_import_is_loaded_where_it_is_used():
    """Beside what NumPyro loads, the import takes few modules of other packages."""
    code = "import sys, numpyro; before = {*sys.modules}; import numpyro_kme; print(*({*sys.modules} - before))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    outside = {name.split(".")[0] for name in loaded} - {*sys.stdlib_module_names, "__mp_main__", "numpyro_kme"}
    assert "numpyro_kme.engines" in loaded and outside <= {"threadpoolctl", "scipy"}
    late = ("scipy.stats", "scipy.optimize", "scipy.spatial", "numpyro_kme.simulators")
    assert not {name for name in loaded if name.startswith(late)}


STATE = """
import atexit, logging, os, signal, threading, warnings
import jax, numpyro, scipy.linalg, jax._src.dtypes, jax._src.random, numpyro.primitives

def state():
    return {
        "configuration of JAX": jax.config.values,
        "arrays": getattr(jax._src.dtypes, "canonicalize_value_handlers", None),
        "binomial": getattr(jax._src.random, "_binomial", None),
        "functions of jax.random": dict(vars(jax.random)),
        "functions of jax.numpy": dict(vars(jax.numpy)),
        "distributions": dict(vars(numpyro.distributions)),
        "handlers": (list(numpyro.primitives._PYRO_STACK), dict(vars(numpyro.handlers))),
        "threads": threading.enumerate(),
        "at exit": atexit._ncallbacks(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "warnings": warnings.filters,
        "logging": (logging.root.handlers, logging.root.level),
        "environment": dict(os.environ),
    }

def copied(value):
    return type(value)(value) if isinstance(value, (dict, list)) else value

before = {name: copied(value) for name, value in state().items()}
import numpyro_kme
print(*(name for name, value in state().items() if value != before[name]), sep=", ")
"""


def test_an_import_changes_nothing_outside():
    assert subprocess.run([sys.executable, "-c", STATE], check=True, capture_output=True, text=True).stdout == "\n"


def test_nothing_is_loose_at_the_top():
    assert [path.name for path in PACKAGE.glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize(
    "module, source, word",
    [
        ("kernels.base", "import numpyro", "outside packages"),
        ("likelihoods.residual.form", "def f():\n    from numpyro import infer", "outside packages"),
        ("embeddings.means", "from numpyro_kme.likelihoods import base", "below it"),
        ("likelihoods.base", "from numpyro_kme.simulations import Simulations", "knows nothing of models"),
        ("likelihoods.base", "from numpyro_kme.likelihoods.distribution import X", "of distributions"),
        ("engines.kelfi", "from numpyro_kme.engines.discrepancy_abc import K2ABC", "no engine imports another"),
        ("engines.kelfi", "from .discrepancy_abc import K2ABC", "no engine imports another"),
        ("embeddings.means", "from numpyro_kme import Gaussian", "not from the package"),
        ("models.problem", "import matplotlib", "outside packages"),
        ("surprise", "import jax", "not in the table"),
    ],
)
def test_the_table_catches(module, source, word):
    assert any(word in sentence for sentence in violations(module, source))


@pytest.mark.parametrize(
    "module, source",
    [
        ("kernels.base", "from numpyro_kme.kernels.stationary import Gaussian\nimport jax.numpy as jnp\nimport math"),
        ("engines.kelfi", "from numpyro_kme.engines.base import Engine\nfrom numpyro_kme._core import arviz"),
        ("likelihoods.distribution", "import numpyro\nfrom numpyro_kme.models.coordinates import Coordinates"),
        ("mcmc.handlers", "from numpyro_kme.likelihoods.distribution import KernelMeansLikelihood"),
        ("_core.solves", "from numpyro_kme._core import checks"),
    ],
)
def test_the_table_allows(module, source):
    assert violations(module, source) == []


def test_things_are_where_the_list_says():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    listed = re.findall(r"^\|.*\| `([\w/]+)` \| `(\w+)` \|$", text, re.MULTILINE)
    assert len(listed) == 30
    for file, name in listed:
        assert re.search(rf"^(def|class) {name}\b", (PACKAGE / f"{file}.py").read_text(), re.MULTILINE), (file, name)


def own_classes():
    """All that the package defines."""
    names = [module.name for module in pkgutil.walk_packages([str(PACKAGE)], "numpyro_kme.")]
    found = {value for name in names for value in vars(importlib.import_module(name)).values() if isclass(value)}
    return {c for c in found if c.__module__ in names}


def test_values_are_frozen():
    """All but engines and what they inherit, which hold settings."""
    own = {c for c in own_classes() if "__dataclass_params__" in vars(c)}
    thawed = {c.__name__ for c in own if not c.__dataclass_params__.frozen and not issubclass(c, Engine)}
    assert len(own) > 100 and not thawed


def test_engines_are_shown_and_compared_as_objects():
    """A model is a function, and results are arrays: as fields they would be long to show and impossible to compare."""
    engines = [c for c in own_classes() if issubclass(c, Engine)]
    assert len(engines) > 8
    for engine in engines:
        assert engine.__repr__ is display.text and engine.__eq__ is object.__eq__, engine


def test_what_a_family_leaves_open_must_be_written_by_its_members():
    """In an abstract class, a method that promises a value and consists of its docstring is abstract."""
    count = 0
    for cls in (c for c in own_classes() if ABC in c.__bases__):
        (body,) = ast.parse(dedent(getsource(cls))).body
        for method in (node for node in body.body if isinstance(node, ast.FunctionDef) and len(node.body) == 1):
            if ast.get_docstring(method) and ast.unparse(method.returns) != "None":
                assert method.name in cls.__abstractmethods__, (cls, method.name)
                count += 1
    assert count > 20


def test_editors_know_the_constructors_of_registered_classes():
    """By PEP 681: fields are arguments, and instances are frozen."""
    told = register.__dataclass_transform__
    assert {**told, **told["kwargs"]}["frozen_default"]


def test_walks_of_the_contributing_page_follow_the_table():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    walks = text.split("### Three walks")[1].split("###")[0]
    found = [
        re.findall(r"^\d\. `([\w/]+)`", part, re.M) for part in re.split(r"^[^\n]+, [^\n]+:$", walks, flags=re.M)[1:]
    ]
    assert len(found) == 3
    for steps, direction in zip(found, (-1, -1, 1)):
        files = [PACKAGE / step for step in steps]
        assert all(file.with_suffix(".py").exists() or file.is_dir() for file in files)
        rows = [direction * ROW[step.split("/")[0]] for step in steps]
        assert rows == sorted(rows)
