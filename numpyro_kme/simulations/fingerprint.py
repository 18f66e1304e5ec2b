"""A fingerprint of callables by value: joblib's hash of their source, and of all that they hold and name."""

import ast
import dataclasses
import functools
import inspect
import random
import sys
import textwrap
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks, compat

_NUMBERS = (type(None), bool, int, float, complex)


class UnreadableError(ValueError):
    """A function, or a value that it holds, that has no fingerprint."""


def fingerprint(value: Any) -> str:
    """A digest of a callable, or of what one holds.

    Seen are the source without comments; closures, defaults and attributes of functions; the globals that the code
    names, and those of the user's own modules; `functools.partial`, `functools.wraps`, `jax.jit`, bound methods;
    classes; the state of any object, as pickle would have it; arrays by dtype, shape and bytes. What belongs to Python
    or to an installed package counts by its name.

    Not seen are files, programs and environment variables that the code uses, modules that a function imports itself,
    and attributes that it finds by a computed name.

    Raises:
        UnreadableError: For source that cannot be read, and values that cannot be pickled, such as locks.
    """
    try:
        return f"#{_hasher()().hash(value)[:16]}"
    except UnreadableError:
        raise
    except Exception as error:
        raise checks.explained(
            f"{value!r} has no fingerprint: {error} ({type(error).__name__}). Say by `version=` which this is.",
            UnreadableError,
        ) from error


RANDOM = (np.random.Generator, np.random.RandomState, random.Random)
SHARED = getattr(np.random.uniform, "__self__", None)
"""The generator of `numpy.random`, which each distribution of SciPy refers to."""


def random_generators(value: Any) -> list[str]:
    """List where a callable holds, or names, a random generator of its own."""
    found: list[str] = []
    with suppress(Exception):  # what cannot be hashed is said elsewhere

        class Finder(_hasher()):  # type: ignore[misc]
            def reducer_override(self, value: Any) -> Any:
                """Look at the parts of a value, as they are hashed."""
                held = {f"attribute `{name}`": one for name, one in getattr(value, "__dict__", {}).items()}
                for name, one in (held | (_parts(value) or {})).items() if not _name(value) else ():
                    owner = getattr(one, "__self__", one)
                    if isinstance(owner, RANDOM) and owner is not SHARED:
                        found.append(name)
                return super().reducer_override(value)

        Finder().hash(value)
    return found


def is_another(one: Any, other: Any) -> bool:
    """Tell whether two callables differ, or cannot be compared."""
    try:
        return fingerprint(one) != fingerprint(other)
    except UnreadableError:
        return True


@functools.cache
def _hasher() -> type:
    """Hasher of the user's functions and classes by their parts; joblib and pickle hash them by name."""
    from joblib.hashing import NumpyHasher

    class Hasher(NumpyHasher):
        def save(self, obj: Any) -> None:
            """Save functions of C by name, and not the random generator that some are methods of."""
            super().save(obj.__qualname__ if isinstance(obj, types.BuiltinFunctionType) else obj)

        def save_set(self, set_items: Any) -> None:
            """Save a set by the digests of its members, whose order no process shares with another."""
            self.save_reduce(types.SimpleNamespace, (), sorted(map(fingerprint, set_items)))

        dispatch = {**NumpyHasher.dispatch, set: save_set, frozenset: save_set}

        def reducer_override(self, value: Any) -> Any:
            """Reduce a value to what counts of it; `NotImplemented` leaves it to pickle."""
            if type(value) in (*_NUMBERS, str, bytes, tuple, list, dict) or value is types.SimpleNamespace:
                return NotImplemented
            parts = _name(value) or _parts(value)
            return NotImplemented if parts is None else (types.SimpleNamespace, (), parts)

    return Hasher


def _name(value: Any) -> str | None:
    """Name of what an installed module has under one."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    module = getattr(value, "__module__", None) or type(value).__module__
    if not isinstance(module, str) or not _is_installed(module) or module not in sys.modules:
        return None
    names = [name for name, item in vars(sys.modules[module]).items() if item is value]
    return f"{module}.{min(names)}" if names else None


def _parts(value: Any) -> dict[str, Any] | None:
    """Parts of a function, of what wraps one, a class, a distribution, or a JAX array; None for anything else."""
    if isinstance(value, types.FunctionType):
        return _parts_of_function(value)
    if isinstance(value, staticmethod | classmethod | property | functools.cached_property):
        return {name: getattr(value, name, None) for name in ("__func__", "func", "fget", "fset", "fdel")}
    if isinstance(value, type) and not _is_installed(value.__module__):
        own = {name: item for name, item in vars(value).items() if _is_written(name, item)}
        return {"name": value.__qualname__, "bases": value.__bases__, **own}
    if isinstance(value, jax.Array):
        return {"array": np.asarray(jax.random.key_data(value) if checks.is_key(value) else value)}
    in_python = isinstance(inspect.getattr_static(type(value), "__call__", None), types.FunctionType)
    if not in_python and inspect.getattr_static(value, "__wrapped__", None) is not None:
        return {"wrapper": type(value).__name__, "function": value.__wrapped__}  # jax.jit, lru_cache
    fields = compat.fields(value)
    if fields is None and dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None if fields is None else {"class": type(value), **fields}


def _parts_of_function(fn: types.FunctionType) -> dict[str, Any]:
    parameters = inspect.signature(fn, follow_wrapped=False).parameters.values()
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or ())
    held = {
        **{f"closure variable `{name}`": _content(cell) for name, cell in cells},
        **{f"default `{p.name}`": p.default for p in parameters if p.default is not p.empty},
        **{f"attribute `{name}`": value for name, value in vars(fn).items()},
    }
    module = fn.__globals__.get("__name__") or ""  # of the code, whatever functools.wraps says
    if _is_installed(module):
        return {"name": f"{module}.{fn.__code__.co_qualname}", **held}
    known = {f"global `{name}`": value for name, value in _globals(fn)}
    return {"source": _source(fn.__code__, fn.__code__.co_filename), **held, **known}


@functools.lru_cache(maxsize=1024)
def _source(code: types.CodeType, file: str) -> str:
    """Source of a function without comments and line breaks, as it was when it was first asked for.

    The same code in another file is another source: codes of functions that differ by their defaults are equal.
    """
    try:
        text = textwrap.dedent("".join(inspect.getsourcelines(code)[0]))
    except (OSError, TypeError) as error:
        raise checks.explained(
            f"The source of `{code.co_qualname}` cannot be read, by which a store recognises a simulator. Say by "
            "`version=` which one this is, such as version=1, or write it in a file or a notebook.",
            UnreadableError,
        ) from error
    checks.require(
        code.co_name != "<lambda>" or text.count("lambda") == 1,
        f"Several functions in one statement cannot be told apart: {text.strip()!r}. Write them in statements of their "
        "own, or say by `version=` which simulator this is, such as version=1.",
        UnreadableError,
    )
    with suppress(SyntaxError):  # a part of an expression
        return ast.unparse(ast.parse(text))
    return text.strip()


def _globals(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that a function names, and what it names of the user's modules, without those that it assigns."""
    names = {name for code in _codes(fn.__code__) for name in code.co_names}
    known = [(name, fn.__globals__[name]) for name in sorted(names & set(fn.__globals__))]
    seen: list[types.ModuleType] = []
    while known:
        name, value = known.pop(0)
        if not isinstance(value, types.ModuleType) or _is_installed(value.__name__):
            yield name, value
        elif value not in seen:
            seen.append(value)
            known += [(f"{value.__name__}.{own}", vars(value)[own]) for own in sorted(names & set(vars(value)))]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _content(cell: types.CellType) -> Any:
    with suppress(ValueError):  # not assigned yet
        return cell.cell_contents


def _is_written(name: str, item: Any) -> bool:
    """Tell whether an author, and not Python or a decorator of classes, put an item into a class."""
    if isinstance(item, types.FunctionType):
        return inspect.unwrap(item).__code__.co_filename != "<string>"  # as dataclasses make them
    kept = name != "_abc_impl" and not (name.startswith("__") and name.endswith("__"))
    return kept and not isinstance(item, types.MemberDescriptorType)


@functools.lru_cache(maxsize=1024)
def _is_installed(module: str) -> bool:
    """Tell whether a module belongs to Python, to this package or to an installed one, rather than to the user."""
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names or package == "numpyro_kme":
        return package != "__main__"
    files = (getattr(sys.modules.get(name), "__file__", None) for name in (module, package))
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(next(filter(None, files), "")).parts)
