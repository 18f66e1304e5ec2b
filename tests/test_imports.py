"""The architecture as a table: who may import whom. CONTRIBUTING.md explains the two columns."""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "numpyro_kme"

TABLE = """
support      _checks _host _linalg _compat _programs _plain_zarr _arviz citations
mathematics  kernels
mathematics  measures
mathematics  embeddings
mathematics  discrepancies low_rank
mathematics  mmd_estimators hypothesis_tests kernel_bayes
mathematics  filtering
mathematics  parameter_choice
mathematics  herding
mathematics  length_scales
mathematics  tempering
modelling    _blocks _calls _tails _links _mixtures
modelling    _normalise
modelling    simulator from_noise
modelling    synthetic_likelihood
modelling    _reading
modelling    problem
modelling    _matching
modelling    coordinates
modelling    simulations
mathematics  kernel_means
mathematics  losses
mathematics  abc_weights
mathematics  recursive_abc distribution_regression
mathematics  bootstrap
modelling    noise
modelling    _loss_density
modelling    generalized
modelling    handlers
modelling    unconstrained
modelling    surrogate_check
modelling    pseudo_marginal
modelling    rescoring
both         diagnostics
both         engines
both         kernel_learning
both         weight_calibration
both         plots
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
ROW = {name: number for number, (_, *names) in enumerate(ROWS) for name in names}
COLUMN = {name: column for column, *names in ROWS for name in names}
MEETING = {"kernel_means.distribution"}
"""Imports go from a row to rows above it or within `support`. The columns meet in `both` and in `MEETING`."""

THIRD_PARTY = {
    "kernels": {"jax", "numpy", "scipy"},
    "tempering": {"jax", "numpy", "blackjax"},
    "losses": {"jax", "numpy", "scipy", "ot"},
    "simulations": {"jax", "numpy", "tqdm", "zarr", "cloudpickle", "xarray"},
    "_arviz": {"numpy", "arviz", "xarray"},
    "plots": {"numpy", "scipy", "matplotlib"},
    "_compat": {"jax", "numpyro", "numpy"},
    "_checks": {"jax", "numpy"},
    "_linalg": {"jax", "numpy", "threadpoolctl"},
}
MATHEMATICS_MAY_USE = {"jax", "numpy", "scipy", "optax"}
OTHERS_MAY_USE = MATHEMATICS_MAY_USE | {"numpyro", "tqdm"}


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
    if top not in ROW:
        return [f"numpyro_kme.{module} is not in the table of tests/test_imports.py: add it where it belongs."]
    full = f"numpyro_kme.{module}"
    column = "both" if module in MEETING else COLUMN[top]
    mathematics = column == "mathematics"
    allowed = THIRD_PARTY.get(top, MATHEMATICS_MAY_USE if mathematics else OTHERS_MAY_USE)
    sentences = []
    for found in imports(source, full if is_package else full.rpartition(".")[0]):
        outside, _, inside = found.name.partition(".")
        where = f"{full}, line {found.line}, imports {found.name}"
        if outside != "numpyro_kme":
            if outside not in allowed and outside not in sys.stdlib_module_names:
                sentences.append(f"{where}; outside packages allowed there: {sorted(allowed)}.")
            continue
        target = inside.split(".")[0]
        if target not in ROW:
            sentences.append(f"{where}; import from the module that defines the name, not from the package.")
        elif is_package and target == top:
            continue
        elif mathematics and inside.startswith(tuple(MEETING)):
            sentences.append(f"{where}; the mathematics column knows nothing of distributions.")
        elif target == top:
            if top == "engines" and not inside.startswith("engines._"):
                sentences.append(f"{where}; no engine imports another.")
        elif ROW[target] > ROW[top] or (ROW[target] == ROW[top] and column != "support"):
            sentences.append(f"{where}, which stands below it in the table.")
        elif mathematics and COLUMN[target] not in ("mathematics", "support"):
            sentences.append(f"{where}; the mathematics column knows nothing of models.")
        elif column == "modelling" and target == "kernels":
            sentences.append(f"{where}; the modelling column knows nothing of kernels.")
    return sentences


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: module_name(path) or "numpyro_kme")
def test_imports_follow_the_table(path):
    found = violations(module_name(path), path.read_text(), is_package=path.name == "__init__.py")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "module, source, word",
    [
        ("kernels.base", "import numpyro", "outside packages"),
        ("kernel_means.learning", "def f():\n    from numpyro import infer", "outside packages"),
        ("embeddings", "from numpyro_kme import simulator", "below it"),
        ("kernel_means.base", "from numpyro_kme.simulations import Simulations", "knows nothing of models"),
        ("kernel_means.base", "from numpyro_kme.kernel_means.distribution import X", "of distributions"),
        ("simulator", "from numpyro_kme.kernels import Gaussian", "knows nothing of kernels"),
        ("handlers", "from numpyro_kme.kernels.base import Kernel", "knows nothing of kernels"),
        ("engines.kelfi", "from numpyro_kme.engines.k2abc import K2ABC", "no engine imports another"),
        ("engines.kelfi", "from .k2abc import K2ABC", "no engine imports another"),
        ("herding", "from numpyro_kme import Gaussian", "not from the package"),
        ("problem", "import matplotlib", "outside packages"),
        ("surprise", "import jax", "not in the table"),
    ],
)
def test_the_table_catches(module, source, word):
    assert any(word in sentence for sentence in violations(module, source))


@pytest.mark.parametrize(
    "module, source",
    [
        ("kernels.base", "from numpyro_kme.kernels.algebra import Sum\nimport jax.numpy as jnp\nimport math"),
        (
            "engines.kelfi",
            "from numpyro_kme.engines._base import Engine\nfrom numpyro_kme import _arviz, kernels",
        ),
        ("kernel_means.distribution", "import numpyro\nfrom numpyro_kme.coordinates import Coordinates"),
        ("handlers", "from numpyro_kme.kernel_means.distribution import KernelMeansLikelihood"),
        ("_linalg", "from numpyro_kme import _checks"),
    ],
)
def test_the_table_allows(module, source):
    assert violations(module, source) == []
