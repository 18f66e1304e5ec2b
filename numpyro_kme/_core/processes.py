"""Programs outside Python, which do not outlive those that wait for them: each ends with all that it started."""

import atexit
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from threading import Lock
from typing import Any

GUARD = "while read -r now; do groups=$now; done; kill -s KILL -- $groups"
"""For a shell that is told which groups of processes run, and ends them when nobody can tell it more.

That is when this process has ended, in whatever way: after `kill -9` nothing else could do it.
"""

latest: ContextVar[float] = ContextVar("latest", default=math.inf)
"""When programs end at the latest, by `time.monotonic()`: for threads, which an alarm does not reach."""

_groups: set[int] = set()
_changing = Lock()


def run(command: Sequence[str], timeout: float | None, **settings) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`, and what the program started ends with it, if the wait ends before the program.

    The program leads a session, and so a group of processes. What it moves into another group is not ended.

    Args:
        command: The program and its arguments.
        timeout: Seconds; `latest` may leave less.
        settings: Of `subprocess.Popen`.
    Raises:
        subprocess.TimeoutExpired: If it takes too long.
    """
    left = min(math.inf if timeout is None else timeout, latest.get() - time.monotonic())
    pipe = subprocess.PIPE
    how: dict[str, Any] = dict(stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True) | settings
    with suppress(OSError):  # before the program, which is told of at once
        _guard(os.getpid())
    with subprocess.Popen(command, **how) as program:
        try:
            _note(_groups.add, program.pid)
            said = program.communicate(timeout=None if left == math.inf else left)
        except BaseException:
            _end(program.pid)
            program.wait()
            raise
        finally:
            _note(_groups.discard, program.pid)
    return subprocess.CompletedProcess(command, program.returncode, *said)


def end_all() -> None:
    """End the programs that run now; those that wait for them go on."""
    for group in [*_groups]:
        _end(group)


def _end(group: int) -> None:
    with suppress(OSError):  # it has ended
        os.killpg(group, signal.SIGKILL) if hasattr(os, "killpg") else os.kill(group, signal.SIGTERM)


def _note(change: Callable[[int], None], group: int) -> None:
    with _changing:
        change(group)
        with suppress(OSError):  # there is no shell, or somebody has ended it
            _guard(os.getpid()).write(f"{' '.join(f'-{each}' for each in _groups)}\n".encode())


@lru_cache(maxsize=1)
def _guard(process: int):
    """The pipe to a guard of this process, which a fork of it does not share."""
    null = subprocess.DEVNULL
    how: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=null, stderr=null, bufsize=0, start_new_session=True)
    guard = subprocess.Popen(["/bin/sh", "-c", GUARD], **how)
    atexit.register(guard.communicate)
    return guard.stdin
