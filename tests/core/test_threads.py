"""Threads that share work: the same results in the same order, for short and for long work."""

import os
import signal
import threading
import time
from threading import Timer

import numpy as np
import pytest

from numpyro_kme._core.threads import LONG, in_parallel


@pytest.mark.parametrize("seconds", [0.0, 1.2 * LONG])
def test_results_are_of_64_bits_and_in_order(seconds):
    where = set()

    def third(number):
        where.add(threading.get_ident())
        time.sleep(seconds)
        return number / 3

    found = in_parallel(third, np.arange(4.0))
    assert [(type(a), a.dtype) for a in map(np.asarray, found)] == [(np.ndarray, np.float64)] * 4
    np.testing.assert_allclose(found, np.arange(4) / 3, rtol=1e-15)
    assert (len(where) > 1) == (seconds > 0.0)
    assert in_parallel(third, []) == []


def test_an_error_and_an_interrupt_end_the_work():
    done = []

    def refusing(number):
        time.sleep(1.2 * LONG)
        if number == 1:
            raise KeyError("one")
        done.append(number)

    with pytest.raises(KeyError, match="one"):
        in_parallel(refusing, range(100))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        Timer(1.6 * LONG, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            in_parallel(refusing, range(2, 102))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(done) < 50
