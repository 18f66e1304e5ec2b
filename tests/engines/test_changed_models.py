"""What has changed between two runs is seen: closures, arguments of the model; and simulations and observations that
cannot belong to the model are refused."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random

import numpyro_kme as kme

KEY = random.key(0)


def noisy(rng_key, theta):
    return theta + 0.5 * random.normal(rng_key)


def model(x=None, middle=0.0, spread=None):
    theta = numpyro.sample("theta", dist.Normal(middle, 1.0))
    fn = noisy if spread is None else lambda key, theta: theta + spread * random.normal(key)
    numpyro.sample("x", kme.Simulator(fn, theta), obs=x)


def test_a_simulator_is_seen_as_it_is_now():
    """A user changes an array and a length that the simulator refers to, between two runs in one session."""
    scale, length = np.array(1.0), 2

    def fn(rng_key, theta):
        return theta * scale + jnp.zeros(length)

    def changing(x=None):
        numpyro.sample("x", kme.Simulator(fn, numpyro.sample("theta", dist.Normal(0.0, 1.0))), obs=x)

    for _ in range(2):
        found = kme.simulate(KEY, changing, 5, progress_bar=False)
        expected = np.broadcast_to(found.latents["theta"][:, None] * scale, (5, length))
        np.testing.assert_allclose(found.x["x"], expected, rtol=1e-6)
        np.testing.assert_allclose(kme.Simulator(fn, 2.0).sample(KEY), np.full(length, 2.0 * scale))
        drawn = kme.Simulator(fn, jnp.ones(3), event_dims=0).sample(KEY)
        np.testing.assert_allclose(drawn, np.full((3, length), scale))
        scale, length = np.array(10.0), 4


@pytest.mark.parametrize("engine", [kme.RejectionABC, pytest.param(kme.KELFI, marks=pytest.mark.slow)])
def test_condition_is_for_other_observations_only(engine):
    settings = {"quantile": 0.1} if engine is kme.RejectionABC else {"num_rounds": 1}
    run = engine(model, 200, num_samples=50, progress_bar=False, **settings)
    run.run(KEY, x=1.2)
    before = run.get_samples()["theta"]
    with pytest.raises(ValueError, match=r"change the prior of 'theta': .* call `run`"):
        run.condition(KEY, x=1.2, middle=5.0)
    with pytest.raises(ValueError, match=r"change the simulator at 'x'"):
        run.condition(KEY, x=1.2, spread=3.0)
    np.testing.assert_array_equal(run.get_samples()["theta"], before)
    other = run.condition(KEY, x=-0.5)
    assert other.get_samples()["theta"].mean() < before.mean() - 0.5  # exactly 1.36 less, and .06 of noise


def test_a_new_function_that_does_the_same_is_the_same_simulator():
    run = kme.RejectionABC(model, 200, quantile=0.1, num_samples=50, progress_bar=False)
    with pytest.warns(UserWarning, match="new function each time"):
        run.run(KEY, x=1.2, spread=0.5)
        run.condition(KEY, x=-0.5, spread=0.5)
        with pytest.raises(ValueError, match=r"change the simulator at 'x'"):
            run.condition(KEY, x=-0.5, spread=3.0)


def test_simulations_of_another_model_are_refused():
    bank = kme.simulate(KEY, model, 100, progress_bar=False)

    def renamed(x=None):
        numpyro.sample("x", kme.Simulator(noisy, numpyro.sample("phi", dist.Normal(0.0, 1.0))), obs=x)

    def reshaped(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(lambda key, theta: noisy(key, theta) * jnp.ones(2), theta), obs=x)

    for engine in (kme.RejectionABC, kme.KELFI):
        with pytest.raises(ValueError, match=r"has the latents \['theta'\], the model \['phi'\]"):
            engine(renamed, simulations=bank).run(KEY, x=1.2)
        with pytest.raises(ValueError, match=r"has outputs of shape \(\) at site 'x'.* gives \(2,\)"), pytest.warns():
            engine(reshaped, simulations=bank).run(KEY, x=np.ones(2))


@pytest.fixture(scope="module")
def elsewhere():
    return kme.simulate(KEY, kme.Problem.read(model, middle=0.8), 400, progress_bar=False)


@pytest.mark.parametrize("engine", [kme.KernelABC, kme.RejectionABC])
def test_simulations_from_another_prior_are_refused_where_they_stand_for_the_prior(engine, elsewhere):
    with pytest.raises(ValueError, match=r"theta has a p-value .* Use KernelBayes"):
        engine(model, simulations=elsewhere).run(KEY, x=0.4)


@pytest.mark.parametrize("engine", [kme.KernelBayes, kme.KELFI])
def test_they_serve_where_they_do_not(engine, elsewhere):
    """N(0, 1) prior, sd .5 of the noise: the posterior mean is .8 x, not what the simulations' own prior gives."""
    found = engine(model, simulations=elsewhere, progress_bar=False)
    found.run(KEY, x=0.4)
    assert abs(found.get_samples()["theta"].mean() - 0.32) < 0.1


def counted(rng_key, theta):
    return random.poisson(rng_key, jnp.exp(theta))


@pytest.mark.parametrize("engine", [kme.KELFI, kme.RejectionABC])
def test_counts_cannot_be_fractions(engine):
    def counts(x):
        numpyro.sample("x", kme.Simulator(counted, numpyro.sample("theta", dist.Normal(0.0, 1.0))), obs=x)

    with pytest.raises(ValueError, match=r"The observation at 'x' holds 2\.5, and its simulator `counted` gives whole"):
        engine(counts).run(KEY, x=2.5)


@pytest.mark.slow
def test_the_bootstrap_sees_a_simulator_as_it_is_now():
    scale, y = 1.0, np.linspace(-0.5, 0.5, 20)

    def fn(rng_key, theta):
        return theta + scale * random.normal(rng_key)

    def changing(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", kme.Simulator(fn, theta), obs=x)

    def of(y):
        engine = kme.PosteriorBootstrap(changing, kme.MMD(kme.kernels.Gaussian(1.0)), num_samples=4)
        engine.run(random.key(0), y)
        return engine.posterior.replicates.minimum_loss

    first = of(y)
    scale = 2.0
    assert of(y) > 1.2 * first
