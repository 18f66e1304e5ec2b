"""NumPyro models with simulators: the simulator site, what a model consists of, and coordinates of its parameters."""

from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.low_discrepancy import node_keys
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import FromNoise
from numpyro_kme.models.unconstrained import Unconstrained

__all__ = ["Coordinates", "FromNoise", "Problem", "Simulator", "Unconstrained", "node_keys"]
