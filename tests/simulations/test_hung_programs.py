"""Programs that hang end with all that they started: at a time limit, and with those that wait for them."""

import itertools
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from threading import Timer

import hung_program
import jax
import pytest

import numpyro_kme as kme

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
NUMBERS = itertools.count()


@pytest.fixture
def seconds():
    """An argument that the programs of no other test have; whatever has it afterwards is ended."""
    unique = f"30{os.getpid()}.{next(NUMBERS)}"
    yield unique
    for process in with_argument(unique):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def with_argument(seconds):
    """Processes of `sleep` and `awk` that have it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program, *arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if Path(program).name != "sh" and seconds in arguments and program.endswith(("sleep", "awk")):
                found.append(int(entry.name))
    return found


def wait_until(holds, limit):
    end = time.monotonic() + limit
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def runs(seconds):
    return len(with_argument(seconds)) == 2


def has_ended(seconds):
    return wait_until(lambda: not with_argument(seconds), 10.0)


def simulated(fn, **settings):
    return kme.simulate(jax.random.key(0), hung_program.model_of(fn), 1, progress_bar=False, **settings)


def test_at_the_time_limit_of_a_command(seconds):
    seen = []
    Timer(0.0, lambda: seen.append(wait_until(lambda: runs(seconds), 2.0))).start()
    with pytest.raises(kme.simulations.SimulationError, match="TimeoutExpired"):
        simulated(hung_program.command(seconds, timeout=2.0))
    assert seen == [True] and has_ended(seconds)


@pytest.mark.parametrize("where", ["here", "threads", "processes"])
def test_at_the_time_limit_of_a_simulation(seconds, where):
    pools = {"threads": ThreadPoolExecutor(1), "processes": ProcessPoolExecutor(1, get_context("spawn")), "here": None}
    with pytest.raises(kme.simulations.SimulationError, match=r"took longer than 0\.5 s"):
        simulated(hung_program.command(seconds), timeout=0.5, executor=pools[where])
    assert has_ended(seconds)


@pytest.mark.parametrize("how", ["here", pytest.param("threads", marks=pytest.mark.slow)])
def test_with_the_process_that_simulates(seconds, how):
    script = Path(hung_program.__file__)
    process = subprocess.Popen([sys.executable, script, how, seconds], stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: runs(seconds), 60.0)
        time.sleep(0.5)  # a program that is just being started is not known yet
        process.send_signal(signal.SIGINT)
        process.wait(20.0)
        assert has_ended(seconds)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("where", ["here", "threads"])
def test_at_an_interrupt(seconds, where):
    def interrupt():
        if wait_until(lambda: runs(seconds), 20.0):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(1) as threads:
            Timer(0.0, interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                simulated(hung_program.command(seconds), executor=threads if where == "threads" else None)
        assert has_ended(seconds)
    finally:
        signal.signal(signal.SIGINT, before)
