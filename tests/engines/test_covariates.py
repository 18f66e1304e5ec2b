"""Covariates along plates: exact posteriors, rows that are thinned, covariates beyond, constant or not known."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, init_to_median

import numpyro_kme as kme
from numpyro_kme.engines.learnt_likelihoods import some_calls, training_table
from numpyro_kme.likelihoods import fit_likelihood
from numpyro_kme.models import Coordinates, Problem
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
    engine = kme.KELFI(regression, 400, num_samples=1000, progress_bar=False)
    engine.run(KEY, X, y=Y)
    return engine


def test_regression_against_the_conjugate_posterior(kelfi):
    mean, sd = conjugate(X, Y)
    slope = kelfi.get_samples()["slope"]
    assert abs(slope.mean() - mean) < 0.4 * sd
    assert 0.75 < slope.std() / sd < 1.35
    assert len(kelfi.likelihoods["y"].simulated) == 400 * len(X)


@pytest.mark.parametrize("size", [pytest.param(8, marks=pytest.mark.slow), 5, 13])
def test_other_covariates_and_numbers_of_trials_need_no_simulation(kelfi, size):
    """One trial was not observed, and has no influence."""
    x = np.linspace(1.8, -1.4, size, dtype=np.float32)
    y = (-0.3 * x + SD * np.random.default_rng(1).normal(size=size)).astype(np.float32)
    y[1] = np.nan
    mean, sd = conjugate(x[~np.isnan(y)], y[~np.isnan(y)])
    slope = kelfi.trained.condition(KEY, x, y=y).samples["slope"]
    assert abs(slope.mean() - mean) < 0.4 * sd
    assert 0.75 < slope.std() / sd < 1.35


def test_a_covariate_beyond_those_simulated_is_named(kelfi):
    x = X.copy()
    x[5] = 9.0
    with pytest.warns(UserWarning, match=r"at 1 of its calls.*\(5\)"):
        posterior = kelfi.trained.condition(KEY, x, y=Y)
    assert posterior.extrapolated["y"] == 1.0


def test_covariates_in_double_precision_are_among_those_simulated():
    """Simulations have them in single precision, in which 0.2 is larger."""
    x = np.array([0.5, 1.0, 2.0, 1.5, 0.2, 0.8])
    engine = kme.KELFI(regression, 300, num_rounds=1, num_samples=100, progress_bar=False)
    engine.run(KEY, x, y=0.5 * x)
    assert len(np.unique(engine.likelihoods["y"].simulated[:, 1])) == 6
    assert engine.posterior.extrapolated["y"] < 0.05


def test_covariates_that_are_not_known_or_were_constant():
    ones = np.ones(8, np.float32)
    with pytest.raises(ValueError, match="covariates have to be known"):
        Problem.read(regression, np.where(np.arange(8) == 2, np.nan, X))
    known = kme.handlers.surrogate(regression, {"y": lambda slope, x: dist.Normal(slope * x, SD)})
    with pytest.raises(ValueError, match=r"Argument 1 .*at 'y'.*has 2 NaN among its 8 numbers.*have to be"):
        MCMC(NUTS(known), num_warmup=1, num_samples=1, progress_bar=False).run(
            KEY, np.where(np.arange(8) < 2, np.nan, X), y=Y
        )
    engine = kme.KELFI(regression, 100, num_samples=100, progress_bar=False)
    engine.run(KEY, ones, y=Y)
    with pytest.raises(ValueError, match="Argument 1 of the simulator is 2, and was 1 in all simulations"):
        engine.condition(KEY, 2 * ones, y=Y)
    smodel = kme.handlers.surrogate(regression, engine.likelihoods)
    with pytest.raises(ValueError, match="Argument 1 of the simulator is 2, and was 1"):
        MCMC(NUTS(smodel), num_warmup=1, num_samples=1, progress_bar=False).run(KEY, 2 * ones, y=Y)


def test_simulations_at_covariates_of_the_users_choice():
    """The data's covariates are all alike, those simulated are a design."""
    ones = np.ones(8, np.float32)
    simulations = simulate(KEY, Problem.read(regression, np.linspace(-2, 2, 5, dtype=np.float32)), 400)
    engine = kme.KELFI(regression, simulations=simulations, num_samples=400)
    engine.run(KEY, ones, y=Y)
    mean, sd = conjugate(ones, Y)
    assert abs(engine.get_samples()["slope"].mean() - mean) < 0.4 * sd


def test_rows_pair_each_output_with_its_own_covariate_and_are_drawn_evenly():
    exact = Problem.read(exactly, X)
    simulations = simulate(KEY, exact, 900)
    theta, x = training_table(KEY, simulations, exact, "y", 2000)
    assert theta.shape == (1800, 2)
    np.testing.assert_allclose(x, theta[:, 0] * theta[:, 1], rtol=1e-5, atol=1e-6)
    counts = np.array([np.sum(np.isclose(theta[:, 1], one)) for one in X])
    assert counts.sum() == 1800
    assert np.abs(counts - 225).max() < 5 * np.sqrt(225)
    chosen = some_calls(KEY, 10, 4, 30).reshape(10, 3)
    assert all(len(set(row)) == 3 and set(row // 4) == {j} for j, row in enumerate(chosen))


def product(rng_key, slope, x):
    return slope * x


def exactly(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("trials", len(x)):
        numpyro.sample("y", kme.Simulator(product, slope, x, event_dims=0), obs=y)


def test_coordinates_know_what_did_not_vary():
    table = np.column_stack([np.linspace(0, 1, 20), np.full(20, 3.0)])
    coordinates = Coordinates.standardise(table)
    assert coordinates.unlike(table).tolist() == [False, False]
    assert coordinates.unlike(np.array([0.5, 3.1])).tolist() == [False, True]
    assert coordinates.covering(table) is coordinates
    assert coordinates.covering(table + np.arange(20)[:, None]).dim == 2


def grown(rng_key, rate, sd, time):
    """Log size of one unit at one time, with an error."""
    return log_size(rate, time) + sd * jax.random.normal(rng_key)


def log_size(rate, time):
    return jnp.log(20.0 / (1.0 + jnp.exp(3.0 - rate * time)))


def growth(unit, time, y=None, exact=False):
    """Eight units, each with a rate and times of its own."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 0.5))
    between = numpyro.sample("between", dist.HalfNormal(0.5))
    sd = numpyro.sample("sd", dist.LogNormal(-1.5, 0.5))
    with numpyro.plate("units", 8):
        log_rate = numpyro.sample("log_rate", dist.Normal(mean, between))
    with numpyro.plate("trials", len(time)):
        rate = jnp.exp(log_rate[unit])
        if exact:
            numpyro.sample("y", dist.Normal(log_size(rate, time), sd), obs=y)
        else:
            numpyro.sample("y", kme.Simulator(grown, rate, sd, time, event_dims=0), obs=y)


@pytest.mark.slow
def test_growth_with_times_that_differ_by_unit_against_the_exact_likelihood():
    """Chains that begin far from all simulations may stay there, where the learnt likelihood is flat."""
    rng = np.random.default_rng(3)
    unit, time = np.repeat(np.arange(8), 5), rng.uniform(0.0, 8.0, 40).astype(np.float32)
    rate = np.exp(0.3 * rng.normal(size=8))[unit]
    y = np.asarray(log_size(rate, time) + 0.2 * rng.normal(size=40), np.float32)
    arguments, outputs = training_table(KEY, *_simulated(unit, time, 8000), 8000)
    likelihood = fit_likelihood(arguments, outputs)

    def draws(model, **kwargs):
        mcmc = MCMC(NUTS(model, init_strategy=init_to_median), num_warmup=1000, num_samples=4000, progress_bar=False)
        mcmc.run(KEY, unit, time, y=y, **kwargs)
        return np.concatenate([np.asarray(v).reshape(4000, -1) for v in mcmc.get_samples().values()], axis=1)

    exact, learnt = draws(growth, exact=True), draws(kme.handlers.surrogate(growth, {"y": likelihood}))
    shift = (learnt.mean(axis=0) - exact.mean(axis=0)) / exact.std(axis=0)
    assert np.sqrt(np.mean(shift**2)) < 0.15, shift
    np.testing.assert_allclose(learnt.std(axis=0) / exact.std(axis=0), 1.0, atol=0.25)


def _simulated(unit, time, number):
    problem = Problem.read(growth, unit, time)
    return simulate(KEY, problem, number), problem, "y"
