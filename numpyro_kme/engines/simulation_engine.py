"""The engines that simulate by a plan: their settings, and the way from a model to its posterior."""

import abc
from dataclasses import KW_ONLY, dataclass, replace
from os import PathLike
from typing import Any, Protocol

import jax
import numpy as np

from numpyro_kme._core import checks, progress
from numpyro_kme._core.keys import split
from numpyro_kme.engines.base import Engine, check_positive, check_rule, observed_anew
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.engines.reference_table import check_model
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import KernelRule, LengthScaleRule
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.failures import OnFailure
from numpyro_kme.simulations.simulate import Plan
from numpyro_kme.simulations.simulations import as_long


class Method(Protocol):
    """Result of learning from simulations: it gives the posterior of any observation."""

    @property
    def problem(self) -> Problem:
        """The model, as it was run."""

    def posterior(self, rng_key: jax.Array, problem: Problem) -> Posterior:
        """The posterior of the observation of a model."""


@dataclass(eq=False, repr=False)
class SimulationEngine(Engine):
    """Base of the engines that learn from simulations; a set of them serves every observation.

    A subclass implements `_fit(rng_key, problem, simulations)`, which returns a `Method`. The simulations of a run are
    `posterior.simulations`. A setting can be changed by assignment or `dataclasses.replace`, and counts in the next
    run.

    Args:
        model: A NumPyro model with observed `Simulator` sites.
        num_simulations: Number of simulations.
        num_samples: Number of equally weighted posterior draws.
        simulations: Simulations made elsewhere, instead of new ones.
        on_failure, executor, store, version, timeout, progress_bar: How it simulates, as in `simulate`.
    """

    conditions_in_threads = True

    num_simulations: int = 1000
    _: KW_ONLY
    num_samples: int = 1000
    simulations: Simulations | None = None
    on_failure: OnFailure = "raise"
    executor: Any = None
    store: str | PathLike | None = None
    version: str | int | None = None
    timeout: float | None = None

    def check_settings(self):  # noqa: D102
        super().check_settings()
        checks.whole("num_samples", self.num_samples, 1)
        self.plan  # noqa: B018 (raises an error for settings that it does not take)

    @property
    def plan(self) -> Plan:
        """Plan of the simulations, by the settings."""
        how = (self.on_failure, self.executor, self.store, self.version, self.timeout, self.progress_bar)
        return Plan(self.num_simulations, self.simulations, *how)

    def _check(self, problem: Problem) -> None:
        """Refuse models that this engine cannot infer from, before anything is simulated."""
        check_model(problem, type(self).__name__)

    def _simulate(self, rng_key: jax.Array, problem: Problem, number: int | None = None) -> Simulations:
        """The given simulations, checked to have the sites of the model with outputs of its shapes, or new ones."""
        return of_model(problem, self.plan.simulate(rng_key, problem, number))

    @abc.abstractmethod
    def _fit(self, rng_key: jax.Array, problem: Problem, simulations: Simulations) -> Any:
        """Learn from simulations what does not depend on the observation, but for what of it was masked."""

    def _infer(self, rng_key, args, kwargs):
        simulate_key, fit_key, sample_key = split(rng_key, 3)
        problem = Problem.read(self.model, *args, **kwargs)
        self._check(problem)
        simulations = self._simulate(simulate_key, problem)
        with progress.phase(f"learning from {len(simulations)} simulations", self.progress_bar):
            method = self._fit(fit_key, problem, simulations)
        with progress.phase("weighting the simulations", self.progress_bar):
            posterior = method.posterior(sample_key, problem)
        return method, posterior

    def _condition(self, rng_key, args, kwargs, learnt: Method):
        problem = observed_anew(learnt.problem, args, kwargs)
        self._check(problem)
        return learnt.posterior(rng_key, problem)


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


def check_weighting(num_simulations: int, regression_adjustment: bool, **positive: float | None) -> None:
    """Check the settings of engines that weight simulations: their number, and numbers that are positive if given."""
    checks.instance("regression_adjustment", regression_adjustment, bool, "True or False")
    checks.whole("num_simulations", num_simulations, 20, " Thousands are usual.")
    check_positive(**positive)


def check_kernel(kernel: Any, rule: LengthScaleRule | None) -> None:
    """Check that a kernel on data is one, or a rule that makes one."""
    what = "a kernel, such as Gaussian(length_scale), or a rule that makes one, such as EmpiricalMeasureRule()"
    check_rule(rule, kernel, "kernel", Kernel | KernelRule, what)
