"""Threads for long work of NumPy; none of a user's model runs in them."""

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from numpyro_kme._core.host import numpy_function
from numpyro_kme._core.solves import one_blas_thread

LONG = 0.2
"""Seconds of one item from which threads pay: shorter ones are small matrices, for which threads take turns at Python
(ten statistics of 1,000 simulations: 1.9 s with two threads, 1.6 s without; forty of 4,000: 45 s and 59 s)."""


def in_parallel(function: Callable[[Any], Any], items: Iterable) -> list:
    """`[function(item) for item in items]` on the host, by a thread for each processor where one item takes `LONG`.

    Args:
        function: A function of NumPy arrays and settings, evaluated as `numpy_function` does.
        items: Its arguments, one for each call.
    """
    items, run = list(items), numpy_function(function)
    begun = time.perf_counter()
    found = [run(item) for item in items[:1]]
    if len(items) < 3 or time.perf_counter() - begun < LONG:
        return found + [run(item) for item in items[1:]]
    keep_freed_memory()
    pool = ThreadPoolExecutor(processors())
    try:
        with one_blas_thread:
            return found + list(pool.map(run, items[1:]))
    finally:
        pool.shutdown(cancel_futures=True)


def processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let threads use again what they freed: by default glibc gives blocks of some 100 kB back to the system, which
    hands out new ones page by page, and arithmetic on arrays of that size takes twice as long.

    It keeps as much as the largest block that was ever freed, up to 32 MB; one that is never touched costs nothing.
    """
    np.empty(2**25 - 2**13, np.uint8)
