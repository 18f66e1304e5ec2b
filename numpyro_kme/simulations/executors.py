"""Calls of black-box simulators, here or on an executor of the user's in tasks of adapted size, and how they fail."""

import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.models import command, simulator_functions


class SimulationError(RuntimeError):
    """A simulation raised, gave a value that is not finite or took too long, or its executor stopped."""


class Failure(Exception):
    """The reason why one simulation failed.

    Args:
        kind: A short name to count by: the type of an exception, `not finite`, `timeout`.
        reason: One sentence.
    """

    def __init__(self, kind: str, reason: str):
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason

    def __str__(self) -> str:
        told = f"{self.reason} ({self.kind})" if self.reason else self.kind
        return self.reason if self.kind in self.reason else told


TASK_SECONDS = 0.2
"""Tasks hold as many simulations as take about this long, so that sending them costs little and losing them too."""

SILENCE = 60.0
"""Seconds without any result after which an executor is asked about: starting the workers of a cluster takes less."""

IN_FLIGHT = 256
"""Tasks that an executor holds: more than the workers of most clusters."""

Report = Callable[[Sequence[int], list[Any]], None]
"""Told which rows are done and what each gave, an array or a `Failure`; of none, where time has passed."""

Row = tuple[np.ndarray, list[np.ndarray]]
"""Data of the keys `(*batch, k)` and parameters `(*batch, *shape)` of the calls that make one simulation."""

Outcome = np.ndarray | Failure


Job = Callable[[np.ndarray, list[np.ndarray]], np.ndarray]
"""A black-box simulator, for the keys and parameters of a row: `simulator_functions.calls_on_host` of it."""


def simulate_row(job: Job, row: Row, timeout: float | None) -> Outcome:
    """One simulation, with a time limit in seconds.

    Raises:
        WrongOutput: If the result has not the declared shape or dtype.
    """
    if threading.current_thread() is threading.main_thread():  # threads share them, and draw on
        np.random.seed(np.ravel(row[0]))  # noqa: NPY002
        random.seed(row[0].tobytes())
    try:
        return _limited(timeout, job, *row)
    except simulator_functions.WrongOutput:
        raise
    except Failure as failure:
        return failure
    except (Exception, SystemExit) as error:
        raised = Failure(type(error).__name__, str(error))
        raised.__cause__ = error
        return raised


@contextmanager
def shared_generators_kept() -> Iterator[None]:
    """Put the random generators that NumPy and Python share among modules back in the end, which each simulation seeds
    by its key: in forked processes, and in runs that seed them alike, they would repeat each other's numbers."""
    before = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before[0])  # noqa: NPY002
        random.setstate(before[1])


def simulate_pickled(job: bytes, rows: Sequence[Row], timeout: float | None) -> tuple[float, list[Outcome]]:
    """Seconds and outcomes of `simulate_row` at each row: the job by cloudpickle, failures without their causes."""
    unpickled, begun = _unpickled(job), time.monotonic()
    outcomes = [simulate_row(unpickled, row, timeout) for row in rows]
    plain = [Failure(*outcome.args) if isinstance(outcome, Failure) else outcome for outcome in outcomes]
    return time.monotonic() - begun, plain


@lru_cache(maxsize=4)
def _unpickled(job: bytes) -> Job:
    import cloudpickle

    return cloudpickle.loads(job)


def run(
    executor: Any, job: Job, rows: Iterable[int], row: Callable[[int], Row], timeout: float | None, report: Report
) -> None:
    """Run simulations on an executor, in order, and report each once.

    Args:
        executor: Any `concurrent.futures.Executor`, or a Dask client.
        job: What to run.
        rows: Numbers of the simulations.
        row: Data of one simulation.
        timeout: Seconds for one simulation.
        report: Called in this thread.
    Raises:
        ImportError: If cloudpickle is not installed.
        SimulationError: If the executor stops working, or nothing comes back from it though `timeout` limits each
            simulation.
        TypeError: If the simulator cannot be sent.
    """
    with checks.needs("An executor gets the simulator by", "cloudpickle"):
        import cloudpickle

    pool: Executor = executor.get_executor() if hasattr(executor, "get_executor") else executor
    try:
        pickled = cloudpickle.dumps(job)
    except Exception as error:
        raise checks.explained(
            f"The simulator cannot be sent to an executor: {error} ({type(error).__name__}). Make locks, connections "
            "and open files inside of it, or leave them out of its state (`__getstate__`).",
            TypeError,
        ) from error
    waiting, size, heard, patience = deque(rows), 1, time.monotonic(), SILENCE
    running: dict[Future, list[int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < IN_FLIGHT:
                task = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                inputs = [row(i) for i in task]
                with _working():
                    running[pool.submit(simulate_pickled, pickled, inputs, timeout)] = task
            done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            if not done:
                report([], [])  # what came in before is written now
                patience = _check_silence(time.monotonic() - heard, patience, size, timeout)
            else:
                heard, patience = time.monotonic(), SILENCE
            for future in done:
                task = running.pop(future)
                with _working():
                    seconds, outcomes = future.result()
                report(task, outcomes)
                size = int(np.clip(TASK_SECONDS * len(task) / max(seconds, 1e-6), 1, min(2 * size, 64)))
    except KeyboardInterrupt:
        command.end_all()  # of threads, which wait for them
        raise
    finally:
        for future in running:
            future.cancel()


def _check_silence(seconds: float, patience: float, size: int, timeout: float | None) -> float:
    """Warn of an executor from which nothing comes back, and raise where time limits say that something had to; the
    seconds after which to warn next, infinite after a warning."""
    nothing = "Nothing has come back from the executor for"
    ask = "Has it a worker? Dask: client.wait_for_workers(1, timeout=60), client.scheduler_info()."
    checks.require(
        timeout is None or seconds < SILENCE + size * timeout,
        f"{nothing} {seconds:.0f} s, and a task of it takes at most {size * (timeout or 0.0):.0f} s. {ask} With "
        "`store=` nothing that was simulated is lost.",
        SimulationError,
    )
    if seconds < patience:
        return patience
    checks.warn(f"{nothing} {seconds:.0f} s. {ask} `timeout=` limits how long it is waited for.")
    return float("inf")


@contextmanager
def _working() -> Iterator[None]:
    """Raise errors of an executor as its own, and not as those of a simulation."""
    try:
        yield
    except simulator_functions.WrongOutput:
        raise
    except Exception as error:
        lacking = isinstance(error, ImportError | AttributeError)
        remedy = "Install numpyro_kme, and what the simulator imports, for its workers" if lacking else "Start another"
        raise checks.explained(
            f"The executor stopped working: {error} ({type(error).__name__}). {remedy}; with `store=` nothing is lost.",
            SimulationError,
        ) from error


def _limited(seconds: float | None, function: Callable, *args: Any) -> Any:
    """Call a function with a time limit: by an alarm in a main thread, else in a thread that is left behind."""
    if seconds is None:
        return function(*args)
    late = Failure("timeout", f"it took longer than {seconds:g} s")
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        with _alarm(seconds, late):
            return function(*args)
    future: Future = Future()

    def run():
        command.latest.set(time.monotonic() + seconds + 1.0)  # so that the time limit comes first
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([future], seconds).done:
        raise late
    return future.result()


@contextmanager
def _alarm(seconds, late):
    def ring(*_):
        raise late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
