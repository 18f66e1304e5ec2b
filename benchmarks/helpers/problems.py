"""Ten problems whose densities are known: simulators, priors and `log p(x | theta)`; chosen before the work on budgets.

One to twenty parameters, one to four modes, heavy tails, changing scale, bounds, counts, distractors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from numpyro_kme.simulators import bernoulli_glm, gaussian_linear, gaussian_mixture, predator_prey, sir, slcp, two_moons


@dataclass(frozen=True)
class Problem:
    """A prior of one vector `theta`, a simulator `fn(rng_key, theta)`, and, if known, its log density of one output."""

    prior: dist.Distribution
    simulator: Callable[..., Any]
    log_density: Callable[..., Any] | None = None

    def model(self, x=None):
        theta = numpyro.sample("theta", self.prior)
        numpyro.sample("x", kme.Simulator(self.simulator, theta), obs=x)

    def draw(self, rng_key, number):
        """Parameters `(number, D)` from the prior, an output of each `(number, n)`, and log densities `(number,)`."""
        prior_key, key = jax.random.split(rng_key)
        theta = self.prior.sample(prior_key, (number,))
        x = jax.vmap(self.simulator)(jax.random.split(key, number), theta)
        return tuple(np.asarray(a, np.float64) for a in (theta, x, jax.vmap(self.log_density)(theta, x)))


def of_law(prior, law):
    """A simulator that draws from a NumPyro distribution `law(theta)` of one output."""
    return Problem(
        prior, lambda key, theta: law(theta).sample(key).astype(theta.dtype), lambda theta, x: law(theta).log_prob(x)
    )


def along_a_plate(simulator, size=1, **priors):
    """A model of `size` draws, or of as many as are observed, whose parameters have these priors."""

    def model(x=None):
        parameters = [numpyro.sample(name, prior) for name, prior in priors.items()]
        with numpyro.plate("draws", size if x is None else len(x)):
            numpyro.sample("x", kme.Simulator(simulator, *parameters), obs=x)

    return model


def normal_draw(rng_key, mean, sd=1.0):
    return mean + sd * jax.random.normal(rng_key)


def normals(dim, sd=1.0):
    return dist.Normal(0.0, sd).expand([dim]).to_event(1)


def mean_and_sd(key, theta, size=20):
    x = theta[0] + jnp.exp(theta[1]) * jax.random.normal(key, (size,))
    return jnp.stack([x.mean(), jnp.log(jnp.std(x))])


def log_mean_and_sd(theta, x, size=20):
    """A normal mean, and the logarithm of a scaled chi of `size - 1` degrees of freedom."""
    sd = jnp.exp(theta[1])
    variance = size * jnp.exp(2.0 * x[1]) / sd**2
    mean = dist.Normal(theta[0], sd / np.sqrt(size)).log_prob(x[0])
    return mean + dist.Chi2(size - 1.0).log_prob(variance) + jnp.log(2.0 * variance)


def ends(key, theta, size=8):
    x = theta[0] + jnp.exp(theta[1]) * jax.random.uniform(key, (size,))
    return jnp.stack([x.min(), x.max()])


def log_ends(theta, x, size=8):
    width, inside = jnp.exp(theta[1]), (x[0] >= theta[0]) & (x[1] <= theta[0] + jnp.exp(theta[1]))
    log_p = np.log(size * (size - 1.0)) + (size - 2.0) * jnp.log(x[1] - x[0]) - size * jnp.log(width)
    return jnp.where(inside, log_p, -jnp.inf)


def two_normals(theta):
    return dist.MixtureSameFamily(
        dist.Categorical(logits=jnp.stack([theta[0], 0.0])), dist.Normal(jnp.array([-1.5, 1.5]), 0.5)
    )


PROBLEMS = {
    "mean and sd": Problem(normals(2), mean_and_sd, log_mean_and_sd),
    "twenty dimensions": of_law(normals(20), lambda theta: dist.Normal(theta, 0.5).to_event(1)),
    "crescents": Problem(two_moons.prior(), two_moons.two_moons, two_moons.log_density),
    "four modes": of_law(normals(2), lambda theta: dist.Normal(jnp.abs(theta), 0.15).to_event(1)),
    "six Cauchy draws": of_law(normals(1, 3.0), lambda t: dist.Cauchy(t[0], 1.0).expand([6]).to_event(1)),
    "mixture weights": of_law(normals(1, 1.5), lambda t: two_normals(t).expand([6]).to_event(1)),
    "smallest and largest": Problem(normals(2), ends, log_ends),
    "counts": of_law(
        normals(2), lambda t: dist.Poisson(jnp.exp(2.0 + t[0] + t[1] * np.linspace(-1, 1, 5))).to_event(1)
    ),
    "distractors": of_law(
        normals(2),
        lambda t: dist.StudentT(jnp.where(jnp.arange(20) < 2, 30.0, 3.0), jnp.pad(t, (0, 18)), 0.3).to_event(1),
    ),
    "slcp": Problem(slcp.prior(), slcp.points, lambda theta, x: slcp.log_density(theta, x.reshape(4, 2))),
}

TASKS = {
    "gaussian_mixture": gaussian_mixture.model,
    "sir": sir.model,
    "gaussian_linear_uniform": Problem(gaussian_linear.uniform_prior(), gaussian_linear.gaussian_linear).model,
    "gaussian_linear": gaussian_linear.model,
    "two_moons": two_moons.model,
    "lotka_volterra": predator_prey.model,
    "bernoulli_glm": bernoulli_glm.model,
}
"""Third-party tasks with reference posteriors (sbibm: Lueckmann et al. 2021, AISTATS), by name."""
