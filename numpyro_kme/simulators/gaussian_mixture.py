r"""A normal around two parameters whose standard deviation is 1 or 0.1 with equal odds.

$$x \sim \tfrac12 N(\theta, I) + \tfrac12 N(\theta, 0.01\, I)$$

References: Sisson, Fan and Tanaka (2007), PNAS 104, in one dimension; in two, with this prior, Lueckmann et al. (2021),
AISTATS.
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("theta_1", "theta_2")


def gaussian_mixture(rng_key, theta):
    """A point of the shape of `theta`, `(2,)`."""
    coin_key, noise_key = jax.random.split(rng_key)
    scale = jnp.where(jax.random.bernoulli(coin_key), 1.0, 0.1)
    return theta + scale * jax.random.normal(noise_key, theta.shape)


def prior():
    """Uniform on the square from -10 to 10."""
    return dist.Uniform(-10.0, 10.0).expand([2]).to_event(1)


def model(x=None):
    """Parameters `theta` and one point `x`, `(2,)`."""
    theta = numpyro.sample("theta", prior())
    numpyro.sample("x", Simulator(gaussian_mixture, theta), obs=x)
