"""Simulations on executors and on disk: the same numbers wherever they run, and nothing lost that was written."""

import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme._core import arviz
from numpyro_kme.simulations import Command, Penalise, Retry, SimulationError, Simulations, Store, StoreError, simulate

KEY = jax.random.key(3)


def noisy(rng, theta):
    """Two normal draws around theta."""
    return theta + rng.normal(size=2)


def troubled(rng, theta, *, raises, nan, hangs):
    """A simulator that fails in three ways, at three values of theta."""
    x = noisy(rng, theta)
    if theta == raises:
        raise OSError("disk full")
    if theta == hangs:
        time.sleep(5)
    return x * np.nan if theta == nan else x


def fragile(rng, theta):
    """Fails at about a third of its draws, whatever theta."""
    x = noisy(rng, theta)
    if x[0] < theta - 0.4:
        raise ArithmeticError("did not converge")
    return x


def in_jax(rng_key, theta):
    return theta + jax.random.normal(rng_key, (2,), jnp.result_type(theta))


def model_of(fn, **declared):
    def model():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.deterministic("twice", 2 * theta)
        numpyro.sample("x", kme.Simulator(fn, theta, **declared))

    return model


BLACK = dict(shape=(2,), dtype=float)
NOISY = model_of(noisy, **BLACK)
FRAGILE = model_of(fragile, **BLACK)


def bank(model=NOISY, number=30, **settings):
    return simulate(KEY, model, number, progress_bar=False, **settings)


def assert_same(a, b):
    np.testing.assert_array_equal(a.index, b.index)
    for name in ("arguments", "x", "latents", "deterministics"):
        for one, other in zip(jax.tree.leaves(getattr(a, name)), jax.tree.leaves(getattr(b, name)), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def here():
    return bank()


def test_threads_and_one_by_one(here):
    with ThreadPoolExecutor(3) as executor:
        assert_same(bank(executor=executor), here)
        assert_same(bank(executor=executor, timeout=20.0), here)


@pytest.mark.slow
def test_loky(here):
    loky = pytest.importorskip("loky")
    executor = loky.get_reusable_executor(max_workers=2)
    try:
        assert_same(bank(executor=executor), here)
    finally:
        executor.shutdown(kill_workers=True)


def test_a_dask_cluster(here):
    """Its workers are threads here; `test_killed_at_any_moment` has processes."""
    distributed = pytest.importorskip("distributed")
    settings = dict(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=False)
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        assert_same(bank(executor=client), here)


@pytest.mark.parametrize("where", ["here", "threads", "processes"])
def test_simulations_that_hang_and_raise(here, where):
    """Every simulation that does not fail by itself gives what it gives in this process."""
    raises, nan, hangs = here.arguments["x"][[3, 4, 11], 0]
    model = model_of(partial(troubled, raises=raises, nan=nan, hangs=hangs), **BLACK)
    pools = {"threads": ThreadPoolExecutor(2), "processes": ProcessPoolExecutor(1, get_context("spawn")), "here": None}
    found = bank(model, executor=pools[where], timeout=1.0, on_failure="skip")
    assert found.failures == {"x: OSError": 1, "x: not finite": 1, "x: timeout": 1}
    np.testing.assert_array_equal(found.index, np.delete(np.arange(30), [3, 4, 11]))
    np.testing.assert_array_equal(found.x["x"], here.x["x"][found.index])
    np.testing.assert_array_equal(found.failed["theta"], here.latents["theta"][[3, 4, 11]])


class Silent(Executor):
    """Gives results after a while."""

    def submit(self, fn, *args):
        future = Future()
        future.set_running_or_notify_cancel()
        threading.Timer(1.3, lambda: future.set_result(fn(*args))).start()
        return future


@pytest.mark.filterwarnings("ignore:Nothing has come back")
def test_silence_of_an_executor_has_a_limit(here, monkeypatch):
    monkeypatch.setattr(kme.simulations.executors, "SILENCE", 0.5)
    with pytest.warns(UserWarning, match="Nothing has come back from the executor for .* s. Has it a worker") as caught:
        assert len(bank(number=1, executor=Silent())) == len(caught) == 1
    with pytest.raises(SimulationError, match=r"Nothing has come back from .* takes at most 0 s"):
        bank(number=3, executor=Silent(), timeout=0.1)


class Bare(Executor):
    """Its workers lack the package."""

    def submit(self, fn, *args):
        future = Future()
        future.set_exception(ModuleNotFoundError("No module named 'numpyro_kme'"))
        return future


def test_workers_without_the_package_are_told_of():
    with pytest.raises(SimulationError, match=r"stopped working: No module .* Install numpyro_kme, and what the sim"):
        bank(executor=Bare())


class Holding:
    """A simulator with something of its own."""

    def __init__(self, own):
        self.own = own

    def __call__(self, rng, theta):
        return noisy(rng, theta) + np.minimum(np.exp(1e3 * (self.own == "overflow")), 0.0)


GENERATOR = np.random.default_rng(0)


def of_the_module(rng, theta):
    return theta + GENERATOR.normal(size=2)


def of_a_closure():
    draw = random.Random(0).gauss
    return lambda rng, theta: theta + np.array([draw(0, 1), rng.normal()])


@pytest.mark.parametrize(
    ("simulator", "where"),
    [(of_the_module, "`GENERATOR`"), (Holding(GENERATOR), "`own`"), (of_a_closure(), "`draw`")],
)
def test_random_numbers_of_ones_own_are_warned_of(simulator, where):
    with pytest.warns(UserWarning, match=f"has a random generator of its own, its .*{where}"):
        bank(model_of(simulator, **BLACK), executor=ThreadPoolExecutor(2))


def shared(rng, theta):
    """Draws from the generators that modules of NumPy and Python share."""
    return theta + np.array([np.random.normal(), random.gauss(0.0, 1.0)])  # noqa: NPY002


@pytest.mark.filterwarnings("ignore:.*fork:")
def test_shared_random_numbers_follow_the_key():
    """In forked processes too, whose copies would repeat each other's; and they are put back."""
    model = model_of(shared, **BLACK)
    before = np.random.get_state()[1:3], random.getstate()  # noqa: NPY002
    found = bank(model)
    np.testing.assert_equal((np.random.get_state()[1:3], random.getstate()), before)  # noqa: NPY002
    noise = found.x["x"] - found.arguments["x"]
    assert len(np.unique(noise)) == noise.size and abs(noise.mean()) < 5 / np.sqrt(60)
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        assert_same(bank(model, executor=pool), found)


def test_what_cannot_be_sent_is_named():
    with pytest.raises(TypeError, match=r"simulator cannot be sent to an executor: cannot pickle '_thread\.lock'"):
        bank(model_of(Holding(threading.Lock()), **BLACK), executor=ThreadPoolExecutor(2))


def test_numpy_warns_once():
    with pytest.warns(UserWarning, match="NumPy met overflow in simulator `Holding`") as caught:
        bank(model_of(Holding("overflow"), **BLACK))
    assert len(caught) == 1


def deadly(rng, theta):
    """Ends the process that it runs in at large parameters, while a file is there."""
    if theta > 1.0 and Path(os.environ["DEADLY"]).exists():
        os._exit(1)
    return noisy(rng, theta)


@pytest.mark.slow
def test_an_executor_whose_worker_dies(here, path, monkeypatch):
    """The run ends with an error, and another executor continues from the store."""
    mark = path.with_name("deadly")
    mark.touch()
    monkeypatch.setenv("DEADLY", str(mark))
    model = model_of(deadly, **BLACK)
    spawned = partial(ProcessPoolExecutor, 2, get_context("spawn"))
    with pytest.raises(SimulationError, match=r"executor stopped working.*BrokenProcessPool"):
        bank(model, executor=spawned(), store=path)
    mark.unlink()
    assert_same(bank(model, executor=spawned(), store=path), here)


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor(2)])
def test_a_simulator_that_exits_has_failed(here, executor):
    theta = here.arguments["x"][5, 0]
    found = bank(model_of(partial(exiting, at=theta), **BLACK), executor=executor, on_failure="skip")
    assert found.failures == {"x: SystemExit": 1}
    np.testing.assert_array_equal(found.index, np.delete(np.arange(30), 5))
    if executor is None:
        with pytest.raises(SimulationError, match=r"Simulation 5 .* failed at .*no convergence \(SystemExit\)"):
            bank(model_of(partial(exiting, at=theta), **BLACK))


def exiting(rng, theta, *, at):
    return sys.exit("no convergence") if theta == at else noisy(rng, theta)


def test_retrying_draws_again_given_success():
    found = bank(FRAGILE, 60, on_failure=Retry(20))
    once = bank(FRAGILE, 60, on_failure="skip")
    assert len(found) == 60 and not found.failures
    assert found.repeated > 60 - len(once) > 5 and once.repeated == 0
    assert found.describe_failures() == f"none of 60; {found.repeated} attempts were repeated"
    assert f"none; {found.repeated} attempts were repeated" in str(found)
    np.testing.assert_array_equal(found.x["x"][once.index], once.x["x"])
    with pytest.raises(SimulationError, match="did not converge"):
        bank(FRAGILE, 60, on_failure=Retry(1))
    assert len(bank(FRAGILE, 60, on_failure=Retry(1, then="skip"))) < 60


def test_penalising_keeps_every_row():
    found, skipped = bank(FRAGILE, 60, on_failure=Penalise(-99.0)), bank(FRAGILE, 60, on_failure="skip")
    failed = np.setdiff1d(np.arange(60), skipped.index)
    np.testing.assert_array_equal(np.flatnonzero(found.x["x"][:, 0] == -99.0), failed)
    np.testing.assert_array_equal(found.failed["theta"], found.latents["theta"][failed])
    assert sum(found.failures.values()) == len(failed) > 5
    assert found.describe_failures().startswith(f"{len(failed)} of 60 ({len(failed) / 60:.1%}): {len(failed)} x: ")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sims"


CALLS = []


def counted(rng, theta):
    CALLS.append(float(theta))
    return noisy(rng, theta)


COUNTED = model_of(counted, **BLACK)


def test_a_store_gives_the_same_bank_and_is_read_back(here, path):
    CALLS.clear()
    first = bank(COUNTED, store=path)
    again = bank(COUNTED, store=path)
    assert len(CALLS) == 30
    assert_same(first, here)
    assert_same(again, here)
    longer = bank(COUNTED, 70, store=path)
    assert len(CALLS) == 70
    assert_same(longer, bank(NOISY, 70))
    assert_same(bank(COUNTED, 12, store=path), bank(NOISY, 12))


def impatient(rng, theta):
    if len(CALLS) == int(os.environ.get("STOP_AFTER", "-1")):
        raise KeyboardInterrupt
    return counted(rng, theta)


def test_an_interrupted_run_goes_on(path, monkeypatch):
    CALLS.clear()
    monkeypatch.setenv("STOP_AFTER", "20")
    with pytest.raises(KeyboardInterrupt):
        bank(model_of(impatient, **BLACK), store=path)
    monkeypatch.delenv("STOP_AFTER")
    assert_same(bank(model_of(impatient, **BLACK), store=path), bank(NOISY))
    assert len(CALLS) == 30


def test_jax_simulators_are_stored_too(path):
    model = model_of(in_jax)
    first = bank(model, 100, store=path)
    assert_same(bank(model, 100, store=path), first)
    assert_same(bank(model, 100), first)
    assert_same(bank(model, 130, store=path), bank(model, 130))


def test_failures_are_remembered(path):
    first = bank(FRAGILE, 40, on_failure="skip", store=path)
    again = bank(FRAGILE, 40, on_failure="skip", store=path)
    assert_same(first, again)
    assert again.failures == first.failures != {}
    with pytest.raises(SimulationError, match="ArithmeticError"):
        bank(FRAGILE, 40, store=path)


def noise_of(sd):
    def noisy(rng, theta):
        return theta + sd * rng.normal(size=2)

    return noisy


def test_a_version_says_what_is_another_simulator_and_what_is_not(path):
    """Without one the code does."""
    same, again, other = (model_of(noise_of(sd), **BLACK) for sd in (1.0, 1.0, 10.0))
    first = bank(same, store=path)
    assert_same(bank(again, store=path), first)
    with pytest.raises(StoreError, match=r"code of `x` differs; code of the model differs. Give another path"):
        bank(other, store=path)
    path = path.with_name("with a version")
    assert_same(bank(same, store=path, version=1), first)
    for version in (2, None):
        with pytest.raises(StoreError, match=f"version: 1 in the store, {version} now"):
            bank(same, store=path, version=version)
    assert_same(bank(other, store=path, version="1"), first)
    with pytest.raises(TypeError, match=r"`version` must be a string or a whole number; got 1.5"):
        bank(same, store=path, version=1.5)


def test_another_configuration_is_refused(path):
    bank(store=path)
    with pytest.raises(StoreError, match=r"another configuration.*key"):
        simulate(jax.random.key(4), NOISY, 30, store=path, progress_bar=False)
    with pytest.raises(StoreError, match=r"`x`: black box noisy .* in the store, black box fragile .* now"):
        bank(FRAGILE, store=path)


def around_data(x=None):
    theta = numpyro.sample("theta", dist.Normal(np.mean(x), 1.0))
    numpyro.sample("x", kme.Simulator(noisy, theta, **BLACK), obs=x)


def test_other_data_that_the_prior_depends_on_are_refused(path):
    made, moved = (bank(kme.Problem.read(around_data, x=np.full(2, mean)), 3) for mean in (0.0, 1.0))
    bank(kme.Problem.read(around_data, x=np.zeros(2)), 3, store=path)
    bank(kme.Problem.read(around_data, x=np.array([-1.0, 1.0])), 3, store=path)
    first, now = (str(found.arguments["x"][0].tolist()) for found in (made, moved))
    with pytest.raises(StoreError, match=re.escape(f"first {first} where {now} is asked for")):
        bank(kme.Problem.read(around_data, x=np.ones(2)), 3, store=path)


class Breaks:
    """Counts, by a program that fails at each tenth call and breaks off at the thirtieth."""

    calls = 0

    def __call__(self, rng, theta):
        self.calls += 1
        if self.calls == 30:
            raise KeyboardInterrupt
        if self.calls % 10 == 5:
            raise RuntimeError("no")
        return rng.poisson(5.0, size=2) + 1

    def __repr__(self):
        return "Breaks()"


def test_what_a_store_never_ran_is_no_simulation(path):
    """Nor what failed: counts have no NaN, and 0 is a count."""
    model = model_of(Breaks(), shape=(2,), dtype=int)
    with pytest.raises(KeyboardInterrupt):
        bank(model, 50, store=path, on_failure="skip", version="1")
    found = Simulations.from_store(kme.Problem.read(model), path)
    assert (len(found), found.attempted, found.failures) == (26, 29, {"x: RuntimeError": 3}) and found.x["x"].min() > 0
    np.testing.assert_array_equal(found.index, np.setdiff1d(np.arange(29), [4, 14, 24]))
    with pytest.raises(TypeError, match=r"`problem` must be a model as `Problem.read\(model\)` gives it"):
        Simulations.from_store(model, path)


@pytest.mark.x64
def test_simulations_of_an_arviz_object(tmp_path):
    """Of an object, not of the path of a file, which ArviZ opens."""
    latents, problem = {"theta": np.linspace(-1, 1, 40)}, kme.Problem.read(NOISY)
    groups = {"prior": {"theta": latents["theta"][None]}, "prior_predictive": {"x": np.ones((1, 40, 2))}}
    found = Simulations.from_arviz(problem, arviz.to_inference_data(groups))
    np.testing.assert_array_equal(found.latents["theta"], latents["theta"])
    np.testing.assert_array_equal(found.arguments["x"][:, 0], latents["theta"])
    with pytest.raises(TypeError, match="must be an ArviZ object, and not the path of a file; got /"):
        Simulations.from_arviz(problem, tmp_path / "bank.nc")


def _truncate(path):
    part = path / "part 000000.kme"
    part.write_bytes(part.read_bytes()[:200])


def _flip(path):
    part = path / "part 000000.kme"
    data = bytearray(part.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    part.write_bytes(bytes(data))


def _replace(path):
    shutil.rmtree(path)
    path.mkdir()
    (path / "notes.txt").write_text("not a store")


def test_a_lost_file_is_made_again(here, path):
    for number in (10, 20, 30):
        bank(number=number, store=path)
    (path / "part 000001.kme").unlink()
    with pytest.warns(UserWarning, match="has lost 1 of 3 files, such as 'part 000001.kme'"):
        read = Simulations.from_store(kme.Problem.read(NOISY), path)
    np.testing.assert_array_equal(read.index, [*range(10), *range(20, 30)])
    with pytest.warns(UserWarning, match="has lost 1 of 3 files"):
        assert_same(bank(store=path), here)


def test_a_lost_end_is_made_again(here, path):
    """It looks as a run that ended early, and so does a store without any file but the settings."""
    for number in (10, 30):
        bank(number=number, store=path)
    (path / "part 000001.kme").unlink()
    assert Simulations.from_store(kme.Problem.read(NOISY), path).attempted == 10
    assert_same(bank(store=path), here)
    for part in path.glob("part *"):
        part.unlink()
    with pytest.raises(StoreError, match="holds no simulation"):
        Simulations.from_store(kme.Problem.read(NOISY), path)
    assert_same(bank(store=path), here)


@pytest.mark.parametrize("damage", [_truncate, _flip, _replace])
def test_damaged_stores_are_named(path, damage):
    bank(store=path)
    damage(path)
    for read in (partial(bank, store=path), partial(Simulations.from_store, kme.Problem.read(NOISY), path)):
        with pytest.raises(StoreError, match=f"{re.escape(str(path))} is not a store of simulations, or it is damaged"):
            read()


@contextmanager
def small_files(size):
    """A disk that is full: no file may grow larger."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def wide(rng, theta):
    return theta + rng.normal(size=20_000)


def test_a_full_disk_is_named_and_the_run_goes_on(path):
    model = model_of(wide, shape=(20_000,), dtype=float)
    bank(model, 66, store=path)
    full = r"cannot be written: File too large. It keeps \d+ simulations .* came last are not in it"
    with small_files(1_000_000), pytest.raises(StoreError, match=full) as error:
        bank(model, 130, store=path)
    assert isinstance(error.value.__cause__, OSError)
    assert_same(bank(model, 130, store=path), bank(model, 130))


def test_a_store_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be written: .*. Nothing has been simulated yet"):
        bank(store=tmp_path / "file" / "sims")


def test_one_run_at_a_time(path):
    pytest.importorskip("fcntl")

    def greedy(rng, theta):
        with pytest.raises(StoreError, match="in use by another run"):
            bank(store=path)
        return noisy(rng, theta)

    def once(rng, theta):
        return noisy(rng, theta)

    bank(model_of(greedy, **BLACK), 2, store=path)
    again = path.with_name("again")
    bank(model_of(once, **BLACK), 2, store=again)
    bank(model_of(once, **BLACK), 3, store=again)


def wandering(rng, theta):
    os.chdir("/")
    return counted(rng, theta)


def test_paths_of_stores(here, path, monkeypatch):
    """Relative, in a home folder, as text or as a path: the same store, wherever a simulator goes."""
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("HOME", str(path.parent))
    model = model_of(wandering, **BLACK)
    CALLS.clear()
    assert_same(bank(model, store=path.name), here)
    for form in (path, str(path), f"~/{path.name}", Path("~") / path.name):
        assert_same(bank(model, store=form), here)
    assert len(CALLS) == 30 and [folder.name for folder in path.parent.iterdir()] == [path.name]


PROGRAM = """
import random, sys
theta = float(open("params.txt").read())
if theta > 1.2: sys.exit("theta is too large")
random.seed(int(sys.argv[1]))
open("output.txt", "w").write(f"{theta} {random.random()!r}")
"""


def test_programs_outside_python():
    """Each call has its own folder and seed; what the program says is in the failure."""
    command = Command((sys.executable, "-S", "-c", PROGRAM, "{seed}"))
    model = model_of(command, **BLACK)
    found, again = (bank(model, 12, on_failure="skip", executor=e) for e in (None, ThreadPoolExecutor(3)))
    assert_same(found, again)
    np.testing.assert_array_equal(found.x["x"][:, 0], found.arguments["x"][:, 0])
    assert len(np.unique(found.x["x"][:, 1])) == len(found)
    rng = np.random.default_rng(0)
    said = f"{sys.executable} ended with 1 and left no output.txt (other files: none). It said: theta is too large"
    with pytest.raises(RuntimeError, match=f"(?m)^{re.escape(said)}$"):
        command(rng, np.array(1.5))
    with pytest.raises(subprocess.TimeoutExpired):
        Command(("sleep", "20"), timeout=0.1)(rng, np.array(1.5))
    with pytest.raises(ValueError, match="tuple of strings"):
        Command("run me")


def as_table(path):
    """The column `x` of a file of comma-separated values."""
    return np.genfromtxt(path, delimiter=",", names=True)["x"]


def test_programs_take_their_parameters_as_arguments_and_leave_what_they_like():
    rng, theta = np.random.default_rng(0), (np.array(0.1), np.array([2.0, -3e-20]))
    printed = Command((sys.executable, "-S", "-c", "import sys; print(*sys.argv[1:])", *ARGUMENTS), output=None)
    np.testing.assert_array_equal(printed(rng, *theta), [0.1, -3e-20, 7.0])
    csv = r"open('found.csv', 'w').write('t,x\n0,1.5\n1,2.5\n')"
    table = Command((sys.executable, "-S", "-c", csv), output="found.csv", read=as_table)
    np.testing.assert_array_equal(table(rng, *theta), [1.5, 2.5])
    for command, sentence in [
        (replace(printed, arguments=("echo", "{params[3]}")), r"has {params\[3\]}; with 3 parameters"),
        (replace(table, output="output.txt"), r"ended with 0 and left no output.txt \(other files: found.csv\)"),
        (replace(table, read=Command(("ls",)).read), r"in found.csv cannot be read: .* It begins: 't,x"),
        (replace(printed, arguments=("true",)), "printed nothing"),
    ]:
        with pytest.raises((ValueError, RuntimeError), match=sentence):
            command(rng, *theta)


ARGUMENTS = "{params[0]}", "{params[2]}", "7"


def napping(rng, theta):
    """As `noisy`, in 5 ms, and leaves a byte for each call in a file."""
    with open(os.environ["CALLS_LOG"], "ab") as log:
        log.write(b".")
    time.sleep(0.005)
    return noisy(rng, theta)


NAPPING = model_of(napping, **BLACK)


def waiting(rng, theta):
    """As `noisy`: two calls, one of them a little later, and the others once a file is there."""
    release = Path(os.environ["RELEASE"])
    try:
        release.with_name("first").touch(exist_ok=False)
        return noisy(rng, theta)
    except FileExistsError:
        pass
    try:
        release.with_name("second").touch(exist_ok=False)
        time.sleep(0.2)
    except FileExistsError:
        while not release.exists():
            time.sleep(0.05)
    return noisy(rng, theta)


def test_what_has_come_in_is_written_while_others_take_long(tmp_path, monkeypatch):
    path, release = tmp_path / "bank", tmp_path / "release"
    monkeypatch.setenv("RELEASE", str(release))
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(bank, model_of(waiting, **BLACK), 4, executor=ThreadPoolExecutor(2), store=path)
        try:
            written, end = 0, time.monotonic() + 60
            while written < 2 and time.monotonic() < end and not running.done():
                time.sleep(0.2)
                with suppress(Exception):  # while the store is being made
                    written = sum(len(part.rows) for part in Store(path).parts())
            assert written == 2
        finally:
            release.touch()
        running.result()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["loky", "dask"])
def test_killed_at_any_moment(tmp_path, how, monkeypatch):
    """20 kills: the finished bank is that of an uninterrupted run, and no more than one batch is simulated again.

    A batch is what one write takes, and what two workers, at 5 ms a call, have in hand.
    """
    batch = int(2 * (kme.simulations.site_runs.WRITE_SECONDS + kme.simulations.executors.TASK_SECONDS) / 0.005)
    script = Path(__file__).parent / "killed_run.py"
    truth = bank(NOISY, 2000)
    for trial in range(20):
        path, log = tmp_path / f"{trial}", tmp_path / f"{trial}.log"
        monkeypatch.setenv("CALLS_LOG", str(log))
        command = [sys.executable, script, how, path, "2000"]
        process = subprocess.Popen(command, start_new_session=True)
        while not log.exists():
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(np.random.default_rng(trial).uniform(0.0, 6.0))
        os.killpg(process.pid, 9)
        process.wait()
        subprocess.run(command, check=True, timeout=300)
        assert_same(bank(NAPPING, 2000, store=path), truth)
        assert log.stat().st_size - 2000 <= batch
