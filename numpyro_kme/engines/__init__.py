"""Inference engines: settings, `run`, and a posterior."""

from numpyro_kme._core import EffectiveSampleSizeError
from numpyro_kme.engines.base import Engine, SimulationEngine, cite
from numpyro_kme.engines.discrepancy_abc import K2ABC, DiscrepancyWeights, RejectionABC
from numpyro_kme.engines.kelfi import KELFI
from numpyro_kme.engines.kernel_recursive_abc import KernelRecursiveABC, PointPosterior
from numpyro_kme.engines.learnt_likelihoods import FromPosterior, FromVariance, Proposal
from numpyro_kme.engines.learnt_posterior import LearntPosterior
from numpyro_kme.engines.posterior import Posterior
from numpyro_kme.engines.posterior_bootstrap import BootstrapPosterior, PosteriorBootstrap
from numpyro_kme.engines.posteriors import Posteriors
from numpyro_kme.engines.reference_table import ReferenceTable
from numpyro_kme.engines.regression_abc import DistributionRegressionABC, KernelABC, KernelBayes
from numpyro_kme.engines.weighting import SignedWeights, WeightedPosterior, WeightingMethod

__all__ = ["KELFI", "FromPosterior", "FromVariance", "PosteriorBootstrap", "Proposal", "cite"]
__all__ += ["K2ABC", "DistributionRegressionABC", "KernelABC", "KernelBayes", "KernelRecursiveABC", "RejectionABC"]
__all__ += ["BootstrapPosterior", "EffectiveSampleSizeError", "LearntPosterior", "PointPosterior"]
__all__ += ["Posterior", "Posteriors", "WeightedPosterior"]
__all__ += ["Engine", "SimulationEngine"]  # to extend
__all__ += ["DiscrepancyWeights", "ReferenceTable", "SignedWeights", "WeightingMethod"]
