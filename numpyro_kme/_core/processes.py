"""Programs outside Python: each runs in a session of its own, and ends with all that it started."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar

latest: ContextVar[float] = ContextVar("latest", default=math.inf)
"""When programs end at the latest, by `time.monotonic()`: for threads, which an alarm does not reach."""

_running: set[int] = set()


def run(command: Sequence[str], timeout: float | None, **settings) -> subprocess.CompletedProcess[str]:
    """Run a program as `subprocess.run` does; its whole group of processes is killed where the wait ends early.

    Args:
        command: The program and its arguments.
        timeout: Seconds; `latest` may leave less.
        settings: Settings of `subprocess.Popen`.
    Raises:
        subprocess.TimeoutExpired: If it takes too long.
    """
    left = min(math.inf if timeout is None else timeout, latest.get() - time.monotonic())
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True, **settings
    ) as program:
        _running.add(program.pid)
        try:
            output = program.communicate(timeout=None if left == math.inf else left)
        except BaseException:
            _kill(program.pid)
            program.wait()  # which `Popen` does not after an interrupt
            raise
        finally:
            _running.discard(program.pid)
    return subprocess.CompletedProcess(command, program.returncode, *output)


def end_all() -> None:
    """Kill the programs that run now, for whom threads wait that an interrupt does not reach."""
    for program in [*_running]:
        _kill(program)


def _kill(group: int) -> None:
    with suppress(OSError):  # it has ended
        os.killpg(group, signal.SIGKILL) if hasattr(os, "killpg") else os.kill(group, signal.SIGTERM)
