"""Errors of a store on disk: written by one run at a time, of one configuration, on a disk that takes it."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_NOTHING = "(nothing)"


class StoreError(RuntimeError):
    """A store that cannot be read or written, or that belongs to other simulations."""


@contextmanager
def writing(path: Path, kept: Callable[[], str]) -> Iterator[None]:
    """Raise errors of a disk that is full or must not be written, with what is `kept`."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"The store {path} cannot be written: {error.strerror or error}. {kept()} Make room, or see to the "
            "permission, and run the same again: it goes on from what is there."
        ) from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock on a folder, where the system has such locks; a process that ends lets go of it."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(
                f"The store {path} is in use by another run: wait for that to end, or give another path."
            ) from error
        except OSError:  # a network file system without locks
            pass
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_UN)
        os.close(folder)


def differences(stored: Mapping, asked: Mapping, changed: Mapping | None = None) -> list[str]:
    """What differs between settings, in words; `changed` is as good as what is stored."""
    stored, asked, changed = _flat(stored), _flat(asked), changed or {}
    told = [
        _difference(key, stored.get(key, _NOTHING), asked.get(key, _NOTHING))
        for key in sorted({*stored, *asked})
        if asked.get(key, _NOTHING) not in (stored.get(key, _NOTHING), changed.get(key, _NOTHING))
    ]
    return sorted(told, key=lambda sentence: ":" not in sentence)  # first what a person can read


def _difference(key: str, stored: Any, asked: Any) -> str:
    if _NOTHING in (stored, asked):
        return f"{key} is {'no more' if asked is _NOTHING else 'new'}"
    digests = str(stored).startswith("#") and str(asked).startswith("#")
    return f"{key} differs" if digests else f"{key}: {stored} in the store, {asked} now"


def first(told: list[str]) -> list[str]:
    """The first five, and how many more there are."""
    return told if len(told) <= 6 else [*told[:5], f"and {len(told) - 5} more"]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries with joined keys."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {key: leaf for name, value in tree.items() for key, leaf in _flat(value, f"{prefix} {name}".strip()).items()}


def damaged(path: Path, what: str) -> StoreError:
    """The error of a folder that cannot be read as a store."""
    return StoreError(
        f"{path} is not a store of simulations, or it is damaged: {what}. Restore a copy, or remove it and simulate "
        "again."
    )
