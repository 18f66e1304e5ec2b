r"""Two moons: a crescent whose position tells the parameters up to a reflection, so that the posterior has two modes.

With an angle $a \sim U(-\pi/2, \pi/2)$ and a radius $r \sim N(0.1, 0.01^2)$,

$$x = \big(r \cos a + \tfrac14,\ r \sin a\big) + \tfrac{1}{\sqrt 2}\big(-|\theta_1 + \theta_2|,\ \theta_2 -
\theta_1\big).$$

References: Greenberg, Nonnenmacher and Macke (2019), ICML; the prior, uniform on $[-1, 1]^2$, of Lueckmann et al.
(2021), AISTATS.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("theta_1", "theta_2")


def two_moons(rng_key, theta):
    """A point `(2,)` of the crescent at `theta` `(2,)`."""
    angle_key, radius_key = jax.random.split(rng_key)
    angle = jax.random.uniform(angle_key, minval=-0.5 * jnp.pi, maxval=0.5 * jnp.pi)
    radius = 0.1 + 0.01 * jax.random.normal(radius_key)
    crescent = jnp.stack([radius * jnp.cos(angle) + 0.25, radius * jnp.sin(angle)])
    return crescent + shift(theta)


def shift(theta):
    """Distance by which `theta` moves the crescent, `(2,)`; `(t, s)` and `(-s, -t)` move it alike."""
    return jnp.stack([-jnp.abs(theta[0] + theta[1]), theta[1] - theta[0]]) / jnp.sqrt(2.0)


def log_density(theta, x):
    r"""Exact log density of a point, $N(r \mid 0.1, 0.01^2) / (\pi r)$ to the right of the shifted centre."""
    rest = x - shift(theta) - np.array([0.25, 0.0], np.float32)
    radius = jnp.hypot(*rest)
    log_p = dist.Normal(0.1, 0.01).log_prob(radius) - jnp.log(jnp.pi * radius)
    return jnp.where(rest[0] > 0.0, log_p, -jnp.inf)


def prior():
    """Uniform on the square from -1 to 1."""
    return dist.Uniform(-1.0, 1.0).expand([2]).to_event(1)


def model(x=None):
    """Parameters `theta` and one point `x`, `(2,)`."""
    theta = numpyro.sample("theta", prior())
    numpyro.sample("x", Simulator(two_moons, theta), obs=x)
