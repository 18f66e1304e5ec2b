"""Many observations at once: each as one at a time, as one value, one summary and one ArviZ object."""

import functools
import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme import diagnostics
from numpyro_kme.engines import Posterior, Posteriors

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as az

KEY = jax.random.key(3)


def four(rng_key, mean, shift):
    return mean + shift + jax.random.normal(rng_key, (4,))


def model(x=None, shift=0.0):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.deterministic("twice", 2.0 * mean)
    numpyro.sample("x", kme.Simulator(four, mean, shift), obs=x)


RNG = np.random.default_rng(1)
X = RNG.normal(size=(6, 1)) + RNG.normal(size=(6, 4))
X[1, 2] = X[3, 0] = X[3, 3] = X[4, 2] = np.nan
QUIET = dict(progress_bar=False)
ENGINES = {
    "residual": lambda: kme.KELFI(model, 200, num_rounds=1, num_samples=200, **QUIET),
    "KernelABC": lambda: kme.KernelABC(model, num_simulations=500, num_samples=200, **QUIET),
    "RejectionABC": lambda: kme.RejectionABC(model, num_simulations=2000, num_samples=200, **QUIET),
}


@functools.cache
def fitted(name):
    found = ENGINES[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found.run(jax.random.key(0), x=X[0])
    return found


@pytest.fixture(params=["residual", pytest.param("KernelABC", marks=pytest.mark.slow), "RejectionABC"])
def engine(request):
    return fitted(request.param)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_is_as_one_at_a_time(engine):
    """Patterns of NaN differ; the key of observation i is `fold_in(key, i)`."""
    before = engine.posterior
    many = engine.condition_many(KEY, {"x": X})
    assert engine.posterior is before and isinstance(many, Posteriors) and len(many) == len(X) > len(many.refused)
    samples = many.get_samples()
    for i in range(len(X)):
        if i in many.refused:
            with pytest.raises(RuntimeError):
                engine.condition(jax.random.fold_in(KEY, i), x=X[i])
            continue
        one = engine.condition(jax.random.fold_in(KEY, i), x=X[i])
        for name, value in one.get_samples().items():
            np.testing.assert_array_equal(samples[name][i], value)
            np.testing.assert_array_equal(many[i].get_samples()[name], value)
        assert type(many[i]) is type(one) and many[i].info.keys() == one.info.keys()
        means = many.expectation(lambda sites: sites["mean"])
        np.testing.assert_allclose(means[i], one.expectation(lambda sites: sites["mean"]))


@pytest.fixture
def kernel_abc():
    return fitted("KernelABC")


@pytest.fixture(scope="module")
def kelfi():
    return fitted("residual")


@pytest.fixture(scope="module")
def many(kelfi):
    return kelfi.condition_many(KEY, {"x": X})


def test_posteriors_are_those_of_the_entries_that_were_observed(many):
    """Conjugate: the mean of a normal from n observed entries."""
    exact = np.nansum(X, axis=1) / (1 + np.sum(~np.isnan(X), axis=1))
    np.testing.assert_allclose(many.get_samples()["mean"].mean(axis=1), exact, atol=0.4)


def test_arviz_has_the_dimension_of_observations(many, tmp_path):
    idata = many.to_inference_data(coords={"observation": list("abcdef")}, dims={"x": ["entry"]})
    assert idata["posterior"]["mean"].dims == ("chain", "draw", "observation")
    drawn = idata["posterior"]["mean"].sel(observation="c", chain=0)
    np.testing.assert_array_equal(drawn, many[2].get_samples()["mean"])
    assert idata["sample_stats"]["lp"].dims == ("chain", "draw", "observation")
    assert idata["observed_data"]["x"].dims == ("observation", "entry")
    np.testing.assert_array_equal(idata["observed_data"]["x"], X)
    assert idata["prior_predictive"]["x"].dims == ("chain", "draw", "entry")  # the same for all
    table = az.summary(idata, var_names=["mean"], kind="stats")
    assert len(table) == len(X)
    path = str(tmp_path / "many.nc")
    idata.to_netcdf(path, engine="h5netcdf")
    np.testing.assert_array_equal(az.from_netcdf(path)["posterior"]["twice"], idata["posterior"]["twice"])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_weights_of_all_observations_are_stacked(kernel_abc):
    idata = kernel_abc.condition_many(KEY, {"x": X[[0, 2, 5]]}).to_inference_data()
    weight = idata["weighted_posterior"]["weight"]
    assert weight.dims == ("chain", "draw", "observation") and weight.shape == (1, 500, 3)
    np.testing.assert_allclose(weight.sum(dim="draw"), 1.0)


def test_the_summary_fits_a_screen(many, capsys):
    many.print_summary()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 15 and max(map(len, lines)) <= 80
    row = next(line for line in lines if line.split()[:2] == ["mean", "mean"]).split()[2:]
    means = many.get_samples()["mean"].mean(axis=1)
    np.testing.assert_allclose([float(row[0]), float(row[2])], [means.min(), np.median(means)], rtol=5e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_observation_that_is_refused_costs_no_other(kernel_abc):
    data = np.stack([X[0], np.full(4, 60.0), X[2]])
    with pytest.warns(UserWarning, match="1 of 3 observations have no posterior"):
        many = kernel_abc.condition_many(KEY, {"x": data})
    samples = many.get_samples()["mean"]
    assert np.isnan(samples[1]).all() and np.isfinite(samples[[0, 2]]).all() and list(many.refused) == [1]
    with pytest.raises(RuntimeError, match=r"Observation 1: .*effective sample size"):
        many[1]
    assert isinstance(many[-1], Posterior)
    many.print_summary()
    many.to_inference_data()
    with pytest.raises(RuntimeError, match="a posterior for none of 2 observations"):
        kernel_abc.condition_many(KEY, {"x": data[[1, 1]]})


def test_what_single_observations_were_warned_of_is_kept(kelfi):
    with pytest.warns(UserWarning) as raised:
        many = kelfi.condition_many(KEY, {"x": np.stack([X[0], np.full(4, 50.0), np.full(4, 60.0)])})
    assert len(raised) == 1 and "2 of 3 observations were warned of" in str(raised[0].message)
    assert set(many.warned) == {1, 2} and "far outside all simulations" in many.warned[2][0]


@pytest.mark.parametrize(
    "observations, settings, message",
    [
        (X, {}, "`observations` must be"),
        ({}, {}, "`observations` must hold"),
        ({"x": X}, {"x": X[0]}, r"\['x'\] are given twice"),
        ({"x": X, "shift": np.zeros(2)}, {}, r"one leading axis.*\(6, 4\).*\(2,\)"),
        ({"x": np.zeros((0, 4))}, {}, "one leading axis"),
        ({"x": np.where(np.arange(6)[:, None] == 4, np.nan, X)}, {}, "Nothing was observed at 'x'"),
        ({"x": X[:, :3]}, {}, "shape"),
        ({"x": X, "shift": np.ones(6)}, {}, "change the simulator"),
    ],
)
def test_bad_input(kelfi, observations, settings, message):
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        kelfi.condition_many(KEY, observations, **settings)


def test_an_error_says_of_which_observation_it_is(kelfi):
    with pytest.raises(ValueError) as raised:
        kelfi.condition_many(KEY, {"x": np.where(np.arange(6)[:, None] == 4, np.inf, X)})
    assert raised.value.__notes__[-1] == "This is of observation 4 of 6."


def test_calibration_is_that_of_one_at_a_time(kelfi):
    """Ranks of a calibration against ranks from a loop over `condition`, on the same data sets."""
    found = diagnostics.calibrate(KEY, kelfi, num_datasets=6, num_draws=10_000, progress_bar=False)
    infer_key = jax.random.split(KEY, 3)[1]
    for j, (x, truth) in enumerate(zip(found.data["x"], found.truths["mean"])):
        x = np.where(np.isnan(X[0]), np.nan, x)
        draws = kelfi.condition(jax.random.fold_in(infer_key, j), x=x).get_samples()["mean"]
        assert abs(found.ranks["mean"][j] - np.mean(draws < truth)) < 2 / len(draws)
