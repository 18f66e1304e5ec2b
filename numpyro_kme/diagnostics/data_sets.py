"""Data sets at draws from the prior, where the truth is known, and the arguments that pass them to the model."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.engines.base import Engine
from numpyro_kme.engines.posterior import Posterior, problem_of
from numpyro_kme.models.problem import Arrays, Problem
from numpyro_kme.simulations import Retry, SimulatedMissing, Simulations
from numpyro_kme.simulations.failures import OnFailure
from numpyro_kme.simulations.simulate import Plan

Arguments = Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]]


def plan_of_data(found: Engine | Posterior) -> Plan:
    """Plan by which data sets are simulated: on the executor of the engine, within its time limit, with what it takes
    for missing.

    Of a posterior alone, which knows no engine: here, one by one; NaN is what was not recorded if its simulations have
    some. What fails, after the repetitions of `Retry`, is no data set that could be observed, whatever the policy of
    the engine: it is left out and counted. Its store stays as it is, and simulations that it was given are not taken:
    these are what it learnt from.
    """
    if isinstance(found, Engine):
        plan = found.plan
    else:
        sites = problem_of(found).simulators
        known = {} if found.simulations is None else found.simulations.x
        lost = any(np.isnan(x).any() for site, x in known.items() if not sites[site].simulator.ragged)
        plan = Plan(1, missing=SimulatedMissing() if lost else None)
    policy: OnFailure = replace(plan.on_failure, then="skip") if isinstance(plan.on_failure, Retry) else "skip"
    return replace(plan, simulations=None, store=None, version=None, on_failure=policy, progress_bar=False)


def data_sets(
    rng_key: jax.Array, problem: Problem, number: int, plan: Plan, arguments: Arguments | None
) -> tuple[Simulations, dict[str, np.ndarray], list[dict[str, Any]]]:
    """Draw every observed site: simulators by simulation, others from their own distributions.

    Args:
        rng_key: The only source of randomness.
        problem: The model, as it was run.
        number: Of data sets; fewer where simulations fail.
        plan: How to simulate, as `plan_of_data` gives it.
        arguments: As in `calibrate`.
    Returns:
        The simulations with the parameters, what was drawn and is not masked, `{site: (N, *event)}`, and keyword
        arguments of the model for each data set.
    """
    first = {name: latent.value[None] for name, latent in problem.latents.items()}
    problem.draw_likelihoods(rng_key, first)  # which refuses what cannot be drawn before anything is simulated
    if arguments is None:
        absent = [site for site in (*problem.simulators, *problem.likelihoods) if site not in problem.kwargs]
        checks.require(
            not absent,
            f"The model was not run with keyword arguments named like its sites {absent}, but with "
            f"{sorted(problem.kwargs)}. Let what it observes be arguments of it, named like its sites, or pass "
            "`arguments=lambda x: dict(...)`, which turns what was drawn at the sites into arguments of the model.",
        )
    simulations = plan.simulate(rng_key, problem, number)
    others = problem.draw_likelihoods(rng_key, simulations.latents)
    given = []
    for j in range(len(simulations)):
        drawn = {site: _as_observed(np.asarray(value[j]), problem, site) for site, value in simulations.x.items()}
        drawn |= {site: value[j] for site, value in others.items()}
        made = drawn if arguments is None else arguments(drawn)
        checks.instance("arguments(outputs)", made, Mapping, "a dictionary of keyword arguments of the model")
        given.append({**problem.kwargs, **made})
    _require_passed_on(rng_key, problem.with_data(*problem.args, **given[0]), simulations, others)
    data = {site: problem.simulators[site].counted(np.asarray(value), 1) for site, value in simulations.x.items()}
    return simulations, data | others, given


def _require_passed_on(rng_key: jax.Array, again: Problem, simulations: Simulations, others: Arrays) -> None:
    """Raise where the model `again` observes something else than the first data set, or draws another."""
    drawn = {site: np.asarray(value[0]) for site, value in (*simulations.x.items(), *others.items())}
    for site, value in (again.observations | again.likelihood_observations).items():
        x = drawn[site]
        seen = value.shape == x.shape and np.isfinite(x) & np.isfinite(value)  # the others are missing or censored
        checks.require(
            value.shape == x.shape and np.allclose(value[seen], x[seen], rtol=1e-4),
            f"The model does not observe at {site!r} the simulated output or draw that is passed to it, but "
            f"{checks.line(value)} where {checks.line(x)} was drawn: it changes its argument before, or observes "
            "something else. Pass `arguments=lambda x: dict(...)`, which turns what was drawn into what the model "
            "takes.",
        )
    first = {name: np.asarray(value)[:1] for name, value in simulations.latents.items()}
    for site, value in again.draw_likelihoods(rng_key, first).items():
        checks.require(
            np.allclose(value[0], drawn[site], rtol=1e-4, equal_nan=True),
            f"The distribution of site {site!r} changes with the data that are passed to the model, so that no data "
            "sets can be drawn from it. Let it depend on latents and covariates alone, or put the whole into a "
            "simulator.",
        )


def _as_observed(x: np.ndarray, problem: Problem, site: str) -> np.ndarray:
    """An output without the entries that were not observed in the engine's own data."""
    found, simulator = problem.simulators[site], problem.simulators[site].simulator
    missing = np.isnan(np.asarray(problem.observations[site])) & bool(found.missing)
    if simulator.bounds is not None:  # by the same limits, each data set on its own
        low, high = (np.broadcast_to(end, missing.shape) for end in simulator.bounds)
        missing = np.where(np.isfinite(low) | np.isfinite(high), (low <= x) & (x <= high), missing)
    return np.where(missing, np.nan, x) if missing.any() else x
