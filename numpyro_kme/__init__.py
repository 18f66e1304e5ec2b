"""Likelihood-free Bayesian inference inside NumPyro, by kernel mean embeddings."""

from importlib.metadata import version

from numpyro_kme import handlers, kernels, measures
from numpyro_kme.coordinates import Coordinates
from numpyro_kme.discrepancies import squared_mmd
from numpyro_kme.embeddings import ConditionalMeanEmbedding, MeanEmbedding
from numpyro_kme.engines.kelfi import KELFI
from numpyro_kme.engines.posterior_bootstrap import PosteriorBootstrap
from numpyro_kme.from_noise import FromNoise
from numpyro_kme.herding import herd
from numpyro_kme.kernel_means.distribution import FittedLikelihood, KernelMeansLikelihood, fit_likelihood
from numpyro_kme.kernel_means.learning import Learner
from numpyro_kme.kernel_means.objectives import LeaveOneOut, LeaveOneOutPredictive, MarginalLikelihood
from numpyro_kme.kernel_means.posterior import KernelMeansPosterior
from numpyro_kme.kernel_means.published import KernelMeans
from numpyro_kme.losses import MMD, NegativeLogLikelihood, Wasserstein
from numpyro_kme.problem import Problem
from numpyro_kme.simulations import Simulations, simulate
from numpyro_kme.simulator import Simulator

__version__ = version("numpyro-kme")

__all__ = [
    "KELFI",
    "MMD",
    "ConditionalMeanEmbedding",
    "Coordinates",
    "FittedLikelihood",
    "FromNoise",
    "KernelMeans",
    "KernelMeansLikelihood",
    "KernelMeansPosterior",
    "Learner",
    "LeaveOneOut",
    "LeaveOneOutPredictive",
    "MarginalLikelihood",
    "MeanEmbedding",
    "NegativeLogLikelihood",
    "PosteriorBootstrap",
    "Problem",
    "Simulations",
    "Simulator",
    "Wasserstein",
    "fit_likelihood",
    "handlers",
    "herd",
    "kernels",
    "measures",
    "simulate",
    "squared_mmd",
]
