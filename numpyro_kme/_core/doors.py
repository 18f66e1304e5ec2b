"""Doors: where a call fails in words of another package, what was given is compared with the annotations."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from functools import wraps
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown

Given = ParamSpec("Given")
Found = TypeVar("Found")
C = TypeVar("C")


def door(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Require that `rng_key` is a random key, and name the argument that is of another kind than its annotation says
    where `function` raises an error that is not explained; a decorator. What else succeeds is not looked at, and errors
    of what users wrote stay as they are. Fields of a class may hold several keys."""
    names = () if function.__name__ == "__init__" else tuple(inspect.signature(function).parameters)

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        given = dict(zip(names, args)) | kwargs
        if "rng_key" in given:
            checks.key(given["rng_key"])
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not checks.is_explained(error):
                _name_misfit(function, args, kwargs, error)
            raise

    return call


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[C]) -> type[C]:
    """Make a frozen dataclass whose values print as those of `shown` do, and are made through a door; a decorator."""
    cls = shown(dataclass(frozen=True, repr=False)(cls))
    cls.__init__ = door(cls.__init__)  # type: ignore[method-assign]
    return cls


def _name_misfit(function: Callable, args: tuple, kwargs: Any, error: Exception) -> None:
    """Raise an explained error for the first argument, or field of the instance, that does not fit."""
    try:
        given, hints = inspect.signature(function).bind(*args, **kwargs).arguments, get_type_hints(function)
        given |= {f"{name}[{i}]": one for name in ("params", "args") for i, one in enumerate(given.pop(name, ()))}
        hints |= {name: hints.get(name.partition("[")[0], Any) for name in given}
        owner = given.get("self")
        if is_dataclass(owner) and function.__name__ != "__init__":
            given, hints = vars(owner) | given, get_type_hints(type(owner)) | hints
        misfits = [name for name, value in given.items() if name in hints and not _fits(value, hints[name])]
    except Exception:
        return  # what cannot be compared is left as it is
    if misfits:
        name = misfits[0]
        wanted, found = _words(hints[name]), checks.line(given[name])
        raise checks.explained(f"`{name}` must be {wanted}; got {found}.", TypeError) from error


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value may be of the kind of an annotation."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if hint is Any or isinstance(value, jax.core.Tracer):
        return True
    if _of_arrays(hint):
        is_key = hint is jax.Array and checks.is_key(value)
        return is_key or _is_numeric(value) or (NoneType in parts and value is None)
    if kind in UNIONS:
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return isinstance(value, str | int | NoneType) and value in parts
    if kind in (float, int):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        return whole or (kind is float and _is_numeric(value) and np.ndim(value) == 0)
    return not isinstance(kind, type) or isinstance(value, kind)


UNIONS = (Union, UnionType)


def _of_arrays(hint: Any) -> bool:
    return hint in (np.ndarray, jax.Array) or (get_origin(hint) in UNIONS and np.ndarray in get_args(hint))


def _is_numeric(value: Any) -> bool:
    """Tell whether a value is real numbers, or can be turned into an array of them."""
    with suppress(Exception):
        return np.asarray(value).dtype.kind in "biufV"  # V: bfloat16
    return False


def _words(hint: Any) -> str:
    """Words for the values that an annotation asks for."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if _of_arrays(hint):
        return "an array of real numbers" + (" or None" if NoneType in parts else "")
    if kind in UNIONS:
        return " or ".join(map(_words, parts))
    named: dict[Any, str] = {float: "a number", int: "a whole number", bool: "True or False", NoneType: "None"}
    named |= {Callable: "a function", str: "text", Literal: " or ".join(map(repr, parts))}
    return named.get(kind) or str(getattr(kind, "what", f"of the kind {getattr(kind, '__name__', kind)}"))
