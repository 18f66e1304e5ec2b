"""Processes that share work: the same results in the same order, whatever becomes of them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme._core import worker_process, workers

THIS = os.getpid()


def square(offset, number):
    """Of NumPy, in 64 bits, with the process that computed it."""
    assert jax.numpy.zeros(()).dtype == np.float64
    return number**2 + offset, os.getpid()


def slowly(number):
    """So that all processes take some."""
    time.sleep(0.02)
    return number, os.getpid()


def refusing(number):
    """One of the items cannot be evaluated."""
    if number == 3:
        raise KeyError("three")
    return number


def deadly(number):
    """It ends a worker, and nothing else."""
    if worker_process.serving and number > 4:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return number


def warning(number):
    """Each item warns."""
    time.sleep(0.02)
    warnings.warn(f"of {number}", RuntimeWarning, stacklevel=2)


def precision():
    """The number type that a function of the session would have."""
    return str(jax.numpy.zeros(()).dtype), os.getpid()


@pytest.fixture(scope="module")
def pools():
    """Those that tests have started, the last of which serves the next test."""
    pools = [workers._Pool()]
    yield pools
    pools[-1].end()


@pytest.fixture
def pool(pools, monkeypatch):
    """Two workers that are ready: those of the test before, unless it ended one."""
    monkeypatch.setenv(workers.VARIABLE, "2")
    if sum(worker.alive for worker in pools[-1].workers) < 2:
        pools[-1].end()
        pools.append(workers._Pool())
        pools[-1].worked(2.0 * workers.WORTH)
    monkeypatch.setattr(workers, "_pool", pools[-1])
    assert wait(lambda: all(worker._ready.is_set() for worker in pools[-1].workers))
    return pools[-1]


def wait(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_all_processes_take_items_and_results_keep_their_order(pool):
    found = workers.in_parallel(slowly, range(40))
    assert [number for number, _ in found] == list(range(40))
    assert {process for _, process in found} == {THIS, *(worker.pid for worker in pool.workers)}


def test_they_compute_in_64_bits_as_the_host_does(pool):
    found = workers.in_parallel(partial(square, np.float64(0.5)), np.arange(20.0))
    np.testing.assert_array_equal([value for value, _ in found], np.arange(20.0) ** 2 + 0.5)


def test_errors_are_those_that_the_function_raises(pool):
    with pytest.raises(KeyError, match="three"):
        workers.in_parallel(refusing, range(6))
    assert workers.in_parallel(refusing, range(3)) == [0, 1, 2]


def test_what_no_other_process_knows_is_evaluated_here(pool):
    found = workers.in_parallel(lambda number: (number, os.getpid()), range(6))
    assert found == [(number, THIS) for number in range(6)]
    assert all(worker.alive for worker in pool.workers)


def test_a_worker_that_dies_loses_nothing_and_others_are_started(pool):
    assert workers.in_parallel(deadly, range(30)) == list(range(30))
    assert wait(lambda: not workers.running())
    assert workers.in_parallel(deadly, range(6)) == list(range(6))
    pool.worked(2.0 * workers.WORTH)
    assert len(workers.running()) == 2


def test_warnings_of_all_processes_are_raised_here(pool):
    with pytest.warns(RuntimeWarning) as seen:
        workers.in_parallel(warning, range(12))
    assert sorted(str(one.message) for one in seen) == sorted(f"of {number}" for number in range(12))


def test_an_interrupt_ends_what_they_are_at(pool, monkeypatch):
    def interrupted(function, number):
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_item_on_host", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.in_parallel(slowly, range(40))
    assert not workers.running()


@pytest.mark.parametrize("x64", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_call_that_is_begun_has_the_precision_of_the_session(pool, x64):
    with jax.enable_x64(x64):
        result = workers.later(precision)
        kind, process = result()
    assert kind == ("float64" if x64 else "float32")
    assert process in [worker.pid for worker in pool.workers]


def test_a_call_is_evaluated_here_where_all_are_busy(pool):
    taken = pool.taken(5)
    assert len(taken) == 2
    assert workers.later(precision)()[1] == THIS
    assert workers.in_parallel(slowly, range(3)) == [(number, THIS) for number in range(3)]
    for worker in taken:
        worker.free()


def test_none_are_started_for_little_work_nor_where_the_environment_says_so(monkeypatch):
    monkeypatch.setenv(workers.VARIABLE, "")
    pool = workers._Pool()
    pool.worked(0.9 * workers.WORTH)
    assert not pool.workers
    monkeypatch.setenv(workers.VARIABLE, "0")
    pool.worked(workers.WORTH)
    assert not pool.workers
    monkeypatch.setenv(workers.VARIABLE, "two")
    with pytest.raises(ValueError, match=r"NUMPYRO_KME_WORKERS must be a whole number.*got 'two'"):
        pool.worked(2.0 * workers.WORTH)


@pytest.mark.parametrize(
    ("environment", "processors", "expected"),
    [
        ({}, 4, 3),
        ({}, 1, 0),
        ({}, 64, workers.MOST),
        ({"OMP_NUM_THREADS": "1"}, 4, 0),
        ({"OMP_NUM_THREADS": "3"}, 4, 2),
        ({"OMP_NUM_THREADS": "1", workers.VARIABLE: "5"}, 4, 5),
    ],
)
def test_there_are_as_many_as_there_are_further_processors(monkeypatch, environment, processors, expected):
    for name in (workers.VARIABLE, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(workers, "processors", lambda: processors)
    assert workers._number() == expected


def test_a_process_that_multiprocessing_started_starts_none(monkeypatch):
    monkeypatch.delenv(workers.VARIABLE, raising=False)
    monkeypatch.setattr(workers, "processors", lambda: 4)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        assert executor.submit(number_of_four).result() == 0


def number_of_four():
    """How many workers there would be."""
    workers.processors = lambda: 4
    return workers._number()


@pytest.mark.parametrize(("quota", "expected"), [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 6)])
def test_a_container_has_as_many_processors_as_it_has_time_for(monkeypatch, tmp_path, quota, expected):
    monkeypatch.setattr(workers, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    workers.QUOTA.write_text(quota)
    assert workers.processors() == expected


def simulator(rng_key, theta):
    """A bent location; the scale changes."""
    noise = jax.random.normal(rng_key, (3,))
    return jax.numpy.stack([theta[0] ** 2, theta[0], theta.sum()]) + noise * jax.numpy.exp(0.3 * theta[1])


def model(x=None):
    """Two parameters."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


def test_a_run_draws_the_same_with_them_and_without(pool, monkeypatch):
    """The half of the simulations, by which it warns, is learnt in another process, too."""
    key, x = jax.random.key(0), np.array([0.5, 0.7, 1.0])
    simulations = kme.simulate(key, model, 200, progress_bar=False)
    engine = kme.KELFI(model, simulations=simulations, num_samples=200, progress_bar=False)
    asked = []
    monkeypatch.setattr(workers.Worker, "evaluate", lambda *a, own=workers.Worker.evaluate: asked.append(a) or own(*a))
    engine.run(key, x=x)
    ours, told = engine.get_samples()["theta"], engine.info
    assert asked
    pool.end()
    engine.run(key, x=x)
    np.testing.assert_array_equal(ours, engine.get_samples()["theta"])
    assert repr(told) == repr(engine.info)


SCRIPT = """
import time
from tests.core.test_workers import slowly
from numpyro_kme._core import workers

workers.WORTH = 0.01
while len({process for _, process in workers.in_parallel(slowly, range(6))}) == 1:
    pass
print(*(worker.pid for worker in workers.running()), flush=True)
"""


@pytest.mark.parametrize(
    "end", ["", pytest.param("import os; os._exit(0)", marks=pytest.mark.slow), "import time; time.sleep(600)"]
)
def test_they_need_no_guard_in_a_script_and_end_with_it(tmp_path, end):
    """Whether it ends, breaks off, or is killed."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + end)
    root = str(tmp_path.__class__(__file__).parents[2])
    environment = {**os.environ, workers.VARIABLE: "1", "PYTHONPATH": root}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) as process:
        (worker,) = map(int, process.stdout.readline().split())
        if "sleep" in end:
            process.kill()
    assert wait(lambda: not os.path.exists(f"/proc/{worker}"), 30.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_copy_of_this_process_leaves_them_alone(pool):
    if (child := os.fork()) == 0:
        os._exit(0 if workers._pool.taken(2) == [] and not workers._pool.workers else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len({process for _, process in workers.in_parallel(slowly, range(40))}) == 3
