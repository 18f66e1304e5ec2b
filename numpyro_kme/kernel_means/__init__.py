"""Kernel means likelihoods: learnt from simulations, evaluated at any observation."""

from numpyro_kme.kernel_means.base import Expansion, LikelihoodAt, Surrogate

__all__ = ["Expansion", "LikelihoodAt", "Surrogate"]
