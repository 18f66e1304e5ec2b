"""Work of NumPy that several processes share: threads take turns at Python, which small matrices spend half of it in.

A worker is a Python process that waits for functions and arguments, and ends with the process that started it. The
first workers are started once this process has spent `WORTH` seconds on work that they could have shared, and serve
when they are ready; until then, and wherever there is none, threads do. What is found is the same.
"""

import atexit
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import jax

from numpyro_kme._core import checks
from numpyro_kme._core.host import keep_freed_memory, on_host

VARIABLE = "NUMPYRO_KME_WORKERS"
"""Environment variable: how many workers are started at most; 0 for none. By default one for each further processor,
and at most `MOST`."""

MOST = 7
"""Each worker holds a quarter of a gigabyte."""

WORTH = 0.5
"""Seconds of work that could have been shared, after which workers are started, which takes about two."""

_BEGIN = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from numpyro_kme._core.workers import serve
serve()
"""


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
    if _serving or len(items) < 2:
        return [run(item) for item in items]
    begun, workers = time.perf_counter(), _pool.taken(len(items) - 1)
    if workers:
        return _shared(_OnHost(function), items, workers)
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
    thread = ThreadPoolExecutor(1)
    begun = thread.submit(_evaluated, workers[0], _InPrecision(jax.enable_x64.value), deque([0]), [call])
    thread.shutdown(wait=False)

    def result():
        found = begun.result()
        return found[0] if found else call()

    return result


def running() -> list["Worker"]:
    """The workers of this process that are alive."""
    return [worker for worker in _pool.workers if worker.alive]


@dataclass(frozen=True)
class _OnHost:
    """`on_host(function)`, for another process."""

    function: Callable

    def __call__(self, item):
        return on_host(self.function)(item)


@dataclass(frozen=True)
class _InPrecision:
    """Evaluates calls in the precision that was in force where they were begun."""

    x64: bool

    def __call__(self, call):
        with jax.enable_x64(self.x64):
            return call()


def _shared(function: Callable, items: list, workers: list["Worker"]) -> list:
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


def _evaluated(worker: "Worker", function: Callable, waiting: deque, items: list) -> dict[int, Any]:
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


class Worker:
    """A process that evaluates functions; one thread at a time may use it."""

    def __init__(self):
        """Start the process, and do not wait for it."""
        one_thread = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what fails there is evaluated here
            env=os.environ | one_thread | {VARIABLE: "0", "JAX_PLATFORMS": "cpu"},
            start_new_session=True,  # an interrupt is for this process, which decides what becomes of the other
        )
        self._ready = threading.Event()
        self._busy = threading.Lock()
        threading.Thread(target=self._begin, daemon=True).start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def _begin(self) -> None:
        try:
            self._send(sys.path)
            self._ready.set() if self._receive() == "ready" else self.end()
        except Exception:  # it could not start; threads serve
            self.end()

    def _send(self, value: Any) -> None:
        self._process.stdin.write(_packed(value))
        self._process.stdin.flush()

    def _receive(self) -> Any:
        return pickle.load(self._process.stdout)

    @property
    def alive(self) -> bool:
        """Whether the process goes on."""
        return self._process.poll() is None

    def taken(self) -> bool:
        """Whether it is ready and free, and now reserved; `free` gives it back."""
        return self._ready.is_set() and self.alive and self._busy.acquire(blocking=False)

    def free(self) -> None:
        """Let others use it."""
        self._busy.release()

    def end(self) -> None:
        """Stop the process."""
        self._ready.clear()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()

    def prepare(self, function: Callable) -> None:
        """Send the function that is to be evaluated next."""
        self._exchange("function", function)

    def evaluate(self, argument: Any) -> Any:
        """The function at an argument. Its warnings are raised again here."""
        found, warned = self._exchange("argument", argument)
        for category, text in warned:
            warnings.warn(text, category, stacklevel=2)
        return found

    def _exchange(self, kind: str, value: Any) -> Any:
        packed = _packed(value)
        try:
            self._send((kind, packed))
            failed, found = self._receive()
        except BaseException:  # an interrupt too: what it answers later would be taken for another answer
            self.end()
            raise
        if failed:
            raise checks.explained(found, RuntimeError)
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
_serving = False


def _number() -> int:
    """How many workers there are to be."""
    wanted = os.environ.get(VARIABLE, "")
    checks.require(
        wanted == "" or wanted.isdecimal(),
        f"The environment variable {VARIABLE} must be a whole number, how many processes may help to learn; got "
        f"{wanted!r}. 0 starts none.",
    )
    return int(wanted) if wanted else min(processors() - 1, MOST) if sys.executable else 0


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def serve() -> None:
    """Evaluate what comes on standard input, until it ends; what is printed goes to standard error."""
    global _serving
    _serving = True
    given, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    keep_freed_memory()

    def answer(packed):
        answers.write(packed)
        answers.flush()

    answer(_packed("ready"))
    while True:
        try:
            kind, packed = pickle.load(given)
        except EOFError:
            return
        try:
            value = pickle.loads(packed)
            if kind == "function":
                function, found = value, None
            else:
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter("always")
                    found = function(value), [(one.category, str(one.message)) for one in seen]
            reply = _packed((False, found))
        except Exception as error:
            reply = _packed((True, f"{type(error).__name__}: {error}"))
        answer(reply)


def _packed(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
