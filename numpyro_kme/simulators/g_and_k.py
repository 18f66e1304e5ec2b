r"""The g-and-k distribution: easy to draw from, without a density in closed form.

$$x = a + b\,\big(1 + 0.8 \tanh(g z / 2)\big)\,(1 + z^2)^k\, z,\qquad z \sim N(0, 1)$$

$a$ is the median, $b$ the scale, $g$ the skewness, $k$ the weight of the tails.

References: Rayner and MacGillivray (2002), Statistics and Computing 12; prior and true values of the experiment with
outliers: Dellaporta et al. (2022), AISTATS; octile statistics: Drovandi and Pettitt (2011), Computational Statistics
and Data Analysis 55.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("a", "b", "g", "k")
TRUTH = np.array([3.0, 1.0, 1.0, 0.5])
"""Of the published experiment, in the order of `PARAMETERS`."""
LENGTH_SCALE = 0.15
"""Of the Gaussian kernel of the published experiment."""
SIZE = 2048
"""Data of the published experiment."""


def g_and_k(rng_key, a, b, g, k):
    """One draw, a scalar."""
    return from_normal(jax.random.normal(rng_key), a, b, g, k)


def from_normal(z, a, b, g, k):
    """The value at standard normal scores `z`: the quantile function at the probability of `z`."""
    return a + b * (1.0 + 0.8 * jnp.tanh(0.5 * g * z)) * (1.0 + z**2) ** k * z


def octile_statistics(draws):
    """Median, log of the width, skewness and log of the weight of the tails of a sample `(n,)`, made of its seven
    octiles; `(4,)`."""
    e = jnp.quantile(draws, jnp.arange(1, 8) / 8)
    width, tails = e[5] - e[1], e[6] - e[4] + e[2] - e[0]
    skew = (e[5] + e[1] - 2 * e[3]) / width
    return jnp.stack([e[3], jnp.log(width), skew, jnp.log(tails / width)])


def contaminated(rng_key, share, size=SIZE):
    """The published data: `size` draws at `TRUTH`, a share of them moved by 50, half of these to each side;
    `(size,)`."""
    x = np.array(jax.vmap(lambda key: g_and_k(key, *TRUTH))(jax.random.split(rng_key, size)), np.float64)
    far = int(share * size)
    x[: far // 2] += 50.0
    x[far // 2 : far] -= 50.0
    return x


def model(x=None):
    """Parameters uniform between 0 and 10, and draws along a plate, `(2048,)` or as many as are observed."""
    parameters = [numpyro.sample(name, dist.Uniform(0.0, 10.0)) for name in PARAMETERS]
    with numpyro.plate("data", SIZE if x is None else len(x)):
        numpyro.sample("x", Simulator(g_and_k, *parameters), obs=x)
