r"""Lynx and snowshoe hare, from the furs that the Hudson's Bay Company bought in 1900 to 1920.

Predators and prey whose growth varies with the weather,

$$d \log H = (\alpha - \beta L)\,dt + \sigma\,dW_1,\qquad d \log L = (\delta H - \gamma)\,dt + \sigma\,dW_2,$$

with both in thousands of pelts, started at the counts of 1900, in steps of a twentieth of a year.

References: data: Odum (1953), Fundamentals of Ecology, and Howard (2009), whose tables of Hewitt (1921) these are; the
deterministic equations on them, and the priors of the four rates: Carpenter (2018), "Predator-prey population dynamics:
the Lotka-Volterra model in Stan".
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("alpha", "beta", "gamma", "delta", "sigma")
YEARS = np.arange(1900, 1921)
HARE = np.append(
    [30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1],
    [40.3, 57.0, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7],
)
LYNX = np.append(
    [4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4],
    [8.0, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6],
)
"""Thousands of pelts in each year."""
OBSERVED = np.append(
    [3.338939, 2.775241, -0.45226, -0.340842, 0.79439, 0.308735, -0.230223],
    [0.704198, 0.102607, -0.438916, 0.023597, 0.62798, 0.887581],
)
"""`statistics` of the two series from 1901 on."""
STEPS = 20
"""A year."""


def lynx_hare(rng_key, theta):
    """Logs of hare and lynx in 1901 to 1920, thousands, `(20, 2)`, at `theta` `(5,)` in the order of `PARAMETERS`."""
    alpha, beta, gamma, delta, sigma = theta
    h = 1.0 / STEPS

    def step(state, z):
        hare, lynx = jnp.exp(state)
        drift = jnp.stack([alpha - beta * lynx, delta * hare - gamma])
        return jnp.clip(state + h * drift + jnp.sqrt(h) * sigma * z, -10.0, 10.0), state

    start = jnp.log(jnp.array([HARE[0], LYNX[0]]))
    z = jax.random.normal(rng_key, (STEPS * (len(YEARS) - 1) + 1, 2), start.dtype)
    return jax.lax.scan(step, start, z)[1][STEPS::STEPS]


def statistics(logs):
    """Compute of each series the mean, the log of the standard deviation and the autocorrelations at one to three
    years; then lynx on hare at none to two years' delay; `(13,)`."""
    mean, sd = jnp.mean(logs, 0, keepdims=True), jnp.std(logs, 0, keepdims=True) + 1e-6
    hare, lynx = ((logs - mean) / sd).T

    def correlation(first, second, lag):
        return jnp.mean(first[: len(first) - lag] * second[lag:])

    alone = [correlation(series, series, lag) for series in (hare, lynx) for lag in (1, 2, 3)]
    across = [correlation(hare, lynx, lag) for lag in (0, 1, 2)]
    return jnp.concatenate([mean[0], jnp.log(sd[0]), jnp.stack(alone + across)])


def summaries(rng_key, theta):
    """`statistics` of one pair of series, `(13,)`."""
    return statistics(lynx_hare(rng_key, theta))


def model(x=None):
    """Rates and noise `theta`, `(5,)`, and statistics `x`, `(13,)`.

    The prior is log-normal, with medians near those of the published analysis and a noise of 0.2 a root year.
    """
    medians = jnp.array([0.6, 0.03, 0.8, 0.025, 0.2])
    prior = dist.LogNormal(jnp.log(medians), jnp.array([0.4, 0.4, 0.4, 0.4, 0.5]))
    theta = numpyro.sample("theta", prior.to_event(1))
    numpyro.sample("x", Simulator(summaries, theta), obs=x)
