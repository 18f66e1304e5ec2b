"""Calls of a black-box simulator, here or in a worker: data in, arrays or failures out."""

import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from numpyro_kme.models import simulator_functions
from numpyro_kme.simulations.failures import Failure, not_finite, raised

Row = tuple[np.ndarray, list[np.ndarray]]
"""Data of the keys `(*batch, k)` and parameters `(*batch, *shape)` of the calls that make one simulation."""


class Job(NamedTuple):
    """What is run for each row."""

    fn: Callable
    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...]
    dtype: np.dtype


def simulate_rows(job: Job, rows: Sequence[Row], timeout: float | None = None) -> list[np.ndarray | Failure]:
    """One simulation for each row, each with its own time limit in seconds.

    Raises:
        WrongOutput: If a result has not the declared shape or dtype.
    """
    return [_simulate(job, row, timeout) for row in rows]


def simulate_pickled(
    job: bytes, rows: Sequence[Row], timeout: float | None, begun: Path | None
) -> list[np.ndarray | Failure]:
    """As `simulate_rows`, in a worker: the job by cloudpickle, and failures without the exceptions behind them.

    The file `begun` is made when the process has started and has imported what the job needs: from then on time counts.
    """
    unpickled = _unpickled(job)
    if begun is not None:
        begun.touch()
    outcomes = simulate_rows(unpickled, rows, timeout)
    return [Failure(*outcome.args) if isinstance(outcome, Failure) else outcome for outcome in outcomes]


@lru_cache(maxsize=4)
def _unpickled(job: bytes) -> Job:
    import cloudpickle

    return cloudpickle.loads(job)


def start_worker() -> None:
    """Prepare a spawned process: JAX off the accelerator, and interrupts left to the parent."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _simulate(job: Job, row: Row, timeout) -> np.ndarray | Failure:
    try:
        x = _limited(timeout, _calls_of_row, job, row)
    except simulator_functions.WrongOutput:
        raise
    except Failure as failure:
        return failure
    except (Exception, SystemExit) as error:
        return raised(error)
    return not_finite(x) or x


def _calls_of_row(job: Job, row: Row) -> np.ndarray:
    key_data, params = row
    x = np.empty(job.batch_shape + job.event_shape, job.dtype)
    for i in np.ndindex(job.batch_shape):
        own = (param[i] for param in params)
        x[i] = simulator_functions.call_on_host(job.fn, job.event_shape, job.dtype, key_data[i], *own)
    return x


def _limited(seconds, function, *args):
    """Call a function with a time limit: by an alarm in a main thread, else in a thread that is left behind."""
    if seconds is None:
        return function(*args)
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        with _alarm(seconds):
            return function(*args)
    return _in_thread(seconds, function, *args)


@contextmanager
def _alarm(seconds):
    def ring(*_):
        raise timed_out(seconds)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _in_thread(seconds, function, *args):
    future: Future = Future()

    def run():
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([future], seconds).done:
        raise timed_out(seconds)
    return future.result()


def timed_out(seconds) -> Failure:
    """The failure of a simulation that has taken too long."""
    return Failure("timeout", f"it took longer than {seconds:g} s")
