"""Rows of the guard: seconds in fresh processes, the lesser of wall and CPU time: other work delays one of them."""

from functools import cache, partial

import jax
import numpy as np

import numpyro_kme as kme
from benchmarks.guard import bootstrap
from benchmarks.helpers import cold_worker, report
from numpyro_kme.kernels import Gaussian
from numpyro_kme.simulators import g_and_k


def seconds(function, *args, **settings):
    _, *found = report.timed(function, *args, **settings)
    return min(found)


def fits():
    """The README's first block, less its simulator, and further fits: seconds, and programs compiled by these."""
    compiled = []
    own = seconds(cold_worker.compiled, cold_worker.end_and_range)
    first = seconds(cold_worker.fit, 0, [21.0, 28.0], 300)
    listen = lambda event, duration, **_: compiled.append(event) if "backend_compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    further = [seconds(cold_worker.fit, number, [10.0, 18.0], number) for number in (299, 1000)]
    return first - own, further, len(compiled)


def normal():
    x = np.random.default_rng(0).normal(1.0, 2.0, 400)
    return seconds(bootstrap.run, bootstrap.normal_model, None, 0, x, num_samples=500)


def skewed():
    x = g_and_k.contaminated(jax.random.key(0), 0.1)
    loss = kme.MMD(Gaussian(g_and_k.LENGTH_SCALE), fit_proportion=True)
    return seconds(bootstrap.run, bootstrap.g_and_k_model, loss, 0, x, num_samples=500)


def nuts():
    """Seconds of a learnt likelihood over those of the exact density, later runs."""
    found = cold_worker.nuts()
    return found["NUTS, learnt likelihood, later"] / found["NUTS, exact density, later"]


@cache
def in_processes(function, number):
    """What a function of this file returns in processes of its own, one row each."""
    return [report.in_a_process(function) for _ in range(number)]


def first_block(options):
    found = np.median([first for first, *_ in in_processes(fits, 5 if options.full else 3)])
    return f"{found:.2f} s", "2.5 s", found <= 2.5


def further_fits(options):
    runs = in_processes(fits, 5 if options.full else 3)
    small, large = np.median([further for _, further, _ in runs], axis=0)
    compiled = max(number for *_, number in runs)
    text = f"{small:.2f} / {large:.2f} s, {compiled} compiled"
    return text, "1.2 / 2.5 s, nothing compiled", small <= 1.2 and large <= 2.5 and compiled == 0


def once(function, limit, options, unit=" s"):
    found = np.median(in_processes(function, 5 if options.full else 1))
    return f"{found:.2f}{unit}", f"{limit}{unit}", found <= limit


ROWS = {
    "README's first block, less its simulator": first_block,
    "further fits at 299 / 1,000": further_fits,
    "bootstrap, normal, n = 400, 500 replicates": partial(once, normal, 3.0),
    "bootstrap, g-and-k, n = 2,048, 500 replicates": partial(once, skewed, 8.0),
    "NUTS, learnt over exact": partial(once, nuts, 2.0, unit=""),
}
