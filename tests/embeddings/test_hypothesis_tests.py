"""Two-sample and independence tests, and estimators of the MMD: double loops, closed forms, levels."""

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist

from numpyro_kme import squared_mmd
from numpyro_kme.embeddings.hypothesis_tests import hsic, hsic_test, mmd_test
from numpyro_kme.embeddings.mmd import Fourier, LinearTime, Quadratic
from numpyro_kme.kernels import Gaussian, Laplace

KEY = jax.random.key(0)
MANY = np.broadcast_to(np.float32(0.0), (10**6, 1))


@pytest.mark.x64
def test_statistics_by_other_code(rng):
    x, y = rng.normal(size=(12, 2)), 0.5 + rng.normal(size=(9, 2))
    found = mmd_test(KEY, Laplace(0.8), x, y, num_permutations=50)
    within = sum((np.exp(-cdist(a, a) / 0.8).sum() - len(a)) / len(a) / (len(a) - 1) for a in (x, y))
    np.testing.assert_allclose(found.statistic, within - 2 * np.exp(-cdist(x, y) / 0.8).mean(), rtol=1e-10)
    np.testing.assert_allclose(Quadratic(Laplace(0.8))(x, y), found.statistic, rtol=1e-10)
    assert found.null.shape == (50,)
    u = rng.normal(size=(12, 1))
    k, other = np.exp(-0.5 * cdist(x, x, "sqeuclidean") / 0.81), np.exp(-cdist(u, u) / 1.1)
    h = np.eye(12) - 1 / 12
    expected = np.trace(k @ h @ other @ h) / 144
    np.testing.assert_allclose(jax.jit(hsic)(Gaussian(0.9), Laplace(1.1), x, u), expected, rtol=1e-10)
    np.testing.assert_allclose(hsic_test(KEY, Gaussian(0.9), Laplace(1.1), x, u).statistic, expected, rtol=1e-10)


@pytest.mark.parametrize("test", ["mmd", "hsic"])
def test_level_and_power(rng, test):
    """Under the null p-values are uniform on their grid; under a clear alternative they are small."""

    def p_value(key, shift):
        x, noise = rng.normal(size=(20, 1)), rng.normal(size=(20, 1))
        if test == "mmd":
            return mmd_test(key, Gaussian(1.0), x, noise + shift, num_permutations=39).p_value
        return hsic_test(key, Gaussian(1.0), Gaussian(1.0), x, noise + shift * x, num_permutations=39).p_value

    null = np.array([p_value(key, 0.0) for key in map(jax.random.key, range(200))])
    grid = np.arange(1, 41) / 40
    assert stats.kstest(null - 0.5 / 40, stats.uniform.cdf).pvalue > 1e-6
    assert set(np.round(null * 40)) <= set(range(1, 41)) and null.min() >= grid[0]
    assert abs(np.mean(null <= 0.05) - 0.05) < 4.5 * np.sqrt(0.05 * 0.95 / 200)
    assert np.median([p_value(key, 2.0) for key in map(jax.random.key, range(9))]) <= 0.05


@pytest.mark.smoke
@pytest.mark.x64
def test_linear_time_by_a_loop(rng):
    x, y = rng.normal(size=(7, 2)), rng.normal(size=(9, 2))
    k = lambda a, b: np.exp(-0.5 * np.sum((a - b) ** 2) / 0.49)  # noqa: E731
    pairs = [k(x[i], x[i + 1]) + k(y[i], y[i + 1]) - k(x[i], y[i + 1]) - k(x[i + 1], y[i]) for i in (0, 2, 4)]
    np.testing.assert_allclose(LinearTime(Gaussian(0.7))(x, y), np.mean(pairs), rtol=1e-10)


def test_many_features_are_the_kernel(rng):
    x, y = rng.normal(size=(15, 2)), 1.0 + rng.normal(size=(10, 2))
    kernel = Gaussian(np.array([0.8, 1.5]))

    @jax.jit
    def both(x, y):
        return Fourier.draw(KEY, kernel, 2, 40_000)(x, y), squared_mmd(kernel, x, y)

    found, exact = both(x, y)
    np.testing.assert_allclose(found, exact, atol=0.02)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: mmd_test(KEY, x, x, x), "`kernel` must be a kernel"),
        (lambda x: hsic_test(KEY, Gaussian(1.0), x, x, x), "`kernel_y` must be a kernel"),
        (lambda x: mmd_test(KEY, Gaussian(1.0), x, x[:1]), "at least 2 points each; got 20 and 1"),
        (lambda x: mmd_test(KEY, Gaussian(1.0), x, np.ones((5, 2))), r"have one shape; got \[\(1,\)\] and \[\(2,\)\]"),
        (lambda x: hsic_test(KEY, Gaussian(1.0), Gaussian(1.0), x, x[:3]), "got 20 and 3 points"),
        (lambda x: mmd_test(KEY, Gaussian(1.0), MANY, x), r"all pairs of 1,000,020 points takes 24,001 GB"),
        (lambda x: hsic_test(KEY, *2 * [Gaussian(1.0)], MANY, MANY), r"all pairs of 1,000,000 points takes 24,000 GB"),
        (lambda x: mmd_test(KEY, Gaussian(1.0), x, np.ma.masked_less(x, 0.0)), "`y` has .* not finite out of 20"),
        (lambda x: squared_mmd(Gaussian(1.0), x, np.ma.masked_less(x, 0.0)), "`y` has .* not finite out of 20"),
        (lambda x: mmd_test(KEY, Gaussian(1.0), x, x, num_permutations=0), "`num_permutations` must be at least 1"),
        (lambda x: Fourier.draw(KEY, Laplace(1.0), 1), "must be Gaussian; got Laplace"),
        (lambda x: LinearTime(Gaussian(1.0))(x, x[:1]), "`y` must have at least 2 rows; got shape"),
    ],
)
def test_bad_input_raises(rng, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(rng.normal(size=(20, 1)))
