"""Progress of what takes long: bars where the number of steps is known, else phases with the time they take."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from threading import Event, Thread

from tqdm.asyncio import tqdm_asyncio
from tqdm.auto import tqdm

from numpyro_kme._core import checks

PATIENCE = 1.0
"""Seconds after which a phase is shown, and between two looks at it."""

_inside_a_loop: ContextVar[bool] = ContextVar("inside_a_loop", default=False)

LONG = 5.0
"""Seconds that are left from which a phase says so."""

_parts: ContextVar[list] = ContextVar("parts", default=[0, 0, 0.0])  # noqa: B039 (written to, and not read)


def no_progress_bars() -> AbstractContextManager:
    """Draw none within: a loop has its own, and what it calls again and again shows none."""
    return checks.setting(_inside_a_loop, True)


def progress_bars_allowed() -> bool:
    """Tell whether a progress bar may be drawn: not inside another one's loop, nor under continuous integration, as in
    NumPyro."""
    return not _inside_a_loop.get() and "CI" not in os.environ and "PYTEST_XDIST_WORKER" not in os.environ


def _moves() -> bool:
    """Tell whether a bar can move, in a notebook or a terminal; elsewhere, as in a file, there is one line for each."""
    return tqdm is not tqdm_asyncio or sys.stderr.isatty()


def progress(values: Iterable | None, description: str, shown: bool, total: int | None = None) -> tqdm:
    """The values one by one, with a bar if it is to be `shown`, and may be; where it cannot move, with a line in its
    place. `total` is for values that do not say how many they are, or are none: such a bar is updated within."""
    shown = shown and progress_bars_allowed()
    moves = shown and _moves()
    if shown and not moves:
        print(f"{description}: {total}" if total else description, file=sys.stderr, flush=True)
    return tqdm(values, desc=description, total=total, disable=not moves)


def say(line: str, shown: bool) -> None:
    """Print a line of what is to come, where bars are shown."""
    if shown and progress_bars_allowed():
        print(line, file=sys.stderr, flush=True)


@contextmanager
def phase(description: str, shown: bool) -> Iterator[None]:
    """Show what goes on within, and for how long, if it takes more than `PATIENCE` seconds."""
    if not (shown and progress_bars_allowed()):
        yield
        return
    done, parts = Event(), [0, 0, 0.0]
    clock = Thread(target=_show, args=(description, done, parts), daemon=True)
    clock.start()
    try:
        with checks.setting(_parts, parts):
            yield
    finally:
        done.set()
        clock.join()


def counted(values: Iterable, total: int) -> Iterator:
    """The values one by one; the phase around shows how many of all there were."""
    begun = time.monotonic()
    for number, value in enumerate(values, 1):
        _parts.get()[:] = number, total, begun
        yield value


def _show(description: str, done: Event, parts: list) -> None:
    """A line with the time, and how much is done of what, until all is; none of a short phase. Where it cannot move, a
    line at first, and one more as soon as much is known to be left."""
    if done.wait(PATIENCE):
        return
    if _moves():
        with tqdm(bar_format="{desc} [{elapsed}]", desc=description) as bar:
            bar.start_t -= PATIENCE
            while not done.wait(PATIENCE):
                bar.set_description_str(description + _state(*parts)[0])
        return
    print(description, file=sys.stderr, flush=True)
    while not done.wait(PATIENCE):
        state, left = _state(*parts)
        if left > LONG:
            print(description + state, file=sys.stderr, flush=True)
            return


def _state(number: int, total: int, begun: float) -> tuple[str, float]:
    """Progress in words, and the seconds that are left at the present rate."""
    if number == 0:
        return "", 0.0
    left = (time.monotonic() - begun) * (total - number) / number
    return f", {number} of {total}" + (f", about {left:.0f} s left" if left > LONG else ""), left
