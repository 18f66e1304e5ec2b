"""Censored, bounded and rounded data, and simulators that lose entries, against exact posteriors."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS
from scipy import stats

import numpyro_kme as kme
from numpyro_kme import diagnostics
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods.published.learning import Hyperparameters
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import SimulationError, Simulations, simulate

KEY = jax.random.key(4)
GRID = np.linspace(-4.0, 4.0, 401)
SLOPES = np.array([1.0, 0.5, 1.0, -0.5, 1.0, 1.0])


def moments(log_likelihood):
    """Mean and standard deviation under a standard normal prior, of log likelihoods on the grid."""
    p = np.exp(log_likelihood - 0.5 * GRID**2 - np.max(log_likelihood - 0.5 * GRID**2))
    mean = np.sum(p * GRID) / np.sum(p)
    return mean, np.sqrt(np.sum(p * (GRID - mean) ** 2) / np.sum(p))


def assert_close(samples, expected, error):
    """Moments of draws within an error, in posterior standard deviations."""
    mean, sd = expected
    assert abs(samples["theta"].mean() - mean) < error * sd
    np.testing.assert_allclose(samples["theta"].std(), sd, rtol=error)


def six(rng_key, theta):
    return theta * SLOPES + jax.random.normal(rng_key, (6,))


def bounded(x=None, low=-np.inf, high=0.0):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(six, theta).within(low, high), obs=x)


@pytest.fixture(scope="module")
def kelfi():
    engine = kme.KELFI(bounded, 1000, num_rounds=1, progress_bar=False)
    engine.run(KEY, x=np.array([np.nan, 0.4, 1.2, np.nan, 0.3, 0.9], np.float32))
    return engine


# Six slopes by 1,000 simulations, and moments of 1,000 draws, each have errors of about 0.04
ERROR = 0.25
QUICK = {"standard_errors": False, "progress_bar": False}


@pytest.mark.slow
def test_below_a_limit(kelfi):
    y = np.array([np.nan, 0.4, 1.2, np.nan, 0.3, 0.9])
    below = np.isnan(y)
    seen = stats.norm.logpdf(y[~below], GRID[:, None] * SLOPES[~below]).sum(axis=1)
    expected = moments(seen + stats.norm.logcdf(-GRID[:, None] * SLOPES[below]).sum(axis=1))
    assert_close(kelfi.get_samples(), expected, ERROR)
    assert kelfi.info["censored"].startswith("2 of 6")
    learnt = kelfi.posterior.log_likelihood({"theta": GRID})
    np.testing.assert_allclose(moments(learnt), expected, atol=ERROR * expected[1])
    mcmc = MCMC(NUTS(kme.handlers.surrogate(bounded, kelfi.likelihoods)), num_warmup=200, num_samples=800)
    mcmc.run(KEY, x=y)
    assert_close({"theta": np.asarray(mcmc.get_samples()["theta"])}, expected, ERROR)


@pytest.mark.slow
def test_rounded_numbers(kelfi):
    y = np.array([1.0, 0.0, 1.0, -1.0, 0.0, 2.0])
    ends = (stats.norm.cdf(y + half - GRID[:, None] * SLOPES) for half in (0.5, -0.5))
    posterior = kelfi.condition(KEY, x=np.full(6, np.nan), low=y - 0.5, high=y + 0.5)
    assert_close(posterior.samples, moments(np.log(np.subtract(*ends)).sum(axis=1)), ERROR)


@pytest.mark.slow
def test_calibration_censors_data_sets_by_their_own_limits(monkeypatch):
    """As the limits would, and not where the engine's own data were below them."""
    kelfi = kme.KELFI(bounded, 120, num_rounds=1, num_samples=50, progress_bar=False)
    kelfi.run(KEY, x=np.array([np.nan, 0.4, 1.2, np.nan, 0.3, 0.9], np.float32))
    given, posterior = [], kelfi.posterior

    def noted(self, rng_key, *args, x, **kwargs):
        given.append(x)
        return posterior  # only what it is asked for is looked at

    monkeypatch.setattr(kme.KELFI, "condition", noted)
    diagnostics.calibrate(KEY, kelfi, num_datasets=20, progress_bar=False)
    x = np.stack(given)
    assert 0.2 < np.isnan(x).mean() < 0.8 and (x[~np.isnan(x)] > 0.0).all()


def test_a_limit_in_place_of_what_lies_beyond_is_told():
    """Survival data often have the end of the study where the time is longer; values beside an end are measured."""

    x = np.array([0.3, 0.1, 0.4, 1.1, 0.5, 1.1], np.float32)
    with pytest.warns(UserWarning, match="2 values that are exactly an end of `within`.*pass NaN"):
        kme.Problem.read(bounded, x=x, high=1.1)  # which float32 has not
    kme.Problem.read(bounded, x=np.where(x > 1.0, np.nan, x), high=1.1)


def test_what_is_refused():
    theta = np.zeros(())
    for low, high in ((1.0, 0.0), (np.nan, 1.0), (np.inf, np.inf), (0.0, 0.0)):
        with pytest.raises(ValueError, match="`low` must be below `high`"):
            kme.Simulator(six, theta).within(low, high)
    y = np.where(np.arange(6) == 0, np.nan, 1.0)
    with pytest.raises(ValueError, match=r"known to lie in intervals .*KernelABC compares"):
        kme.KernelABC(bounded, 100, progress_bar=False).run(KEY, x=y)
    with pytest.raises(NotImplementedError, match=r"Use form=ResidualKernelMeans\(\)"):
        known = Hyperparameters(Gaussian(1.0), Gaussian(np.ones(6)), np.array(0.01))
        kme.KELFI(bounded, 50, form=kme.KernelMeans(hyperparameters=known), progress_bar=False).run(KEY, x=y)


def detection(rng_key, theta):
    """Five draws, the larger the likelier recorded."""
    value_key, coin_key = jax.random.split(rng_key)
    x = theta + jax.random.normal(value_key, (5,))
    return jnp.where(jax.random.uniform(coin_key, (5,)) < jax.nn.sigmoid(2.0 * x), x, jnp.nan)


def losing(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(detection, theta), obs=x)


@pytest.mark.filterwarnings("ignore:.*beyond the simulated parameters")
def test_what_a_simulator_does_not_record_says_something():
    fine = np.linspace(-12.0, 12.0, 2001)
    lost = [np.trapezoid(stats.norm.pdf(fine - t) / (1.0 + np.exp(2.0 * fine)), fine) for t in GRID]
    engine = kme.KELFI(losing, 1000, num_rounds=1, missing=kme.SimulatedMissing(), **QUICK)
    y = np.array([0.5, np.nan, np.nan, 1.2, np.nan])
    engine.run(KEY, x=y)
    seen = stats.norm.logpdf(y[[0, 3]], GRID[:, None]).sum(axis=1)
    expected = moments(seen + 3 * np.log(lost))
    at_random = moments(seen)
    assert at_random[0] - expected[0] > 0.5 * expected[1]
    assert_close(engine.get_samples(), expected, 2 * ERROR)
    assert "missing" not in engine.info and engine.info["recorded"].startswith("entries 0 in ")
    nothing = engine.condition(KEY, x=np.full(5, np.nan))
    assert_close(nothing.get_samples(), moments(5 * np.log(lost)), 2 * ERROR)


def some(rng_key, theta):
    """The second of two numbers is recorded in half of the runs."""
    x = theta + jax.random.normal(rng_key, (2,))
    return jnp.where(jnp.array([True, x[0] > 0.0]), x, jnp.nan)


def half(x=None):
    numpyro.sample("x", kme.Simulator(some, numpyro.sample("theta", dist.Normal(0.0, 1.0))), obs=x)


def test_nan_that_no_simulation_has():
    with pytest.raises(SimulationError, match=r"are not finite.*KELFI takes missing=SimulatedMissing\(\)"):
        kme.KELFI(half, 50, progress_bar=False).run(KEY, x=np.zeros(2))
    engine = kme.KELFI(half, 100, missing=kme.SimulatedMissing(), progress_bar=False)
    with pytest.raises(ValueError, match="every simulation has it: let the simulator lose"):
        engine.run(KEY, x=np.array([np.nan, 1.0]))
    with pytest.raises(TypeError, match="`missing` must be SimulatedMissing"):
        kme.KELFI(half, missing="random")


@pytest.mark.slow
def test_simulations_made_elsewhere_keep_what_is_not_recorded():
    how = dict(missing=kme.SimulatedMissing())
    made = simulate(KEY, losing, 100, progress_bar=False, **how)
    theta, x = made.latents["theta"], made.x["x"]
    assert np.isnan(x).any(axis=1).mean() > 0.5
    problem = Problem.read(losing, x=np.zeros(5))
    settings = dict(num_samples=50, standard_errors=False, **how)
    first = kme.KELFI(losing, simulations=made, **settings)
    first.run(KEY, x=np.array([0.5, np.nan, 0.0, 1.2, 0.3]))
    source = first.to_inference_data()
    for found in (
        Simulations.from_table(theta[:, None], x, **how),
        Simulations.from_latents(problem, {"theta": theta}, x, **how),
        Simulations.from_arviz(problem, source, **how),
    ):
        np.testing.assert_array_equal(found.x["x"], x)
        np.testing.assert_array_equal(found.arguments["x"], made.arguments["x"])
        kme.KELFI(losing, simulations=found, **settings).run(KEY, x=np.array([0.5, np.nan, 0.0, 1.2, 0.3]))
    assert len(Simulations.from_arviz(problem, source)) == np.isfinite(x).all(axis=1).sum()
    with pytest.raises(ValueError, match=r"`x` has \d+ entries .*not finite.*`missing=SimulatedMissing\(\)`"):
        Simulations.from_table(theta[:, None], x)
    x[0, 0] = np.inf
    with pytest.raises(ValueError, match="`x` has 1 entries that are not finite"):
        Simulations.from_table(theta[:, None], x, **how)
    with pytest.raises(TypeError, match="`missing` must be SimulatedMissing"):
        Simulations.from_table(theta[:, None], x, missing=True)


def dropping_out(rng_key, theta):
    """Four visits, of which the first alone is sure: who has left does not come back."""
    key, last_key = jax.random.split(rng_key)
    x = theta + jax.random.normal(key, (4,))
    return jnp.where(jnp.arange(4) < jax.random.randint(last_key, (), 1, 5), x, jnp.nan)


def visits(x=None, mask=True):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("patients", 3), numpyro.handlers.mask(mask=mask):
        numpyro.sample("x", kme.Simulator(dropping_out, theta), obs=x)


@pytest.mark.slow
def test_a_pattern_that_no_simulation_has():
    """Each entry is lost and recorded in many simulations, and not as in these data; a masked row may be anything."""
    x = np.full((3, 4), np.nan)
    x[0], x[1, :2], x[2, 0] = 0.1, 0.3, -0.2
    engine = kme.KELFI(visits, 100, missing=kme.SimulatedMissing(), num_rounds=1, num_samples=100, progress_bar=False)
    engine.run(KEY, x=x)
    before = engine.get_samples()["theta"]
    back = x.copy()
    back[1] = [0.3, np.nan, 0.2, np.nan]
    with pytest.raises(ValueError, match="entry 2 is recorded and entry 1 is NaN, and in no simulation"):
        engine.condition(KEY, x=back)
    np.testing.assert_array_equal(engine.get_samples()["theta"], before)
    kept = np.array([True, False, True])
    x[1] = np.nan
    with pytest.raises(ValueError, match="every simulation has it"):
        engine.condition(KEY, x=x)
    masked = engine.condition(KEY, x=x, mask=kept).get_samples()["theta"]
    zeros = engine.condition(KEY, x=np.where(kept[:, None], x, 0.0), mask=kept)
    np.testing.assert_array_equal(zeros.get_samples()["theta"], masked)


def test_infinite_values_stay_failures(tmp_path):
    def infinite(rng, theta):
        return np.array([np.nan, np.inf if theta > 0 else theta])

    def model():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(infinite, theta, shape=(2,), dtype=float))

    how = dict(missing=kme.SimulatedMissing(), on_failure="skip", progress_bar=False)
    found = simulate(KEY, model, 40, store=tmp_path / "a", **how)
    assert 0 < len(found) < 40 and (np.asarray(found.latents["theta"]) <= 0).all()
    assert np.isnan(found.x["x"][:, 0]).all() and found.failures == {"x: not finite": 40 - len(found)}
    with pytest.raises(kme.simulations.StoreError, match="missing"):
        simulate(KEY, model, 40, store=tmp_path / "a", on_failure="skip", progress_bar=False)
