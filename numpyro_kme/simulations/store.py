"""Simulations on disk: a Zarr store with ArviZ's groups, written as results come, resumed where it ended."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from numpyro_kme._core import arviz, checks
from numpyro_kme._core.display import Card, shown
from numpyro_kme.simulations.failures import Failure, StoreError, alone, damaged, differences, writing

FORMAT = 1
"""Number of the layout of a store."""

CHUNK = 64
"""Simulations a chunk of a file holds."""

KIND = 48
"""Bytes for the kind of a failure."""

PENDING, DONE, FAILED = 0, 1, 2
"""Status of a simulation."""


@shown
class Store:
    """Simulations on disk, each row with its status.

    Groups `prior` (latents and deterministics) and `prior_predictive` (outputs) are those of ArviZ, with dimensions
    `(chain, draw, *event)`; `simulations` holds, by site, arguments, status (0 not simulated, 1 done, 2 failed),
    kinds of failures, and how often each simulation was repeated, where any was. Every file is replaced as a whole,
    and the status of a row is written after its output: a run that is killed loses what was not written, and
    nothing else. Everything is numbers: nothing is ever unpickled.
    """

    def __init__(self, path: Path, root):
        self.path, self._root = path, root

    def _card(self) -> Card:
        how = "Simulations.from_arviz(problem, path) reads what is there; simulate(..., store=path) goes on"
        return Card(f"Store of {self.count:,} simulations", {"path": str(self.path)}, how)

    @classmethod
    @contextmanager
    def open(
        cls,
        path: str | PathLike,
        settings: Mapping[str, Any],
        prior: Mapping[str, np.ndarray],
        arguments: Mapping[str, np.ndarray],
        outputs: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    ) -> Iterator["Store"]:
        """Open the store of these settings, or make it; no other run has it meanwhile.

        Args:
            path: A folder, by custom ending in `.zarr`.
            settings: What the simulations depend on; JSON.
            prior: Latents and deterministics, `{name: (count, *shape)}`.
            arguments: `{site: (count, *groups, p)}`.
            outputs: Shape and dtype of each site's output.
        Raises:
            StoreError: If the store is damaged, has other settings, is in use, or cannot be written.
        """
        path = Path(path).expanduser().absolute()  # a simulator may change the working directory
        with writing(path, lambda: "Nothing has been simulated yet."):
            if not path.exists() or (path.is_dir() and not any(path.iterdir())):
                cls._create(path, settings, prior, arguments, outputs)
        with alone(path):
            store = cls.read(path)
            store._require(settings)
            count = len(next(iter(arguments.values())))
            if store.count < count:
                with writing(path, lambda: f"It keeps its {store.count} simulations."):
                    store._grow(count, prior, arguments)
            yield store

    @classmethod
    def read(cls, path: str | Path) -> "Store":
        """Open a store as it is.

        Raises:
            StoreError: If it is not one, or damaged.
        """
        zarr = _zarr()
        path = Path(path)
        what = arviz.objection(path) if (path / "zarr.json").is_file() else "there is no zarr.json in it"
        if what:
            raise damaged(path, what)
        try:
            store = cls(path, zarr.open_group(str(path), mode="r+", zarr_format=3, use_consolidated=False))
            version = store._root.attrs["numpyro_kme_store"]
            json.loads(store._root.attrs["settings"])
            store.sites  # noqa: B018
        except Exception as error:
            raise damaged(path, f"its description cannot be read ({type(error).__name__}: {error})") from error
        if version != FORMAT:
            raise checks.explained(
                f"The store {path} has format {version}; this release reads {FORMAT}. Read it with its own release.",
                StoreError,
            )
        return store

    @classmethod
    def _create(cls, path, settings, prior, arguments, outputs) -> None:
        zarr = _zarr()
        made = path.with_name(path.name + ".making")
        shutil.rmtree(made, ignore_errors=True)
        root = zarr.create_group(str(made), zarr_format=3)
        root.attrs.update(
            {"numpyro_kme_store": FORMAT, "settings": json.dumps(settings), "inference_library": "numpyro_kme"}
        )
        for group, names in (("prior", prior), ("prior_predictive", outputs), ("simulations", ())):
            files = {arviz.file_name(name): name for name in names}
            odd = {file: name for file, name in files.items() if file != name}
            root.create_group(group, attributes={arviz.NAMES: odd} if odd else {})
        store = cls(made, root)
        for name, value in prior.items():
            store._array("prior", name, (0, *value.shape[1:]), value.dtype)
        for site, (shape, dtype) in outputs.items():
            store._array("prior_predictive", site, (0, *shape), dtype)
            store._array("simulations", f"arguments of {site}", (0, *arguments[site].shape[1:]), arguments[site].dtype)
            store._array("simulations", f"status of {site}", (0,), np.dtype("uint8"))
            store._array("simulations", f"failures of {site}", (0, KIND), np.dtype("uint8"))
        made.rename(path)

    def _array(self, group, name, shape, dtype) -> None:
        from zarr.codecs import Crc32cCodec, ZstdCodec

        file = arviz.file_name(name)
        dims = ["chain", "draw", *(f"{file}_dim_{i}" for i in range(len(shape) - 1))]
        self._root[group].create_array(
            file,
            shape=(1, *shape),
            chunks=(1, CHUNK, *(max(size, 1) for size in shape[1:])),
            dtype=dtype,
            fill_value=np.nan if np.dtype(dtype).kind == "f" else 0,
            dimension_names=dims,
            compressors=[ZstdCodec(level=1), Crc32cCodec()],
        )

    def _grow(self, count, prior, arguments) -> None:
        """Room for more simulations, their parameters first; the root says last how many there are."""
        old = self.count
        for _, group in self._root.groups():
            for _, array in group.arrays():
                array.resize((1, count, *array.shape[2:]))
        for name, value in prior.items():
            self._stored("prior", name)[0, old:] = value[old:]
        for site, value in arguments.items():
            self._stored("simulations", f"arguments of {site}")[0, old:] = value[old:]
        self._root.attrs["count"] = count

    @property
    def count(self) -> int:
        """Number of simulations that there is room for."""
        return int(self._root.attrs.get("count", 0))

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that the simulations depend on."""
        return json.loads(self._root.attrs["settings"])

    @property
    def sites(self) -> list[str]:
        """Names of the simulator sites."""
        return self._names("prior_predictive")

    def status(self, site: str) -> np.ndarray:
        """Status of each simulation, `(count,)`."""
        status = self._values("simulations", f"status of {site}")
        if status.max(initial=0) > FAILED:
            raise damaged(self.path, f"the status of {site!r} has the value {status.max()}")
        return status

    def load(self, site: str) -> tuple[np.ndarray, np.ndarray]:
        """Outputs `(count, *shape)` and a `Failure`, or None, for each simulation."""
        errors = np.full(self.count, None, object)
        kinds = self._values("simulations", f"failures of {site}")
        for i in np.flatnonzero(self.status(site) == FAILED):
            text = bytes(kinds[i]).rstrip(b"\0").decode("utf-8", "replace")
            errors[i] = Failure(text, "as the store says")
        return self._values("prior_predictive", site), errors

    def repeats(self, site: str) -> np.ndarray:
        """Number of times that each simulation was repeated because it had failed, `(count,)`."""
        name = f"repeats of {site}"
        return self._values("simulations", name) if self._has("simulations", name) else np.zeros(self.count, np.uint32)

    def prior(self) -> dict[str, np.ndarray]:
        """Latents and deterministics, `{name: (count, *shape)}`."""
        return {name: self._values("prior", name) for name in self._names("prior")}

    def arguments(self, site: str) -> np.ndarray:
        """Arguments of the calls, `(count, *groups, p)`."""
        return self._values("simulations", f"arguments of {site}")

    def write(self, site: str, rows: Sequence[int], x: np.ndarray, errors: np.ndarray, repeats: np.ndarray) -> None:
        """Write what simulations gave, outputs and a `Failure` or None for each row, then that they are there.

        Raises:
            StoreError: If the disk is full or does not let itself be written.
        """
        numbers, failed = np.asarray(rows), np.array([error is not None for error in errors])
        kinds = [list(error.kind.encode()[:KIND].ljust(KIND, b"\0")) for error in errors[failed]]

        def kept():
            return (
                f"It keeps {np.sum(self.status(site) != PENDING)} of {self.count} simulations of site {site!r}; the "
                f"{len(rows)} that came in last are not in it, and those that were running are lost."
            )

        with writing(self.path, kept):
            if not failed.all():
                self._put("prior_predictive", site, numbers[~failed], x[~failed])
            if kinds:
                self._put("simulations", f"failures of {site}", numbers[failed], np.array(kinds, np.uint8))
            if repeats.any():
                if not self._has("simulations", f"repeats of {site}"):
                    self._array("simulations", f"repeats of {site}", (self.count,), repeats.dtype)
                self._put("simulations", f"repeats of {site}", numbers, repeats)
            self._put("simulations", f"status of {site}", numbers, np.where(failed, FAILED, DONE).astype(np.uint8))

    def _put(self, group, name, rows, values) -> None:
        self._stored(group, name).oindex[0, rows] = values

    def _stored(self, group, name):
        return self._root[group][arviz.file_name(name)]

    def _has(self, group, name) -> bool:
        return arviz.file_name(name) in self._root[group]

    def _names(self, group) -> list[str]:
        known = arviz.names_of(self._root[group].attrs)
        return [known.get(file, file) for file, _ in self._root[group].arrays()]

    def _values(self, group, name) -> np.ndarray:
        try:
            values = np.asarray(self._stored(group, name)[0, : self.count])
        except Exception as error:
            raise damaged(self.path, f"{group}/{name} cannot be read ({type(error).__name__}: {error})") from error
        if len(values) != self.count or values.dtype.kind not in "biuf":
            what = f"{group}/{name} holds {values.shape} of {values.dtype}, for {self.count} simulations"
            raise damaged(self.path, what)
        return values

    def _require(self, settings: Mapping[str, Any]) -> None:
        """Refuse other settings; code that changed while it ran counts as it was and as it came out."""
        stored, asked = self.settings, json.loads(json.dumps(settings))
        code, after, now = stored.pop("code"), stored.pop("code after", {}), asked.pop("code")
        code |= {part: digest for part, digest in after.items() if now.get(part) == digest}
        told = differences(stored, asked) or differences(code, now)
        checks.require(
            not told,
            f"The store {self.path} holds simulations of another configuration: {told}. Give another path, or put "
            "back what differs; Simulations.from_arviz reads those simulations as they are. What else is to count "
            "as the same simulator, or as another one, can be said from the start by simulate(..., version=...).",
            StoreError,
        )

    def admit(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Take note of what a simulator changed in itself during a run, a counter or a cache."""
        changed = dict(after["code"].items() - before["code"].items())
        if changed:
            settings = self.settings
            settings["code after"] = settings.get("code after", {}) | changed
            with writing(self.path, lambda: "It keeps the simulations that were written."):
                self._root.attrs["settings"] = json.dumps(settings)


def _zarr():
    with checks.needs("A store of simulations needs", "zarr", "store"):
        import zarr
    return zarr
