"""Covariates along plates: exact posteriors, covariates beyond, constant or not known."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import numpyro_kme as kme
from numpyro_kme.models import Problem
from numpyro_kme.simulations import simulate

KEY = jax.random.key(5)
X = np.linspace(-1.5, 2.0, 8).astype(np.float32)
SD = 0.8


def trial(rng_key, slope, x):
    """A regression through zero, one trial."""
    return slope * x + SD * jax.random.normal(rng_key)


def regression(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("trials", len(x)):
        numpyro.sample("y", kme.Simulator(trial, slope, x, event_dims=0), obs=y)


def conjugate(x, y):
    """Posterior mean and standard deviation of the slope."""
    precision = 1.0 + np.sum(x**2) / SD**2
    return np.sum(x * y) / SD**2 / precision, precision**-0.5


Y = (0.7 * X + SD * np.random.default_rng(0).normal(size=8)).astype(np.float32)


@pytest.fixture(scope="module")
def kelfi():
    engine = kme.KELFI(regression, 400, num_rounds=1, num_samples=1000, progress_bar=False)
    engine.run(KEY, X, y=Y)
    return engine


def test_regression_against_the_conjugate_posterior(kelfi):
    mean, sd = conjugate(X, Y)
    slope = kelfi.get_samples()["slope"]
    assert abs(slope.mean() - mean) < 0.4 * sd
    assert 0.75 < slope.std() / sd < 1.35
    assert len(kelfi.likelihoods["y"].simulated) == 400 * len(X)


def test_rounds_are_made_where_calls_differ_in_covariates_alone():
    engine = kme.KELFI(regression, 400, num_samples=1000, progress_bar=False)
    engine.run(KEY, X, y=Y)
    mean, sd = conjugate(X, Y)
    assert engine.posterior.simulations.proposed
    assert abs(engine.get_samples()["slope"].mean() - mean) < 0.4 * sd


@pytest.mark.parametrize("size", [13, *(pytest.param(size, marks=pytest.mark.slow) for size in (5, 8))])
def test_other_covariates_and_numbers_of_trials_need_no_simulation(kelfi, size):
    """One trial was not observed, and has no influence."""
    x = np.linspace(1.8, -1.4, size, dtype=np.float32)
    y = (-0.3 * x + SD * np.random.default_rng(1).normal(size=size)).astype(np.float32)
    y[1] = np.nan
    mean, sd = conjugate(x[~np.isnan(y)], y[~np.isnan(y)])
    slope = kelfi.condition(KEY, x, y=y).samples["slope"]
    assert abs(slope.mean() - mean) < 0.4 * sd
    assert 0.75 < slope.std() / sd < 1.35


def test_a_covariate_beyond_those_simulated_is_named(kelfi):
    x = X.copy()
    x[5] = 9.0
    with pytest.warns(UserWarning, match=r"at 1 of its calls.*\(5\)"):
        posterior = kelfi.condition(KEY, x, y=Y)
    assert posterior.extrapolated["y"].max() == 1.0


@pytest.mark.slow
def test_covariates_in_double_precision_are_among_those_simulated():
    """Simulations have them in single precision, in which 0.2 is larger."""
    x = np.array([0.5, 1.0, 2.0, 1.5, 0.2, 0.8])
    engine = kme.KELFI(regression, 300, num_rounds=1, num_samples=100, progress_bar=False)
    engine.run(KEY, x, y=0.5 * x)
    assert len(np.unique(engine.likelihoods["y"].simulated[:, 1])) == 6
    assert engine.posterior.extrapolated["y"].max() < 0.05


def test_covariates_that_are_not_known_or_were_constant():
    ones = np.ones(8, np.float32)
    with pytest.raises(ValueError, match="covariates have to be known"):
        Problem.read(regression, np.where(np.arange(8) == 2, np.nan, X))
    known = kme.handlers.surrogate(regression, {"y": lambda slope, x: dist.Normal(slope * x, SD)})
    with pytest.raises(ValueError, match=r"Argument `x` .*at 'y'.*has 2 NaN, .*have to be"):
        mcmc = MCMC(NUTS(known), num_warmup=1, num_samples=1, progress_bar=False)
        mcmc.run(KEY, np.where(np.arange(8) < 2, np.nan, X), y=Y)
    engine = kme.KELFI(regression, 200, num_rounds=1, num_samples=100, progress_bar=False)
    engine.run(KEY, ones, y=Y)
    with pytest.raises(ValueError, match="Argument `x` of the simulator is 2, and was 1 in all simulations"):
        engine.condition(KEY, 2 * ones, y=Y)
    smodel = kme.handlers.surrogate(regression, engine.likelihoods)
    with pytest.raises(ValueError, match="Argument `x` of the simulator is 2, and was 1"):
        MCMC(NUTS(smodel), num_warmup=1, num_samples=1, progress_bar=False).run(KEY, 2 * ones, y=Y)


@pytest.mark.slow
def test_simulations_at_covariates_of_the_users_choice():
    """The data's covariates are all alike, those simulated are a design."""
    ones = np.ones(8, np.float32)
    simulations = simulate(KEY, Problem.read(regression, np.linspace(-2, 2, 5, dtype=np.float32)), 400)
    engine = kme.KELFI(regression, simulations=simulations, num_samples=400)
    engine.run(KEY, ones, y=Y)
    mean, sd = conjugate(ones, Y)
    assert abs(engine.get_samples()["slope"].mean() - mean) < 0.4 * sd
