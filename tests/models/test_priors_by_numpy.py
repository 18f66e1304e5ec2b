"""Priors by NumPy against the maps that JAX computes, and the values with which a model is read."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_kme import Simulator
from numpyro_kme.models import by_numpy, normalise
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem

PRIORS = {
    "normal": dist.Normal(1.0, 2.0),
    "normals": dist.Normal(jnp.array([0.0, 3.0]), 2.0).expand([4, 2]).to_event(1),
    "log-normal": dist.LogNormal(-1.0, 0.5).mask(False),
    "uniform": dist.Uniform(-3.0, jnp.array([5.0, -2.5])).to_event(1),
}


@pytest.mark.x64
@pytest.mark.parametrize("name", PRIORS)
def test_maps_are_those_of_jax_far_into_both_tails(name):
    fn, prior = PRIORS[name], by_numpy.Prior.of(PRIORS[name])
    z = np.broadcast_to(np.linspace(-8.0, 8.0, 33).reshape(33, *[1] * len(fn.shape())), (33, *fn.shape()))
    values = prior.from_normal(z)
    np.testing.assert_allclose(values, jax.jit(jax.vmap(lambda z: normalise.from_normal(fn, z)))(z), rtol=1e-12)
    exact = jax.jit(jax.vmap(lambda value: normalise.to_normal(fn, value)))(values)
    np.testing.assert_allclose(prior.to_normal(values), exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("fn", [dist.Gamma(2.0, 1.0), dist.TruncatedNormal(0.0, 1.0, low=0.0), dist.Delta(1.0)])
def test_others_are_left_to_jax(fn):
    assert by_numpy.Prior.of(fn) is None and by_numpy.priors([dist.Normal(0.0, 1.0), fn]) is None


def test_a_prior_that_is_traced_is_left_to_jax():
    found = []
    jax.eval_shape(lambda loc: found.append(by_numpy.Prior.of(dist.Normal(loc, 1.0))), 0.0)
    assert found == [None]


def draw(rng_key, a, b):
    return a + b.sum() + jax.random.normal(rng_key)


def model(x=None, scale=2.0):
    a = numpyro.sample("a", dist.Normal(0.0, scale))
    with numpyro.plate("two", 2):
        b = numpyro.sample("b", dist.Uniform(a, a + 1.0))
    numpyro.sample("x", Simulator(draw, 2.0 * a + 1.0, b, event_dims=(0, 1)), obs=x)


def independent(x=None):
    a = numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(-1.0, 2.0).expand([2]).to_event(1))
    numpyro.sample("x", Simulator(draw, 2.0 * a + 1.0, b), obs=x)


def test_a_model_is_read_at_the_same_values_each_time_and_in_the_session_s_precision():
    """Values lie in the support of priors that depend on other latents; another prior has others."""
    one, again, other = (Problem.read(model, x=0.3, scale=scale).latents for scale in (2.0, 2.0, 3.0))
    for name, latent in one.items():
        assert latent.value.dtype == jnp.result_type(float)
        np.testing.assert_array_equal(latent.value, again[name].value)
    assert np.all((one["b"].value > one["a"].value) & (one["b"].value < one["a"].value + 1.0))
    assert one["a"].value != other["a"].value


@pytest.mark.x64
def test_coordinates_of_many_rows_are_those_of_each(rng):
    problem = Problem.read(independent, x=0.3)
    coordinates = Coordinates.from_prior(jax.random.key(0), problem)
    assert coordinates.exact and coordinates._priors_by_numpy() is not None
    z = rng.normal(scale=2.0, size=(20, 3))
    arguments = jax.jit(jax.vmap(coordinates.inverse))(z)
    np.testing.assert_allclose(coordinates.table(arguments), z, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(jax.jit(jax.vmap(coordinates.forward))(arguments), z, rtol=1e-7, atol=1e-9)
    found, exact = coordinates.latents_table(z), jax.jit(jax.vmap(coordinates.latents))(z)
    assert found.keys() == exact.keys()
    for name in found:
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-12)
