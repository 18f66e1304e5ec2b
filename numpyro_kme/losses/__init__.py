"""Discrepancies between data and a model, and the models that they compare with."""

from numpyro_kme.losses.base import Embedding, Family, Loss, NegativeLogLikelihood, Nodes
from numpyro_kme.losses.mmd import MMD
from numpyro_kme.losses.wasserstein import Wasserstein

__all__ = ["MMD", "Embedding", "Family", "Loss", "NegativeLogLikelihood", "Nodes", "Wasserstein"]
