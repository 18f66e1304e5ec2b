r"""Smallpox in Abakaliki: days on which cases were found in a community of 120.

The general stochastic epidemic: with $S$ susceptible and $I$ infectious people, the next infection comes at rate
$\beta S I / 120$, the next removal at rate $\gamma I$. Infections are not seen, removals are, until nobody is
infectious.

References: data: Bailey and Thomas (1971), Theoretical Population Biology 2, as given by Becker (1989), Analysis of
Infectious Disease Data; priors and exact inference, by sampling the unseen infections: O'Neill and Roberts (1999),
JRSS A 162.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("beta", "gamma")
PEOPLE = 120
"""In the community."""
WAITS = np.array([13, 7, 2, 3, 0, 0, 1, 4, 5, 3, 2, 0, 2, 0, 5, 3, 1, 4, 0, 1, 1, 1, 2, 0, 1, 5, 0, 5, 5])
"""Days between one case and the next."""
DAYS = np.append(0.0, np.cumsum(WAITS))
"""On which cases were found, from the first on."""
OBSERVED = np.array([3.401197, 4.343805, 3.800719, 2.805379])
"""`statistics` of `DAYS`."""


def removals(rng_key, beta, gamma):
    """Times of the removals since the first, `(120,)`, infinite where there were fewer; rates are a day."""

    def step(state, key):
        susceptible, infectious, time = state
        keys = jax.random.split(key)
        infection, removal = beta * susceptible * infectious / PEOPLE, gamma * infectious
        total = infection + removal
        over = infectious == 0
        time = jnp.where(over, time, time + jax.random.exponential(keys[0]) / jnp.where(over, 1.0, total))
        new = (jax.random.uniform(keys[1]) * total < infection) & ~over
        gone = ~new & ~over
        return (susceptible - new, infectious + new - jnp.where(gone, 1.0, 0.0), time), jnp.where(gone, time, jnp.inf)

    start = (jnp.asarray(PEOPLE - 1.0), jnp.asarray(1.0), jnp.zeros_like(beta * 1.0))
    events = jax.random.split(rng_key, 2 * PEOPLE - 1)
    times = jnp.sort(jax.lax.scan(step, start, events)[1])[:PEOPLE]
    return times - times[0]


def statistics(times):
    """Logs of the number of removals, of 1 + their duration, and of 1 + the mean time and the mean absolute deviation
    about it; `(4,)`."""
    seen = jnp.isfinite(times)
    number = jnp.sum(seen)
    times = jnp.where(seen, times, 0.0)
    mean = jnp.sum(times) / number
    deviation = jnp.sum(jnp.where(seen, jnp.abs(times - mean), 0.0)) / number
    return jnp.stack([jnp.log(number), jnp.log1p(jnp.max(times)), jnp.log1p(mean), jnp.log1p(deviation)])


def smallpox(rng_key, beta, gamma):
    """`statistics` of one epidemic, `(4,)`."""
    return statistics(removals(rng_key, beta, gamma))


def model(x=None):
    """Rates `beta` and `gamma` a day, gamma-distributed as in O'Neill and Roberts, and statistics `x`, `(4,)`."""
    beta = numpyro.sample("beta", dist.Gamma(10.0, 100.0))
    gamma = numpyro.sample("gamma", dist.Gamma(10.0, 100.0))
    numpyro.sample("x", Simulator(smallpox, beta, gamma), obs=x)
