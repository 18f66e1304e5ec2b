r"""The toggle switch: two genes that suppress each other, and the noisy expression of the first in single cells.

From $u_0 = v_0 = 10$, for 300 steps,

$$u_{t+1} = u_t + \frac{\alpha_1}{1 + v_t^{\beta_1}} - (1 + 0.03\,u_t) + \tfrac12\,\xi_t,\qquad
y = u_T + \mu + \frac{\mu\sigma\,\zeta}{u_T^\gamma}$$

and $v$ likewise with $\alpha_2$, $\beta_2$ and $u$; the noise is standard normal, truncated where counts would fall
below zero. A cell falls to one side or the other, so that draws jump as the parameters move.

References: Bonassi, You and West (2011), Statistical Applications in Genetics and Molecular Biology 10; the settings,
the prior and the true values of Dellaporta et al. (2022), AISTATS.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("alpha_1", "alpha_2", "beta_1", "beta_2", "mu", "sigma", "gamma")
TRUTH = np.array([22.0, 12.0, 4.0, 4.5, 325.0, 0.25, 0.15])
"""Of the published experiment, in the order of `PARAMETERS`."""
LOW = np.array([0.0, 0.0, 0.0, 0.0, 250.0, 0.0, 0.0])
HIGH = np.array([50.0, 50.0, 5.0, 5.0, 450.0, 0.5, 0.4])
"""Bounds of the uniform prior."""
LENGTH_SCALES = (1.0, 10.0, 20.0, 40.0, 80.0, 100.0, 130.0, 200.0, 400.0, 800.0, 1000.0)
"""Of the sum of Gaussian kernels of the published experiment."""
STEPS = 300
"""From the start to the observation."""
LEVELS = 2 * STEPS + 1
"""Uniform numbers behind a cell: two for each step and one for what is measured."""
CELLS = 2000
"""Data of the published experiment."""


def toggle_switch(rng_key, theta):
    """The expression of one cell, a scalar, at `theta` `(7,)` in the order of `PARAMETERS`."""
    return cell(jax.random.uniform(rng_key, (LEVELS,), jnp.result_type(theta, float)), theta)


def cell(levels, theta):
    """One cell given its noise, 601 uniform levels; computed in their precision."""
    alpha, beta, (mu, sigma, gamma) = jnp.split(theta.astype(levels.dtype), (2, 4))

    def step(counts, level):
        new = counts + alpha / (1.0 + counts[::-1] ** beta) - (1.0 + 0.03 * counts)
        return jnp.maximum(new + 0.5 * truncated(level, -2.0 * new), 1e-6), None  # rounding can end below zero

    first, _ = jax.lax.scan(step, jnp.full(2, 10.0, levels.dtype), levels[:-1].reshape(STEPS, 2))[0]
    width = mu * sigma / first**gamma
    return first + mu + width * truncated(levels[-1], -(first + mu) / width)


def truncated(level, low):
    """The standard normal truncated below at `low`, at a level of its distribution function between 0 and 1."""
    below = jax.lax.erf(low * 0.5**0.5)  # on (-1, 1)
    odd = below + level * (1.0 - below)
    return 2.0**0.5 * jax.lax.erf_inv(jnp.clip(odd, -1.0 + 1e-6, 1.0 - 1e-6))


def model(x=None):
    """Parameters `theta` uniform between `LOW` and `HIGH`, and cells along a plate, `(2000,)` or as many as
    observed."""
    theta = numpyro.sample("theta", dist.Uniform(LOW, HIGH).to_event(1))
    with numpyro.plate("cells", CELLS if x is None else len(x)):
        numpyro.sample("x", Simulator(toggle_switch, theta), obs=x)
