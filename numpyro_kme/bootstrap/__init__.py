"""The mathematics of the posterior bootstrap: random weights, emulated embeddings, and minimisers."""

from numpyro_kme.bootstrap.replicates import Replicates
from numpyro_kme.bootstrap.weights import DirichletProcess, Reweightings

__all__ = ["DirichletProcess", "Replicates", "Reweightings"]
