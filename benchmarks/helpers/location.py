"""A location with outliers: the model, by a simulator with its noise, and the standard posterior."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme


def shift(noise, mean):
    return mean + noise


LOCATION = kme.FromNoise(shift, dist.Normal(0.0, 1.0))
PRIOR = dist.Normal(0.0, 5.0)


def model(x):
    """Draws around a mean, by a simulator that is written with its noise."""
    mean = numpyro.sample("mean", PRIOR)
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(LOCATION, mean), obs=x)


def log_standard(x, grid):
    """The standard log posterior on a grid."""
    return np.asarray(PRIOR.log_prob(jnp.asarray(grid))) - 0.5 * np.sum(np.square(grid[:, None] - x[None]), axis=1)
