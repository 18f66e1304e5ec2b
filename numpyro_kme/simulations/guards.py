"""A store is written by one run at a time, and a disk that does not take it is named."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class StoreError(RuntimeError):
    """A store that cannot be read or written, or that belongs to other simulations."""


@contextmanager
def writing(path: Path, kept: str) -> Iterator[None]:
    """Say what is kept where a disk is full or must not be written."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"The store {path} cannot be written: {error.strerror or error}. {kept} Make room, or see to the permission, and run the "
            "same again: it goes on from what is there."
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
