"""Simulations and observations that a user brings: what cannot belong to the model is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme

KEY = jax.random.key(0)
ENGINES = {
    "KernelABC": kme.KernelABC,
    "RejectionABC": kme.RejectionABC,
    "KernelBayes": kme.KernelBayes,
    "KELFI": kme.KELFI,
}


def shifted(rng_key, theta):
    return theta + 0.5 * jax.random.normal(rng_key, (1,))


def counted(rng_key, theta):
    return count(rng_key, theta)[None]


def count(rng_key, theta):
    return jax.random.poisson(rng_key, jnp.exp(theta))


def model(x=None, location=0.0, simulator=shifted):
    theta = numpyro.sample("theta", dist.Normal(location, 1.0))
    numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


@pytest.fixture(scope="module")
def elsewhere():
    return kme.simulate(KEY, kme.Problem.read(model, location=0.8), 400, progress_bar=False)


@pytest.mark.parametrize("engine", ["KernelABC", "RejectionABC"])
def test_simulations_from_another_prior_are_refused_where_they_stand_for_the_prior(engine, elsewhere):
    with pytest.raises(ValueError, match=r"theta has a Kolmogorov-Smirnov distance .* Use KernelBayes"):
        ENGINES[engine](model, simulations=elsewhere).run(KEY, x=np.array([0.4]))


@pytest.mark.parametrize("engine", ["KernelBayes", "KELFI"])
def test_they_serve_where_they_do_not(engine, elsewhere):
    """N(0, 1) prior, sd .5 of the noise: the posterior mean is .8 x, not what the simulations' own prior gives."""
    found = ENGINES[engine](model, simulations=elsewhere, progress_bar=False)
    found.run(KEY, x=np.array([0.4]))
    assert abs(found.get_samples()["theta"].mean() - 0.32) < 0.1


@pytest.mark.parametrize("engine", ["KELFI", "RejectionABC"])
def test_counts_cannot_be_fractions(engine):
    with pytest.raises(ValueError, match=r"The observation at 'x' holds 2\.5, and its simulator `counted` gives whole"):
        ENGINES[engine](model).run(KEY, x=np.array([2.5]), simulator=counted)
