"""What a posterior bootstrap minimises, and the simulators it minimises over."""

from numpyro_kme.losses.base import DrawsObjective, Expansion, Loss, Objective
from numpyro_kme.losses.generator import DrawnNoise, Generator, Nodes, Noise, NormalNoise, UniformNoise
from numpyro_kme.losses.likelihood import NegativeLogLikelihood
from numpyro_kme.losses.mmd import MMD
from numpyro_kme.losses.wasserstein import Wasserstein

__all__ = [
    "MMD",
    "DrawnNoise",
    "DrawsObjective",
    "Expansion",
    "Generator",
    "Loss",
    "NegativeLogLikelihood",
    "Nodes",
    "Noise",
    "NormalNoise",
    "Objective",
    "UniformNoise",
    "Wasserstein",
]
