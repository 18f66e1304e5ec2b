"""The location-scale kernel means likelihood: residuals are embedded in place of statistics."""

from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans

__all__ = [
    "ResidualKernelMeans",
]
