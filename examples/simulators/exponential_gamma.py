r"""Mean of 15 exponential draws with a gamma prior on their rate: a posterior known in closed form.

$\theta \sim \mathrm{Gamma}(2, \mathrm{rate}\ 1/2)$, $x = \frac{1}{15}\sum_{i=1}^{15} e_i$ with $e_i \sim
\mathrm{Exp}(\theta)$, so that $\theta \mid x \sim \mathrm{Gamma}(17, \mathrm{rate}\ 1/2 + 15 x)$.

References: Hsu and Ramos (2019), AISTATS; the settings that the paper leaves open are ours.
"""

import jax
import jax.numpy as jnp
import scipy.stats

DRAWS = 15
CONCENTRATION, RATE = 2.0, 0.5
TRUTH = 4.0


def sample_mean(rng_key, theta):
    """Mean of 15 exponential draws with rate `theta`; a scalar."""
    return jnp.mean(jax.random.exponential(rng_key, (DRAWS,), jnp.result_type(theta, float))) / theta


def log_sample_mean(rng_key, theta):
    """Logarithm of the mean of 15 exponential draws with rate `theta`; a scalar."""
    return jnp.log(sample_mean(rng_key, theta))


def exact_posterior(mean):
    """The posterior given the sample mean, a frozen `scipy.stats.gamma`."""
    return scipy.stats.gamma(CONCENTRATION + DRAWS, scale=1 / (RATE + DRAWS * mean))
