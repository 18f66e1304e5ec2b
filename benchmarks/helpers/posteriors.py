"""Posteriors on a grid, and how far the draws of four chains of NUTS are from them."""

import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

AGREEMENT = ("mean: error / sd", "worst", "sd: relative error", "worst", "worst R-hat", "least ESS")


def normalised(log_p):
    """Probabilities from log weights."""
    p = np.exp(log_p - log_p.max())
    return p / p.sum()


def moments(p, values):
    """Mean and standard deviation of values with probabilities `p`, of shapes that broadcast."""
    mean = np.sum(p * values)
    return mean, np.sqrt(np.sum(p * np.square(values - mean)))


def four_chains(model, num_warmup, num_samples, **settings):
    """NUTS in four vectorised chains."""
    lengths = dict(num_warmup=num_warmup, num_samples=num_samples, num_chains=4)
    return MCMC(NUTS(model, **settings), **lengths, chain_method="vectorized", progress_bar=False)


def agreement(chains, mean, sd):
    """Errors of chains `(4, n)` against the exact mean and standard deviation, and their diagnostics."""
    chains = np.asarray(chains)
    return {
        "error": float(chains.mean() - mean) / sd,
        "sd error": float(chains.std()) / sd - 1.0,
        "rhat": float(split_gelman_rubin(chains)),
        "ess": float(effective_sample_size(chains)),
    }


def summary(found):
    """The columns `AGREEMENT` of several of these."""
    error, sd_error, rhat, ess = (np.abs([one[key] for one in found]) for key in ("error", "sd error", "rhat", "ess"))
    return error.mean(), error.max(), sd_error.mean(), sd_error.max(), f"{rhat.max():.4f}", ess.min()
