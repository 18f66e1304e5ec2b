"""Simulators of outputs of any length, in JAX and in NumPy, from the model to the posterior, by every engine: normal
trials, whose posterior is known."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme import KELFI, KernelMeans, Simulations, Simulator, simulate
from numpyro_kme.kernels import EmpiricalMeasureRule, Gaussian, cut, lengths, pad
from numpyro_kme.likelihoods import KernelStatistics
from numpyro_kme.losses import Wasserstein
from numpyro_kme.simulations import SimulationError

LONGEST = 40
SETS = KernelStatistics(EmpiricalMeasureRule())


def in_numpy(rng, mu):
    return rng.normal(mu, 1.0, size=rng.integers(5, LONGEST + 1))


def in_jax(rng_key, mu):
    length_key, key = jax.random.split(rng_key)
    length = jax.random.randint(length_key, (), 5, LONGEST + 1)
    return cut(mu + jax.random.normal(key, (LONGEST,)), length)


def numpy_model(x=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(in_numpy, mu, shape=LONGEST, dtype=float, ragged=True), obs=x)


def jax_model(x=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(in_jax, mu, ragged=True), obs=x)


OBSERVED = np.random.default_rng(0).normal(0.5, 1.0, size=20)


@pytest.fixture(scope="module")
def kelfi():
    engine = KELFI(numpy_model, 150, form=SETS, standard_errors=False, progress_bar=False)
    engine.run(jax.random.key(0), x=OBSERVED)
    return engine


@pytest.mark.slow
def test_posterior_of_another_length(kelfi):
    for n, key in ((8, 1), (35, 2)):
        y = np.random.default_rng(n).normal(0.5, 1.0, size=n)
        draws = kelfi.condition(jax.random.key(key), x=y).get_samples()["mu"]
        assert abs(draws.mean() - y.sum() / (n + 1)) < 1.0 / np.sqrt(n + 1)
        assert 0.6 < draws.std() * np.sqrt(n + 1) < 1.7


def test_a_padded_observation_is_the_same(kelfi):
    """And the posterior is near the exact one."""
    one, other = (kelfi.condition(jax.random.key(3), x=x).get_samples() for x in (OBSERVED, pad(OBSERVED, 40)))
    np.testing.assert_array_equal(one["mu"], other["mu"])
    assert abs(one["mu"].mean() - OBSERVED.sum() / 21) < 1.0 / np.sqrt(21)
    assert 0.6 < one["mu"].std() * np.sqrt(21) < 1.7


def test_many_outputs_are_prepared_as_one_at_a_time(kelfi):
    fitted, x = kelfi.likelihoods["x"], kelfi.posterior.simulations.x["x"]
    surrogate, z = fitted.surrogate, fitted.coordinates.table(fitted.simulated[:4])
    together = surrogate.at_rows(x[:3]).log_density(z[:, None])
    each = np.stack([surrogate.at(row).log_density(z) for row in x[:3]], axis=1)
    # statistics are sums of kernels in float32, whose rounding depends on how many are computed at once (JAX 0.12)
    np.testing.assert_allclose(together, each, rtol=1e-3, atol=1e-3)
    one = surrogate.at(x[0])
    np.testing.assert_allclose(jax.jit(jax.vmap(one.log_density))(z), each[:, 0], rtol=1e-3, atol=1e-3)


def test_observations_that_say_nothing_or_lie_outside(kelfi):
    surrogate, x = kelfi.likelihoods["x"].surrogate, kelfi.posterior.simulations.x["x"]
    with pytest.raises(ValueError, match="no row"):
        surrogate.at(np.full(LONGEST, np.nan))
    broken = np.array(x[0])
    broken[3] = np.nan
    with pytest.raises(ValueError, match=r"lacks numbers of its rows \[3\], .* learnt from whole outputs"):
        surrogate.at(broken)
    with pytest.warns(UserWarning, match=f"has 3 rows, and the simulations have {lengths(x).min()} to"):
        surrogate.at(pad(x[0, :3], LONGEST))
    with pytest.raises(ValueError, match="2 of the 20 outputs have no row"):
        form = KernelStatistics(EmpiricalMeasureRule())
        form.fit(np.zeros((20, 1)), np.where(np.arange(20)[:, None] < 2, np.nan, x[:20]))


@pytest.mark.parametrize("model", [numpy_model, jax_model])
def test_simulations_end_where_they_do(model):
    made = simulate(jax.random.key(0), model, 30, progress_bar=False)
    size = lengths(np.asarray(made.x["x"]))
    assert not made.failures and size.min() >= 5 and size.max() <= LONGEST and len(set(size)) > 5


def test_summary_and_arviz_and_pickle(kelfi):
    assert "5 to 40 in the simulations" in kelfi.posterior.info["lengths"]
    data = kelfi.to_inference_data()
    assert np.isnan(data.observed_data["x"].values).sum() == LONGEST - len(OBSERVED)
    again = pickle.loads(pickle.dumps(kelfi))
    np.testing.assert_array_equal(again.get_samples()["mu"], kelfi.get_samples()["mu"])


def assert_fails(model, sentence, x=OBSERVED, **settings):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=sentence):
        KELFI(model, 20, progress_bar=False, **{"form": SETS, **settings}).run(jax.random.key(0), x=x)


def model_of(fn, longest=LONGEST, **settings):
    def model(x=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        declared = {"shape": longest, "dtype": float, "ragged": True} | settings
        numpyro.sample("x", Simulator(fn, mu, **declared), obs=x)

    return model


def empty(rng, mu):
    return np.zeros(0)


def broken(rng, mu):
    return np.array([mu, np.nan, 1.0])


def empty_in_jax(rng_key, mu):
    return cut(mu + jnp.zeros(4), 0)


def test_simulators_that_break_the_rules():
    assert_fails(
        model_of(in_numpy, 6), r"declares outputs of at most 6 rows, shape \(6,\), but returned shape", OBSERVED[:4]
    )
    assert_fails(model_of(empty), r"at most 40 rows.*returned shape \(0,\)")
    assert_fails(model_of(broken), "1 of its 3 values are not finite")
    assert_fails(model_of(in_numpy, dtype=int), "ragged=True, shape .* and dtype int64: NaN at the end")
    assert_fails(model_of(empty_in_jax, shape=None, dtype=None), "has no row: the first is NaN already", OBSERVED[:3])


def test_observations_that_break_the_rules():
    assert_fails(numpy_model, r"has shape \(41,\); .* gives shape \(40,\), or fewer rows", np.zeros(41))
    assert_fails(numpy_model, "has no row", np.zeros(0))
    gaps = np.array([np.nan] * 20 + [2.0])
    assert_fails(numpy_model, "outputs have no row beside those that the observation lacks, 0, 1, 2, 3, 4", gaps)


def test_settings_that_do_not_fit():
    assert_fails(numpy_model, r"ResidualKernelMeans makes no statistics. Pass form=KernelStatistics", form=None)
    assert_fails(numpy_model, r"Gaussian compares arrays of one length", form=KernelMeans(data_kernel=Gaussian(1.0)))
    assert_fails(numpy_model, "is not a missing entry", missing=kme.SimulatedMissing())


def test_skipping_what_fails():
    def sometimes_empty(rng_key, mu):
        return cut(mu + jnp.zeros(4), jax.random.randint(rng_key, (), 0, 5))

    model = model_of(sometimes_empty, shape=None, dtype=None)
    with pytest.raises(SimulationError, match="no row"):
        simulate(jax.random.key(0), model, 50, progress_bar=False)
    made = simulate(jax.random.key(0), model, 50, on_failure="skip", progress_bar=False)
    assert 0 < made.failures["x: no rows"] < 30 and lengths(np.asarray(made.x["x"])).min() == 1


def test_simulations_made_elsewhere(kelfi):
    made = kelfi.posterior.simulations
    x = [row[:n] for row, n in zip(made.x["x"], lengths(made.x["x"]))]
    problem = kme.Problem.read(numpy_model, x=OBSERVED)
    table = Simulations.from_table(made.arguments["x"], x, ragged=True)
    assert np.array_equal(table.x["x"], made.x["x"][:, : table.x["x"].shape[1]], equal_nan=True)
    latents = Simulations.from_latents(problem, made.latents, x)
    np.testing.assert_array_equal(latents.x["x"], made.x["x"])
    arviz = Simulations.from_arviz(problem, kelfi.to_inference_data())
    assert not arviz.failures
    np.testing.assert_array_equal(arviz.x["x"], made.x["x"])
    with pytest.raises(ValueError, match=r"`x` has 1 outputs without a row.*such as those at \[3\]"):
        Simulations.from_latents(problem, made.latents, [*x[:3], np.zeros(0), *x[4:]])


def test_a_store_sees_it(tmp_path):
    settings = {"store": tmp_path / "kept", "progress_bar": False}
    first = simulate(jax.random.key(0), numpy_model, 10, **settings)
    again = simulate(jax.random.key(0), numpy_model, 12, **settings)
    np.testing.assert_array_equal(again.x["x"][:10], first.x["x"])
    with pytest.raises(RuntimeError, match="ragged"):
        simulate(jax.random.key(0), model_of(in_numpy, ragged=False), 10, **settings)


NUMBER = 1200


@pytest.fixture(scope="module")
def made():
    return simulate(jax.random.key(0), numpy_model, NUMBER, progress_bar=False)


def difference_of_means(a, b):
    """A discrepancy of a user's: it gets rows of NaN behind the ends."""
    return abs(np.nanmean(a) - np.nanmean(b)) + 0.2 * abs(np.isnan(a).sum() - np.isnan(b).sum()) / LONGEST


slow, kernel = partial(pytest.param, marks=pytest.mark.slow), EmpiricalMeasureRule()


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        (kme.RejectionABC, {"discrepancy": difference_of_means, "quantile": 0.1}),
        slow(kme.KernelABC, {"kernel": kernel}),
        slow(kme.KernelBayes, {"kernel": kernel}),
        slow(kme.DistributionRegressionABC, {"kernel": EmpiricalMeasureRule(multiple=4.0)}),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
@pytest.mark.filterwarnings("ignore:.*(coarse|too narrow)")
def test_posteriors_of_two_lengths(made, engine, settings):
    run = engine(numpy_model, NUMBER, simulations=made, progress_bar=False, **settings)
    run.run(jax.random.key(0), x=OBSERVED)
    for y in (OBSERVED, np.random.default_rng(1).normal(-0.3, 1.0, size=30)):
        posterior = run.condition(jax.random.key(1), x=y)
        mean, deviation = y.sum() / (len(y) + 1), (len(y) + 1) ** -0.5
        found = posterior.expectation(lambda draws: draws["mu"])
        assert abs(found - mean) < 1.2 * deviation
        assert 0.4 < posterior.get_samples()["mu"].std() / deviation < 2.2


@pytest.mark.slow
def test_recursive_abc_closes_in_on_the_mean():
    run = kme.KernelRecursiveABC(numpy_model, 80, num_iterations=4, kernel=EmpiricalMeasureRule(), progress_bar=False)
    run.run(jax.random.key(0), x=OBSERVED)
    assert abs(run.posterior.mode()["mu"] - OBSERVED.mean()) < 0.4


@pytest.mark.parametrize(
    ("engine", "settings", "sentence"),
    [
        (kme.KernelABC, {}, "which the kernel that is chosen here does not compare: KELFI"),
        (kme.KernelABC, {"kernel": Gaussian(1.0)}, "Gaussian compares arrays of one length"),
        (kme.K2ABC, {}, "which a discrepancy between data sets here does not compare"),
        (kme.RejectionABC, {}, "which the Euclidean distance here does not compare"),
        (kme.RejectionABC, {"discrepancy": Wasserstein()}, "which a discrepancy between data sets here does not"),
    ],
)
def test_what_is_refused_says_what_to_use(made, engine, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        engine(numpy_model, NUMBER, simulations=made, progress_bar=False, **settings).run(jax.random.key(0), x=OBSERVED)


def plated(x=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("sets", 3):
        numpyro.sample("x", Simulator(in_numpy, mu, shape=LONGEST, dtype=float, ragged=True), obs=x)


def test_sets_along_a_plate_are_refused():
    x = np.stack([pad(OBSERVED, LONGEST)] * 3)
    with pytest.raises(ValueError, match=r"at 'x' has draws along plates that are of any length .* Use KELFI"):
        kme.KernelABC(plated, 20, kernel=EmpiricalMeasureRule(), progress_bar=False).run(jax.random.key(0), x=x)
    with pytest.raises(ValueError, match=r"draws at 'x' are of any length .* compare draws of one"):
        kme.PosteriorBootstrap(plated, num_samples=10, progress_bar=False).run(jax.random.key(0), x=x)
