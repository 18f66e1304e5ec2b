"""A fingerprint of callables: digests of their code and of all that it holds and names, alike in every process."""

import copyreg
import dis
import functools
import hashlib
import inspect
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_kme._core import checks, compat
from numpyro_kme.models import simulator_functions
from numpyro_kme.simulations import fingerprint_names as named

_NUMBERS = (type(None), bool, int, float, complex)
_PLAIN = (*_NUMBERS, str, bytes, bytearray, range, slice, type(...), type(NotImplemented))
_KINDS = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_OF_NO_EFFECT = re.compile(
    r"_abc_impl|__(dict|weakref|doc|module|qualname|annotations|annotate\w*|firstlineno|static_attributes"
    r"|abstractmethods|match_args|dataclass_fields|dataclass_params|orig_bases|parameters|slotnames)__"
)
"""What a class has beside what its author wrote."""


_new = copyreg.__newobj__  # type: ignore[attr-defined]
"""What pickle makes objects with that have no way of their own."""


class Fingerprint(NamedTuple):
    """What simulations depend on in a program.

    Attributes:
        parts: `{part: digest}`, such as "closure variable `sd` of `walk`"; a number stands for itself.
        versions: `{package: version}` of those that are met, and of Python, whose bytecode the digests are of.
    """

    parts: dict[str, str]
    versions: dict[str, str]


def fingerprint(roots: Mapping[str, Any]) -> Fingerprint:
    """The parts of callables `{what: callable}`, and of all that is met from there.

    Seen are the bytecode, which has no comments, docstrings or line numbers; closures, defaults and attributes of
    functions; the globals that the code names, and what it imports or names of the user's own modules;
    `functools.partial`, `functools.wraps`, `jax.jit`, bound methods; classes; the state of any object, as pickle would
    have it; arrays by dtype, shape and bytes. What belongs to Python or to an installed package counts by its name, and
    the package by its version.

    Not seen are files, programs and environment variables that the code uses, attributes that it finds by a computed
    name, and what cannot be pickled (locks, open files, objects of C libraries), of which only the type counts.
    """
    reader = _Reader()
    parts = reader.parts(roots)
    return Fingerprint(parts, dict(sorted(reader.versions.items())))


class _Node(NamedTuple):
    """A value taken apart.

    Attributes:
        tag: All that the value is beside its children.
        children: `(what, name, value)` of each.
        opened: Whether the children are parts of their own, for a person to read.
        ordered: Whether the order of the children counts.
    """

    tag: str
    children: tuple[tuple[str, str, Any], ...] = ()
    opened: bool = False
    ordered: bool = True


class _Reader:
    def __init__(self) -> None:
        self.versions = {"Python": f"{sys.version_info.major}.{sys.version_info.minor}"}
        self._nodes: dict[int, tuple[Any, _Node]] = {}  # with the values, so that no address is used again
        self._digests: dict[int, str] = {}
        self._open: dict[int, int] = {}

    def parts(self, roots: Mapping[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        names: dict[int, str] = {}
        queue = deque[tuple[str, Any]]()

        def add(part: str, name: str, value: Any) -> None:
            node = self._node(value)
            if not node.opened:
                found[part] = _readable(value) or f"#{self.digest(value)}"
            elif id(value) in names:
                found[part] = f"`{names[id(value)]}`"
            else:
                while name in names.values():
                    name += "'"
                names[id(value)], found[part] = name, node.tag
                queue.append((name, value))

        for what, root in roots.items():
            add(what, simulator_functions.name(root), root)
        while queue:
            owner, value = queue.popleft()
            for what, name, child in self._node(value).children:
                add(
                    f"{what} `{name}` of `{owner}`" if name else f"{what} of `{owner}`",
                    simulator_functions.name(child) if name in ("", "__wrapped__") else name,
                    child,
                )
        return found

    def digest(self, value: Any) -> str:
        """Digest of a value and of all below it; where it holds itself, how far above that is."""
        place = id(value)
        if type(value) in _PLAIN:
            return _digest(self._taken_apart(value).tag)
        if place in self._open:
            return f"circle of {len(self._open) - self._open[place]}"
        if place not in self._digests:
            node = self._node(value)
            self._open[place] = len(self._open)
            lines = [f"{what} {name!r} {self.digest(child)}" for what, name, child in node.children]
            del self._open[place]
            self._digests[place] = _digest("\n".join([node.tag, *(lines if node.ordered else sorted(lines))]))
        return self._digests[place]

    def _node(self, value: Any) -> _Node:
        if id(value) not in self._nodes:
            self._nodes[id(value)] = value, self._taken_apart(value)
        return self._nodes[id(value)][1]

    def _taken_apart(self, value: Any) -> _Node:
        kind = type(value)
        if kind in _PLAIN:
            return _Node(f"{kind.__name__} {value!r}")
        if isinstance(value, jax.core.Tracer):
            return _Node(f"traced {value.dtype} {value.shape}")
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return _array(value)
        if kind in (tuple, list):
            return _Node(f"{kind.__name__} of {len(value)}", _entries(value))
        if kind in (set, frozenset):
            return _Node(kind.__name__, _entries(value), ordered=False)
        if kind in (dict, types.MappingProxyType):
            return _Node("dict", _entries(value.items()), ordered=False)
        if isinstance(value, types.ModuleType):
            return self._installed(value.__name__) or _Node(f"module {value.__name__}")
        if isinstance(value, types.CodeType):
            return _Node("\n".join(self._steps(value)))
        return self._named(value) or self._callable(value) or self._object(value)

    def _installed(self, module: str, what: str = "") -> _Node | None:
        """Something of an installed module: by its name."""
        if not named.is_installed(module):
            return None
        package = module.partition(".")[0]
        if package not in sys.stdlib_module_names:
            self.versions[package] = named.version_of(package)
        return _Node(f"{module} {what}")

    def _named(self, value: Any) -> _Node | None:
        """Something that an installed module has under a name: a function, a class, or an object beside its class."""
        module = getattr(value, "__module__", None) or type(value).__module__
        if not isinstance(module, str) or module not in sys.modules or not named.is_installed(module):
            return None
        home = vars(sys.modules[module])
        names = [name for name, item in home.items() if item is value]
        path = getattr(value, "__qualname__", None)
        if not names and isinstance(path, str):
            first, *rest = path.split(".")
            names = [path] if functools.reduce(lambda v, n: getattr(v, n, None), rest, home.get(first)) is value else []
        return self._installed(module, min(names)) if names else None

    def _callable(self, value: Any) -> _Node | None:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return self._around("method", value.__func__, [("instance", "", value.__self__)])
        if isinstance(value, functools.partial):
            arguments = [*enumerate(value.args), *sorted(value.keywords.items())]
            return self._around("partial", value.func, [("argument", str(name), item) for name, item in arguments])
        written = isinstance(inspect.getattr_static(type(value), "__call__", None), types.FunctionType)
        if inspect.getattr_static(value, "__wrapped__", None) is not None and not written:
            return self._around(type(value).__name__, value.__wrapped__, [])  # jax.jit, lru_cache, staticmethod
        if isinstance(value, type):
            bases = [("base", base.__name__, base) for base in value.__bases__ if base is not object]
            members = [
                ("attribute", f"{value.__name__}.{name}", item)
                for name, item in sorted(vars(value).items())
                if not (_OF_NO_EFFECT.fullmatch(name) or isinstance(item, types.MemberDescriptorType))  # a slot
            ]
            return _Node(f"class {value.__name__}", (*bases, *members), opened=True)
        if isinstance(value, property):
            return _Node("property", tuple(("function", "", fn) for fn in (value.fget, value.fset, value.fdel)))
        return None

    def _around(self, what: str, fn: Any, held: list[tuple[str, str, Any]]) -> _Node:
        """Something that calls a function, with what it holds beside."""
        inner = self._node(fn)
        children = inner.children if inner.opened else (("function", "", fn),)
        return _Node(f"{what} of {inner.tag if inner.opened else 'function'}", (*children, *held), opened=True)

    def _function(self, fn: types.FunctionType) -> _Node:
        code, default = fn.__code__, fn.__defaults__ or ()
        positional = code.co_varnames[: code.co_argcount]
        closure = zip(code.co_freevars, map(_content, fn.__closure__ or ()))
        held = [
            *(("closure variable", name, value) for name, value in closure),
            *(("default", name, value) for name, value in zip(positional[len(positional) - len(default) :], default)),
            *(("default", name, value) for name, value in sorted((fn.__kwdefaults__ or {}).items())),
            *(("attribute", name, value) for name, value in sorted(vars(fn).items())),
        ]
        module = fn.__globals__.get("__name__") or ""  # of the code, whatever functools.wraps says
        if home := self._installed(module, code.co_qualname):
            return _Node(f"function {home.tag}", tuple(held), opened=True)
        known = (("global", name, value) for name, value in sorted(named.globals_of(fn).items()))
        return _Node("function", (("code", "", code), *held, *known), opened=True)

    def _steps(self, code: types.CodeType) -> Iterator[str]:
        """What a code object does, one instruction a line; a docstring is a constant that no instruction loads."""
        count = code.co_argcount + code.co_kwonlyargcount
        yield f"{code.co_varnames[:count]} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags & _KINDS}"
        for step in dis.get_instructions(code):
            yield f"{step.opname} {self.digest(step.argval)}"
        yield code.co_exceptiontable.hex()

    def _object(self, value: Any) -> _Node:
        """The state of any object, as pickle would have it; of one that cannot be pickled, its type and attributes."""
        kind = type(value)
        installed = self._installed(kind.__module__) is not None
        tag = f"{kind.__module__}.{kind.__qualname__}" if installed else kind.__qualname__
        fields = compat.fields(value)
        reduced: Any = _new, (kind,), fields or getattr(value, "__dict__", None)
        if not fields:
            with suppress(Exception):
                reduced = copyreg.dispatch_table.get(kind, lambda v: v.__reduce_ex__(4))(value)
        if isinstance(reduced, str):
            return _Node(f"{tag} {reduced}")
        whole: tuple[Any, ...] = (*reduced, None, None, None)
        make, arguments, state, items, pairs = whole[:5]
        attributes, other = _attributes(state)
        held: list[tuple[str, str, Any]] = [
            *(("attribute", name, item) for name, item in sorted(attributes.items()) if not named.is_dunder(name)),
            *([("state", "", other)] if other is not None else []),
            *_entries(items or ()),
            *([("entries", "", dict(pairs))] if pairs is not None else []),
            *([("maker", "", make)] if make is not _new else []),
            *(("argument", "", argument) for argument in arguments if argument is not kind),
            *([("type", f"class {kind.__name__}", kind)] if not installed else []),
        ]
        return _Node(tag, tuple(held), opened=bool(attributes) and (callable(value) or not installed))


def _entries(items: Iterable) -> tuple[tuple[str, str, Any], ...]:
    return tuple(("entry", "", item) for item in items)


def _content(cell: types.CellType) -> Any:
    with suppress(ValueError):  # not assigned yet
        return cell.cell_contents


def _attributes(state: Any) -> tuple[dict[str, Any], Any]:
    """Attributes by name, of a dictionary and of slots, and whatever else a state is."""
    halves = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if all(half is None or (isinstance(half, dict) and all(isinstance(k, str) for k in half)) for half in halves):
        return {**(halves[0] or {}), **(halves[1] or {})}, None
    return {}, state


def _array(value: Any) -> _Node:
    if checks.is_key(value):
        return _Node(f"keys {value.dtype}", (("data", "", jax.random.key_data(value)),))
    tag = f"{'jax' if isinstance(value, jax.Array) else type(value).__name__} {value.dtype} {value.shape}"
    host = np.asarray(value)
    if host.dtype.hasobject:
        return _Node(tag, (("entries", "", host.tolist()),))
    return _Node(f"{tag} {hashlib.sha256(np.ascontiguousarray(host).data).hexdigest()}")


def _readable(value: Any) -> str:
    """A number as it is written, and nothing for anything else."""
    written = repr(value) if type(value) in _NUMBERS or isinstance(value, np.number | np.bool_) else ""
    return written if len(written) <= 40 else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
