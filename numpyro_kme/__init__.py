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
    SyntheticLikelihood,
    fit_likelihood,
)
from numpyro_kme.losses import MMD, NegativeLogLikelihood, Wasserstein
from numpyro_kme.mcmc import CommonNoise, FreshNoise, LatentNoise, PseudoMarginal, handlers
from numpyro_kme.models import FromNoise, Problem, Simulator
from numpyro_kme.simulations import Command, Penalise, Retry, Simulations, simulate

__version__ = version("numpyro-kme")

__all__ = [  # noqa: RUF022  (by stage of the work)
    # A simulator in a model
    "FromNoise",
    "Problem",
    "Simulator",
    # Simulations
    "Command",
    "Penalise",
    "Retry",
    "Simulations",
    "simulate",
    # Learnt likelihoods
    "KernelMeans",
    "KernelMeansLikelihood",
    "ResidualKernelMeans",
    "SyntheticLikelihood",
    "fit_likelihood",
    # Length scales
    "BayesianKernelLearning",
    "CrossValidation",
    "MedianHeuristic",
    # Losses
    "MMD",
    "NegativeLogLikelihood",
    "Wasserstein",
    # Engines
    "DistributionRegressionABC",
    "Engine",
    "FromPosterior",
    "FromVariance",
    "K2ABC",
    "KELFI",
    "KernelABC",
    "KernelBayes",
    "KernelRecursiveABC",
    "PosteriorBootstrap",
    "RejectionABC",
    "cite",
    # NumPyro's MCMC
    "CommonNoise",
    "FreshNoise",
    "LatentNoise",
    "PseudoMarginal",
    "handlers",
    # Embeddings
    "herd",
    "mmd_test",
    "squared_mmd",
    # The rest, by folder
    "abc",
    "bootstrap",
    "diagnostics",
    "embeddings",
    "engines",
    "kernels",
    "likelihoods",
    "losses",
    "mcmc",
    "models",
    "plots",
    "samplers",
    "simulations",
]
