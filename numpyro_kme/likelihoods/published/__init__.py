"""The kernel means likelihood as published: a conditional mean embedding of data kernels."""

from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.learning import Learner, Tied
from numpyro_kme.likelihoods.published.objectives import LeaveOneOut, LeaveOneOutPredictive, MarginalLikelihood
from numpyro_kme.likelihoods.published.solves import DenseSolve, LowRankSolve

__all__ = [
    "DenseSolve",
    "KernelMeans",
    "Learner",
    "LeaveOneOut",
    "LeaveOneOutPredictive",
    "LowRankSolve",
    "MarginalLikelihood",
    "Tied",
]
