r"""Simple likelihood, complex posterior: four points of a normal whose mean, scales and correlation are unknown.

$$x_i \sim N\left(\begin{pmatrix}\theta_1\\\theta_2\end{pmatrix}, \begin{pmatrix}a^2 & \rho a b\\ \rho a b & b^2
\end{pmatrix}\right),\quad a = \theta_3^2,\ b = \theta_4^2,\ \rho = \tanh\theta_5$$

The signs of $\theta_3$ and $\theta_4$ cannot be known, so that the posterior has four modes.

References: Papamakarios, Sterratt and Murray (2019), AISTATS.
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from numpyro_kme.models.simulator import Simulator

PARAMETERS = tuple(f"theta_{i}" for i in range(1, 6))
"""Names of the five."""
POINTS = 4
"""In an observation."""


def point(rng_key, theta):
    """One point, `(2,)`, at `theta` `(5,)`."""
    a, b = jax.random.normal(rng_key, (2,), jnp.result_type(theta))
    r = jnp.tanh(theta[4])
    return theta[:2] + jnp.stack([jnp.square(theta[2]) * a, jnp.square(theta[3]) * (r * a + jnp.sqrt(1.0 - r * r) * b)])


def points(rng_key, theta):
    """Four points in a row, `(8,)`."""
    return jax.vmap(point, (0, None))(jax.random.split(rng_key, POINTS), theta).ravel()


def log_density(theta, x):
    """Exact log density of data sets `(..., 4, 2)` at parameters `(..., 5)`, for NumPy or JAX arrays."""
    sd, r = jnp.square(theta[..., None, 2:4]), jnp.tanh(theta[..., None, 4])
    u = (x - theta[..., None, :2]) / sd
    rest = (u[..., 1] - r * u[..., 0]) / jnp.sqrt(1.0 - r**2)
    logs = -0.5 * (u[..., 0] ** 2 + rest**2) - jnp.log(2.0 * jnp.pi * sd.prod(-1)) - 0.5 * jnp.log1p(-(r**2))
    return logs.sum(-1)


def prior():
    """Uniform on the cube from -3 to 3."""
    return dist.Uniform(-3.0, 3.0).expand([5]).to_event(1)


def model(x=None):
    """Parameters `theta` and the four points as one vector `x`, `(8,)`."""
    theta = numpyro.sample("theta", prior())
    numpyro.sample("x", Simulator(points, theta), obs=x)
