"""What an engine makes of simulations: checks beforehand, tables to learn from, groups for ArviZ."""

import numpy as np

from numpyro_kme import _checks
from numpyro_kme.kernel_means.base import Form
from numpyro_kme.problem import Problem
from numpyro_kme.simulations import Simulations

DRAWS = 1000
"""Rows to learn from, at most, where several draws share each parameter."""


def check_sites(problem: Problem, form: Form | None) -> None:
    """What can be said before any simulation is run."""
    for site, y in problem.observations.items():
        _checks.finite(f"observation at {site!r}", problem.simulators[site].counted(y))
        simulator = problem.simulators[site].simulator
        _checks.require(
            simulator.batch_shape == simulator.groups or getattr(form, "data_kernel", None) is None,
            f"Site {site!r} holds {simulator.batch_shape} draws of the same parameters along plates, whose densities are "
            "multiplied; a data kernel on whole data sets does not fit there. Make the data set one event of the simulator, "
            "or leave `data_kernel` out.",
        )


def training_table(simulations: Simulations, problem: Problem, site: str) -> tuple[np.ndarray, np.ndarray]:
    """Arguments `(r, p)` and outputs `(r, *event)` of single calls, from simulations that may run along plates.

    Groups with parameters of their own become rows. Of draws that share parameters, as many are used as make `DRAWS` rows.
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
