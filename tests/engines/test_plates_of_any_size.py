"""Independent trials along a plate: one learnt likelihood of a trial serves any number of them."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import stats

import numpyro_kme as kme
from numpyro_kme import KELFI, Simulator


def trial(rng_key, mu):
    return mu + jax.random.normal(rng_key)


def model(x=None, size=20):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("trials", size if x is None else len(x)):
        numpyro.sample("x", Simulator(trial, mu), obs=x)


def data(n):
    return np.random.default_rng(n).normal(0.4, 1.0, size=n)


def exact(x):
    return x.sum() / (len(x) + 1), (len(x) + 1) ** -0.5


@pytest.fixture(scope="module")
def kelfi():
    engine = KELFI(model, 500, num_rounds=1, progress_bar=False)
    engine.run(jax.random.key(0), x=data(20))
    return engine


@pytest.mark.parametrize("n", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (20, 60, 200))])
@pytest.mark.filterwarnings("ignore:The posterior depends on which")
def test_posterior_given_any_number_of_trials(kelfi, n):
    x = data(n)
    draws = kelfi.condition(jax.random.key(1), x=x).get_samples()["mu"]
    mean, deviation = exact(x)
    assert abs(draws.mean() - mean) < 1.0 * deviation
    assert 0.75 < draws.std() / deviation < 1.35


def test_the_model_with_the_learnt_density_adds_up_more_trials(kelfi):
    """What NUTS evaluates, against the density of one trial after another by NumPy."""
    learnt, x, mu = kelfi.likelihoods["x"], data(60), np.array([-0.2, 0.3, 0.8])
    joint = jax.jit(
        jax.vmap(lambda m: log_density(kme.handlers.surrogate(model, kelfi.likelihoods), (x,), {}, {"mu": m})[0])
    )
    z = learnt.coordinates.table(mu[:, None])
    expected = np.sum([learnt.at(one).log_density(z) for one in x], axis=0) + stats.norm.logpdf(mu)
    np.testing.assert_allclose(joint(mu), expected, rtol=1e-4)
