"""Simulations {(theta_j, x_j)} of a model: drawn, run anywhere, kept on disk, never lost in silence."""

from numpyro_kme._core import SavedFileError
from numpyro_kme.models.command import Command
from numpyro_kme.simulations.executors import Failure, SimulationError
from numpyro_kme.simulations.simulate import Penalise, Plan, Retry, simulate
from numpyro_kme.simulations.simulations import SimulatedMissing, Simulations
from numpyro_kme.simulations.store import Store, StoreError

__all__ = ["Command", "Plan", "SavedFileError", "Simulations", "Store", "StoreError", "simulate"]
__all__ += ["Failure", "Penalise", "Retry", "SimulatedMissing", "SimulationError"]  # where simulations fail
