"""Simulations from the prior of a model, or at given latents: each with its own key, with a policy for failures; and
whether given ones are those of a model."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks, child, data_of, door, frozen, programs, progress
from numpyro_kme.models.problem import Arrays, Draws, Problem
from numpyro_kme.simulations.executors import SimulationError
from numpyro_kme.simulations.fingerprint import fingerprint, random_generators
from numpyro_kme.simulations.simulations import SimulatedMissing, Simulations, as_long, of_rows
from numpyro_kme.simulations.site_runs import SiteRun
from numpyro_kme.simulations.store import Store


@frozen
class Retry:
    """Simulate again, with a fresh key, where a simulation failed.

    The result is a draw from the simulator given that it succeeds, at every parameter: where failures depend on the
    simulated noise, the likelihood that is learnt is that of the runs that succeed.

    Args:
        times: Largest number of further attempts.
        then: What to do with simulations that still fail, `"raise"` or `"skip"`.
    """

    times: int = 3
    then: Literal["raise", "skip"] = "raise"

    def __post_init__(self):
        checks.whole("times", self.times, 1)
        checks.require(self.then in ("raise", "skip"), f"`then` must be 'raise' or 'skip'; got {self.then!r}.")


@frozen
class Penalise:
    """Put a value far from any observation in place of a failed simulation's output.

    Parameters at which the simulator fails become improbable, as they should if failure itself rules them out. The
    value is an outlier for what is learnt: prefer `"skip"` unless failing says something about the parameters.

    Args:
        value: For every number of the output; finite.
    """

    value: float

    def __post_init__(self):
        checks.number("value", self.value)
        checks.require(bool(np.isfinite(self.value)), f"`value` must be finite; got {self.value}.")


OnFailure = Literal["raise", "skip"] | Retry | Penalise


@door
def simulate(
    rng_key: jax.Array,
    problem: Problem | Callable,
    num_simulations: int,
    *,
    on_failure: OnFailure = "raise",
    missing: SimulatedMissing | None = None,
    timeout: float | None = None,
    executor: Any = None,
    store: str | PathLike | None = None,
    version: str | int | None = None,
    progress_bar: bool = True,
    block_size: int = programs.BLOCK,
) -> Simulations:
    """Draw latents from the prior and simulate at each.

    Simulation `j` of a site has the key `fold_in(fold_in(rng_key, crc32(site)), j)`: it depends neither on
    `num_simulations` nor on other sites, workers, the order in which they finish, or whether a run was interrupted. JAX
    simulators run in compiled blocks on the device; black-box simulators with a NumPy generator of the same key, one
    by one in this process or on an executor. The key also seeds the global generators of the modules `numpy.random` and
    `random`, except in threads.

    Args:
        rng_key: The only source of randomness.
        problem: The model, as `Problem.read` gives it, or a model that takes no arguments.
        num_simulations: Number of prior draws, each simulated once.
        on_failure: What to do when a simulator raises, takes too long or gives a value that is not finite: `"raise"`;
            `"skip"` it and count it, which changes the prior to the prior given success; `Retry(...)` with a fresh key,
            which changes the likelihood to that of runs that succeed; `Penalise(value)`.
        missing: `SimulatedMissing()` if NaN stands for what the simulator does not record, and is no failure.
        timeout: Seconds for one simulation of a black-box simulator.
        executor: Where black-box simulators run: any `concurrent.futures.Executor` (loky's and MPI's too), or a Dask
            `Client`. In this process when left out.
        store: A folder, such as `"sims"`, to write results to as they come. A run that ended early goes on from
            there; a larger `num_simulations` adds to it; another model, simulator, key or `Retry.times` is refused,
            with what differs. A fingerprint sees code, closures, defaults, globals, arrays and the state of objects,
            and not the files, programs and environment variables that a simulator uses.
        version: Version of the simulator, such as `2` or `"with drag"`, in place of the fingerprint: another version is
            another simulator, and the store of the same version is continued, whatever the code.
        progress_bar: Show a bar, except where the environment variable `CI` is set.
        block_size: How many JAX simulations run together. Another size changes their last digits.
    Raises:
        SimulationError: If a simulation fails, with its number and latents, or if all of them failed.
        StoreError: If the store is damaged, belongs to other simulations, is in use by another run, or cannot be
            written.
    Cost: `num_simulations` calls of each simulator, times its batch size; memory for one block and the
        results.
    """
    problem = problem if isinstance(problem, Problem) else Problem.read(problem)
    plan = Plan(num_simulations, None, on_failure, executor, store, version, timeout, progress_bar, block_size, missing)
    return plan.simulate(rng_key, problem)


@frozen
class Plan:
    """Settings of the simulations of an engine; engines take these as keywords of their own.

    Args:
        num_simulations: Number of draws from the prior.
        simulations: Simulations made elsewhere, instead of new ones.
        on_failure: What to do when a simulation fails, as in `simulate`.
        executor: Where black-box simulators run, as in `simulate`.
        store: A folder to write results to as they come, and to go on from, as in `simulate`.
        version: Of the simulator, as in `simulate`.
        timeout: Seconds for one simulation of a black-box simulator.
        progress_bar: Whether to show the progress.
        block_size: How many JAX simulations run together, as in `simulate`.
        missing: What NaN is, as in `simulate`.
    """

    num_simulations: int = 1
    simulations: Simulations | None = None
    on_failure: OnFailure = "raise"
    executor: Any = None
    store: str | PathLike | None = None
    version: str | int | None = None
    timeout: float | None = None
    progress_bar: bool = True
    block_size: int = programs.BLOCK
    missing: SimulatedMissing | None = None

    def __post_init__(self):
        checks.instance("missing", self.missing, SimulatedMissing | None, "SimulatedMissing(), or left out")
        checks.instance("simulations", self.simulations, Simulations | None, "a set of simulations (Simulations)")
        policy = self.on_failure
        known = isinstance(policy, Retry | Penalise) or policy in ("raise", "skip")
        checks.require(known, f"`on_failure` must be 'raise', 'skip', Retry(...) or Penalise(...); got {policy!r}.")
        checks.whole("block_size", self.block_size, 1)
        checks.instance("version", self.version, str | int | None, "a string or a whole number")
        both = self.simulations is not None and self.store is not None
        checks.require(not both, "Give `simulations` or `store`, not both: what is given is not simulated.")

    @property
    def retries(self) -> int:
        """Number of times that a failed simulation is run again."""
        return self.on_failure.times if isinstance(self.on_failure, Retry) else 0

    @property
    def stops(self) -> bool:
        """Tell whether the first failure that remains ends the run."""
        return (self.on_failure.then if isinstance(self.on_failure, Retry) else self.on_failure) == "raise"

    def simulate(self, rng_key: jax.Array, problem: Problem, number: int | None = None) -> Simulations:
        """The given simulations, if they are of the model, or `number` new ones from the prior, all when left out."""
        if self.simulations is not None:
            found = of_model(problem, self.simulations)
        else:
            checks.key(rng_key)
            number = self.num_simulations if number is None else number
            checks.whole("num_simulations", number, 1)
            self._check_execution(problem)
            found = self._run(rng_key, problem, problem.draw(child(rng_key, 0), number), self.store)
        for name, latents in found.latents.items():
            checks.resolved(f"the prior draws of {name!r}", latents, varies=True)
        for name, site in problem.simulators.items():
            checks.resolved(f"the outputs of {name!r}", found.x[name], site.observed)
        return found

    def simulate_at(
        self, rng_key: jax.Array, problem: Problem, latents: Arrays, store: str | PathLike | None = None
    ) -> Simulations:
        """A simulation at each of the given latents `{site: (m, *shape)}`, with the keys that `simulate` would use.

        They are kept in `store`, if one is given; that of the plan is for prior draws.
        """
        checks.key(rng_key)
        self._check_execution(problem)
        made = self._run(rng_key, problem, problem.evaluate(latents), store)
        return replace(made, proposed=len(made))

    def _check_execution(self, problem: Problem) -> None:
        """Executors and time limits are for black boxes; NaN has one meaning."""
        timeout, executor = self.timeout, self.executor
        for name, site in problem.simulators.items():
            checks.require(
                self.missing is None or not site.simulator.ragged,
                f"NaN at the end of outputs of {name!r} says that they end there (ragged=True), and with `missing` "
                "that it is not recorded: leave one of both out.",
            )
            shared = site.simulator.black_box and (executor is not None or self.store is not None)
            own = random_generators(site.simulator.fn) if shared else []
            if own:
                checks.warn(
                    f"Simulator `{site.simulator.name}` has a random generator of its own, its {own[0]}, whose copies "
                    "in processes and runs repeat each other's numbers. Draw all of them from its first argument."
                )
            if isinstance(self.on_failure, Penalise):
                _check_penalty(self.on_failure.value, name, site.simulator.dtype)
        checks.optional(checks.positive_number, "timeout", timeout)
        checks.require(
            (timeout is None and executor is None)
            or any(site.simulator.black_box for site in problem.simulators.values()),
            "`executor` and `timeout` are for black-box simulators, Simulator(fn, ..., shape=, dtype=); those of this "
            f"model, {list(problem.simulators)}, are JAX functions, which run in compiled blocks on the device.",
        )
        checks.require(
            executor is None or hasattr(executor, "submit"),
            "`executor` must be an executor of `concurrent.futures` or loky, such as loky.get_reusable_executor(8), or "
            f"a Dask client; got {executor!r}.",
        )

    def _run(self, rng_key: jax.Array, problem: Problem, draws: Draws, path: str | PathLike | None) -> Simulations:
        """Simulate at draws, at each simulator site in turn, or take what a store has of them."""
        total = len(next(iter(draws.latents.values()))) * len(problem.simulators)
        x: dict[str, np.ndarray] = {}
        errors: dict[str, np.ndarray] = {}
        repeated = 0
        opened: AbstractContextManager[Store | None] = nullcontext()
        if path is not None:
            opened = Store(path).opened(partial(_settings, rng_key, problem, self))
        with opened as store, progress.progress(None, "simulating", self.progress_bar, total) as bar:
            for name, site in problem.simulators.items():
                run = SiteRun(rng_key, name, site.simulator, draws, self, bar, store).all()
                x[name], errors[name], repeated = run.x, run.errors, repeated + run.repeated
        return replace(_gathered(draws, x, errors, self.on_failure), repeated=repeated)


def _settings(rng_key: jax.Array, problem: Problem, plan: Plan) -> dict[str, Any]:
    """Everything that simulations depend on, beside the parameters that a store holds: key, code, shapes, precision."""
    found = {
        "key": data_of(rng_key).tolist(),
        "version": plan.version,
        "missing": plan.missing,
        "retries": plan.retries,
        "block size": plan.block_size,
        "float64": jnp.result_type(float) == jnp.float64,
    }
    for name, site in problem.simulators.items():
        simulator = site.simulator
        kind = ("ragged " if simulator.ragged else "") + ("black box" if simulator.black_box else "function in JAX")
        shape = f"{simulator.dtype}{list(simulator.shape())}"
        found[f"simulator of `{name}`"] = f"{kind} {simulator.name} -> {shape}"
        if plan.version is None:
            found[f"code of `{name}`"] = fingerprint(simulator.fn)
    return found if plan.version is not None else found | {"code of the model": fingerprint(problem.model)}


def _check_penalty(value: float, name: str, dtype: np.dtype) -> None:
    """That outputs of whole numbers and truth values can hold what stands for failures."""
    if dtype.kind != "f":
        least, largest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        checks.require(
            least <= value <= largest and value == round(value),
            f"`on_failure` is Penalise({value:g}), which the outputs of {name!r}, {dtype}, cannot hold. Give a "
            "value that they can, or declare dtype=float.",
        )


def _gathered(draws: Draws, x, errors, on_failure: OnFailure) -> Simulations:
    """Gather what is kept, with the failures counted at the first site that failed."""
    total = len(next(iter(x.values())))
    sound, failures = np.ones(total, bool), Counter[str]()
    for name, found in errors.items():
        failed = found != None  # noqa: E711
        failures.update(f"{name}: {error.kind}" for error in found[failed & sound])
        sound &= ~failed
        if isinstance(on_failure, Penalise):
            x[name][failed] = np.asarray(on_failure.value, x[name].dtype)
    if not sound.any():
        raise checks.explained(f"All {total} simulations failed: {dict(failures)}.", SimulationError)
    kept = np.ones(total, bool) if isinstance(on_failure, Penalise) else sound
    return Simulations(
        arguments=of_rows(draws.arguments, kept),
        x=of_rows(x, kept),
        latents=of_rows(draws.latents, kept),
        deterministics=of_rows(draws.deterministics, kept),
        index=np.flatnonzero(kept),
        failures=dict(failures),
        failed=of_rows(draws.latents, ~sound),
        attempted=total,
    )


def of_model(problem: Problem, simulations: Simulations) -> Simulations:
    """Simulations, checked to have the sites of the model with outputs of its shapes; those of any length as long as
    the model has them."""
    made = "they were made by another model."
    latents = "latents", simulations.latents or problem.latents, problem.latents
    for kind, given, own in (latents, ("simulator sites", simulations.x, problem.simulators)):
        told = f"`simulations` has the {kind} {sorted(given)}, the model {sorted(own)}: {made}"
        checks.require(set(given) == set(own), told)
    for site, found in problem.simulators.items():
        simulator = found.simulator
        if simulator.ragged:
            simulations = replace(simulations, x={**simulations.x, site: as_long(simulator, simulations.x[site])})
        shape, expected = np.shape(simulations.x[site])[1:], simulator.shape()
        checks.require(
            len(shape) == len(expected) and shape[len(simulator.batch_shape) :] == simulator.event_shape,
            f"`simulations` has outputs of shape {shape} at site {site!r}, `{simulator.name}` gives {expected}: {made}",
        )
    return simulations
