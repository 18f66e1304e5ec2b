r"""Predators and prey as differential equations, each seen ten times with log-normal errors.

$$\dot X = \alpha X - \beta X Y,\qquad \dot Y = -\gamma Y + \delta X Y$$

from 30 prey and one predator, every 2.1 units of time from 0, with errors of standard deviation 0.1 in the logarithm.
The stochastic version, by exact simulation, is `lotka_volterra`.

References: Lueckmann et al. (2021), AISTATS, whose settings these are; Lotka (1920); Volterra (1926).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("alpha", "beta", "gamma", "delta")
TIMES = 2.1 * np.arange(10)
"""At which both are seen."""


def predator_prey(rng_key, theta):
    """Ten counts of prey and then ten of predators, `(20,)`, at rates `theta` `(4,)`."""
    states = populations(theta)
    return jnp.exp(jnp.log(jnp.clip(states, 1e-10, 1e4)) + 0.1 * jax.random.normal(rng_key, states.shape))


def populations(theta):
    """Prey and then predators at `TIMES`, without errors, `(20,)`."""

    def slope(state):
        prey, hunters = state
        return jnp.stack([prey * (theta[0] - theta[1] * hunters), hunters * (theta[3] * prey - theta[2])])

    return rk4(slope, jnp.array([30.0, 1.0]), 379, 0.05)[::42].T.reshape(-1)


def rk4(slope: Callable[[jax.Array], jax.Array], start: jax.Array, steps: int, size: float) -> jax.Array:
    """States before each of `steps` classical Runge-Kutta steps of a length of `size`, `(steps, dim)`; the first is the
    start."""

    def step(state, _):
        a = slope(state)
        b = slope(state + 0.5 * size * a)
        c = slope(state + 0.5 * size * b)
        d = slope(state + size * c)
        return state + size / 6.0 * (a + 2.0 * b + 2.0 * c + d), state

    return jax.lax.scan(step, start, None, length=steps)[1]


def prior():
    """Log-normal rates."""
    return dist.LogNormal(jnp.array([-0.125, -3.0, -0.125, -3.0]), 0.5).to_event(1)


def model(x=None):
    """Rates `theta` and counts `x`, `(20,)`."""
    theta = numpyro.sample("theta", prior())
    numpyro.sample("x", Simulator(predator_prey, theta), obs=x)
