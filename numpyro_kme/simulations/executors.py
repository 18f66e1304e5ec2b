"""Calls of black-box simulators, here or on an executor: tasks of adapted size, workers that die or hang."""

import itertools
import multiprocessing
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from numpyro_kme._core import checks, processes
from numpyro_kme.models import simulator_functions
from numpyro_kme.simulations.failures import Failure, SimulationError, limited, raised, timed_out

TASK_SECONDS = 0.2
"""Tasks hold as many simulations as take about this long, so that sending them costs little and losing them too."""

GRACE = 20.0
"""Seconds beyond its limit after which a worker is ended that does not answer to an alarm."""

Report = Callable[[Sequence[int], list[Any]], None]
"""Told which rows are done and what each gave, an array or a `Failure`; of none, where time has passed."""


Row = tuple[np.ndarray, list[np.ndarray]]
"""Data of the keys `(*batch, k)` and parameters `(*batch, *shape)` of the calls that make one simulation."""

Outcome = np.ndarray | Failure


class Job(NamedTuple):
    """What is run for each row."""

    fn: Callable
    shape: tuple[int, ...]
    dtype: np.dtype


def simulate_pickled(job: bytes, rows: Sequence[Row], timeout: float | None, begun: Path | None) -> list[Outcome]:
    """`simulate_row` of each row, in a worker: the job by cloudpickle, failures without the exceptions behind them.

    The file `begun` is made when the process has started and has imported what the job needs: from then on time counts.
    """
    unpickled = _unpickled(job)
    if begun is not None:
        begun.touch()
    outcomes = [simulate_row(unpickled, row, timeout) for row in rows]
    return [Failure(*outcome.args) if isinstance(outcome, Failure) else outcome for outcome in outcomes]


@lru_cache(maxsize=4)
def _unpickled(job: bytes) -> Job:
    import cloudpickle

    return cloudpickle.loads(job)


def start_worker() -> None:
    """Prepare a spawned process: JAX off the accelerator, interrupts left to the parent, and an end where it ends."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def simulate_row(job: Job, row: Row, timeout: float | None) -> Outcome:
    """One simulation, with a time limit in seconds.

    Raises:
        WrongOutput: If the result has not the declared shape or dtype.
    """
    try:
        x = limited(timeout, simulator_functions.calls_on_host, *job, *row)
    except simulator_functions.WrongOutput:
        raise
    except Failure as failure:
        return failure
    except (Exception, SystemExit) as error:
        return raised(error)
    return x


def run(
    executor: Executor | int,
    job: Job,
    rows: Iterable[int],
    row: Callable[[int], Row],
    timeout: float | None,
    report: Report,
) -> None:
    """Run simulations on an executor, in order, and report each once.

    Args:
        executor: Any `concurrent.futures.Executor`, or a number of processes to spawn here.
        job: What to run.
        rows: Numbers of the simulations.
        row: Data of one simulation.
        timeout: Seconds for one simulation.
        report: Called in this thread.
    Raises:
        ImportError: If cloudpickle is not installed: `pip install "numpyro-kme[executor]"`.
        SimulationError: If an executor that was given stops working.
    """
    with checks.needs("An executor gets the simulator by", "cloudpickle", "executor"):
        import cloudpickle

    pool = _Spawned(executor) if isinstance(executor, int) else _UsersExecutor(executor)
    try:
        _Run(pool, cloudpickle.dumps(job), row, timeout, report).all(rows)
    except KeyboardInterrupt:
        processes.end_all()  # of threads, which wait for them
        raise
    finally:
        pool.close()


class _Run:
    def __init__(self, pool, job: bytes, row, timeout, report: Report):
        self.pool, self.job, self.row, self.timeout, self.report = pool, job, row, timeout, report
        self.running: dict[Future, _Task] = {}
        self.size = 1

    def all(self, rows: Iterable[int]) -> None:
        """Everything; what was running when a worker died is run again, one simulation at a time."""
        queue, alone = deque(rows), deque[int]()
        while queue or alone or self.running:
            if alone and not self.running:
                self._submit([alone.popleft()])
            while queue and not alone and len(self.running) < self.pool.workers * (1 if self.timeout else 2):
                self._submit([queue.popleft() for _ in range(min(self.size, len(queue)))])
            alone.extend(self._collect())

    def _submit(self, rows: list[int]) -> None:
        begun = self.pool.mark()
        try:
            future = self.pool.submit(simulate_pickled, self.job, [self.row(i) for i in rows], self.timeout, begun)
        except BrokenExecutor as error:
            self.pool.replace(error)
            return self._submit(rows)
        self.running[future] = _Task(rows, begun)

    def _collect(self) -> list[int]:
        """Report what is done; returns the rows to run again, each alone."""
        alone = len(self.running) == 1
        done, _ = wait(self.running, timeout=0.5, return_when=FIRST_COMPLETED)
        if not done:
            self.report([], [])  # what came in before is written now
        again: list[int] = []
        broken: Exception | None = None
        for future in done:
            task = self.running.pop(future)
            rows = task.rows
            try:
                outcomes = future.result()
            except simulator_functions.WrongOutput:
                raise
            except BrokenExecutor as error:
                broken = error
                again += self._lost(rows, alone, Failure("worker died", "the process that ran it ended"))
            except Exception as error:
                again += self._lost(rows, True, Failure(type(error).__name__, str(error)))
            else:
                self.report(rows, outcomes)
                each = (time.monotonic() - task.submitted) / len(rows)
                self.size = int(np.clip(TASK_SECONDS / max(each, 1e-6), 1, min(2 * self.size, 64)))
        overdue = [] if broken else [future for future, task in self.running.items() if task.overdue(self.timeout)]
        for future in overdue:
            again += self._lost(self.running.pop(future).rows, True, timed_out(self.timeout))
        if broken or overdue:
            again += [i for task in self.running.values() for i in task.rows]
            self.running.clear()
            self.pool.replace(broken)
        return sorted(again)

    def _lost(self, rows: list[int], certain: bool, failure: Failure) -> list[int]:
        """Report a simulation that was certainly the cause; return those that have to run again to find out."""
        if certain and len(rows) == 1:
            self.report(rows, [failure])
            return []
        return rows


@dataclass
class _Task:
    """Simulations that are running together.

    Attributes:
        rows: Their numbers.
        mark: A file that the worker makes when it begins with them, if it was asked to.
        submitted: When they were sent.
        begun: When the worker was seen to have begun.
    """

    rows: list[int]
    mark: Path | None
    submitted: float = field(default_factory=time.monotonic)
    begun: float | None = None

    def overdue(self, timeout: float | None) -> bool:
        """Whether the worker does not end them by itself, and has begun, or should have long ago."""
        if self.mark is None or not timeout:
            return False
        now = time.monotonic()
        if self.begun is None and self.mark.exists():
            self.begun = now
        # a worker may take 300 seconds to start and to import what it needs, which do not count
        seconds = now - self.submitted - 300.0 if self.begun is None else now - self.begun
        return seconds > len(self.rows) * timeout + GRACE


class _UsersExecutor:
    """An executor of the user's, which is neither replaced nor closed."""

    def __init__(self, executor: Executor):
        self.submit = executor.submit
        self.workers = getattr(executor, "_max_workers", None) or os.cpu_count() or 1

    def mark(self) -> None:
        """Its workers may be anywhere."""

    def replace(self, error) -> None:
        raise checks.explained(
            f"The executor stopped working: {error} ({type(error).__name__}). Start another one; with `store=` nothing "
            "that was simulated is lost.",
            SimulationError,
        ) from error

    def close(self) -> None:
        pass


class _Spawned:
    """Processes spawned here (a fork after JAX has started can deadlock), replaced where one dies or hangs."""

    def __init__(self, workers: int):
        self.workers = workers
        self._ever_started = False
        self._numbers = itertools.count()
        self._folder = tempfile.TemporaryDirectory(prefix="simulations-")
        self._open()

    def _open(self) -> None:
        self._pool = ProcessPoolExecutor(
            self.workers, mp_context=multiprocessing.get_context("spawn"), initializer=start_worker
        )

    def mark(self) -> Path:
        """A file for a task to say that it has begun."""
        return Path(self._folder.name, str(next(self._numbers)))

    def submit(self, *call) -> Future:
        future = self._pool.submit(*call)
        future.add_done_callback(self._note)
        return future

    def _note(self, future: Future) -> None:
        if not future.cancelled() and not isinstance(future.exception(), BrokenExecutor):
            self._ever_started = True

    def replace(self, error) -> None:
        if error is not None and not self._ever_started:
            raise checks.explained(
                "The worker processes ended before they ran anything. In a script, put what runs under "
                "`if __name__ == '__main__':`, because each of them imports it.",
                SimulationError,
            ) from error
        self._end()
        self._open()

    def close(self) -> None:
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with suppress(Exception):
                process.kill()
        for process in processes:
            process.join()
