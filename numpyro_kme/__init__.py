"""Likelihood-free Bayesian inference inside NumPyro, by kernel mean embeddings."""

from importlib.metadata import version

from numpyro_kme import handlers, kernels, measures
from numpyro_kme.coordinates import Coordinates
from numpyro_kme.discrepancies import squared_mmd
from numpyro_kme.embeddings import ConditionalMeanEmbedding, MeanEmbedding
from numpyro_kme.engines.kelfi import KELFI
from numpyro_kme.herding import herd
from numpyro_kme.kernel_means.distribution import FittedLikelihood, KernelMeansLikelihood, fit_likelihood
from numpyro_kme.kernel_means.learning import Learner
from numpyro_kme.kernel_means.objectives import LeaveOneOut, MarginalLikelihood
from numpyro_kme.kernel_means.published import KernelMeans
from numpyro_kme.problem import Problem
from numpyro_kme.simulations import Simulations, simulate
from numpyro_kme.simulator import Simulator

__version__ = version("numpyro-kme")

__all__ = [
    "KELFI",
    "ConditionalMeanEmbedding",
    "Coordinates",
    "FittedLikelihood",
    "KernelMeans",
    "KernelMeansLikelihood",
    "Learner",
    "LeaveOneOut",
    "MarginalLikelihood",
    "MeanEmbedding",
    "Problem",
    "Simulations",
    "Simulator",
    "fit_likelihood",
    "handlers",
    "herd",
    "kernels",
    "measures",
    "simulate",
    "squared_mmd",
]
