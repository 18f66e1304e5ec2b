"""What the code of a function names: globals and modules, the user's own and installed ones."""

import dis
import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from typing import Any


def globals_of(fn: types.FunctionType) -> dict[str, Any]:
    """The globals that a function names, and what it names of the user's modules; not those that it assigns."""
    read, assigned, imported, names = set[str](), set[str](), set[str](), set[str]()
    for code in _codes(fn.__code__):
        names.update(code.co_names)
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        read.update(step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
        assigned.update(step.argval for step in steps if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"))
        imported.update(
            "." * level.argval + step.argval for level, step in zip(steps, steps[2:]) if step.opname == "IMPORT_NAME"
        )
    known = {name: fn.__globals__[name] for name in read - assigned if name in fn.__globals__ and not is_dunder(name)}
    modules = [*known.values(), *(_imported(name, fn.__globals__.get("__package__")) for name in imported)]
    seen: list[Any] = []
    while modules:
        module = modules.pop()
        if isinstance(module, types.ModuleType) and module not in seen and not is_installed(module.__name__):
            seen.append(module)
            own = {name: vars(module)[name] for name in names if name in vars(module) and not is_dunder(name)}
            known |= {f"{module.__name__}.{name}": value for name, value in own.items()}
            modules += own.values()
    return known


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _imported(name: str, package: str | None) -> types.ModuleType | None:
    """A module that a function imports; None if it is installed or cannot be imported here."""
    with suppress(Exception):
        full = util.resolve_name(name, package)
        return None if is_installed(full) else importlib.import_module(full)
    return None


def is_installed(module: str) -> bool:
    """Whether a module belongs to Python, to this package or to an installed one, rather than to the user."""
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names or package == "numpyro_kme":
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or getattr(sys.modules.get(package), "__file__", None)
    if file is None and package not in sys.modules:
        with suppress(Exception):
            spec = util.find_spec(package)
            file = spec and spec.origin
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file or "").parts)


def version_of(package: str) -> str:
    """Version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "unknown"))


def is_dunder(name: str) -> bool:
    """Whether Python rather than an author gave that name; `__wrapped__` holds what an author wrote."""
    return name.startswith("__") and name.endswith("__") and name != "__wrapped__"
