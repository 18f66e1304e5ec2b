"""The kernel means likelihood of Hsu & Ramos (2019), the published form: embeds data kernels."""

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
