"""Kernels on vectors, data sets, time series, rotations and anything a callable compares."""

from numpyro_kme.kernels.base import Kernel, Product, Scaled, Sum, register
from numpyro_kme.kernels.callables import FromCallable
from numpyro_kme.kernels.data_sets import EmpiricalMeasure, EmpiricalMeasureRule, WithLength, cut, lengths, pad
from numpyro_kme.kernels.kernel_learning import (
    BayesianKernelLearning,
    LearntLengthScale,
    farthest_point_design,
    learn_length_scale,
)
from numpyro_kme.kernels.length_scales import (
    CrossValidation,
    KernelRule,
    LengthScaleRule,
    MedianHeuristic,
    median_heuristic,
    median_heuristic_per_dimension,
)
from numpyro_kme.kernels.low_rank import LowRank
from numpyro_kme.kernels.paths import GaussianProcessPath, Signature, SignatureRule
from numpyro_kme.kernels.products import Linear, Polynomial, RotationGaussian, RotationTrace, nearest_rotation
from numpyro_kme.kernels.stationary import (
    DistanceInduced,
    Energy,
    Gaussian,
    GaussianScaleMixture,
    InverseMultiquadric,
    Laplace,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    Stationary,
)

__all__ = ["FromCallable", "Kernel", "Stationary", "register"]
__all__ += ["Gaussian", "InverseMultiquadric", "Laplace", "Matern12", "Matern32", "Matern52", "RationalQuadratic"]
__all__ += ["DistanceInduced", "Energy", "Linear", "Polynomial"]  # without bound
__all__ += ["EmpiricalMeasure", "GaussianProcessPath", "Signature"]
__all__ += ["RotationGaussian", "RotationTrace", "nearest_rotation"]
__all__ += ["WithLength", "cut", "lengths", "pad"]  # of any length
__all__ += ["GaussianScaleMixture", "Product", "Scaled", "Sum"]  # made of kernels
__all__ += ["CrossValidation", "LengthScaleRule", "MedianHeuristic"]  # length scales
__all__ += ["EmpiricalMeasureRule", "KernelRule", "SignatureRule"]  # kernels on whole outputs
__all__ += ["median_heuristic", "median_heuristic_per_dimension"]
__all__ += ["BayesianKernelLearning", "LearntLengthScale", "learn_length_scale"]
__all__ += ["farthest_point_design"]
__all__ += ["LowRank"]
