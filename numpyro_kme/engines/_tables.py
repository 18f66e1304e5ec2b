"""What an engine makes of simulations: checks beforehand, tables to learn from, groups for ArviZ."""

import numpy as np

from numpyro_kme import _checks
from numpyro_kme.problem import Problem
from numpyro_kme.simulations import Simulations


def check_sites(problem: Problem) -> None:
    """What can be said before any simulation is run."""
    for site, y in problem.observations.items():
        _checks.finite(f"observation at {site!r}", y)
        simulator = problem.simulators[site].simulator
        _checks.require(
            simulator.batch_shape == simulator.groups,
            f"Site {site!r} holds {simulator.batch_shape} draws of the same parameters along plates. Make the data set one "
            "event of the simulator and compare it as a whole: "
            "form=KernelMeans(data_kernel=kernels.EmpiricalMeasure(...)).",
        )


def training_table(simulations: Simulations, problem: Problem, site: str) -> tuple[np.ndarray, np.ndarray]:
    """Arguments `(m, p)` and outputs `(m, *event)` of single calls, from simulations that may run along plates."""
    simulator = problem.simulators[site].simulator
    arguments, x = np.asarray(simulations.arguments[site]), np.asarray(simulations.x[site])
    x = x.reshape(len(x), *simulator.batch_shape, *simulator.event_shape)
    return arguments.reshape(-1, arguments.shape[-1]), x.reshape(-1, *simulator.event_shape)


def groups(simulations: Simulations, problem: Problem) -> dict[str, dict[str, np.ndarray]]:
    """The simulations and the observation as ArviZ groups."""
    chain = lambda tree: {name: np.asarray(value)[None] for name, value in tree.items()}  # noqa: E731
    failed = {"failed_simulations": chain(simulations.failed)} if simulations.failures else {}
    return {
        "prior": chain({**simulations.latents, **simulations.deterministics}),
        "prior_predictive": chain(simulations.x),
        "observed_data": problem.observations,
        **failed,
    }
