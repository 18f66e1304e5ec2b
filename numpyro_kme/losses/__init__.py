"""What a posterior bootstrap minimises, and the simulators it minimises over."""

from numpyro_kme.losses.base import Loss, NegativeLogLikelihood, TaylorExpansion, TwoSampleObjective, WeightedObjective
from numpyro_kme.losses.generator import DrawnNoise, Generator, Noise, NormalNoise, QuadratureNodes, UniformNoise
from numpyro_kme.losses.mmd import MMD
from numpyro_kme.losses.wasserstein import Wasserstein

__all__ = [
    "MMD",
    "DrawnNoise",
    "Generator",
    "Loss",
    "NegativeLogLikelihood",
    "Noise",
    "NormalNoise",
    "QuadratureNodes",
    "TaylorExpansion",
    "TwoSampleObjective",
    "UniformNoise",
    "Wasserstein",
    "WeightedObjective",
]
