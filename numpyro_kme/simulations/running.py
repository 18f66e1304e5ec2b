"""How the simulations of one site are run: JAX simulators in blocks, black boxes here or on an executor."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from tqdm.auto import tqdm

from numpyro_kme._core import checks, programs
from numpyro_kme._core.programs import Program
from numpyro_kme.models import simulator_functions
from numpyro_kme.models.problem import Arrays
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.simulations import execution, fingerprint, worker
from numpyro_kme.simulations.failures import Failure, SimulationError, not_finite
from numpyro_kme.simulations.store import CHUNK, PENDING, Store

WRITE_SECONDS = 0.5
"""What came in during this time may be lost when the process is killed."""


@dataclass
class Watch:
    """Told of simulations as they finish: moves the bar, writes them, and raises at the first failure if asked to.

    Attributes:
        site: The simulator site.
        latents: `{latent: (m, *shape)}`.
        stops: Whether a failure raises.
        bar: Progress.
        store: Where to write, if anywhere.
    """

    site: str
    latents: Arrays
    stops: bool
    bar: tqdm
    store: Store | None
    failures: int = 0
    _rows: list[int] = field(default_factory=list)
    _outcomes: list[Any] = field(default_factory=list)
    _written: float = field(default_factory=time.monotonic)

    def __call__(self, rows: Sequence[int], outcomes: Sequence[Any]) -> None:
        """Take note of finished simulations."""
        self.bar.update(len(rows))
        failed = [(row, outcome) for row, outcome in zip(rows, outcomes, strict=True) if isinstance(outcome, Failure)]
        self.failures += len(failed)
        if failed:
            self.bar.set_postfix(failed=self.failures)
        sound = [
            (row, outcome) for row, outcome in zip(rows, outcomes, strict=True) if not isinstance(outcome, Failure)
        ]
        for row, outcome in sound if self.stops else zip(rows, outcomes, strict=True):
            self._rows.append(row)
            self._outcomes.append(outcome)
        if len(self._rows) >= CHUNK or time.monotonic() - self._written > WRITE_SECONDS:
            self.write()
        if failed and self.stops:
            self.write()
            self._raise(*failed[0])

    def write(self) -> None:
        """Write what has come in."""
        rows, outcomes = self._rows, self._outcomes
        self._rows, self._outcomes, self._written = [], [], time.monotonic()
        if self.store is not None and rows:
            self.store.write(self.site, rows, outcomes)

    def _raise(self, row: int, failure: Failure) -> None:
        theta = {name: np.asarray(value[row]).tolist() for name, value in self.latents.items()}
        raise SimulationError(
            f"Simulation {row} of site {self.site!r} failed at {theta}: {failure}. "
            "Repair the simulator, narrow the prior, or leave failures out with on_failure='skip'."
        ) from (failure.__cause__ or failure)


class Run:
    """The simulations of one site.

    Args:
        rng_key: Key of the run.
        site: Name of the site.
        simulator: Its simulator.
        arguments: `(m, *groups, p)`.
        block_size: Width of a block of JAX simulations.
        timeout: Seconds for one black-box simulation.
        executor: Where black-box simulations run.
    """

    def __init__(
        self,
        rng_key: jax.Array,
        site: str,
        simulator: Simulator,
        arguments: np.ndarray,
        *,
        block_size: int,
        timeout: float | None,
        executor: Executor | int | None,
    ):
        self.simulator, self.arguments = simulator, np.asarray(arguments)
        self.block_size, self.timeout, self.executor = block_size, timeout, executor
        self.keys = _keys(random.fold_in(rng_key, crc32(site.encode())), jnp.arange(len(self.arguments)))

    def all(self, retries: int, watch: Watch) -> tuple[np.ndarray, np.ndarray]:
        """Outputs `(m, *batch, *event)`, and for each simulation a `Failure` or None."""
        total = len(self.arguments)
        x = np.zeros((total, *self.simulator.shape()), dtype_of(self.simulator))
        errors = np.full(total, None, object)
        rows = np.arange(total)
        if watch.store is not None:
            stored, known = watch.store.load(watch.site)
            pending = watch.store.status(watch.site)[:total] == PENDING
            x[~pending], errors[~pending] = stored[:total][~pending], known[:total][~pending]
            rows = np.flatnonzero(pending)
            watch.bar.update(total - len(rows))
            if watch.stops and (errors != None).any():  # noqa: E711
                row = int(np.flatnonzero(errors != None)[0])  # noqa: E711
                watch([row], [errors[row]])
        try:
            for attempt in range(retries + 1):
                again: list[int] = []

                def report(rows, outcomes, last=attempt == retries, again=again):
                    final = [(r, o) for r, o in zip(rows, outcomes, strict=True) if last or not isinstance(o, Failure)]
                    again.extend(set(map(int, rows)) - {int(row) for row, _ in final})
                    for row, outcome in final:
                        if isinstance(outcome, Failure):
                            errors[row] = outcome
                        else:
                            x[row] = outcome
                    watch([int(row) for row, _ in final], [outcome for _, outcome in final])

                self._run(rows, self.keys if attempt == 0 else np.asarray(_keys_again(self.keys, attempt)), report)
                rows = np.array(sorted(again), int)
        finally:
            watch.write()
        return x, errors

    def _run(self, rows: np.ndarray, keys: np.ndarray, report) -> None:
        if not len(rows):
            return
        if not self.simulator.black_box:
            return self._in_blocks(rows, keys, report)
        simulator = self.simulator
        job = worker.Job(simulator.fn, simulator.batch_shape, simulator.event_shape, simulator.dtype)
        prepared = programs.in_blocks(partial(_prepare, simulator), (keys[rows], self.arguments[rows]), self.block_size)
        place = {int(row): i for i, row in enumerate(rows)}

        def row(number):
            key_data, params = jax.tree.map(lambda leaf: leaf[place[number]], prepared)
            return key_data, list(params)

        if self.executor is not None:
            return execution.run(self.executor, job, map(int, rows), row, self.timeout, report)
        for number in map(int, rows):
            report([number], worker.simulate_rows(job, [row(number)], self.timeout))

    def _in_blocks(self, rows, keys, report) -> None:
        """Whole blocks, wherever they hold a row that is asked for, so that a row never depends on which others are."""
        wanted = np.zeros(len(keys), bool)
        wanted[rows] = True
        draw = Program(partial(_draw, self.simulator))
        for block in np.unique(rows // self.block_size):
            inside = slice(block * self.block_size, (block + 1) * self.block_size)
            x = programs.in_blocks(draw, (keys[inside], self.arguments[inside]), self.block_size)
            numbers = np.arange(len(keys))[inside]
            chosen = np.flatnonzero(wanted[inside])
            report([int(n) for n in numbers[chosen]], [not_finite(x[i]) or x[i] for i in chosen])


def dtype_of(simulator: Simulator) -> np.dtype:
    """What is kept: as declared for a black box, as the session's precision has it for JAX."""
    return simulator.dtype if simulator.black_box else np.dtype(jax.dtypes.canonicalize_dtype(simulator.dtype))


def settings(
    rng_key: jax.Array,
    model: Callable,
    simulators: Mapping[str, Simulator],
    retries: int,
    block_size: int,
    version: str | int | None,
) -> dict[str, Any]:
    """What simulations depend on, beside the parameters that a store holds: key, code, shapes, precision."""
    roots = {f"simulator of `{name}`": simulator.fn for name, simulator in simulators.items()} | {"model": model}
    found = fingerprint.fingerprint(roots)
    return {
        "key": np.asarray(random.key_data(rng_key) if checks.is_key(rng_key) else rng_key).tolist(),
        "version": None if version is None else str(version),
        "code": found.parts,
        "packages": found.versions,
        "retries": retries,
        "block size": block_size,
        "float64": jnp.result_type(float) == jnp.float64,
        "simulator": {
            name: {
                "function": simulator_functions.name(simulator.fn),
                "shape": list(simulator.shape()),
                "dtype": str(simulator.dtype),
                "black box": simulator.black_box,
            }
            for name, simulator in simulators.items()
        },
    }


@jax.jit
def _keys_of(key, numbers):
    return random.key_data(jax.vmap(partial(random.fold_in, key))(numbers))


def _keys(key: jax.Array, numbers) -> np.ndarray:
    """Data of the key of each simulation, `(m, k)`."""
    return np.asarray(_keys_of(key, numbers))


@jax.jit
@partial(jax.vmap, in_axes=(0, None))
def _keys_again(data: jax.Array, attempt: int) -> jax.Array:
    """Data of the keys of another attempt."""
    return random.key_data(random.fold_in(random.wrap_key_data(data), attempt))


def _draw(simulator: Simulator, rows) -> jax.Array:
    """One draw for each row of keys and arguments."""
    return jax.vmap(lambda data, a: simulator.with_arguments(a).sample(random.wrap_key_data(data)))(*rows)


@jax.jit
def _prepare(simulator: Simulator, rows):
    """Data of the key, and parameters, of each call that the rows of keys and arguments make."""

    def calls(data, a):
        keys = simulator.keys(random.wrap_key_data(data))
        return random.key_data(keys), simulator.with_arguments(a).broadcast_params(keys.shape)

    return jax.vmap(calls)(*rows)
