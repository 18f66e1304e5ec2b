"""Runs a program that hangs, until a test ends it: `python hung_program.py threads|here seconds`.

What the program starts has the number of seconds as an argument, by which the test finds it.
"""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme

SCRIPT = "sleep {} | cat & awk 'BEGIN {{ while (1) z++ }}' {} | cat; echo 1"
"""Of a shell: a pipe in the background and one that it waits for, neither of which ends soon."""


def command(seconds, **settings):
    return kme.Command(("sh", "-c", SCRIPT.format(seconds, seconds)), output=None, **settings)


def model_of(fn):
    def model():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(fn, theta, shape=(1,), dtype=float))

    return model


def main(how, seconds):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where tests run in the background
    executor = ThreadPoolExecutor(1) if how == "threads" else None
    kme.simulate(jax.random.key(0), model_of(command(seconds)), 1, executor=executor, progress_bar=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
