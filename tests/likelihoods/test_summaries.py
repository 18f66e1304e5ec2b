"""Learnt summary statistics: against conditional means that are known, by brute force, and where nothing is learnt."""

import jax
import numpy as np
import pytest

from numpyro_kme import ResidualKernelMeans, fit_likelihood
from numpyro_kme.likelihoods import OfStatistics, SelectedStatistics, SemiAutomaticStatistics
from numpyro_kme.likelihoods.summaries import Features, Images, Series, Sets, Values, feature_machine
from numpyro_kme.likelihoods.summaries.selection import cosines_of_ranks, independence_p_value, orthonormal
from numpyro_kme.likelihoods.summaries.semi_automatic import FeatureReader, by_shape


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
    with pytest.raises(ValueError, match=r"None of the 12 features .*values 12.* predicts a parameter"):
        SemiAutomaticStatistics(features=(Values(),)).fit(rng.normal(size=(300, 2)), rng.normal(size=(300, 12)), "ab")
    with pytest.raises(ValueError, match="at least 50 simulations; got 20"):
        SemiAutomaticStatistics().fit(rng.normal(size=(20, 2)), rng.normal(size=(20, 12)), "ab")


def test_a_symmetric_posterior_has_a_second_moment():
    rng = np.random.default_rng(2)
    z = rng.normal(size=(200, 2))
    x = np.column_stack([np.abs(z[:, 0]), z[:, 1]])[:, [0, 1, 0]] + 0.2 * rng.normal(size=(200, 3))
    learnt = SemiAutomaticStatistics(features=(Values(),)).fit(z, x, ["a", "b"])
    assert learnt.statistics.names == ("mean of b", "mean of a^2")
    assert np.corrcoef(learnt.simulated[:, 1], z[:, 0] ** 2)[0, 1] > 0.9
    assert "means that nothing predicts: a" in learnt.statistics.describe()["left out"]
    both = np.column_stack([x, z[:, 0] + 0.2 * rng.normal(size=200)])  # the mean says most, and a square nothing new
    assert SemiAutomaticStatistics(features=(Values(),)).fit(z, both, ["a", "b"]).statistics.names == (
        "mean of a",
        "mean of b",
    )
    plain = SemiAutomaticStatistics(features=(Values(),), second_moments=False).fit(z, x, ["a", "b"])
    assert plain.statistics.names == ("mean of b",)


def brute_kernel(a, b, weights, width):
    square = np.sum(weights * (a - b) ** 2)
    return np.exp(-0.5 * square / width) + np.sum(weights * a * b) / width


def test_feature_machine_against_brute_force():
    rng = np.random.default_rng(3)
    a = rng.normal(size=(40, 3))
    targets = np.column_stack([np.sin(2 * a[:, 0]), a[:, 1]]) + 0.1 * rng.normal(size=(40, 2))
    found = feature_machine.fit(a, targets)
    machine, weights = found.machine, found.machine.weights
    np.testing.assert_allclose(weights.sum(), 1.0)
    assert weights[2] < 0.05
    width = np.median([np.sum(weights * (p - q) ** 2) for i, p in enumerate(a) for q in a[:i]])
    gram = np.array([[brute_kernel(p, q, weights, width) for q in a] for p in a])
    rest = targets - targets.mean(axis=0)
    for t, regularisation in enumerate(found.own):
        dual = np.linalg.solve(gram + 40 * regularisation * np.eye(40), rest[:, t])
        np.testing.assert_allclose(machine(a)[:, t], gram @ dual + targets[:, t].mean(), atol=1e-5)
        others = np.arange(40) != 7
        without = np.linalg.solve(gram[others][:, others] + 40 * regularisation * np.eye(39), rest[others, t])
        np.testing.assert_allclose(found.residuals[7, t], rest[7, t] - gram[7, others] @ without, atol=1e-5)
    again = feature_machine.refit(a, targets, found)
    np.testing.assert_allclose(again.weights, weights, rtol=1e-6)
    np.testing.assert_allclose(again(a), machine(a), atol=1e-6)
    np.testing.assert_allclose(machine.some(np.array([False, True]))(a)[:, 0], machine(a)[:, 1])


def test_relevance_is_the_mean_square_of_derivatives():
    rng = np.random.default_rng(4)
    a = rng.normal(size=(30, 3))
    machine = feature_machine.fit(a, np.column_stack([np.sin(a[:, 0]), a[:, 1] * a[:, 2]])).machine
    step = 1e-5 * np.eye(3)
    slopes = np.stack([(machine(a + h) - machine(a - h)) / 2e-5 for h in step], axis=-1)
    squares = np.mean(slopes**2, axis=0)
    expected = 0.7 * squares[0] / squares[0].sum() + 0.2 * squares[1] / squares[1].sum()
    np.testing.assert_allclose(machine.relevance(a, np.array([0.7, 0.2])), expected, rtol=1e-5)


def test_features_of_series_by_hand():
    x = np.random.default_rng(5).normal(size=(2, 30)).cumsum(axis=1)
    found = Series()(x)
    for one, rest in zip(x, x - x.mean(axis=1, keepdims=True)):
        row = int(np.flatnonzero(np.all(x == one, axis=1))[0])
        serial, variance = found["dependence in time"][row], np.mean(rest**2)
        by_lag = [np.mean([rest[t] * rest[t - lag] for t in range(lag, 30)]) / variance for lag in (1, 2)]
        change = [np.mean([(one[t] - one[t - lag]) ** 2 for t in range(lag, 30)]) / variance for lag in (1, 2)]
        np.testing.assert_allclose(serial[[0, 3]], by_lag)
        np.testing.assert_allclose(serial[[1, 4]], np.log(np.array(change) + 1e-6))
        third = [np.mean([(one[t] - one[t - lag]) ** 3 for t in range(lag, 30)]) for lag in (1, 2)]
        np.testing.assert_allclose(serial[[2, 5]], np.cbrt(third) / np.sqrt(variance))
        upward = np.mean([one[t] > one.mean() >= one[t - 1] for t in range(1, 30)])
        np.testing.assert_allclose(serial[-4], np.sqrt(upward))
        np.testing.assert_allclose(found["low frequencies"][row, 0], one.sum() / np.sqrt(30))
        np.testing.assert_allclose(found["distribution"][row, 8:10], [one.mean(), np.log(one.std())])
    times = np.arange(64)
    wave = Series()(np.cos(2 * np.pi * 8 * times / 64)[None])["dependence in time"][0]
    np.testing.assert_allclose(np.exp(wave[-8]), 8)  # where the highest peak is


def test_correlations_of_channels_by_hand():
    """Of either behind the other, over lags that leave two thirds of the series."""
    x = np.random.default_rng(5).normal(size=(1, 25, 2)).cumsum(axis=1)
    first, second = ((x[0] - x[0].mean(axis=0)) / x[0].std(axis=0)).T
    expected = [np.mean(second * first)]
    for lag in (1, 2, 4, 8):
        for behind, before in ((second, first), (first, second)):
            expected.append(np.mean([behind[t] * before[t - lag] for t in range(lag, 25)]))
    np.testing.assert_allclose(Series()(x)["between channels"][0], expected)


def test_features_of_sets_and_images():
    points = np.random.default_rng(6).normal(size=(1, 12, 2))
    found = Sets()(points)
    np.testing.assert_allclose(found["between channels"][0, 0], np.corrcoef(points[0].T)[0, 1])
    shuffled = Sets()(points[:, ::-1])
    assert all(np.allclose(found[kind], shuffled[kind]) for kind in found)
    np.testing.assert_allclose(Sets(1)(points.swapaxes(1, 2))["distribution"], found["distribution"])
    spot = np.zeros((1, 10, 20))
    spot[0, 2, 15] = 3.0
    np.testing.assert_allclose(Images()(spot)["moments"][0], [2 / 10 - 0.5, 15 / 20 - 0.5, 0, 0, 0], atol=1e-12)
    image = np.random.default_rng(7).normal(size=(1, 10, 20))
    rest = image[0] - image.mean()
    down = np.mean(rest[1:] * rest[:-1]) / np.mean(rest**2)
    aslant = np.mean(rest[1:, :-1] * rest[:-1, 1:]) / np.mean(rest**2)
    np.testing.assert_allclose(Images()(image)["dependence in space"][0, [0, 6]], [down, aslant])
    coefficients = Images()(image)["low frequencies"][0].reshape(8, 8)
    np.testing.assert_allclose(coefficients[0, 0], image.sum() / np.sqrt(200))
    ramp = np.broadcast_to(np.cos(np.pi * 3 * (np.arange(20) + 0.5) / 20), (1, 10, 20))
    assert np.argmax(np.abs(Images()(ramp)["low frequencies"][0])) == 3


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), (Values(), Sets(0))),
        ((8,), (Values(), Sets(0))),
        ((50,), (Values(), Series(0))),
        ((180,), (Series(0),)),
        ((151, 2), (Series(0),)),
        ((2, 151), (Series(1),)),
        ((28, 28), (Images(),)),
        ((16, 16, 3), (Images(),)),
    ],
)
def test_features_by_shape(shape, expected):
    assert by_shape(shape) == expected
    x = np.random.default_rng(8).gamma(1.0, size=(20, *shape))
    reader, columns = FeatureReader.fit(expected, x)
    assert np.isfinite(np.concatenate(list(columns.values()), axis=1)).all()
    np.testing.assert_allclose(reader(rows(x)), reader.standard(columns))
    np.testing.assert_allclose(reader(rows(x)).std(axis=0), 1.0)


def test_shapes_without_features_are_refused():
    with pytest.raises(ValueError, match=r"No features are known for outputs of shape \(20, 20, 20\)"):
        by_shape((20, 20, 20))
    with pytest.raises(TypeError, match="`features` must be a tuple of features"):
        SemiAutomaticStatistics(features=Series())


def test_constant_series_have_finite_features():
    x = np.stack([np.full(40, 2.0), np.zeros(40), *np.random.default_rng(9).normal(size=(20, 40))])
    for features in (Series(), Sets()):
        assert all(np.isfinite(part).all() for part in features(x).values())
    images = np.concatenate([np.zeros((1, 9, 9)), np.ones((1, 9, 9))])
    assert all(np.isfinite(part).all() for part in Images()(images).values())


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
    assert learnt.statistics.describe()["statistics"].startswith("3 of 43 kept: 7, 20, 30, 1 of which only depend")
    with pytest.raises(ValueError, match="None of the 40 statistics depends on the parameters"):
        SelectedStatistics().fit(z, np.delete(x, [7, 20, 30], axis=1), "abc")


def test_p_values_are_uniform_under_independence():
    rng = np.random.default_rng(11)
    known = orthonormal(cosines_of_ranks(rng.normal(size=200)))
    draws = [rng.standard_t(1, size=200) if i % 2 else rng.poisson(2.0, size=200) for i in range(400)]
    p = np.array([independence_p_value(orthonormal(cosines_of_ranks(draw)), known) for draw in draws])
    assert abs(p.mean() - 0.5) < 5 / np.sqrt(12 * 400)
    assert abs(np.mean(p < 0.1) - 0.1) < 5 * np.sqrt(0.09 / 400)
    assert independence_p_value(orthonormal(cosines_of_ranks(np.ones(200))), known) == 1.0


def test_a_likelihood_of_learnt_statistics_is_that_of_their_table(linear):
    z, x, new = linear[0][:150], linear[1][:150], linear[2]
    fitted = fit_likelihood(z, x, form=OfStatistics(SemiAutomaticStatistics(), ResidualKernelMeans()))
    learnt = fitted.surrogate.statistics
    assert learnt.names == tuple(f"mean of {name}" for name in fitted.coordinates.names)
    same = fitted.surrogate.inner.at(learnt(new[:1])[0]).log_densities(z[:5])
    np.testing.assert_allclose(fitted.at(new[0]).log_densities(z[:5]), same, rtol=1e-6)
    stacked = fitted.surrogate.at_rows(new[:3])
    np.testing.assert_allclose(stacked.data, learnt(new[:3]))
    with pytest.raises(TypeError, match="`y` must be concrete"):
        jax.jit(lambda y: fitted.at(y).log_density(z[0]))(new[0])
    with pytest.raises(ValueError, match="1 of the 12 entries of the observation are NaN"):
        fitted.at(np.where(np.arange(12) == 3, np.nan, new[0]))
    with pytest.raises(ValueError, match="density of the 2 learnt statistics and not of the output"):
        fitted.surrogate.require_density()


def test_statistics_that_are_kept_may_be_missing(distracted):
    z, x = distracted[0][:200], distracted[1][:200]
    fitted = fit_likelihood(z, x, form=OfStatistics(SelectedStatistics(), ResidualKernelMeans()))
    y = x[0].copy()
    whole = fitted.at(y).log_densities(z[:5])
    y[3] = np.nan
    np.testing.assert_allclose(fitted.at(y).log_densities(z[:5]), whole)
    kept = np.array(fitted.surrogate.statistics.kept)
    y[kept[1]] = np.nan
    alone = fitted.surrogate.inner.marginal(np.arange(len(kept)) != 1).at(y[kept]).log_densities(z[:5])
    np.testing.assert_allclose(fitted.at(y).log_densities(z[:5]), alone)


class Halves(Features):
    """A feature of one's own."""

    def __call__(self, x):
        return {"halves": np.column_stack([x[:, :6].mean(axis=1), x[:, 6:].mean(axis=1)])}


def test_features_of_ones_own(linear):
    z, x, *_ = linear
    learnt = SemiAutomaticStatistics(features=(Halves(),), second_moments=False).fit(z, x, ["a", "b"])
    assert learnt.statistics.describe()["features"] == "2: halves 2"
