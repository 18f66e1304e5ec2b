"""Threads that share work end with an error and at an interrupt."""

import os
import signal
import time
from threading import Timer

import pytest

from numpyro_kme._core.host import LONG, in_parallel


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
