"""Simulations from the prior of a model, or at given latents: each with its own key, with a policy for failures."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import jax
import numpy as np
from jax import random
from tqdm.auto import tqdm

from numpyro_kme._core import checks, compat, programs
from numpyro_kme.models.problem import Arrays, Draws, Problem
from numpyro_kme.simulations import running
from numpyro_kme.simulations.failures import OnFailure, Penalise, SimulationError, check_policy, retries, stops
from numpyro_kme.simulations.simulations import Simulations
from numpyro_kme.simulations.store import Store
from numpyro_kme.simulations.store_checks import StoreError


def simulate(
    rng_key: jax.Array,
    problem: Problem | Callable,
    num_simulations: int,
    *,
    on_failure: OnFailure = "raise",
    timeout: float | None = None,
    executor: Executor | int | None = None,
    store: str | PathLike | None = None,
    version: str | int | None = None,
    progress_bar: bool = True,
    block_size: int = programs.BLOCK,
) -> Simulations:
    """Draw latents from the prior and simulate at each.

    Simulation `j` of a site has the key `fold_in(fold_in(rng_key, crc32(site)), j)`: it depends neither on
    `num_simulations` nor on other sites, workers, the order in which they finish, or whether a run was interrupted. JAX
    simulators run in compiled blocks on the device; black-box simulators with a NumPy generator of the same key, one
    by one in this process or on an executor.

    Args:
        rng_key: The only source of randomness.
        problem: The model, as `Problem.read` gives it, or a model that takes no arguments.
        num_simulations: Number of prior draws, each simulated once.
        on_failure: What to do when a simulator raises, takes too long or gives a value that is not finite: `"raise"`;
            `"skip"` it and count it, which changes the prior to the prior given success; `Retry(...)` with a fresh key,
            which changes the likelihood to that of runs that succeed; `Penalise(value)`.
        timeout: Seconds for one simulation of a black-box simulator.
        executor: Where black-box simulators run: any `concurrent.futures.Executor` (loky, Dask's
            `Client.get_executor()`, MPI's), or a number of processes to spawn, which are replaced where one dies or
            hangs. In this process when left out.
        store: A folder, such as `"sims.zarr"`, to write results to as they come. A run that ended early goes on from
            there; a larger `num_simulations` adds to it; another model, simulator or key is refused, with what differs.
            A fingerprint sees code, closures, defaults, globals, arrays and the state of objects, and not the files,
            programs and environment variables that a simulator uses.
        version: Of the simulator, such as `2` or `"with drag"`, kept in the store: another one is another simulator,
            where the fingerprint cannot see it. With the same version the store is taken whatever the code, with a
            warning that says what differs.
        progress_bar: Show a bar, except where the environment variable `CI` is set.
        block_size: How many JAX simulations run together. Another size changes their last digits.
    Raises:
        SimulationError: If a simulation fails, with its number and latents, or if all of them failed.
        StoreError: If the store is damaged, belongs to other simulations, is in use by another run, or cannot be
            written.
    Cost: `num_simulations` calls of each simulator, times its batch size; memory for one block and the
        results.
    """
    checks.key(rng_key)
    problem = problem if isinstance(problem, Problem) else Problem.read(problem)
    checks.whole("num_simulations", num_simulations, 1)
    checks.whole("block_size", block_size, 1)
    check_policy(on_failure)
    check_execution(problem, timeout, executor)
    checks.require(
        version is None or isinstance(version, str | int),
        f"`version` must be a string or a whole number; got {version!r}.",
        TypeError,
    )
    draws = problem.draw(random.fold_in(rng_key, 0), num_simulations)
    quiet = not (progress_bar and compat.progress_bars_allowed())
    x: dict[str, np.ndarray] = {}
    errors: dict[str, np.ndarray] = {}
    simulators = {name: site.simulator for name, site in problem.simulators.items()}
    settings = partial(running.settings, rng_key, problem.model, simulators, retries(on_failure), block_size, version)
    with (
        nullcontext() if store is None else _opened(store, settings, draws, simulators) as kept_in,
        tqdm(total=num_simulations * len(simulators), desc="simulating", disable=quiet) as bar,
    ):
        draws = draws if kept_in is None else _as_stored(kept_in, draws, num_simulations)
        for name, simulator in simulators.items():
            run = running.Run(
                rng_key,
                name,
                simulator,
                draws.arguments[name],
                block_size=block_size,
                timeout=timeout,
                executor=executor,
            )
            watch = running.Watch(name, draws.latents, stops(on_failure), bar, kept_in)
            x[name], errors[name] = run.all(retries(on_failure), watch)
    return gather(draws, x, errors, on_failure)


def check_execution(problem: Problem, timeout, executor) -> None:
    """Executors and time limits are for black boxes."""
    black_boxes = [name for name, site in problem.simulators.items() if site.simulator.black_box]
    checks.require(timeout is None or timeout > 0, f"`timeout` must be a positive number of seconds; got {timeout}.")
    checks.require(
        bool(black_boxes) or (timeout is None and executor is None),
        "`executor` and `timeout` are for black-box simulators, Simulator(fn, ..., shape=, dtype=); those of this "
        f"model, {list(problem.simulators)}, are JAX functions, which run in compiled blocks on the device.",
    )
    checks.require(
        executor is None or (executor >= 1 if isinstance(executor, int) else hasattr(executor, "submit")),
        f"`executor` must be an executor or at least 1 process; got {executor!r}.",
    )


@contextmanager
def _opened(path: str | PathLike, settings: Callable[[], dict], draws: Draws, simulators) -> Iterator[Store]:
    """The store of these simulations; it may hold more of them, or fewer."""
    prior = {name: np.asarray(value) for name, value in {**draws.latents, **draws.deterministics}.items()}
    arguments = {name: np.asarray(value) for name, value in draws.arguments.items()}
    outputs = {name: (simulator.shape(), running.dtype_of(simulator)) for name, simulator in simulators.items()}
    before = settings()
    count = len(next(iter(arguments.values())))
    with Store.open(Path(path), before, count, prior, arguments, outputs) as store:
        for name, value in arguments.items():
            stored = store.arguments(name)[: len(value)]
            if stored.shape != value.shape or not np.allclose(stored, value, rtol=1e-5, equal_nan=True):
                raise StoreError(
                    f"The store {store.path} holds simulations at other parameters of site {name!r}: its first is at "
                    f"{stored[0].tolist()}, this model's at {value[0].tolist()}. Was the model given other data that "
                    "its prior depends on? Give another path."
                )
        try:
            yield store
        finally:
            store.admit(before, settings())


def _as_stored(store: Store, draws: Draws, count: int) -> Draws:
    """The draws that the store was made at: on another machine their last digits may differ."""
    prior = store.prior()
    return Draws(
        {name: prior[name][:count] for name in draws.latents},
        {name: store.arguments(name)[:count] for name in draws.arguments},
        {name: prior[name][:count] for name in draws.deterministics},
    )


def gather(draws: Draws, x, errors, on_failure: OnFailure) -> Simulations:
    """What is kept, with the failures counted at the first site that failed."""
    total = len(next(iter(x.values())))
    sound, failures = np.ones(total, bool), Counter[str]()
    for name, found in errors.items():
        failed = np.array([error is not None for error in found])
        failures.update(f"{name}: {error.kind}" for error in found[failed & sound])
        sound &= ~failed
        if isinstance(on_failure, Penalise):
            x[name][failed] = np.asarray(on_failure.value, x[name].dtype)
    if not sound.any():
        raise SimulationError(f"All {total} simulations failed: {dict(failures)}.")
    kept = np.ones(total, bool) if isinstance(on_failure, Penalise) else sound
    return Simulations(
        arguments=_rows(draws.arguments, kept),
        x=_rows(x, kept),
        latents=_rows(draws.latents, kept),
        deterministics=_rows(draws.deterministics, kept),
        index=np.flatnonzero(kept),
        failures=dict(failures),
        failed=_rows(draws.latents, ~sound),
        attempted=total,
    )


def _rows(arrays: Arrays, kept: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.asarray(value)[kept] for name, value in arrays.items()}


def simulate_at(
    rng_key: jax.Array,
    problem: Problem,
    latents: Arrays,
    *,
    on_failure: OnFailure = "raise",
    timeout: float | None = None,
    executor: Executor | int | None = None,
    progress_bar: bool = False,
) -> Simulations:
    """Simulate once at each of the given latents `{site: (m, *shape)}`, with the keys that `simulate` would use.

    Args:
        rng_key: The only source of randomness.
        problem: The model, as `Problem.read` gives it.
        latents: Values of all latents.
        on_failure: As in `simulate`.
        timeout: As in `simulate`.
        executor: As in `simulate`.
        progress_bar: Show a bar.
    Raises:
        SimulationError: If a simulation fails, with its number and latents, or if all of them failed.
    """
    checks.key(rng_key)
    check_policy(on_failure)
    check_execution(problem, timeout, executor)
    draws = problem.evaluate(latents)
    x, errors = {}, {}
    total = len(next(iter(draws.latents.values()))) * len(problem.simulators)
    quiet = not (progress_bar and compat.progress_bars_allowed())
    with tqdm(total=total, desc="simulating", disable=quiet) as bar:
        for name, site in problem.simulators.items():
            run = running.Run(
                rng_key,
                name,
                site.simulator,
                draws.arguments[name],
                block_size=programs.BLOCK,
                timeout=timeout,
                executor=executor,
            )
            watch = running.Watch(name, draws.latents, stops(on_failure), bar, None)
            x[name], errors[name] = run.all(retries(on_failure), watch)
    return gather(draws, x, errors, on_failure)


@dataclass(frozen=True)
class Plan:
    """How an engine simulates; engines take these as keywords of their own.

    Args:
        num_simulations: Number of simulations.
        simulations: Simulations made elsewhere, instead of new ones.
        on_failure: What to do when a simulation fails, as in `simulate`.
        executor: Where black-box simulators run, as in `simulate`.
        store: A folder to write results to as they come, and to go on from, as in `simulate`.
        version: Of the simulator, as in `simulate`.
        timeout: Seconds for one simulation of a black-box simulator.
        progress_bar: Whether to show the progress.
    """

    num_simulations: int
    simulations: Simulations | None = None
    on_failure: OnFailure = "raise"
    executor: Executor | int | None = None
    store: str | PathLike | None = None
    version: str | int | None = None
    timeout: float | None = None
    progress_bar: bool = True

    def __post_init__(self):
        checks.instance("simulations", self.simulations, Simulations | None, "a set of simulations (Simulations)")
        check_policy(self.on_failure)
        checks.require(
            self.simulations is None or self.store is None,
            "Give `simulations` or `store`, not both: what is given is not simulated.",
        )

    def simulate(self, rng_key: jax.Array, problem: Problem, number: int | None = None) -> Simulations:
        """The given simulations, or `number` new ones from the prior, all of them when left out."""
        if self.simulations is not None:
            return self.simulations
        return simulate(
            rng_key,
            problem,
            self.num_simulations if number is None else number,
            on_failure=self.on_failure,
            timeout=self.timeout,
            executor=self.executor,
            store=self.store,
            version=self.version,
            progress_bar=self.progress_bar,
        )

    def simulate_at(self, rng_key: jax.Array, problem: Problem, latents: Arrays) -> Simulations:
        """Simulations at given latents `{site: (m, *shape)}`."""
        return simulate_at(
            rng_key,
            problem,
            latents,
            on_failure=self.on_failure,
            timeout=self.timeout,
            executor=self.executor,
            progress_bar=self.progress_bar,
        )
