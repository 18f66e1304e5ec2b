"""How engines simulate: their settings, and what can be said of a model before."""

from dataclasses import KW_ONLY, dataclass, replace
from os import PathLike
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import numpy_rng
from numpyro_kme.engines.base import Engine
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.failures import OnFailure
from numpyro_kme.simulations.simulate import Plan
from numpyro_kme.simulations.simulations import as_long


@dataclass(eq=False, repr=False)
class PlannedEngine(Engine):
    """Base of the engines that simulate by a `Plan`; their settings.

    A setting can be changed by assignment or `dataclasses.replace`, and counts in the next run.

    Args:
        model: A NumPyro model with observed `Simulator` sites.
        num_simulations: Number of simulations.
        simulations: Simulations made elsewhere, instead of new ones.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    """

    num_simulations: int = 1000
    _: KW_ONLY
    simulations: Simulations | None = None
    on_failure: OnFailure = "raise"
    executor: Any = None
    store: str | PathLike | None = None
    version: str | int | None = None
    timeout: float | None = None

    def check_settings(self):
        """As `Engine.check_settings`."""
        super().check_settings()
        self.plan  # noqa: B018 (raises an error for settings that it does not take)

    @property
    def plan(self) -> Plan:
        """How it simulates, by its settings."""
        how = (self.on_failure, self.executor, self.store, self.version, self.timeout, self.progress_bar)
        return Plan(self.num_simulations, self.simulations, *how)


@dataclass(eq=False, repr=False)
class SimulationEngine(PlannedEngine):
    """Base of the engines that learn from one set of simulations, which serves every observation; their settings.

    The simulations of a run are `posterior.simulations`.

    Args:
        num_samples: Number of equally weighted posterior draws.
    """

    _: KW_ONLY
    num_samples: int = 1000

    def check_settings(self):
        """As `Engine.check_settings`."""
        super().check_settings()
        checks.whole("num_samples", self.num_samples, 1)

    def _simulate(self, rng_key: jax.Array, problem: Problem, number: int | None = None) -> Simulations:
        """The given simulations, checked to have the sites of the model with outputs of its shapes, or new ones."""
        return of_model(problem, self.plan.simulate(rng_key, problem, number))


def of_model(problem: Problem, simulations: Simulations) -> Simulations:
    """Simulations, checked to have the sites of the model with outputs of its shapes; those of any length as long as
    the model has them."""
    made = "they were made by another model."
    latents = "latents", simulations.latents or problem.latents, problem.latents
    for kind, given, own in (latents, ("simulator sites", simulations.x, problem.simulators)):
        checks.require(
            set(given) == set(own),
            f"`simulations` has the {kind} {sorted(given)}, the model {sorted(own)}: {made}",
        )
    for site, found in problem.simulators.items():
        simulator = found.simulator
        if simulator.ragged:
            simulations = replace(simulations, x={**simulations.x, site: as_long(simulator, simulations.x[site])})
        shape, expected = np.shape(simulations.x[site])[1:], simulator.shape()
        checks.require(
            len(shape) == len(expected) and shape[len(simulator.batch_shape) :] == simulator.event_shape,
            f"`simulations` has outputs of shape {shape} at site {site!r}, its simulator `{simulator.name}` gives "
            f"{expected}: {made}",
        )
    return simulations


def check_model(problem: Problem, engine: str) -> None:
    """What can be said before any simulation is run."""
    checks.require(
        len(problem.simulators) == 1 and not problem.likelihoods,
        f"{engine} needs a model with one simulator site and nothing else that is observed; this one has the simulator "
        f"sites {list(problem.simulators)} and the likelihoods {list(problem.likelihoods)}. Use KELFI, or put what is "
        "observed into one simulator.",
    )
    name = next(iter(problem.observations))
    site = problem.simulators[name]
    site.check_observed(name)
    site.require_no_gaps(name, engine)
    checks.require(
        not site.censored,
        f"{site.censored} entries of the observation at {name!r} are known to lie in intervals (Simulator.within), and "
        f"{engine} has no density to integrate over these. Use KELFI.",
    )
    checks.require(
        not (site.simulator.ragged and site.simulator.batch_shape),
        f"The draws along the plates of site {name!r} are of any length (ragged=True), and {engine} compares data sets "
        "of whole draws. Use KELFI, or make the data set one event of the simulator.",
    )
    partly = bool(site.simulator.batch_shape) and bool(np.isnan(site.counted(np.asarray(site.observed))).any())
    checks.require(
        not partly,
        f"Draws along the plates of site {name!r} were observed in part, with NaN for some of their numbers, and "
        f"{engine} compares data sets of whole draws. Use KELFI, or leave these draws out by numpyro.handlers.mask.",
    )
    checks.require(
        bool(site.mask.any()),
        f"Site {name!r} is masked as a whole, so that {engine} has nothing to compare simulations with. The posterior "
        "is the prior: draw from that, or use KELFI.",
    )
    checks.require(
        bool(np.all(site.scale == 1.0)),
        f"Site {name!r} is scaled by {site.scale}: {engine} compares data sets and has no likelihood to raise to that "
        "power. Use KELFI, or leave numpyro.handlers.scale out.",
    )
    groups = site.simulator.groups
    checks.require(
        all(size == 1 for size in groups),
        f"The parameters of the simulator at {name!r} vary along plates of shape {groups}; {engine} compares one data "
        "set of one parameter. Use KELFI for groups.",
    )


def training_table(
    rng_key: jax.Array, simulations: Simulations, problem: Problem, site: str, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Arguments `(r, p)` and outputs `(r, *event)` of single calls, from simulations that may run along plates.

    Draws that share parameters, and calls with parameters of their own, of groups or covariates, become rows: as many
    of each simulation as make `most` rows in all, and one at least. First stands one of each, then another of each.
    Calls are drawn at random, so that covariates are drawn from those simulated.
    """
    arguments, x = problem.simulators[site].rows(
        np.asarray(simulations.arguments[site]), np.asarray(simulations.x[site])
    )
    event_shape = problem.simulators[site].simulator.event_shape
    draws = x.reshape(len(x), -1, *event_shape)
    chosen = some_calls(rng_key, len(simulations), len(arguments) // len(simulations), most)
    arguments, draws = arguments[chosen], draws[chosen]
    used = int(np.clip(most // len(draws), 1, draws.shape[1]))
    return np.tile(arguments, (used, 1)), draws[:, :used].swapaxes(0, 1).reshape(-1, *event_shape)


def some_calls(rng_key: jax.Array, simulations: int, calls: int, rows: int) -> np.ndarray:
    """Numbers of some of the calls of each simulation, none twice, in a table with a row for each call of each: about
    `rows` in all, and one of each simulation at least."""
    used = int(np.clip(rows // simulations, 1, calls))
    if used == calls:
        return np.arange(simulations * calls)
    order = np.argsort(numpy_rng(rng_key).random((simulations, calls)), axis=1)[:, :used]
    return (calls * np.arange(simulations)[:, None] + np.sort(order, axis=1)).ravel()
