"""Models in, models out, for NumPyro's own MCMC: surrogates, synthetic and generalised likelihoods, noise."""

from numpyro_kme.mcmc import handlers
from numpyro_kme.mcmc.chain_checks import (
    NoiseSensitivity,
    SurrogateCheck,
    check_surrogate,
    log_estimate_sd,
    noise_sensitivity,
)
from numpyro_kme.mcmc.densities import SyntheticLikelihood, length_scale_model
from numpyro_kme.mcmc.noise import CommonNoise, FreshNoise, LatentNoise, simulation_key
from numpyro_kme.mcmc.pseudo_marginal import PseudoMarginal

__all__ = ["CommonNoise", "FreshNoise", "LatentNoise", "NoiseSensitivity", "PseudoMarginal", "SurrogateCheck"]
__all__ += ["check_surrogate", "handlers", "length_scale_model", "log_estimate_sd", "noise_sensitivity"]
__all__ += ["SyntheticLikelihood", "simulation_key"]
