"""100,000 draws of every bounded example: none leaves the support of its prior, in either precision."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to

import numpyro_kme as kme
from numpyro_kme.models.coordinates import Coordinates

DRAWS = 100_000
PRIORS = {
    "g-and-k, exchangeable tasks": lambda: dist.Uniform(0.0, 10.0),
    "Lotka-Volterra": lambda: dist.Uniform(jnp.array([-5.0, -5.0]), jnp.array([2.0, 2.0])).to_event(1),
    "two moons, linear uniform": lambda: dist.Uniform(-1.0, 1.0).expand([2]).to_event(1),
    "gaussian mixture": lambda: dist.Uniform(-10.0, 10.0).expand([2]).to_event(1),
    "SIR": lambda: dist.LogNormal(jnp.log(jnp.array([0.4, 0.125])), jnp.array([0.5, 0.2])).to_event(1),
    "exponential-gamma": lambda: dist.Gamma(2.0, 0.5),
    "beta": lambda: dist.Beta(0.5, 3.0),
    "half normal": lambda: dist.HalfNormal(2.0),
    "exponential": lambda: dist.Exponential(3.0),
    "truncated normal": lambda: dist.TruncatedNormal(0.0, 1.0, low=-0.5, high=2.0),
    "inverse gamma": lambda: dist.InverseGamma(3.0, 2.0),
}


def drawn(rng_key, theta):
    return jnp.ravel(theta)[:1] + jax.random.normal(rng_key, (1,), jnp.result_type(float))


def model_of(prior):
    def model(x=None):
        numpyro.sample("x", kme.Simulator(drawn, numpyro.sample("theta", prior)), obs=x)

    return model


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("name", PRIORS)
def test_draws_stay_in_the_support(name, double):
    """By way of coordinates, far into their tails; by unconstrained parameters; and from the prior itself."""
    with jax.enable_x64(double), jax.numpy_rank_promotion("allow"):
        prior = PRIORS[name]()
        problem = kme.Problem.read(model_of(prior))
        coordinates = Coordinates.from_prior(jax.random.key(0), problem)
        normals = np.random.default_rng(1).normal(size=(DRAWS, coordinates.dim)).astype(float if double else np.float32)
        u = jnp.asarray(normals).reshape(DRAWS, *prior.event_shape)
        found = {
            "coordinates": jax.jit(jax.vmap(coordinates.latents))(jnp.asarray(2.0 * normals))["theta"],
            "unconstrained": biject_to(prior.support)(5.0 * u),
            "prior": problem.draw(jax.random.key(1), DRAWS).latents["theta"],
        }
        for how, theta in found.items():
            assert np.shape(theta) == (DRAWS, *prior.event_shape)
            assert bool(jnp.all(prior.support(jnp.asarray(theta)))), how
