"""Learnt likelihoods: as values, as NumPyro distributions, and the posterior in their coordinates."""

from numpyro_kme.likelihoods.base import Form, KernelExpansion, LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.distribution import FittedLikelihood, KernelMeansLikelihood, fit_likelihood
from numpyro_kme.likelihoods.kernel_statistics import KernelStatistics
from numpyro_kme.likelihoods.learnt_statistics import OfStatistics, SelectedStatistics
from numpyro_kme.likelihoods.posterior import KernelMeansPosterior
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.learning import Hyperparameters, Learner, Tied
from numpyro_kme.likelihoods.published.leave_one_out import LeaveOneOut, MarginalLikelihood
from numpyro_kme.likelihoods.published.solves import DenseSolve, LowRankSolve
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.semi_automatic import SemiAutomaticStatistics
from numpyro_kme.likelihoods.trials.form import KernelExponentialFamily

__all__ = ["FittedLikelihood", "KernelMeansLikelihood", "KernelMeansPosterior", "fit_likelihood"]
# forms
__all__ += ["KernelExponentialFamily", "KernelMeans", "KernelStatistics", "OfStatistics", "ResidualKernelMeans"]
__all__ += ["DenseSolve", "Hyperparameters", "Learner", "LeaveOneOut", "LowRankSolve"]  # published form
__all__ += ["MarginalLikelihood", "Tied"]
__all__ += ["SelectedStatistics", "SemiAutomaticStatistics"]  # learnt statistics
__all__ += ["Form", "KernelExpansion", "LikelihoodAt", "Surrogate"]  # what an author of a form writes
