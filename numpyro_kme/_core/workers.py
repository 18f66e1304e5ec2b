"""Work of NumPy that several processes share: threads take turns at Python, which small matrices spend half of it in.

A worker is a Python process that waits for functions and arguments, and ends with the process that started it. The
first workers are started once this process has spent `WORTH` seconds on work that they could have shared, and serve
when they are ready; until then, and wherever there is none, threads do. What is found is the same.
"""

import atexit
import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jax

from numpyro_kme._core import checks, worker_process
from numpyro_kme._core.host import in_precision, keep_freed_memory, on_host
from numpyro_kme._core.worker_process import VARIABLE, Worker

MOST = 7
"""Each worker holds a quarter of a gigabyte."""

WORTH = 0.5
"""Seconds of work that could have been shared, after which workers are started, which takes about two."""

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of all processors, and the period in which a container has them (Linux)."""


def in_parallel(function: Callable[[Any], Any], items: Iterable) -> list:
    """`[function(item) for item in items]` on the host, by all processors, for work that NumPy does.

    Workers take items as long as there are any, and so does this thread. Where one cannot, because what it is sent has
    no meaning in another process or memory is short, the item is evaluated here.

    Args:
        function: Of NumPy arrays and settings; a function of a module, or a `partial` of one.
        items: What it is evaluated at.
    """
    items, run = list(items), on_host(function)
    keep_freed_memory()
    if worker_process.serving or len(items) < 2:
        return [run(item) for item in items]
    begun, workers = time.perf_counter(), _pool.taken(len(items) - 1)
    if workers:
        return _shared(partial(_item_on_host, function), items, workers)
    with ThreadPoolExecutor(processors()) as threads:
        found = list(threads.map(run, items))
    _pool.worked(time.perf_counter() - begun)
    return found


def later(function: Callable, *args: Any, **how: Any) -> Callable[[], Any]:
    """Begin `function(*args, **how)` in a worker where one is free; the call that is returned gives what it found, or
    evaluates it then."""
    call, workers = partial(function, *args, **how), _pool.taken(1)
    if not workers:
        return call
    thread, evaluate = ThreadPoolExecutor(1), partial(in_precision, x64=jax.enable_x64.value)
    begun = thread.submit(_evaluated, workers[0], evaluate, deque([0]), [call])
    thread.shutdown(wait=False)

    def result():
        found = begun.result()
        return found[0] if found else call()

    return result


def running() -> list[Worker]:
    """The workers of this process that are alive."""
    return [worker for worker in _pool.workers if worker.alive]


def _item_on_host(function: Callable, item: Any) -> Any:
    return on_host(function)(item)


def _shared(function: Callable, items: list, workers: list[Worker]) -> list:
    waiting, found = deque(range(len(items))), dict[int, Any]()
    with ThreadPoolExecutor(len(workers)) as threads:
        others = [threads.submit(_evaluated, worker, function, waiting, items) for worker in workers]
        try:
            while waiting:
                with suppress(IndexError):  # another has taken the last
                    number = waiting.popleft()
                    found[number] = function(items[number])
        except KeyboardInterrupt:  # nobody waits for what they are at
            for worker in workers:
                worker.end()
            raise
        finally:
            waiting.clear()
    for other in others:
        found |= other.result()
    return [found[number] if number in found else function(item) for number, item in enumerate(items)]


def _evaluated(worker: Worker, function: Callable, waiting: deque, items: list) -> dict[int, Any]:
    """What a worker found at those items that it took; it may have failed at the last."""
    found = dict[int, Any]()
    try:
        worker.prepare(function)
        while waiting:
            number = waiting.popleft()
            found[number] = worker.evaluate(items[number])
    except Exception:  # it is evaluated again by who waits for it, and raises what it raises there
        pass
    finally:
        worker.free()
    return found


class _Pool:
    """The workers of this process, started when they are worth it."""

    def __init__(self):
        self.workers: list[Worker] = []
        self._spent, self._process, self._lock = 0.0, os.getpid(), threading.Lock()

    def taken(self, most: int) -> list[Worker]:
        """Some that are ready and free, at most so many, now reserved."""
        if self._process != os.getpid():  # a copy of the process that started them: they are not its own
            self.workers, self._spent, self._process = [], 0.0, os.getpid()
        ready = (worker for worker in self.workers if worker.taken())
        return list(islice(ready, most))

    def worked(self, seconds: float) -> None:
        """Say how long work took that workers could have shared."""
        with self._lock, suppress(OSError):  # where no process can be started, threads serve
            self._spent += seconds
            if self._spent > WORTH and not any(worker.alive for worker in self.workers):
                self._spent, self.workers = 0.0, []
                self.workers += (Worker() for _ in range(_number()))

    def end(self) -> None:
        """Stop all."""
        for worker in self.workers:
            worker.end()


_pool = _Pool()
atexit.register(lambda: _pool.end())


def _number() -> int:
    """How many workers there are to be."""
    wanted = os.environ.get(VARIABLE, "")
    checks.require(
        wanted == "" or wanted.isdecimal(),
        f"The environment variable {VARIABLE} must be a whole number, how many processes may help to learn; got "
        f"{wanted!r}. 0 starts none.",
    )
    if wanted:
        return int(wanted)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    most = min(MOST, int(threads) - 1) if threads.isdecimal() and threads != "0" else MOST
    return min(processors() - 1, most) if sys.executable and multiprocessing.parent_process() is None else 0


def processors() -> int:
    """How many this process may use: those it is bound to, and as many as its container has time for."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no such file, or "max"
        quota, period = map(int, QUOTA.read_text().split())
        return max(1, min(bound, round(quota / period)))
    return bound
