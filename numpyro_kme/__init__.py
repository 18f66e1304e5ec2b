"""Likelihood-free Bayesian inference inside NumPyro, by kernel mean embeddings."""

from importlib.metadata import version

from numpyro_kme import diagnostics, handlers, kernels, measures, plots
from numpyro_kme.abc_weights import (
    RejectionWeights,
    Remoteness,
    SoftWeights,
    discrepancies_to,
    effective_sample_size,
    rejection_weights,
    remoteness,
    soft_abc_weights,
)
from numpyro_kme.citations import cite
from numpyro_kme.coordinates import Coordinates
from numpyro_kme.discrepancies import squared_mmd
from numpyro_kme.distribution_regression import DistributionRegression
from numpyro_kme.embeddings import ConditionalMeanEmbedding, MeanEmbedding
from numpyro_kme.engines._rounds import FromPosterior, FromVariance, Proposal
from numpyro_kme.engines.distribution_regression import DistributionRegressionABC
from numpyro_kme.engines.k2abc import K2ABC
from numpyro_kme.engines.kelfi import KELFI
from numpyro_kme.engines.kernel_abc import KernelABC
from numpyro_kme.engines.kernel_bayes import KernelBayes
from numpyro_kme.engines.kernel_recursive_abc import KernelRecursiveABC
from numpyro_kme.engines.posterior_bootstrap import PosteriorBootstrap
from numpyro_kme.engines.rejection_abc import RejectionABC
from numpyro_kme.filtering import KernelBayesFilter
from numpyro_kme.from_noise import FromNoise
from numpyro_kme.herding import herd
from numpyro_kme.hypothesis_tests import PermutationTest, hsic, hsic_test, mmd_test
from numpyro_kme.kernel_bayes import (
    KernelBayesRule,
    conditional_embedding,
    kernel_bayes_rule,
    kernel_sum_rule,
    pre_image,
)
from numpyro_kme.kernel_learning import length_scale_model
from numpyro_kme.kernel_means.distribution import FittedLikelihood, KernelMeansLikelihood, fit_likelihood
from numpyro_kme.kernel_means.learning import Learner, Tied
from numpyro_kme.kernel_means.objectives import LeaveOneOut, LeaveOneOutPredictive, MarginalLikelihood
from numpyro_kme.kernel_means.posterior import KernelMeansPosterior
from numpyro_kme.kernel_means.published import KernelMeans
from numpyro_kme.kernel_means.residual import ResidualKernelMeans
from numpyro_kme.kernel_means.solves import DenseSolve, LowRankSolve
from numpyro_kme.length_scales import (
    BayesianKernelLearning,
    CrossValidation,
    LearntLengthScale,
    LengthScaleRule,
    MedianHeuristic,
    learn_length_scale,
    shrunk_embedding,
    spread_out,
)
from numpyro_kme.losses import MMD, NegativeLogLikelihood, Wasserstein
from numpyro_kme.low_rank import LowRank, LowRankRidge
from numpyro_kme.mmd_estimators import Fourier, LinearTime, Quadratic
from numpyro_kme.noise import CommonNoise, FreshNoise, LatentNoise, simulation_key
from numpyro_kme.parameter_choice import (
    ChosenSettings,
    KernelBayesSettings,
    choose_by_folds,
    choose_by_halves,
    choose_by_prediction,
    kernel_bayes_candidates,
)
from numpyro_kme.problem import Problem
from numpyro_kme.pseudo_marginal import PseudoMarginal
from numpyro_kme.recursive_abc import RecursiveABC, kernel_recursive_abc, recursive_abc_step
from numpyro_kme.rescoring import NoiseSensitivity, estimate_spread, noise_sensitivity
from numpyro_kme.simulations import Command, Penalise, Retry, Simulations, simulate
from numpyro_kme.simulator import Simulator
from numpyro_kme.surrogate_check import SurrogateCheck, check_surrogate
from numpyro_kme.synthetic_likelihood import SyntheticLikelihood
from numpyro_kme.weight_calibration import WeightCalibration, calibrate_weight

__version__ = version("numpyro-kme")

__all__ = [
    "K2ABC",
    "KELFI",
    "MMD",
    "BayesianKernelLearning",
    "ChosenSettings",
    "Command",
    "CommonNoise",
    "ConditionalMeanEmbedding",
    "Coordinates",
    "CrossValidation",
    "DenseSolve",
    "DistributionRegression",
    "DistributionRegressionABC",
    "FittedLikelihood",
    "Fourier",
    "FreshNoise",
    "FromNoise",
    "FromPosterior",
    "FromVariance",
    "KernelABC",
    "KernelBayes",
    "KernelBayesFilter",
    "KernelBayesRule",
    "KernelBayesSettings",
    "KernelMeans",
    "KernelMeansLikelihood",
    "KernelMeansPosterior",
    "KernelRecursiveABC",
    "LatentNoise",
    "Learner",
    "LearntLengthScale",
    "LeaveOneOut",
    "LeaveOneOutPredictive",
    "LengthScaleRule",
    "LinearTime",
    "LowRank",
    "LowRankRidge",
    "LowRankSolve",
    "MarginalLikelihood",
    "MeanEmbedding",
    "MedianHeuristic",
    "NegativeLogLikelihood",
    "NoiseSensitivity",
    "Penalise",
    "PermutationTest",
    "PosteriorBootstrap",
    "Problem",
    "Proposal",
    "PseudoMarginal",
    "Quadratic",
    "RecursiveABC",
    "RejectionABC",
    "RejectionWeights",
    "Remoteness",
    "ResidualKernelMeans",
    "Retry",
    "Simulations",
    "Simulator",
    "SoftWeights",
    "SurrogateCheck",
    "SyntheticLikelihood",
    "Tied",
    "Wasserstein",
    "WeightCalibration",
    "calibrate_weight",
    "check_surrogate",
    "choose_by_folds",
    "choose_by_halves",
    "choose_by_prediction",
    "cite",
    "conditional_embedding",
    "diagnostics",
    "discrepancies_to",
    "effective_sample_size",
    "estimate_spread",
    "fit_likelihood",
    "handlers",
    "herd",
    "hsic",
    "hsic_test",
    "kernel_bayes_candidates",
    "kernel_bayes_rule",
    "kernel_recursive_abc",
    "kernel_sum_rule",
    "kernels",
    "learn_length_scale",
    "length_scale_model",
    "measures",
    "mmd_test",
    "noise_sensitivity",
    "plots",
    "pre_image",
    "recursive_abc_step",
    "rejection_weights",
    "remoteness",
    "shrunk_embedding",
    "simulate",
    "simulation_key",
    "soft_abc_weights",
    "spread_out",
    "squared_mmd",
]
