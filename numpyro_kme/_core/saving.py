"""Values as files: data and not code, with nothing executed on loading.

A file is an `.npz` archive of NumPy. Its array `header` is a text in JSON, `{"numpyro_kme": {"format", "version",
"kind"}, "value": ...}`, with the value as a tree: numbers and texts as they are, NaN and infinities as `{"float":
text}`, and `{"array": i, "shape": [...]}` for the array `i`, flat, each kept once. `{"object": name, "fields": {...}}`
is a dataclass or named tuple of a class that was declared `saveable`, or a distribution, transformation or constraint
of NumPyro. Names of other classes and anything pickled are errors. No constructor of a dataclass is called.
"""

import json
import math
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints
from uuid import uuid4

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints, transforms

from numpyro_kme._core import checks, compat
from numpyro_kme._core.doors import door

FORMAT = 1
"""Number of the layout of a file."""

PACKAGE, HEADER = "numpyro_kme", "header"
"""Package of the classes that files hold, and the array of a file that says what it is."""

UNPACKED = 2**28
"""Bytes that any file may unpack to; more only if they are at most a hundred times its length: zlib makes zeros a
thousandth, and what was simulated a third."""

OF_NUMPYRO: tuple[type, ...] = (dist.Distribution, transforms.Transform, constraints.Constraint)

T = TypeVar("T", bound=type)
_classes: dict[str, type] = {}


class SavedFileError(ValueError):
    """A file that cannot be read as a saved value, and why."""


def saveable(cls: T) -> T:
    """Let files hold values of a dataclass or named tuple, by its name; a decorator."""
    _classes[_name(cls)] = cls
    return cls


def _name(cls: type) -> str:
    """The package's classes by their names alone, so that modules may move; others with their modules."""
    own = cls.__module__.partition(".")[0] == PACKAGE
    return cls.__qualname__ if own else f"{cls.__module__}.{cls.__qualname__}"


class Saved:
    """Base of values that can be kept in a file and shared."""

    @door
    def save(self, path: str | PathLike) -> None:
        """Write this value to a file, of one format for all values: numbers and text, no code (docs/saving.md).

        The file is replaced as a whole, or stays as it was. Functions, the model among them, are not saved.

        Args:
            path: Of the file; by custom it ends in `.kme`.
        Raises:
            TypeError: If the value holds a function or an object of a class that files cannot hold.
        """
        write(path, self)

    @classmethod
    @door
    def load(cls, path: str | PathLike) -> Self:
        """Read what `save` wrote, in any process and on any machine; nothing in the file is executed.

        Raises:
            SavedFileError: If there is no such file, or it is damaged, not of this package, of another kind of value or
                of a later format.
        """
        found = read(path)
        if not isinstance(found, cls):
            kind = type(found).__name__
            raise checks.explained(f"{path} holds a {kind} and not a {cls.__name__}: use {kind}.load.", SavedFileError)
        return found

    def _to_save(self) -> "Saved":
        """The part of it that is saved."""
        return self


def write(path: str | PathLike, value: Any) -> None:
    """Write a value to a file, which is replaced as a whole."""
    path = Path(path).expanduser().absolute()
    checks.require(not path.is_dir(), f"`path` must be that of a file; got the folder {path}. Add a name of a file.")
    arrays: list[np.ndarray] = []
    tree = _Writer(arrays).encoded(value, type(value).__name__)
    about = {"format": FORMAT, "version": version("numpyro-kme"), "kind": tree["object"]}
    checks.require(path.parent.is_dir(), f"There is no folder {path.parent} to write {path.name} to.")
    header = np.array(json.dumps({PACKAGE: about, "value": tree}, allow_nan=False))
    named: dict[str, Any] = {HEADER: header, **{str(number): one for number, one in enumerate(arrays)}}
    made = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with made.open("xb") as file:
            np.savez_compressed(file, **named)
            if is_bomb(sum(array.nbytes for array in named.values()), file.tell()):
                file.seek(0)
                file.truncate()
                np.savez(file, **named)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def is_bomb(unpacked: int, packed: int) -> bool:
    """Tell whether so many bytes are too many for a file of this length, as a file of a stranger may have them."""
    return unpacked > max(UNPACKED, 100 * packed)


def _check_members(path: Path) -> dict:
    """The header of a file whose arrays have the types and lengths that it says, before one is unpacked."""
    with zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        total, length = sum(member.file_size for member in members.values()), path.stat().st_size
        checks.require(not is_bomb(total, length), f"its {length:,} bytes must not unpack to {total:,}")
        checks.require(archive.testzip() is None, "a check sum is wrong")
        with archive.open(members.pop(HEADER)) as file:
            header = json.loads(str(np.lib.format.read_array(file, allow_pickle=False)))
        about = header[PACKAGE]
        if about["format"] != FORMAT:
            raise checks.explained(
                f"{path} has format {about['format']}, written by numpyro_kme {about['version']}; this release reads "
                f"format {FORMAT}. Install numpyro_kme {about['version']}.",
                SavedFileError,
            )
        for name, member in members.items():
            with archive.open(member) as file:
                checks.require(np.lib.format.read_magic(file) == (1, 0), f"array {name} should be of format 1.0")
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                size = file.tell() + math.prod(shape) * dtype.itemsize
            sound = dtype.kind in "biufc" and len(shape) == 1 and size == member.file_size
            checks.require(sound, f"array {name} should be what its header says")
    return header


def read(path: str | PathLike) -> Any:
    """The value in a file."""
    path = Path(path).expanduser().absolute()
    if not path.is_file():
        store = " It is a folder: simulations in a store are read by `Simulations.from_store`." if path.is_dir() else ""
        raise checks.explained(f"There is no file {path}.{store}", SavedFileError)
    try:
        header = _check_members(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = [file[str(number)] for number in range(len(file.files) - 1)]
        which = f"{path}, written by numpyro_kme {header[PACKAGE]['version']},"
        return _Decoder(arrays, which).decoded(header["value"])
    except SavedFileError:
        raise
    except Exception as error:
        raise checks.explained(
            f"{path} cannot be read: it is no file that `save` wrote, or it is damaged ({type(error).__name__}: "
            f"{error}). Give another file, or a whole copy.",
            SavedFileError,
        ) from error


class _Writer:
    """Values as trees; arrays are collected, each once."""

    def __init__(self, arrays: list[np.ndarray]):
        self._arrays, self._numbers = arrays, dict[tuple, int]()

    def encoded(self, value: Any, where: str) -> Any:
        """The tree of a value that is at a place."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if checks.is_key(value):
            return {"key": self.encoded(jax.random.key_data(value), where), "impl": str(jax.random.key_impl(value))}
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(np.asarray(value), where)
        value = value._to_save() if isinstance(value, Saved) else value
        name = _name(type(value))
        if _known(name) is type(value):
            members = _members(value)
            return {"object": name, "fields": {m: self.encoded(one, f"{where}.{m}") for m, one in members.items()}}
        if isinstance(value, Mapping):
            pairs = [[self.encoded(k, where), self.encoded(v, f"{where}[{k!r}]")] for k, v in value.items()]
            return {"dict": pairs}
        if type(value) in (tuple, list):
            items = [self.encoded(one, f"{where}[{i}]") for i, one in enumerate(value)]
            return {type(value).__name__: items}
        raise checks.explained(
            f"{where} cannot be saved: it is a {type(value).__module__}.{type(value).__qualname__}. Files hold "
            "numbers, text, dataclasses of the package, and kernels of yours that `kernels.register` decorates.",
            TypeError,
        )

    def _array(self, array: np.ndarray, where: str) -> dict[str, Any]:
        checks.require(array.dtype.kind in "biufc", f"{where} cannot be saved: an array of {array.dtype}.", TypeError)
        flat = np.ascontiguousarray(array).reshape(-1)
        key = str(flat.dtype), sha256(flat.tobytes()).digest()
        if key not in self._numbers:
            self._numbers[key] = len(self._arrays)
            self._arrays.append(flat)
        return {"array": self._numbers[key], "shape": list(array.shape)}


class _Decoder:
    """Values of trees, of a file that is told as `which`."""

    def __init__(self, arrays: list[np.ndarray], which: str):
        self._arrays, self._which = arrays, which

    def decoded(self, tree: Any) -> Any:
        """The value of a tree."""
        if not isinstance(tree, dict):
            return tree
        kinds: dict[str, Callable[[dict], Any]] = {
            "float": lambda t: float(t["float"]),
            "array": lambda t: self._arrays[t["array"]].reshape(t["shape"]),
            "key": lambda t: jax.random.wrap_key_data(self.decoded(t["key"]), impl=t["impl"]),
            "tuple": lambda t: tuple(map(self.decoded, t["tuple"])),
            "list": lambda t: list(map(self.decoded, t["list"])),
            "dict": lambda t: {self.decoded(k): self.decoded(v) for k, v in t["dict"]},
            "object": self._object,
        }
        return next(read for kind, read in kinds.items() if kind in tree)(tree)

    def _object(self, tree: dict) -> Any:
        name, found = tree["object"], {key: self.decoded(value) for key, value in tree["fields"].items()}
        cls: Any = _known(name)
        if cls is None:
            raise checks.explained(
                f"{self._which} holds an object of the class {name}, which numpyro_kme {version('numpyro-kme')} does "
                "not know: import the module that defines it, or install the releases that wrote the file.",
                SavedFileError,
            )
        text = [key for key, one in found.items() if not _takes_text(_hints(cls).get(key, Any)) and _has_text(one)]
        checks.require(not text, f"{text} of {name} should be numbers, and hold text")
        if issubclass(cls, dist.Distribution):
            data, rest = cls.gather_pytree_data_fields(), cls.gather_pytree_aux_fields()
            return cls.tree_unflatten(tuple(found.get(n) for n in rest), tuple(found.get(n) for n in data))
        if issubclass(cls, OF_NUMPYRO):
            return cls.tree_unflatten((tuple(found), {}), tuple(found.values()))
        names = {f.name for f in fields(cls)} if is_dataclass(cls) else set(cls._fields)
        if names != set(found):
            raise checks.explained(
                f"{self._which} holds a {name} with the fields {sorted(found)}, and in {version('numpyro-kme')} it has "
                f"{sorted(names)}. Read it with the release that wrote it.",
                SavedFileError,
            )
        if not is_dataclass(cls):
            return cls(**found)
        made: Any = object.__new__(cls)  # type: ignore[arg-type]
        for key, value in found.items():
            object.__setattr__(made, key, value)
        return made


def _has_text(value: Any) -> bool:
    """Tell whether text is in a value, beside that in objects, which were looked at before."""
    leaves = jax.tree.leaves(value, is_leaf=lambda one: hasattr(one, "_fields") or is_dataclass(one))
    return any(isinstance(leaf, str) for leaf in leaves)


def _takes_text(hint: Any) -> bool:
    """Tell whether a field with this annotation may hold text, or is not annotated so that one can tell."""
    if get_origin(hint) is Mapping:  # names are text
        return _takes_text(get_args(hint)[1])
    return hint in (str, Any, object) or get_origin(hint) is Literal or any(map(_takes_text, get_args(hint)))


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Annotations of the fields of a class; none where they name what is imported for type checkers alone."""
    with suppress(NameError, TypeError):
        return get_type_hints(cls)
    return {}


def _known(name: str) -> type | None:
    """The class of a name that files may hold."""
    if not name.startswith("numpyro.distributions."):
        return _classes.get(name)
    module, _, own = name.rpartition(".")
    cls = getattr(sys.modules.get(module), own, None)
    return cls if isinstance(cls, type) and issubclass(cls, OF_NUMPYRO) else None


def _members(value: Any) -> Mapping[str, Any]:
    """Fields of a value by name."""
    if not isinstance(value, OF_NUMPYRO):
        return {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else value._asdict()
    found = compat.fields(value)
    if found is None:
        params, (names, rest) = value.tree_flatten()  # type: ignore[attr-defined]
        found = {**dict(zip(names, params)), **rest}
    return found
