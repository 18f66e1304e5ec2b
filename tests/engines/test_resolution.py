"""Warnings of a posterior that other simulations would move: hits, false alarms, and what they say to do."""

import warnings
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import numpyro_kme as kme
from numpyro_kme.engines.learnt_posterior import emit_warnings

SAID = "depends on which"


def waves(rng_key, theta):
    """Location bends several times over the prior, with little noise."""
    bent = jnp.stack([theta[0] + jnp.sin(4.0 * theta[0] + theta[1]), theta[1] + jnp.cos(4.0 * theta[1])])
    return bent + 0.02 * jax.random.normal(rng_key, (2,))


def lines(rng_key, theta):
    """`N(theta, 0.3^2 I)`."""
    return theta + 0.3 * jax.random.normal(rng_key, theta.shape)


def model(simulator, dim):
    def of(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([dim]).to_event(1))
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)

    return of


def alarms(model, x, size, seed, **settings):
    """The engine, and what it warned of."""
    engine = kme.KELFI(model, size, progress_bar=False, **({"num_rounds": 1} | settings))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run(jax.random.key(seed), x=x)
    return engine, [str(one.message) for one in caught if SAID in str(one.message)]


def false_alarms(dim, size, keys):
    found = 0
    for seed in range(keys):
        x = np.random.default_rng(seed).normal(size=dim) * np.sqrt(1.09)
        found += len(alarms(model(lines, dim), x, size, 1000 * dim + seed)[1])
    return found


@pytest.mark.slow
def test_one_round_of_a_bent_simulator_asks_for_rounds():
    """Of eight observations some, and those that half of the simulations move by more than half a deviation."""
    engine, said = alarms(model(waves, 2), np.array([0.5, 1.2]), 60, 0)
    told = [(engine.posterior.moved_by_half, said)]
    for x in np.array([[0.4, 1.1], [-0.5, 1.2], [1.5, 0.5], [-1.0, -1.0], [0.0, 0.0], [2.0, 1.0], [-1.5, 2.0]]):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            posterior = engine.condition(jax.random.key(1), x=x)
        said = [str(one.message) for one in caught if SAID in str(one.message)]
        told.append((posterior.moved_by_half, said))
    assert all(len(said) == (moved > 0.5) for moved, said in told)
    messages = [said[0] for _, said in told if said]
    assert len(messages) >= 2 and "half of the simulations" in engine.info
    assert all("pass num_rounds=5" in message and "`refine`" in message for message in messages)


@pytest.mark.slow
@pytest.mark.parametrize("dim, size", [(1, 300), (2, 300), (5, 300), (5, 1000)])
def test_linear_problems_are_silent_in_nineteen_of_twenty_keys(dim, size):
    assert false_alarms(dim, size, 20) <= 1


def test_half_of_the_simulations_tell_what_the_posterior_may_be_off_by():
    """Against quadrature of the posterior from the same half, in one dimension, at five observations of one engine."""
    engine = kme.KELFI(model(lines, 1), 60, num_rounds=1, num_samples=4000, progress_bar=False)
    z = np.linspace(-6.0, 6.0, 2001)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of some of these
        engine.run(jax.random.key(0), x=np.zeros(1))
    learnt = engine.method
    theta = np.asarray(learnt.simulations.latents["theta"], np.float64)
    x = np.asarray(learnt.simulations.x["x"], np.float64)
    rows = np.random.default_rng(0).permutation(60)[:30]
    half = kme.fit_likelihood(theta[rows], x[rows], coordinates=learnt.likelihoods["x"].coordinates)
    for y in np.linspace(-2.0, 2.0, 5)[:, None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = engine.condition(jax.random.key(1), x=y)
        moments = []
        for fitted in (learnt.likelihoods["x"], half):
            log_density = fitted.surrogate.at(y).log_density(z[:, None]) - 0.5 * z**2
            weights = np.exp(log_density - log_density.max())
            mean = np.average(z, weights=weights)
            moments.append((mean, np.sqrt(np.average((z - mean) ** 2, weights=weights))))
        (mean, sd), (other, spread) = moments
        expected = max(abs(mean - other) / sd, abs(np.log(spread / sd)))
        assert abs(posterior.moved_by_half - expected) < 0.15


def test_what_is_learnt_well_asks_for_nothing_and_what_is_not_asks_for_more():
    usual = alarms(model(lines, 2), np.array([0.5, -1.0]), 1000, 0)[0]
    assert usual.posterior.moved_by_half < 0.3
    with pytest.warns(UserWarning, match="learnt from half of them it moves by about 0.7 standard deviations") as said:
        emit_warnings(replace(usual.posterior, moved_by_half=0.7))
    assert len(said) == 1
    few = alarms(model(lines, 1), np.zeros(1), 30, 0)[0]
    assert np.isnan(few.posterior.moved_by_half) and "half of the simulations" not in few.info


def of_two(rng_key, log_odds):
    """Four draws at -1.5 or 1.5, of which the parameter says how often they are at -1.5."""
    side_key, noise_key = jax.random.split(rng_key)
    left = jax.random.bernoulli(side_key, jax.nn.sigmoid(log_odds), (4,))
    return jnp.where(left, -1.5, 1.5) + 0.5 * jax.random.normal(noise_key, (4,))


@pytest.mark.slow
def test_statistics_whose_values_become_more_or_less_probable_are_named():
    """The number of draws on one side, in their place, has the exact posterior by Bernoulli's formula."""

    def model(simulator, x):
        log_odds = numpyro.sample("log_odds", dist.Normal(0.0, 1.5))
        numpyro.sample("x", kme.Simulator(simulator, log_odds), obs=x)

    draws = kme.KELFI(partial(model, of_two), 500, num_rounds=1, progress_bar=False)
    with pytest.warns(UserWarning, match="The parameters change how probable values of all statistics of 'x'"):
        draws.run(jax.random.key(0), x=np.array([-1.4, -1.7, -1.0, 1.3]))
    counting = kme.KELFI(partial(model, how_many), 500, num_rounds=1, progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        counting.run(jax.random.key(0), x=np.array([3.0]))
    at = np.linspace(-8.0, 8.0, 2001)
    p = stats.norm.pdf(at, 0.0, 1.5) / (1.0 + np.exp(-at)) ** 3 / (1.0 + np.exp(at))
    mean = np.average(at, weights=p)
    sd = np.sqrt(np.average(np.square(at - mean), weights=p))
    found = np.asarray(counting.get_samples()["log_odds"])
    assert abs(found.mean() - mean) < 0.35 * sd and 0.85 < found.std() / sd < 1.2


def how_many(rng_key, log_odds):
    """The number of draws at -1.5."""
    return jnp.sum(of_two(rng_key, log_odds) < 0.0).astype(float)[None]
