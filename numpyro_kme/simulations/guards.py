"""A store is written by one run at a time, and a disk that does not take it is named."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class StoreError(RuntimeError):
    """A store that cannot be read or written, or that belongs to other simulations."""


def unwritable(path: Path, error: OSError, kept: str) -> StoreError:
    """The error of a disk that is full or must not be written, with what is kept."""
    return StoreError(
        f"The store {path} cannot be written: {error.strerror or error}. {kept} Make room, or see to the permission, "
        "and run the same again: it goes on from what is there."
    )


@contextmanager
def writing(path: Path, kept: str) -> Iterator[None]:
    """Raise errors of a disk as what they mean for the simulations."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, kept) from error


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
        with suppress(OSError):  # a network file system without locks
            _locked(fcntl, folder, path)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_UN)
        os.close(folder)


def _locked(fcntl, folder: int, path: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(
            f"The store {path} is in use by another run: wait for that to end, or give another path."
        ) from error
