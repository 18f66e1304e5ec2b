r"""Mean of 15 exponential draws with a gamma prior on their rate: a posterior known in closed form.

$\theta \sim \mathrm{Gamma}(2, \mathrm{rate}\ 1/2)$, $x = \frac{1}{15}\sum_{i=1}^{15} e_i$ with $e_i \sim
\mathrm{Exp}(\theta)$, so that $\theta \mid x \sim \mathrm{Gamma}(17, \mathrm{rate}\ 1/2 + 15 x)$.

References: Hsu and Ramos (2019), AISTATS; the settings that the paper leaves open are ours.
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("theta",)
DRAWS = 15
"""Whose mean is observed."""
CONCENTRATION, RATE = 2.0, 0.5
"""Of the gamma prior."""
TRUTH = 4.0
"""Rate at which an observation may be simulated."""


def sample_mean(rng_key, theta):
    """Mean of 15 exponential draws with rate `theta`; a scalar."""
    return jnp.mean(jax.random.exponential(rng_key, (DRAWS,), jnp.result_type(theta, float))) / theta


def exact_posterior(mean):
    """The posterior given the sample mean, a frozen `scipy.stats.gamma`."""
    import scipy.stats

    return scipy.stats.gamma(CONCENTRATION + DRAWS, scale=1 / (RATE + DRAWS * mean))


def model(x=None):
    """The rate `theta` and the sample mean `x`, a scalar."""
    theta = numpyro.sample("theta", dist.Gamma(CONCENTRATION, RATE))
    numpyro.sample("x", Simulator(sample_mean, theta), obs=x)
