"""Simulations {(theta_j, x_j)} of a model: drawn, run anywhere, kept on disk, never lost in silence."""

from numpyro_kme.simulations.bank import Simulations
from numpyro_kme.simulations.command import Command
from numpyro_kme.simulations.failures import Failure, Penalise, Retry, SimulationError
from numpyro_kme.simulations.guards import StoreError
from numpyro_kme.simulations.plan import Plan
from numpyro_kme.simulations.simulate import simulate
from numpyro_kme.simulations.store import Store

__all__ = [
    "Command",
    "Failure",
    "Penalise",
    "Plan",
    "Retry",
    "SimulationError",
    "Simulations",
    "Store",
    "StoreError",
    "simulate",
]
