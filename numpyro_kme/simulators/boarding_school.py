r"""Influenza in a boarding school: boys in bed on 14 days, one infected among 763 on the day before.

Every quarter of a day of length $h$ each susceptible boy is infected with probability $1 - e^{-\beta h I / 763}$, and
each infected one recovers with probability $1 - e^{-\gamma h}$ (a chain binomial, the stochastic form of the
Kermack-McKendrick equations).

References: data: Communicable Disease Surveillance Centre (1978), "Influenza in a boarding school", British Medical
Journal 1, 587; the chain binomial: Bailey (1975), The Mathematical Theory of Infectious Diseases. The priors are ours.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("beta", "gamma")
BOYS = 763
"""In the school."""
STEPS = 4
"""A day."""
OBSERVED = np.array([3.0, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4])
"""Boys in bed on each of 14 days."""


def influenza(rng_key, beta, gamma):
    """Boys in bed on days 1 to 14, `(14,)`, at rates of infection and recovery a day."""

    def step(state, key):
        susceptible, infected = state
        escape = jnp.exp(-beta * infected / (BOYS * STEPS))
        stay = jnp.exp(-gamma / STEPS)
        keys = jax.random.split(key)
        new = jax.random.binomial(keys[0], susceptible, 1.0 - escape)
        recovered = jax.random.binomial(keys[1], infected, 1.0 - stay)
        infected = infected + new - recovered
        return (susceptible - new, infected), infected

    start = (jnp.asarray(BOYS - 1.0), jnp.asarray(1.0))
    days = len(OBSERVED)
    return jax.lax.scan(step, start, jax.random.split(rng_key, days * STEPS))[1][STEPS - 1 :: STEPS]


def model(x=None):
    """Rates `beta` and `gamma`, log-normal with medians 1.5 and 0.5 a day, and counts `x`, `(14,)`."""
    beta = numpyro.sample("beta", dist.LogNormal(np.log(1.5), 0.5))
    gamma = numpyro.sample("gamma", dist.LogNormal(np.log(0.5), 0.5))
    numpyro.sample("x", Simulator(influenza, beta, gamma), obs=x)
