r"""An epidemic in a million people, seen as the number of infected among 1,000 tested at ten times.

$$\dot S = -\beta S I / N,\qquad \dot I = \beta S I / N - \gamma I,\qquad x_t \sim \mathrm{Binomial}(1000, I_t / N)$$

from one infected person, every 17 days from day 0.

References: Lueckmann et al. (2021), AISTATS, whose settings these are; Kermack and McKendrick (1927).
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator
from numpyro_kme.simulators.predator_prey import rk4

PARAMETERS = ("beta", "gamma")
POPULATION = 1e6
"""People, one of them infected at first."""
TESTED = 1000
"""People tested on each of `DAYS`."""
DAYS = 17.0 * np.arange(10)


def epidemic(rng_key, theta):
    """Counts of infected among 1,000, `(10,)`, at rates `theta` `(2,)` a day."""
    fraction = infected_fractions(theta)
    # NumPyro's own sampler may loop for ever where it is mapped over simulations
    return jax.random.binomial(rng_key, TESTED, fraction).astype(fraction.dtype)


def infected_fractions(theta):
    """Fractions that are infected on `DAYS`, `(10,)`."""

    def slope(state):
        susceptible, infected = state
        new = theta[0] * susceptible * infected / POPULATION
        return jnp.stack([-new, new - theta[1] * infected])

    infected = rk4(slope, jnp.array([POPULATION - 1.0, 1.0]), 613, 0.25)[:, 1]
    return jnp.clip(infected[::68] / POPULATION, 0.0, 1.0)


def prior():
    """Log-normal rates with medians 0.4 and 0.125 a day."""
    return dist.LogNormal(jnp.log(jnp.array([0.4, 0.125])), jnp.array([0.5, 0.2])).to_event(1)


def model(x=None):
    """Rates `theta` and counts `x`, `(10,)`."""
    theta = numpyro.sample("theta", prior())
    numpyro.sample("x", Simulator(epidemic, theta), obs=x)
