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
from numpyro_kme.kernel_means.residual import ResidualKernelMeans
from numpyro_kme.losses import MMD, NegativeLogLikelihood, Wasserstein
from numpyro_kme.noise import CommonNoise, FreshNoise, LatentNoise, simulation_key
from numpyro_kme.problem import Problem
from numpyro_kme.pseudo_marginal import PseudoMarginal
from numpyro_kme.rescoring import NoiseSensitivity, noise_sensitivity
from numpyro_kme.simulations import Command, Penalise, Retry, Simulations, simulate
from numpyro_kme.simulator import Simulator
from numpyro_kme.surrogate_check import SurrogateCheck, check_surrogate
from numpyro_kme.weight_calibration import WeightCalibration, calibrate_weight

__version__ = version("numpyro-kme")

__all__ = [
    "KELFI",
    "MMD",
    "Command",
    "CommonNoise",
    "ConditionalMeanEmbedding",
    "Coordinates",
    "FittedLikelihood",
    "FreshNoise",
    "FromNoise",
    "KernelMeans",
    "KernelMeansLikelihood",
    "KernelMeansPosterior",
    "LatentNoise",
    "Learner",
    "LeaveOneOut",
    "LeaveOneOutPredictive",
    "MarginalLikelihood",
    "MeanEmbedding",
    "NegativeLogLikelihood",
    "NoiseSensitivity",
    "Penalise",
    "PosteriorBootstrap",
    "Problem",
    "PseudoMarginal",
    "ResidualKernelMeans",
    "Retry",
    "Simulations",
    "Simulator",
    "SurrogateCheck",
    "Wasserstein",
    "WeightCalibration",
    "calibrate_weight",
    "check_surrogate",
    "fit_likelihood",
    "handlers",
    "herd",
    "kernels",
    "measures",
    "noise_sensitivity",
    "simulate",
    "simulation_key",
    "squared_mmd",
]
