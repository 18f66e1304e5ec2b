"""Samplers of densities that are learnt: tempered sequential Monte Carlo and adaptive importance sampling."""

from numpyro_kme.samplers.importance import StandardErrors, WeightedParticles, adaptive_importance_sampling
from numpyro_kme.samplers.tempering import Tempered, temper

__all__ = ["StandardErrors", "Tempered", "WeightedParticles", "adaptive_importance_sampling", "temper"]
