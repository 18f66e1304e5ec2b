"""The split of a model into prior, Jacobian and likelihood, against NumPyro's own potential energy."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.util import potential_energy
from scipy import stats

from numpyro_kme.models.unconstrained import Unconstrained

pytestmark = pytest.mark.x64


def model(y=None):
    scale = numpyro.sample("scale", dist.Gamma(2.0, 1.0))
    top = numpyro.sample("top", dist.Uniform(0.0, scale))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    numpyro.factor("extra", -top)
    with numpyro.plate("n", 4), handlers.scale(scale=0.5):
        numpyro.sample("y", dist.Normal(weights[0] + top, scale), obs=y)


LATENTS = {"scale": jnp.array(1.7), "top": jnp.array(0.4), "weights": jnp.array([0.2, 0.5, 0.3])}
SHAPES = {"scale": (), "top": (), "weights": (2,)}
Y = jnp.array([0.3, -1.0, 2.0, 0.1])


def test_terms_add_up_to_the_potential_energy_and_tell_prior_and_likelihood_apart():
    target = Unconstrained(model, (Y,), {}, SHAPES)
    assert target.dim == 4
    u = target.flatten(LATENTS)
    parts = {"scale": u[0], "top": u[1], "weights": u[2:]}
    energy = jax.jit(lambda parts: potential_energy(model, (Y,), {}, parts))(parts)
    terms = jax.jit(target.terms)(u)
    np.testing.assert_allclose(sum(terms), -energy, rtol=1e-12)
    likelihood = -0.4 + 0.5 * stats.norm.logpdf(Y, 0.2 + 0.4, 1.7).sum()
    np.testing.assert_allclose(terms.log_likelihood, likelihood, rtol=1e-12)
    prior = stats.gamma.logpdf(1.7, 2.0) - np.log(1.7) + stats.dirichlet.logpdf([0.2, 0.5, 0.3], np.ones(3))
    np.testing.assert_allclose(terms.log_prior, prior, rtol=1e-12)


def test_a_list_is_an_observation_under_a_mask():
    def masked(y):
        with handlers.mask(mask=np.array([True, False, True])):
            numpyro.sample("y", dist.Normal(numpyro.sample("mean", dist.Normal(0.0, 1.0)), 1.0).expand([3]), obs=y)

    target = Unconstrained(masked, ([0.5, 1.0, -2.0],), {}, {"mean": ()})
    found = jax.jit(target.terms)(jnp.array([0.2])).log_likelihood
    np.testing.assert_allclose(found, stats.norm.logpdf([0.5, -2.0], 0.2).sum(), rtol=1e-12)


def test_rows_are_those_of_each_point(rng):
    """Far out too, where values are kept inside their bounds."""
    cases = {
        "real": dist.Normal(0.0, 1.0).expand([3, 2]),
        "vector": dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
        "positive": dist.LogNormal(0.0, 1.0),
        "bounded": dist.Uniform(-1.0, 2.0).expand([2]).to_event(1),
        "proportion": dist.Beta(2.0, 2.0),
    }

    def priors():
        for name, prior in cases.items():
            numpyro.sample(name, prior)

    target = Unconstrained(priors, (), {}, {name: prior.shape() for name, prior in cases.items()})
    u = rng.normal(scale=[[1.0], [10.0], [100.0]], size=(3, target.dim))
    found = target.constrain_rows(u)
    one = jax.jit(target.constrain)(u[0])
    for name, prior in cases.items():
        np.testing.assert_allclose(found[name][0], one[name], rtol=1e-12)
        assert np.all(prior.support(found[name])), name
    np.testing.assert_allclose(target.flatten_rows(found)[0], u[0], rtol=1e-9)


def test_rows_where_a_bound_is_another_latent(rng):
    """And a simplex."""
    target = Unconstrained(model, (Y,), {}, SHAPES)
    u = rng.normal(size=(5, 4))
    latents = target.constrain_rows(u)
    assert np.all(latents["top"] < latents["scale"])
    np.testing.assert_allclose(target.flatten_rows(latents), u, rtol=1e-9, atol=1e-9)
