"""Observations with entries that were not observed: exact posteriors given the others, and runs that never had them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import one_draw
from numpyro import handlers
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

import numpyro_kme as kme
from numpyro_kme import diagnostics
from numpyro_kme.embeddings.mmd import Quadratic
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods.published.leave_one_out import MarginalLikelihood
from numpyro_kme.simulations import Simulations

KEY = jax.random.key(3)
SLOPES = np.array([1.0, 0.5, -0.5, 1.5, 1.0, -1.0], np.float32)
COVARIANCE = np.eye(6) + 0.5 * np.eye(6, k=1) + 0.5 * np.eye(6, k=-1)
FACTOR = np.linalg.cholesky(COVARIANCE).astype(np.float32)
Y = np.array([1.0, 0.3, np.nan, 0.9, np.nan, -0.2], np.float32)


def numbers(rng_key, theta):
    """Six correlated numbers."""
    return SLOPES * theta + FACTOR @ jax.random.normal(rng_key, (6,))


def some(rng_key, theta):
    """Those that were observed."""
    return numbers(rng_key, theta)[jnp.array([0, 1, 3, 5])]


def model(x=None, simulator=numbers):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


def groups(x=None, size=4):
    with numpyro.plate("groups", size):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(numbers, theta, event_dims=0), obs=x)


def draws(x=None, size=4):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("draws", size):
        numpyro.sample("x", kme.Simulator(numbers, theta), obs=x)


def exact(*rows):
    """Mean and standard deviation of `theta` given rows, with NaN where nothing was observed."""
    precision, total = 1.0, 0.0
    for row in rows:
        seen = ~np.isnan(row)
        weights = np.linalg.solve(COVARIANCE[np.ix_(seen, seen)], SLOPES[seen])
        precision, total = precision + weights @ SLOPES[seen], total + weights @ row[seen]
    return total / precision, precision**-0.5


ROWS = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
ROWS[0, :2] = ROWS[1, 3] = ROWS[2] = np.nan


@pytest.fixture(scope="module")
def kelfi():
    engine = kme.KELFI(model, 1000, num_rounds=1, progress_bar=False)
    engine.run(KEY, x=Y)
    return engine


def assert_close(found, expected, error):
    """Moments within an error, in posterior standard deviations."""
    mean, sd = expected
    np.testing.assert_allclose(found.mean(axis=0), mean, atol=error * np.max(sd))
    np.testing.assert_allclose(found.std(axis=0), sd, rtol=error)


# Four slopes by 1,000 simulations have errors of .03, 1,000 draws' moments .03: .2 is five standard errors
ERROR = 0.2


def test_a_third_of_the_entries_missing(kelfi, capsys):
    assert_close(kelfi.get_samples()["theta"], exact(Y), ERROR)
    assert kelfi.info["missing"].startswith("2 of 6 numbers were not observed")
    kelfi.print_summary()
    assert "missing at random" in " ".join(capsys.readouterr().out.split())


def test_condition_on_other_patterns(kelfi):
    for x in (np.where(np.arange(6) < 2, np.nan, Y), np.where(np.isnan(Y), 0.1, Y), Y, Y - 0.5):
        assert_close(kelfi.condition(KEY, x=x).samples["theta"], exact(x), ERROR)


def test_what_a_posterior_offers(kelfi):
    posterior, (mean, sd) = kelfi.posterior, exact(Y)
    grid = {"theta": mean + sd * np.linspace(-6, 6, 200)}
    density = np.exp(posterior.log_density(grid))
    np.testing.assert_allclose(np.trapezoid(density, grid["theta"]), 1.0, rtol=0.02)
    assert np.isfinite(posterior.log_marginal_likelihood())
    new = SLOPES * mean
    predicted = posterior.predictive_log_density(np.stack([new, new + 8.0]).astype(np.float32))
    assert predicted[0] - predicted[1] > 5.0
    assert np.isnan(np.asarray(posterior.to_inference_data()["observed_data"]["x"])).sum() == 2


def test_an_objective_that_needs_what_is_missing_is_refused():
    with pytest.raises(ValueError, match="MarginalLikelihood needs"):
        form = kme.KernelMeans(objective=MarginalLikelihood())
        kme.KELFI(model, 50, form=form, progress_bar=False).run(KEY, x=Y)


@pytest.mark.parametrize("plated", [groups, draws])
@pytest.mark.slow
def test_each_element_of_a_plate_lacks_its_own(plated):
    """In the engine's own sampler and in NUTS; the third element lacks all."""
    engine = kme.KELFI(plated, 1000, num_rounds=1, progress_bar=False)
    engine.run(KEY, x=ROWS)
    seen = [row[None] for row in ROWS] if plated is groups else [ROWS]
    expected = np.array([exact(*(r for r in rows if not np.isnan(r).all())) for rows in seen]).T
    expected = expected if plated is groups else expected[:, 0]
    assert_close(engine.get_samples()["theta"], expected, ERROR)
    assert engine.info["missing"].startswith("9 of 24")
    if plated is draws:
        mcmc = MCMC(NUTS(kme.handlers.surrogate(plated, engine.likelihoods)), num_warmup=300, num_samples=1000)
        mcmc.run(KEY, x=ROWS)
        assert_close(np.asarray(mcmc.get_samples()["theta"]), expected, ERROR)


SLOW = (kme.KernelABC, kme.KernelBayes, kme.DistributionRegressionABC)


@pytest.mark.filterwarnings("ignore:.*(coarse|too narrow)")
@pytest.mark.parametrize("kind", [kme.RejectionABC, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)])
def test_engines_that_weight_simulations_leave_the_columns_out(kind):
    """As simulations of a simulator that never gave them."""
    make = partial(kind, model, 2000 if kind is kme.RejectionABC else 500, progress_bar=False)
    engine = make()
    engine.run(KEY, x=np.where(np.isnan(Y), 0.0, Y))
    posterior = engine.condition(KEY, x=Y)
    seen = np.flatnonzero(~np.isnan(Y))
    every = posterior.simulations
    fewer = Simulations(arguments=every.arguments, x={"x": np.asarray(every.x["x"])[:, seen]}, latents=every.latents)
    other = make(simulations=fewer)
    other.run(KEY, x=Y[seen], simulator=some)
    np.testing.assert_allclose(posterior.weights, other.posterior.weights, atol=1e-9)
    assert posterior.info["missing"].startswith("2 of 6")
    again = make()
    again.run(KEY, x=Y)
    np.testing.assert_allclose(again.posterior.weights, posterior.weights, atol=1e-9)


def sets(rng_key, theta):
    """Twenty points in the plane."""
    return theta + jax.random.normal(rng_key, (20, 2))


def of_sets(x=None):
    numpyro.sample("x", kme.Simulator(sets, numpyro.sample("theta", dist.Normal(0.0, 1.0))), obs=x)


POINTS = np.random.default_rng(0).normal(0.5, 1.0, (20, 2)).astype(np.float32)


@pytest.mark.filterwarnings("ignore:.*coarse")
def test_sets_without_some_of_their_points():
    lacking = POINTS.copy()
    lacking[[2, 11]] = np.nan
    engine = kme.K2ABC(of_sets, 500, progress_bar=False)
    engine.run(KEY, x=lacking)
    assert engine.method.table.x.shape == (500, 18, 2)
    mean, sd = np.nansum(lacking) / 37.0, 37.0**-0.5
    assert abs(engine.posterior.expectation(lambda s: s["theta"]) - mean) < 3.0 * sd  # which are widened by epsilon
    lacking[3, 0] = np.nan
    with pytest.raises(ValueError, match="rows of it were observed in part"):
        engine.condition(KEY, x=lacking)
    own = kme.KernelABC(of_sets, 100, kernel=Gaussian(1.0), progress_bar=False)
    with pytest.raises(ValueError, match="a kernel of your own cannot compare"):
        own.run(KEY, x=lacking)


def pair(rng_key, theta):
    """Two numbers."""
    return theta + jax.random.normal(rng_key, (2,))


def few(x=None, mask=True):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("draws", 4), handlers.mask(mask=mask):
        numpyro.sample("x", kme.Simulator(pair, theta), obs=x)


PAIRS = np.array([[0.1, 0.7], [-0.2, 1.0], [np.nan, np.nan], [0.9, 0.3]], np.float32)


@pytest.mark.filterwarnings("ignore:.*coarse")
def test_draws_along_a_plate():
    """Draws that lack all are left out, as masked ones; of others it takes the learnt likelihood."""
    engine = kme.RejectionABC(few, 500, discrepancy=Quadratic(Gaussian(1.0)), progress_bar=False)
    with pytest.raises(ValueError, match="observed in part"):
        engine.run(KEY, x=np.where(np.arange(8).reshape(4, 2) == 1, np.nan, PAIRS))
    engine.run(KEY, x=PAIRS)
    whole = np.arange(4) != 2
    masked = kme.RejectionABC(few, 500, discrepancy=Quadratic(Gaussian(1.0)), progress_bar=False)
    masked.run(KEY, x=np.nan_to_num(PAIRS), mask=whole)
    np.testing.assert_allclose(engine.posterior.weights, masked.posterior.weights, atol=1e-9)


def test_diagnostics(kelfi):
    found = diagnostics.check(KEY, kelfi, num_datasets=20, progress_bar=False)
    tails = found.predictive.tail_probabilities()["x"]
    np.testing.assert_array_equal(np.isnan(tails), np.isnan(Y))
    assert not found.flagged()
    misfit = np.where(np.arange(6) == 0, 30.0, Y)
    table = np.asarray(kelfi.posterior.simulations.x["x"])
    test = diagnostics.misspecification_test(table, misfit)
    assert test.p_value < 0.01 and next(iter(test.by_statistic)) == "x[0]"
    fewer = diagnostics.misspecification_test(table[:, ~np.isnan(Y)], Y[~np.isnan(Y)])
    assert diagnostics.misspecification_test(table, Y).p_value == fewer.p_value


def with_times(x, times):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("units", 4):
        numpyro.sample("x", kme.Simulator(one_draw, theta * times, event_dims=0), obs=x)


def test_what_is_refused():
    for name in ("KELFI", "KernelABC", "K2ABC", "KernelRecursiveABC"):
        with pytest.raises(ValueError, match="Nothing was observed at 'x': all 6 entries that count are NaN"):
            getattr(kme, name)(model, progress_bar=False).run(KEY, x=np.full(6, np.nan))
    with pytest.raises(ValueError, match=r"Argument `theta` of the simulator at 'x'.* 1 NaN, the first at \(2,\)"):
        kme.KELFI(with_times, progress_bar=False).run(KEY, x=np.zeros(4), times=np.array([0.0, 1.0, np.nan, 3.0]))
    with pytest.raises(ValueError, match="has 1 entries that are not finite"):
        kme.KELFI(model, progress_bar=False).run(KEY, x=np.where(np.arange(6) == 0, np.inf, Y))


def masked_entries(x=None, mask=True):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with handlers.mask(mask=mask):
        numpyro.sample("x", kme.Simulator(numbers, theta), obs=x)


@pytest.mark.parametrize("mask", [~np.isnan(Y), np.ones(6, bool)])
def test_a_mask_of_entries_is_refused_and_not_one_observation_counted_six_times(kelfi, mask):
    x, latents = np.nan_to_num(Y), {"theta": jnp.float32(0.3)}
    smodel = kme.handlers.surrogate(masked_entries, kelfi.likelihoods)
    with pytest.raises(ValueError, match=r"shape \(6,\) count as shape \(6, 6\).*write NaN in the observation"):
        log_density(smodel, (), {"x": x, "mask": mask}, latents)
    with pytest.raises(ValueError, match=r"shape \(6,\) count as shape \(6, 6\).*write NaN in the observation"):
        kme.KELFI(masked_entries, 50, progress_bar=False).run(KEY, x=x, mask=mask)


@pytest.mark.slow
def test_nuts_refuses_missing_entries_that_jax_traces(kelfi):
    """Its chain would stand still, since no entry of a traced observation can be left out."""
    smodel = kme.handlers.surrogate(model, kelfi.likelihoods)

    nuts = MCMC(NUTS(smodel), num_warmup=2, num_samples=2, jit_model_args=True, progress_bar=False)
    with pytest.raises(TypeError, match=r"JAX traces the observation at 'x', and it had NaN.*`jit_model_args`"):
        nuts.run(KEY, x=Y)
    whole, density = np.nan_to_num(Y), lambda x: log_density(smodel, (), {"x": x}, {"theta": jnp.float32(0.3)})[0]
    np.testing.assert_allclose(density(whole), jax.jit(density)(whole), rtol=1e-4)


def test_no_data_along_a_plate():
    with pytest.raises(ValueError, match=r"size of plate.*pass at least one number along each plate"):
        kme.KELFI(draws, progress_bar=False).run(KEY, x=np.zeros((0, 6)), size=0)


def test_entries_that_a_masked_array_masks_are_missing(kelfi):
    masked = np.ma.masked_invalid(Y)
    masked.data[masked.mask] = 0.0
    np.testing.assert_array_equal(kme.Problem.read(model, x=masked).observations["x"], Y)
    by_mask, by_nan = (kelfi.condition(KEY, x=y).samples["theta"] for y in (masked, Y))
    np.testing.assert_array_equal(by_mask, by_nan)
    many = kelfi.condition_many(KEY, {"x": np.ma.stack([masked, masked])})
    twice = kelfi.condition_many(KEY, {"x": Y[None].repeat(2, 0)})
    np.testing.assert_array_equal(many[1].samples["theta"], twice[1].samples["theta"])
    smodel = kme.handlers.surrogate(model, kelfi.likelihoods)
    scored = [log_density(smodel, (), {"x": y}, {"theta": jnp.float32(0.3)})[0] for y in (masked, Y)]
    np.testing.assert_array_equal(*scored)
