"""Models with a standard normal latent whose posterior is known: one number with noise, and draws under a plate."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme import Simulator

NOISE = 0.5
X = np.array([0.8])


def shifted(rng_key, theta):
    """One draw from `N(theta, 0.5^2)`."""
    return theta + NOISE * jax.random.normal(rng_key, (1,), jnp.result_type(theta))


def conjugate(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.deterministic("twice", 2 * theta)
    numpyro.sample("x", Simulator(shifted, theta), obs=x)


def one_draw(rng_key, theta):
    """One draw from `N(theta, 1)`."""
    return theta + jax.random.normal(rng_key, (), jnp.result_type(theta))


def iid(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("n", 20):
        numpyro.sample("x", Simulator(one_draw, theta), obs=x)
