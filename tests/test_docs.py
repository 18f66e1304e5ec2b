"""Documentation that cannot rot: the README's code runs, every public name is explained and listed."""

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import numpyro_kme

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(text, language):
    """The fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def public_modules():
    """The package, and every module of it that has an `__all__` and no private part in its name."""
    names = ["numpyro_kme", *(m.name for m in pkgutil.walk_packages(numpyro_kme.__path__, "numpyro_kme."))]
    modules = [importlib.import_module(name) for name in names if "._" not in name]
    return [module for module in modules if hasattr(module, "__all__")]


def public_objects():
    return [
        (f"{module.__name__}.{name}", getattr(module, name))
        for module in public_modules()
        for name in module.__all__
    ]


def run_as_a_user(*command, timeout=300):
    """A fresh interpreter with JAX's own defaults."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_readme_is_short_and_has_two_commands():
    assert len(README.splitlines()) <= 90
    commands = [line for block in blocks(README, "bash") for line in block.splitlines()]
    assert len(commands) == 2, commands
    assert "examples/blowfly.py" in commands[0] and "pytest" in commands[1]


def test_first_block_of_the_readme_prints_a_posterior():
    first = blocks(README, "python")[0]
    assert len(first.splitlines()) <= 20
    printed = run_as_a_user(sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", first)
    assert re.search(r"mean +std +median", printed), printed


def test_quickstart_runs_the_code_of_the_readme():
    assert blocks(README, "python")[0] in (ROOT / "docs" / "quickstart.md").read_text()


@pytest.mark.parametrize(
    "name, value", public_objects(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_public_names_are_explained(name, value):
    if inspect.ismodule(value) or not (inspect.isclass(value) or callable(value)):
        return
    own = inspect.getdoc(value) or ""
    inherited = {inspect.getdoc(base) for base in getattr(value, "__mro__", ())[1:]}
    assert own and own not in inherited, f"{name} has no docstring of its own"
    assert not own.startswith(f"{value.__name__}("), f"{name} has only the docstring that dataclasses make"
    if inspect.isclass(value):
        for member, function in vars(value).items():
            function = function.fget if isinstance(function, property) else function
            if not member.startswith("_") and inspect.isfunction(function):
                assert inspect.getdoc(getattr(value, member)), f"{name}.{member} has no docstring"


def test_every_public_module_is_in_the_api_page():
    page = (ROOT / "docs" / "api.md").read_text()
    missing = [
        module.__name__ for module in public_modules() if f"automodule:: {module.__name__}\n" not in page
    ]
    assert not missing, f"docs/api.md has no automodule for {missing}"


def test_names_in_the_notation_table_exist():
    rows = [
        line.split("|")[2]
        for line in (ROOT / "docs" / "notation.md").read_text().splitlines()
        if line.count("|") > 3
    ]
    names = [name for row in rows for name in re.findall(r"`(numpyro_kme[\w.]*)", row)]
    assert len(names) >= 8
    for name in names:
        resolve(name)


def resolve(dotted):
    """Import the longest module in `a.b.c` and follow the rest as attributes, dataclass fields included."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            fields = getattr(value, "__dataclass_fields__", {})
            assert hasattr(value, part) or part in fields, f"{dotted} does not exist"
            value = getattr(value, part, None)
        return value
    raise AssertionError(f"{dotted} does not exist")


@pytest.mark.slow
def test_docs_build_without_warnings(tmp_path):
    pytest.importorskip("myst_nb", reason="needs the docs extra")
    run_as_a_user(
        sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(tmp_path), timeout=900
    )
    assert (tmp_path / "kelfi.html").exists()
