"""Approximate Bayesian computation as functions, without a model."""

from numpyro_kme.abc.discrepancies import OutOfDistributionCheck, discrepancies_to, out_of_distribution_check
from numpyro_kme.abc.weighting import (
    RegressionAdjustment,
    RejectionWeights,
    SoftWeights,
    effective_sample_size,
    recursive_abc_step,
    rejection_weights,
    soft_abc_weights,
)
from numpyro_kme.kernels.low_rank import DistributionRegression

__all__ = ["DistributionRegression", "OutOfDistributionCheck", "RegressionAdjustment", "RejectionWeights"]
__all__ += ["SoftWeights", "discrepancies_to", "effective_sample_size", "out_of_distribution_check"]
__all__ += ["recursive_abc_step", "rejection_weights", "soft_abc_weights"]
