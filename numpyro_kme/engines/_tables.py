"""What an engine makes of simulations: checks beforehand, tables to learn from, groups for ArviZ."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.likelihoods.base import Form
from numpyro_kme.models.problem import Problem, SimulatorSite
from numpyro_kme.simulations import Simulations
from numpyro_kme.simulations.fingerprint import fingerprint

DRAWS = 1000
"""Rows to learn from, at most, where several draws share each parameter."""


def check_sites(problem: Problem, form: Form | None) -> None:
    """What can be said before any simulation is run."""
    for site in problem.observations:
        problem.simulators[site].check_observed(site)
        simulator = problem.simulators[site].simulator
        checks.require(
            simulator.batch_shape == simulator.groups or getattr(form, "data_kernel", None) is None,
            f"Site {site!r} holds {simulator.batch_shape} draws of the same parameters along plates, whose densities "
            "are multiplied; a data kernel on whole data sets does not fit there. Make the data set one event of the "
            "simulator, or leave `data_kernel` out.",
        )


def check_simulations(problem: Problem, simulations: Simulations) -> None:
    """That simulations made elsewhere have the sites of the model, with outputs of its shapes."""
    for kind, given, own in (
        ("latents", simulations.latents, problem.latents),
        ("simulator sites", simulations.x, problem.simulators),
    ):
        checks.require(
            set(given) == set(own) or (given is simulations.latents and not given),
            f"`simulations` has the {kind} {sorted(given)}, the model {sorted(own)}: they were made by another model.",
        )
    for site, found in problem.simulators.items():
        shape, expected = np.shape(simulations.x[site])[1:], found.simulator.shape()
        checks.require(
            len(shape) == len(expected) and shape[len(found.simulator.batch_shape) :] == found.simulator.event_shape,
            f"`simulations` has outputs of shape {shape} at site {site!r}, its simulator `{found.simulator.name}` "
            f"gives {expected}: they were made by another model.",
        )


def observed_anew(problem: Problem, args: tuple, kwargs: Mapping[str, Any]) -> Problem:
    """The model with another observation, for which simulations and what was learnt from them still hold.

    Raises:
        ValueError: If the prior or a simulator is another one too.
    """
    found = problem.with_data(*args, **kwargs)
    changed = [
        f"the prior of {name!r}"
        for name, old in problem.latents.items()
        if name in found.latents and _others(old.value, found.latents[name].value)
    ] or [
        f"the simulator at {name!r}"
        for name, old in problem.simulators.items()
        if name in found.simulators and _another(old, found.simulators[name])
    ]
    checks.require(
        not changed,
        f"The new arguments of the model change {' and '.join(changed)}: the simulations of the last run are of "
        "another model. `condition` is for other observations; call `run`.",
    )
    return found


def _another(old: SimulatorSite, new: SimulatorSite) -> bool:
    """Whether a site's simulator is another one: at the arguments of one prior draw, and by the fingerprint of a new
    function."""
    fns = old.simulator.fn, new.simulator.fn
    return _others(old.simulator.arguments, new.simulator.arguments) or (
        fns[0] != fns[1] and len({str(fingerprint({"": fn}).parts) for fn in fns}) > 1
    )


def _others(old: Any, new: Any) -> bool:
    """Whether numbers differ, of as many: more or fewer groups along a plate are the same model."""
    return np.shape(old) == np.shape(new) and not np.array_equal(old, new)


def training_table(simulations: Simulations, problem: Problem, site: str) -> tuple[np.ndarray, np.ndarray]:
    """Arguments `(r, p)` and outputs `(r, *event)` of single calls, from simulations that may run along plates.

    Groups with parameters of their own become rows. Of draws that share parameters, as many are used as make `DRAWS`
    rows.
    """
    arguments, x = problem.simulators[site].rows(
        np.asarray(simulations.arguments[site]), np.asarray(simulations.x[site])
    )
    event_shape = problem.simulators[site].simulator.event_shape
    draws = x.reshape(len(x), -1, *event_shape)
    used = int(np.clip(DRAWS // len(x), 1, draws.shape[1]))
    return np.repeat(arguments, used, axis=0), draws[:, :used].reshape(-1, *event_shape)


def groups(simulations: Simulations, problem: Problem) -> dict[str, dict[str, np.ndarray]]:
    """The simulations, those at chosen latents apart, and the observation as ArviZ groups."""
    chain = lambda tree: {name: np.asarray(value)[None] for name, value in tree.items()}  # noqa: E731
    failed = {"failed_simulations": chain(simulations.failed)} if simulations.failures else {}
    first = len(simulations) - simulations.proposed
    drawn = {**simulations.latents, **simulations.deterministics}
    proposed = {
        "proposal": chain({name: value[first:] for name, value in drawn.items()}),
        "proposal_predictive": chain({name: value[first:] for name, value in simulations.x.items()}),
    }
    return {
        "prior": chain({name: value[:first] for name, value in drawn.items()}),
        "prior_predictive": chain({name: value[:first] for name, value in simulations.x.items()}),
        **(proposed if simulations.proposed else {}),
        "observed_data": problem.observations,
        **failed,
    }
