"""What a posterior bootstrap minimises, and the simulators it minimises over."""

from numpyro_kme.losses.base import DrawsObjective, Expansion, Loss, Objective
from numpyro_kme.losses.generator import DrawnNoise, Generator, Nodes, Noise, NormalNoise, UniformNoise
from numpyro_kme.losses.mmd import MMD

__all__ = [
    "MMD",
    "DrawnNoise",
    "DrawsObjective",
    "Expansion",
    "Generator",
    "Loss",
    "Nodes",
    "Noise",
    "NormalNoise",
    "Objective",
    "UniformNoise",
]
