"""How the simulations of one site are run: JAX simulators in blocks, black boxes here or on an executor."""

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self
from zlib import crc32

import jax
import numpy as np
from jax import random
from tqdm.auto import tqdm

from numpyro_kme._core import Program, checks, child, data_of, fold_in, programs
from numpyro_kme.models.problem import Draws
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import calls_on_host
from numpyro_kme.simulations import executors
from numpyro_kme.simulations.simulations import ragged_dims, unsound
from numpyro_kme.simulations.store import Part, StoreError

if TYPE_CHECKING:
    from numpyro_kme.simulations.simulate import Plan

WRITE_SECONDS = 0.5
"""What came in during this time may be lost when the process is killed."""


class SiteRun:
    """The simulations of one site: run, recorded as they finish, and written to a store.

    Args:
        rng_key: Key of the run.
        site: Name of the site.
        simulator: Its simulator.
        draws: Latents and arguments of all simulations.
        plan: How to simulate.
        bar: Progress.
        store: Where to write, if anywhere.
    Attributes:
        x: Outputs `(m, *batch, *event)`.
        errors: A `Failure` or None for each, `(m,)`.
        repeated: How many were drawn again.
    """

    def __init__(self, rng_key, site, simulator: Simulator, draws: Draws, plan: "Plan", bar: tqdm, store=None):
        self.site, self.simulator, self.plan, self.bar, self.store = site, simulator, plan, bar, store
        self.latents, self.arguments = draws.latents, np.asarray(draws.arguments[site])
        total = len(self.arguments)
        self.keys = fold_in(data_of(child(rng_key, crc32(site.encode()))), np.arange(total))
        kept = simulator.dtype if simulator.black_box else jax.dtypes.canonicalize_dtype(simulator.dtype)
        self.x = np.zeros((total, *simulator.shape()), kept)
        self.errors = np.full(total, None, object)
        self.repeated = 0
        self._failures = 0
        self._unwritten: list[int] = []
        self._written = time.monotonic()

    def all(self) -> Self:
        """Run what is not in the store, and what failed again."""
        rows = np.arange(len(self.x)) if self.store is None else self._not_in_store()
        try:
            for attempt in range(self.plan.retries + 1):
                keys = self.keys if attempt == 0 else fold_in(self.keys, attempt)
                again: list[int] = []
                self._run(rows, keys, partial(self._report, again if attempt < self.plan.retries else None))
                rows = np.array(sorted(again), int)
        finally:
            self._write()
        return self

    def _not_in_store(self) -> np.ndarray:
        """Take what the store has; numbers of the simulations that remain."""
        pending = np.ones(len(self.x), bool)
        for part in self.store.parts():
            own = part.rows < len(self.x)
            if part.site == self.site and own.any():
                rows = part.rows[own]
                stored, asked = part.arguments[own], self.arguments[rows]
                checks.require(  # on another machine last digits may differ
                    stored.shape == asked.shape and np.allclose(stored, asked, rtol=1e-5, equal_nan=True),
                    f"The store {self.store.path} holds simulations at other parameters of site {self.site!r}, first "
                    f"{stored[0].tolist()} where {asked[0].tolist()} is asked for. Other data? Give another path.",
                    StoreError,
                )
                self.x[rows], pending[rows] = part.x[own], False
                kinds = np.array(part.kinds, object)[own]
                self.errors[rows] = [executors.Failure(kind, "as the store says") if kind else None for kind in kinds]
        self.bar.update(int(np.sum(~pending)))
        failed = np.flatnonzero(self.errors != None)  # noqa: E711
        if self.plan.stops and len(failed):
            self._raise(failed[0])
        return np.flatnonzero(pending)

    def _report(self, again: list[int] | None, rows: Sequence[int], outcomes: Sequence[Any]) -> None:
        """Record finished simulations; those that failed are run `again`, or raise where the policy is that."""
        sound, failed = [], []
        for row, outcome in zip(map(int, rows), outcomes, strict=True):
            if not isinstance(outcome, executors.Failure):
                outcome = unsound(outcome, ragged_dims(self.simulator), self.plan.missing) or outcome
            if not isinstance(outcome, executors.Failure):
                self.x[row] = outcome
                sound.append(row)
            elif again is None:
                self.errors[row] = outcome
                failed.append(row)
            else:
                self.repeated += 1
                again.append(row)
        self.bar.update(len(sound) + len(failed))
        self._failures += len(failed)
        if failed:
            self.bar.set_postfix(failed=self._failures)
        self._unwritten += sound if self.plan.stops else sound + failed
        if time.monotonic() - self._written > WRITE_SECONDS:
            self._write()
        if failed and self.plan.stops:
            self._raise(failed[0])

    def _write(self) -> None:
        """Write what has come in."""
        rows, self._unwritten, self._written = self._unwritten, [], time.monotonic()
        if self.store is not None and rows:
            latents = {name: np.asarray(value)[rows] for name, value in self.latents.items()}
            kinds = tuple("" if error is None else error.kind for error in self.errors[rows])
            self.store.write(Part(self.site, np.array(rows), latents, self.arguments[rows], self.x[rows], kinds))

    def _raise(self, row: int) -> NoReturn:
        failure = self.errors[row]
        theta = {name: np.asarray(value[row]).tolist() for name, value in self.latents.items()}
        lost = failure.kind == "not finite" and not self.simulator.ragged and self.plan.missing is None
        recorded = " Where NaN is what is not recorded, KELFI takes missing=SimulatedMissing()." if lost else ""
        called = "With `shape` it is called as fn(rng, *params), with a generator of NumPy; leave it out for JAX. "
        called *= failure.kind == "TypeError" and self.simulator.black_box
        raise checks.explained(
            f"Simulation {row} of site {self.site!r} failed at {theta}: {failure}. {called}"
            f"Repair the simulator, narrow the prior, or leave failures out with on_failure='skip'.{recorded}",
            executors.SimulationError,
        ) from (failure.__cause__ or failure)

    def _run(self, rows: np.ndarray, keys: np.ndarray, report) -> None:
        if not len(rows):
            return
        if not self.simulator.black_box:
            return self._in_blocks(rows, keys, report)
        simulator, plan = self.simulator, self.plan
        job = partial(calls_on_host, simulator.fn, simulator.event_shape, simulator.dtype)
        prepared = programs.in_blocks(partial(_prepare, simulator), (keys[rows], self.arguments[rows]), plan.block_size)
        place = {int(row): i for i, row in enumerate(rows)}

        def row(number):
            key_data, params = jax.tree.map(lambda leaf: leaf[place[number]], prepared)
            return key_data, list(params)

        if plan.executor is not None:
            return executors.run(plan.executor, job, map(int, rows), row, plan.timeout, report)
        met = set[str]()
        modes: Any = {kind: "call" for kind, mode in np.geterr().items() if mode == "warn"}
        with executors.shared_generators_kept():
            for number in map(int, rows):
                with np.errstate(call=lambda kind, _: met.add(kind), **modes):
                    outcome = executors.simulate_row(job, row(number), plan.timeout)
                report([number], [outcome])
        if met:
            checks.warn(
                f"NumPy met {' and '.join(sorted(met))} in simulator `{simulator.name}`. Only outputs that are not "
                "finite count as failures: if the others are right, say so by np.errstate inside of it."
            )

    def _in_blocks(self, rows, keys, report) -> None:
        """Whole blocks, wherever they hold a row that is asked for, so that a row never depends on which others are."""

        def draw(row):
            words, arguments = row
            return self.simulator.with_arguments(arguments).sample(random.wrap_key_data(words))

        wanted = np.zeros(len(keys), bool)
        wanted[rows] = True
        program, size = Program(jax.vmap(draw), thorough=True), self.plan.block_size
        for first in size * np.unique(rows // size):
            inside = slice(first, first + size)
            x = programs.in_blocks(program, (keys[inside], self.arguments[inside]), size)
            chosen = np.flatnonzero(wanted[inside])
            report(first + chosen, list(x[chosen]))


@jax.jit
def _prepare(simulator: Simulator, rows):
    """Data of the key, and parameters, of each call that the rows of keys and arguments make."""

    def calls(data, a):
        keys = simulator.keys(random.wrap_key_data(data))
        return random.key_data(keys), simulator.with_arguments(a).broadcast_params(keys.shape)

    return jax.vmap(calls)(*rows)
