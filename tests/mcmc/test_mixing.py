"""`KernelMeansLikelihood` written out in a model."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer.util import log_density

from numpyro_kme import KernelMeansLikelihood, Simulator, fit_likelihood
from numpyro_kme.mcmc.handlers import surrogate

NOISE = 0.5


def simulate(rng_key, theta):
    return theta + NOISE * random.normal(rng_key, (1,))


@pytest.fixture(scope="module")
def written_out():
    """A prior N(0, 1) and the learnt likelihood of `simulate`: as an observed site, as a factor, by the handler."""
    theta_key, noise_key = random.split(random.key(2))
    theta = 1.5 * random.normal(theta_key, (300, 1))
    learnt = fit_likelihood(theta, jax.jit(jax.vmap(simulate))(random.split(noise_key, 300), theta))

    def site(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", KernelMeansLikelihood(learnt, theta), obs=x)

    def factor(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.factor("x", KernelMeansLikelihood(learnt, theta).log_prob(x))

    def simulated(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", Simulator(simulate, theta), obs=x)

    return {"site": site, "factor": factor, "handler": surrogate(simulated, {"x": learnt})}


X = np.array([0.8], np.float32)


def test_a_site_a_factor_and_the_handler_are_one_density(written_out):
    def densities(theta):
        return [log_density(model, (X,), {}, {"theta": theta})[0] for model in written_out.values()]

    site, factor, handler = jax.jit(jax.vmap(densities))(np.linspace(-1.0, 2.0, 7, dtype=np.float32))
    np.testing.assert_allclose(site, factor, rtol=1e-6)
    np.testing.assert_allclose(site, handler, rtol=1e-4)
