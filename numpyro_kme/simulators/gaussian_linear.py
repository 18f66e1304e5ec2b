r"""Ten means, each seen once with normal noise: $x \sim N(\theta, 0.1\, I)$.

With the prior $N(0, 0.1\, I)$ the posterior is $N(x/2, 0.05\, I)$; with a uniform one it is a truncated normal.

References: Lueckmann et al. (2021), AISTATS, both priors.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = tuple(f"theta_{i}" for i in range(1, 11))
"""Names of the ten means."""


def gaussian_linear(rng_key, theta):
    """`theta` and noise of variance 0.1, of the shape of `theta`."""
    return theta + jnp.sqrt(0.1) * jax.random.normal(rng_key, theta.shape)


def prior():
    """Normal around 0 with variance 0.1."""
    return dist.Normal(0.0, np.sqrt(0.1)).expand([10]).to_event(1)


def uniform_prior():
    """Uniform on the cube from -1 to 1."""
    return dist.Uniform(-1.0, 1.0).expand([10]).to_event(1)


def model(x=None):
    """Parameters `theta` with the normal prior, and `x`, `(10,)`."""
    theta = numpyro.sample("theta", prior())
    numpyro.sample("x", Simulator(gaussian_linear, theta), obs=x)
