"""Simulations from the prior of a model: each with its own key, with a stated policy for those that fail."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from tqdm.auto import tqdm

from numpyro_kme import _blocks, _calls, _checks, _compat
from numpyro_kme.problem import Arrays, Problem
from numpyro_kme.simulator import Simulator

OnFailure = Literal["raise", "skip"]


class SimulationError(RuntimeError):
    """A simulation raised, or gave a value that is not finite."""


@dataclass(frozen=True)
class Simulations:
    """Simulations `{(theta_j, x_j)}`; every array has a leading axis of the `m` simulations that are kept.

    Attributes:
        arguments: What one call of each simulator took, `{site: (m, *groups, p)}`.
        x: What the simulators gave, `{site: (m, *batch, *event)}`.
        latents: `{latent: (m, *shape)}`; empty if they are not known.
        deterministics: `{site: (m, *shape)}`.
        index: Number of each simulation in its run, `(m,)`.
        failures: How many simulations were left out, by site and reason.
    """

    arguments: Arrays
    x: Arrays
    latents: Arrays = field(default_factory=dict)
    deterministics: Arrays = field(default_factory=dict)
    index: np.ndarray = field(default_factory=lambda: np.arange(0))
    failures: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self):
        if not len(self.index):
            object.__setattr__(self, "index", np.arange(len(next(iter(self.x.values())))))

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def from_table(cls, arguments: Any, x: Any, *, site: str = "x") -> "Simulations":
        """Take simulations made elsewhere from the arguments of the simulator.

        Args:
            arguments: `(m, p)`, all numbers that one call takes, flattened in the order of the model.
            x: `(m, *event)`, what the simulator gave.
            site: Name of the simulator site.
        Raises:
            ValueError: If the rows do not agree in number or hold values that are not finite.
        """
        arguments, x = np.asarray(arguments), np.asarray(x)
        _checks.matrix("arguments", arguments)
        _checks.require(
            x.shape[:1] == arguments.shape[:1],
            f"`arguments` and `x` must have one row for each simulation; got shapes {arguments.shape} and {x.shape}.",
        )
        _checks.finite("arguments", arguments)
        _checks.finite("x", x)
        return cls({site: arguments}, {site: x})

    @classmethod
    def from_latents(cls, problem: Problem, latents: Arrays, x: Any) -> "Simulations":
        """Take simulations made elsewhere from values of the model's latents.

        Args:
            problem: The model, as `Problem.read` gives it; it says what the simulator's arguments are.
            latents: `{latent: (m, *shape)}`, for all latents.
            x: `{site: (m, *batch, *event)}`, or the array itself if there is one simulator site.
        Raises:
            ValueError: If shapes do not fit the model, or `x` has values that are not finite.
        """
        x = x if isinstance(x, Mapping) else {problem.site(): x}
        x = {problem.site(name): np.asarray(value) for name, value in x.items()}
        missing = sorted(set(problem.simulators) - set(x))
        _checks.require(not missing, f"`x` has no simulations of the sites {missing}.")
        draws = problem.evaluate(latents)
        for name, value in x.items():
            shape = (len(draws.arguments[name]), *problem.simulators[name].simulator.shape())
            _checks.require(
                value.shape == shape,
                f"The simulations of site {name!r} must have shape {shape}; got {value.shape}.",
            )
            _checks.finite(name, value)
        return cls(draws.arguments, x, draws.latents, draws.deterministics)


def simulate(
    rng_key: jax.Array,
    problem: Problem | Callable,
    num_simulations: int,
    *,
    on_failure: OnFailure = "raise",
    progress_bar: bool = True,
    block_size: int = _blocks.BLOCK,
) -> Simulations:
    """Draw latents from the prior and simulate at each.

    Simulation `j` of a site has the key `fold_in(fold_in(rng_key, crc32(site)), j)`: it depends neither on
    `num_simulations` nor on other sites. JAX simulators run in compiled blocks, black-box simulators one by
    one on the host with a NumPy generator of the same key.

    Args:
        rng_key: The only source of randomness.
        problem: The model, as `Problem.read` gives it, or a model that takes no arguments.
        num_simulations: Number of prior draws, each simulated once.
        on_failure: What to do when a simulator raises or gives a value that is not finite: `"raise"`, or
            `"skip"` it and count it. Conditioning on success changes the prior to the prior given success.
        progress_bar: Show a bar, except where the environment variable `CI` is set.
        block_size: How many JAX simulations run together. Another size changes their last digits.
    Raises:
        SimulationError: If a simulation fails, with its number and latents, or if all of them failed.
    Cost: `num_simulations` calls of each simulator, times its batch size; memory for one block and the
        results.
    """
    problem = problem if isinstance(problem, Problem) else Problem.read(problem)
    _checks.require(num_simulations >= 1, f"`num_simulations` must be at least 1; got {num_simulations}.")
    _checks.require(on_failure in ("raise", "skip"), f"`on_failure` must be 'raise' or 'skip'; got {on_failure!r}.")
    draws = problem.draw(random.fold_in(rng_key, 0), num_simulations)
    x: dict[str, np.ndarray] = {}
    kept, failures = np.ones(num_simulations, bool), Counter[str]()
    quiet = not (progress_bar and _compat.progress_bars_allowed())
    with tqdm(total=num_simulations * len(problem.simulators), desc="simulating", disable=quiet) as bar:
        for name, site in problem.simulators.items():
            watch = _Watch(name, draws.latents, on_failure, bar)
            run, size = _runner(site.simulator, block_size)
            rows = (_key_data(rng_key, name, num_simulations), draws.arguments[name])
            x[name], errors = _blocks.run(run, rows, size, watch)
            failed = np.array([error is not None for error in errors])
            failures.update(f"{name}: {_kind(error)}" for error in errors[failed & kept])
            kept &= ~failed
    if not kept.any():
        raise SimulationError(f"All {num_simulations} simulations failed: {dict(failures)}.")
    return Simulations(
        arguments=_rows(draws.arguments, kept),
        x=_rows(x, kept),
        latents=_rows(draws.latents, kept),
        deterministics=_rows(draws.deterministics, kept),
        index=np.flatnonzero(kept),
        failures=dict(failures),
    )


def _rows(arrays: Arrays, kept: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.asarray(value)[kept] for name, value in arrays.items()}


Rows = tuple[np.ndarray, np.ndarray]
"""Data of a JAX key, and arguments, for each of `b` simulations."""

Runner = Callable[[Rows], tuple[np.ndarray, np.ndarray]]
"""Maps rows to outputs `(b, *batch, *event)` and, for each row, the error it ended with or None."""


def _runner(simulator: Simulator, block_size: int) -> tuple[Runner, int]:
    """How a simulator is run, and how many rows at a time."""
    return (_on_host(simulator), 1) if simulator.black_box else (_in_jax(simulator), block_size)


@jax.jit
def _draw(simulator: Simulator, key_data: jax.Array, arguments: jax.Array) -> jax.Array:
    """One draw for each row of keys and arguments; compiled once for each simulator and number of rows."""
    return jax.vmap(lambda data, a: simulator.with_arguments(a).sample(random.wrap_key_data(data)))(key_data, arguments)


@jax.jit
def _prepare(simulator: Simulator, key_data: jax.Array, arguments: jax.Array):
    """Data of the key, and parameters, of each call that the rows of keys and arguments make."""

    def calls(data, a):
        keys = simulator.keys(random.wrap_key_data(data))
        return random.key_data(keys), simulator.with_arguments(a).broadcast_params(keys.shape)

    return jax.vmap(calls)(key_data, arguments)


def _in_jax(simulator: Simulator) -> Runner:
    def run(rows: Rows):
        x = np.asarray(_draw(simulator, *rows))
        return x, np.array([_not_finite(row) for row in x], object)

    return run


def _on_host(simulator: Simulator) -> Runner:
    def call(key_data, params):
        x = np.empty(simulator.shape(), simulator.dtype)
        for i in np.ndindex(simulator.batch_shape):
            x[i] = _calls.call_on_host(
                simulator.fn,
                simulator.event_shape,
                simulator.dtype,
                key_data[i],
                *(param[i] for param in params),
            )
        return x

    def run(rows: Rows):
        key_data, params = jax.tree.map(np.asarray, _prepare(simulator, *rows))
        x = np.zeros((len(key_data), *simulator.shape()), simulator.dtype)
        errors = np.full(len(x), None, object)
        for row in range(len(x)):
            try:
                x[row] = call(key_data[row], [param[row] for param in params])
                errors[row] = _not_finite(x[row])
            except _calls.WrongOutput:
                raise
            except Exception as error:
                errors[row] = error
        return x, errors

    return run


def _key_data(rng_key: jax.Array, site: str, num_simulations: int) -> np.ndarray:
    """Data of the key of each simulation of a site."""
    key = random.fold_in(rng_key, crc32(site.encode()))
    return np.asarray(random.key_data(jax.vmap(partial(random.fold_in, key))(jnp.arange(num_simulations))))


class _NotFinite(ArithmeticError):
    """A simulator gave a value that is not finite."""


def _not_finite(x: np.ndarray) -> _NotFinite | None:
    bad = np.size(x) - np.count_nonzero(np.isfinite(x))
    return _NotFinite(f"{bad} of its {np.size(x)} values are not finite") if bad else None


def _kind(error: Exception) -> str:
    return "not finite" if isinstance(error, _NotFinite) else type(error).__name__


@dataclass(frozen=True)
class _Watch:
    """Told after each block of simulations: moves the bar, and raises at the first failure if asked to."""

    site: str
    latents: Arrays
    on_failure: OnFailure
    bar: tqdm

    def __call__(self, start: int, part) -> None:
        errors = part[1]
        self.bar.update(len(errors))
        for i, error in enumerate(errors, start):
            if error is not None and self.on_failure == "raise":
                theta = {name: np.asarray(value[i]).tolist() for name, value in self.latents.items()}
                raise SimulationError(
                    f"Simulation {i} of site {self.site!r} failed at {theta}: {error} ({_kind(error)}). "
                    "Repair the simulator, narrow the prior, or leave failures out with on_failure='skip'."
                ) from error
