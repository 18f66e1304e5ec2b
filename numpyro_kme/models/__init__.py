"""NumPyro models with simulators: the simulator site, what a model consists of, and coordinates of its parameters."""

from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.lifting import LiftedNoise, NoiseNotLifted, lift_noise
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import FromNoise
from numpyro_kme.models.unconstrained import Unconstrained

__all__ = ["Coordinates", "FromNoise", "LiftedNoise", "NoiseNotLifted", "Problem", "Simulator", "Unconstrained"]
__all__ += ["lift_noise"]
