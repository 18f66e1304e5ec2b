"""A Python process that evaluates functions for another one.

It is sent what it needs by pipes, pickled: a function by its name, so that it is one of a module, and arrays. It needs
no guard in the script that starts it, which it does not read.
"""

import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numpyro_kme._core import checks
from numpyro_kme._core.host import keep_freed_memory

VARIABLE = "NUMPYRO_KME_WORKERS"
"""Environment variable: how many workers are started; 0 for none. By default one for each further processor, and at
most seven, or as many as `OMP_NUM_THREADS` lets a process have; none in a process that `multiprocessing` started, which
shares the processors with others already."""

_BEGIN = """
import importlib, pickle, sys
sys.path[:], modules = pickle.load(sys.stdin.buffer)
for module in modules:
    importlib.import_module(module)
importlib.import_module("numpyro_kme._core.worker_process").serve()
"""

serving = False
"""Whether this process is one of these."""


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
            modules = [name for name in list(sys.modules) if name.startswith("numpyro_kme.")]
            self._send((sys.path, modules))
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


def serve() -> None:
    """Evaluate what comes on standard input, until it ends; what is printed is dropped."""
    global serving
    serving = True
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
