r"""Luria and Delbruck's fluctuation test: resistant bacteria in parallel cultures.

While a culture grows there are $M \sim \mathrm{Poisson}(m)$ mutations. A mutant that arises when the culture has a
proportion $u$ of its final size, uniform over cell divisions, leaves $\lfloor 1/u \rfloor$ descendants:

$$x = \sum_{i=1}^M \lfloor 1 / u_i \rfloor,\qquad u_i \sim U(0, 1)$$

The distribution has no mean, and a recursion gives its probabilities.

References: data: Luria and Delbruck (1943), Genetics 28, experiments 15, 16 and 17 of their second table; the model:
Lea and Coulson (1949), Journal of Genetics 49; the recursion: Ma, Sandri and Sarkar (1992), Journal of Applied
Probability 29. The prior is ours.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("log_m",)
MOST = 256
"""Mutations in a culture; more are left out."""
FINAL = 1e6
"""The largest number of descendants of one mutant."""
EXPERIMENT_15 = np.array([6.0, 5, 10, 8, 24, 13, 165, 15, 6, 10])
EXPERIMENT_16 = np.array([1.0, 0, 3, 0, 0, 5, 0, 5, 0, 6, 107, 0, 0, 0, 1, 0, 0, 64, 0, 35])
EXPERIMENT_17 = np.array([1.0, 0, 0, 7, 0, 303, 0, 0, 3, 48, 1, 4])
"""Resistant bacteria in each culture of three experiments."""
OBSERVED = EXPERIMENT_16


def mutants(rng_key, log_m):
    """Resistant bacteria in one culture, a scalar, at the log of the mean number of mutations."""
    keys = jax.random.split(rng_key)
    mutations = jax.random.poisson(keys[0], jnp.exp(log_m))
    u = jax.random.uniform(keys[1], (MOST,), jnp.result_type(log_m, float), minval=1.0 / FINAL)
    return jnp.sum(jnp.where(jnp.arange(MOST) < mutations, jnp.floor(1.0 / u), 0.0))


def probabilities(m, size):
    """Probabilities of 0 to `size - 1` resistant bacteria, `(size,)`, by the recursion; `m` is the mean number of
    mutations."""
    p = np.empty(size)
    p[0] = np.exp(-m)
    for n in range(1, size):
        p[n] = m / n * np.sum(p[:n] / (n + 1.0 - np.arange(n)))
    return p


def model(x=None):
    """The logarithm `log_m` of the mean number of mutations, and cultures `x` along a plate, 20 or as many as are
    observed."""
    log_m = numpyro.sample("log_m", dist.Normal(0.0, 1.5))
    with numpyro.plate("cultures", len(OBSERVED) if x is None else len(x)):
        numpyro.sample("x", Simulator(mutants, log_m), obs=x)
