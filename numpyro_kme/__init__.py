"""Likelihood-free Bayesian inference inside NumPyro, by kernel mean embeddings."""

from importlib.metadata import version

from numpyro_kme import (
    abc,
    bootstrap,
    diagnostics,
    embeddings,
    engines,
    kernels,
    likelihoods,
    losses,
    mcmc,
    models,
    plots,
    samplers,
    simulations,
)
from numpyro_kme.diagnostics import compare
from numpyro_kme.embeddings import herd, mmd_test, squared_mmd
from numpyro_kme.engines import (
    K2ABC,
    KELFI,
    DistributionRegressionABC,
    Engine,
    FromPosterior,
    FromVariance,
    KernelABC,
    KernelBayes,
    KernelRecursiveABC,
    PosteriorBootstrap,
    RejectionABC,
    cite,
)
from numpyro_kme.kernels import BayesianKernelLearning, CrossValidation, MedianHeuristic
from numpyro_kme.likelihoods import (
    KernelMeans,
    KernelMeansLikelihood,
    ResidualKernelMeans,
    SelectedStatistics,
    SemiAutomaticStatistics,
    fit_likelihood,
)
from numpyro_kme.losses import MMD, NegativeLogLikelihood, Wasserstein
from numpyro_kme.mcmc import CommonNoise, FreshNoise, LatentNoise, PseudoMarginal, SyntheticLikelihood, handlers
from numpyro_kme.models import FromNoise, Problem, Simulator
from numpyro_kme.simulations import Command, Penalise, Retry, SimulatedMissing, Simulations, simulate

__version__ = version("numpyro-kme")

__all__ = ["FromNoise", "Problem", "Simulator"]  # a simulator in a model
__all__ += ["Command", "Penalise", "Retry", "SimulatedMissing", "Simulations", "simulate"]  # simulations
__all__ += ["KernelMeans", "KernelMeansLikelihood", "ResidualKernelMeans", "fit_likelihood"]
__all__ += ["SelectedStatistics", "SemiAutomaticStatistics"]  # of raw outputs
__all__ += ["BayesianKernelLearning", "CrossValidation", "MedianHeuristic"]  # length scales
__all__ += ["MMD", "NegativeLogLikelihood", "Wasserstein"]  # losses
__all__ += ["KELFI", "Engine", "FromPosterior", "FromVariance", "PosteriorBootstrap", "cite"]  # engines
__all__ += ["K2ABC", "DistributionRegressionABC", "KernelABC", "KernelBayes", "KernelRecursiveABC", "RejectionABC"]
__all__ += ["CommonNoise", "FreshNoise", "LatentNoise", "PseudoMarginal", "SyntheticLikelihood", "handlers"]  # MCMC
__all__ += ["compare"]  # models
__all__ += ["herd", "mmd_test", "squared_mmd"]  # embeddings
__all__ += ["abc", "bootstrap", "diagnostics", "embeddings", "engines", "kernels", "likelihoods", "losses", "mcmc"]
__all__ += ["models", "plots", "samplers", "simulations"]
