"""Learnt summary statistics: against conditional means that are known, and where nothing is learnt."""

import jax
import numpy as np
import pytest

from numpyro_kme import ResidualKernelMeans, fit_likelihood
from numpyro_kme.likelihoods import OfStatistics, SelectedStatistics, SemiAutomaticStatistics
from numpyro_kme.likelihoods.semi_automatic import generic_features


def rows(x):
    return x.reshape(len(x), -1)


@pytest.fixture(scope="module")
def linear():
    """Two parameters, twelve numbers: the conditional mean is linear and known."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(2, 12)) / np.sqrt(6.0)
    z, test = rng.normal(size=(400, 2)), rng.normal(size=(500, 2))
    x, new = (part @ loadings + rng.normal(size=(len(part), 12)) for part in (z, test))
    weights = loadings.T @ np.linalg.inv(loadings @ loadings.T + np.eye(2))
    return z, x, new, new @ weights, np.linalg.inv(loadings @ loadings.T + np.eye(2))


def test_linear_normal_statistics_are_the_conditional_means(linear):
    z, x, new, mean, covariance = linear
    learnt = SemiAutomaticStatistics().fit(z, x, ["a", "b"])
    assert learnt.statistics.names == ("mean of a", "mean of b")
    found = learnt.statistics(new) * z.std(axis=0) + z.mean(axis=0)
    sd = np.sqrt(np.diagonal(covariance))
    # least squares on twelve numbers is off by about sqrt(13 / 400) = 0.18 of these
    assert np.all(np.sqrt(np.mean((found - mean) ** 2, axis=0)) < 0.3 * sd)
    held_out = np.mean((learnt.simulated - z) ** 2, axis=0)
    np.testing.assert_allclose(held_out / sd**2, 1.05, atol=5 * np.sqrt(2 / 400))
    assert "held-out R^2" in learnt.statistics.describe()


def test_held_out_statistics_of_noise_are_refused():
    rng = np.random.default_rng(1)
    with pytest.raises(ValueError, match="None of the 12 features of the outputs predicts a parameter"):
        SemiAutomaticStatistics(features=rows).fit(rng.normal(size=(300, 2)), rng.normal(size=(300, 12)), "ab")
    with pytest.raises(ValueError, match="at least 50 simulations; got 20"):
        SemiAutomaticStatistics().fit(rng.normal(size=(20, 2)), rng.normal(size=(20, 12)), "ab")


def test_a_symmetric_posterior_has_a_second_moment():
    rng = np.random.default_rng(2)
    z = rng.normal(size=(200, 2))
    x = np.column_stack([np.abs(z[:, 0]), z[:, 1]])[:, [0, 1, 0]] + 0.2 * rng.normal(size=(200, 3))
    learnt = SemiAutomaticStatistics(features=rows).fit(z, x, ["a", "b"])
    assert learnt.statistics.names == ("mean of b", "mean of a^2")
    assert np.corrcoef(learnt.simulated[:, 1], z[:, 0] ** 2)[0, 1] > 0.9
    assert "means that nothing predicts: a" in learnt.statistics.describe()["left out"]
    both = np.column_stack([x, z[:, 0] + 0.2 * rng.normal(size=200)])  # the mean says most, and a square nothing new
    nothing_new = SemiAutomaticStatistics(features=rows).fit(z, both, ["a", "b"])
    assert nothing_new.statistics.names == ("mean of a", "mean of b")
    plain = SemiAutomaticStatistics(features=rows, second_moments=False).fit(z, x, ["a", "b"])
    assert plain.statistics.names == ("mean of b",)


@pytest.fixture(scope="module")
def distracted():
    """Two statistics of three parameters, one that shares their noise, and forty that say nothing, with heavy tails."""
    rng = np.random.default_rng(10)
    z, shared = rng.normal(size=(500, 3)), rng.normal(size=500)
    x = rng.standard_t(2, size=(500, 43))
    x[:, 7] = z[:, 0] + 0.5 * shared
    x[:, 20] = np.exp(z[:, 1] ** 2) * rng.normal(size=500)
    x[:, 30] = shared + 0.1 * rng.normal(size=500)
    return z, x


def test_statistics_that_depend_on_nothing_are_left_out(distracted):
    z, x = distracted
    learnt = SelectedStatistics().fit(z, x, "abc")
    assert learnt.statistics.kept == (7, 20, 30)
    assert learnt.statistics.dependent == 2
    np.testing.assert_array_equal(learnt.simulated, x[:, [7, 20, 30]])
    assert learnt.statistics.describe()["statistics"].startswith("3 of 43 kept: x[7], x[20], x[30], 1 of which")
    with pytest.raises(ValueError, match="None of the 40 statistics depends on the parameters"):
        SelectedStatistics().fit(z, np.delete(x, [7, 20, 30], axis=1), "abc")


def test_a_likelihood_of_learnt_statistics_is_that_of_their_table(linear):
    z, x, new = linear[0][:150], linear[1][:150], linear[2]
    fitted = fit_likelihood(z, x, form=OfStatistics(SemiAutomaticStatistics(), ResidualKernelMeans()))
    learnt = fitted.surrogate.statistics
    assert learnt.names == tuple(f"mean of {name}" for name in fitted.coordinates.names)
    same = fitted.surrogate.inner.at(learnt(new[:1])[0]).log_density(z[:5])
    np.testing.assert_allclose(fitted.at(new[0]).log_density(z[:5]), same, rtol=1e-6)
    stacked = fitted.surrogate.at_rows(new[:3]).log_density(z[:5, None])
    one_by_one = [fitted.at(y).log_density(z[:5]) for y in new[:3]]
    np.testing.assert_allclose(stacked, np.stack(one_by_one, axis=-1), rtol=1e-6)
    with pytest.raises(TypeError, match="`y` must be concrete"):
        jax.jit(lambda y: fitted.at(y).log_density(z[0]))(new[0])
    with pytest.raises(ValueError, match="1 of the 12 entries of the observation are NaN"):
        fitted.at(np.where(np.arange(12) == 3, np.nan, new[0]))
    with pytest.raises(ValueError, match="density of the 2 learnt statistics and not of the output"):
        fitted.surrogate.require_density()


def test_statistics_that_are_kept_may_be_missing(distracted):
    z, x = distracted[0][:200], distracted[1][:200]
    form, y = OfStatistics(SelectedStatistics(), ResidualKernelMeans()), x[0].copy()
    fitted = fit_likelihood(z, x, form=form)
    whole = fitted.at(y).log_density(z[:5])
    as_column = fit_likelihood(z, x[:, :, None], form=form, y=y[:, None], standard_errors=False)
    np.testing.assert_allclose(as_column.at(y[:, None]).log_density(z[:5]), whole)
    y[3] = np.nan
    np.testing.assert_allclose(fitted.at(y).log_density(z[:5]), whole)
    kept = np.array(fitted.surrogate.statistics.kept)
    y[kept[1]] = np.nan
    alone = fitted.surrogate.inner.marginal(np.arange(len(kept)) != 1).at(y[kept]).log_density(z[:5])
    np.testing.assert_allclose(fitted.at(y).log_density(z[:5]), alone)


@pytest.mark.parametrize("shape", [(), (8,), (50,), (180,), (40, 2), (2, 40), (12, 12), (9, 9, 3)])
def test_features_are_finite_whatever_the_shape(shape):
    x = np.random.default_rng(8).gamma(1.0, size=(20, *shape))
    x[0], x[1] = 2.0, 0.0
    found = generic_features(x)
    assert np.isfinite(found).all() and found.shape[0] == 20
    np.testing.assert_allclose(generic_features(x[3:4])[0], found[3])  # of each output by itself


def test_features_of_ones_own(linear):
    z, x, *_ = linear
    halves = lambda x: np.column_stack([x[:, :6].mean(axis=1), x[:, 6:].mean(axis=1)])  # noqa: E731
    learnt = SemiAutomaticStatistics(features=halves, second_moments=False).fit(z, x, ["a", "b"])
    assert learnt.statistics.describe()["features"] == "2"
    with pytest.raises(TypeError, match="`features` must be a function of outputs"):
        SemiAutomaticStatistics(features=3)
