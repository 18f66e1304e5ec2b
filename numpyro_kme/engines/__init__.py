"""Inference engines: settings, `run`, and a posterior."""

from numpyro_kme.engines._learnt_posterior import LearntPosterior
from numpyro_kme.engines._rounds import FromPosterior, FromVariance, Proposal
from numpyro_kme.engines._weighted import WeightedPosterior
from numpyro_kme.engines.base import Engine, RunAgain, Trained
from numpyro_kme.engines.citations import cite
from numpyro_kme.engines.distribution_regression import DistributionRegressionABC
from numpyro_kme.engines.k2abc import K2ABC
from numpyro_kme.engines.kelfi import KELFI
from numpyro_kme.engines.kernel_abc import KernelABC
from numpyro_kme.engines.kernel_bayes import KernelBayes
from numpyro_kme.engines.kernel_recursive_abc import KernelRecursiveABC
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.engines.posterior_bootstrap import BootstrapPosterior, PosteriorBootstrap
from numpyro_kme.engines.rejection_abc import RejectionABC

__all__ = ["KELFI", "FromPosterior", "FromVariance", "PosteriorBootstrap", "Proposal", "cite"]
__all__ += ["K2ABC", "DistributionRegressionABC", "KernelABC", "KernelBayes", "KernelRecursiveABC", "RejectionABC"]
__all__ += ["BootstrapPosterior", "Engine", "LearntPosterior", "Posterior", "RunAgain", "Trained", "WeightedPosterior"]
