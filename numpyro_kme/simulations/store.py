"""Simulations on disk: a folder of saved parts, each written as a whole, from which a run goes on where it ended."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from numpyro_kme._core import Saved, SavedFileError, checks, door, frozen, saveable, shown

SETTINGS = "settings.kme"
"""Name of the file that says what the simulations depend on."""


class StoreError(RuntimeError):
    """A store that cannot be read or written, or that belongs to other simulations."""


@saveable
@frozen
class Settings(Saved):
    """Everything that the simulations of a store depend on, by name, as text.

    Attributes:
        values: As it was when the store was begun.
        after: As it was after a run, where a simulator changed itself, a counter or a cache.
    """

    values: Mapping[str, str]
    after: Mapping[str, str]


@saveable
@frozen
class Part(Saved):
    """Simulations of one site that were written together.

    Attributes:
        site: Name of the site.
        rows: Their numbers in the run, `(k,)`.
        latents: `{latent: (k, *shape)}`.
        arguments: `(k, *groups, p)`.
        x: Outputs, `(k, *batch, *event)`; of no meaning where a simulation failed.
        kinds: Kind of the failure of each; empty text where there is none.
    """

    site: str
    rows: np.ndarray
    latents: Mapping[str, np.ndarray]
    arguments: np.ndarray
    x: np.ndarray
    kinds: tuple[str, ...]


@shown
class Store:
    """Simulations in a folder of files; a run that is killed loses what was not written, and nothing else."""

    @door
    def __init__(self, path: str | PathLike):
        self.path = Path(path).expanduser().absolute()  # a simulator may change the working directory

    @contextmanager
    def opened(self, settings: Callable[[], Mapping[str, Any]]) -> Iterator["Store"]:
        """Go on with the store of these settings, or begin it; no other run has it meanwhile.

        Raises:
            StoreError: If the store is damaged, has other settings, is in use, or cannot be written.
        """
        asked = {name: str(value) for name, value in settings().items()}
        with self._writing(lambda: "Nothing has been simulated yet."):
            self.path.mkdir(parents=True, exist_ok=True)
        with self._alone():
            if all(entry.name.startswith(".") for entry in self.path.iterdir()):
                with self._writing(lambda: "Nothing has been simulated yet."):
                    Settings(asked, {}).save(self.path / SETTINGS)
            begun = self._read(self.path / SETTINGS, Settings)
            stored = begun.values
            told = [
                f"{name}: {stored.get(name, 'nothing')} in the store, {asked.get(name, 'nothing')} now"
                if not name.startswith("code")
                else f"{name} differs"
                for name in {**stored, **asked}
                if asked.get(name) not in (stored.get(name), begun.after.get(name, stored.get(name)))
            ]
            checks.require(
                not told,
                f"The store {self.path} holds simulations of another configuration: {'; '.join(told)}. Give another "
                "path (Simulations.from_store reads this one), or put back what differs; `version=` says what counts.",
                StoreError,
            )
            try:
                yield self
            finally:
                after = {name: str(value) for name, value in settings().items()}
                if after != asked:
                    Settings(stored, after).save(self.path / SETTINGS)

    def parts(self) -> list[Part]:
        """All parts, in the order in which they were written; those whose files are missing are warned of.

        Raises:
            StoreError: If the folder is no store, or damaged.
        """
        self._read(self.path / SETTINGS, Settings)
        lost = [number for number in range(self._number()) if not self._file(number).exists()]
        if lost:
            checks.warn(
                f"The store {self.path} has lost {len(lost)} of {self._number()} files, such as "
                f"{self._file(lost[0]).name!r}: their simulations count as not made, and are made in the next run."
            )
        return [self._read(self._file(number), Part) for number in range(self._number()) if number not in lost]

    def write(self, part: Part) -> None:
        """Write a part.

        Raises:
            StoreError: If the disk is full or does not let itself be written.
        """

        def kept():
            known = sum(len(one.rows) for one in self.parts() if one.site == part.site)
            return f"It keeps {known} simulations of {part.site!r}; the {len(part.rows)} that came last are not in it."

        with self._writing(kept):
            part.save(self._file(self._number()))

    def _file(self, number: int) -> Path:
        return self.path / f"part {number:06}.kme"

    def _number(self) -> int:
        return 1 + max((int(file.stem.removeprefix("part ")) for file in self.path.glob("part *.kme")), default=-1)

    def _read(self, file: Path, kind: type) -> Any:
        try:
            return kind.load(file)  # type: ignore[attr-defined]
        except SavedFileError as error:
            raise checks.explained(
                f"{self.path} is not a store of simulations, or it is damaged: {error} Restore a copy, or remove it.",
                StoreError,
            ) from error

    @contextmanager
    def _writing(self, kept: Callable[[], str]) -> Iterator[None]:
        """Raise errors of a disk that is full or must not be written, with what is `kept`."""
        try:
            yield
        except OSError as error:
            raise checks.explained(
                f"The store {self.path} cannot be written: {error.strerror or error}. {kept()} Make room, or see to "
                "the permission, and run the same again: it goes on from what is there.",
                StoreError,
            ) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold a lock on the folder, where the system has such locks; a process that ends lets go of it."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise checks.explained(
                    f"The store {self.path} is in use by another run: wait for that to end, or give another path.",
                    StoreError,
                ) from error
            except OSError:  # a network file system without locks
                pass
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_UN)
            os.close(folder)
