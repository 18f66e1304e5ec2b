"""Robust scales against SciPy, sorting by hand, and the normal distribution."""

import numpy as np
import pytest
from scipy import stats

from numpyro_kme.kernels.length_scales import mad_or_sd, median_absolute_deviation, robust_standard_deviation


@pytest.mark.parametrize("shape", [(7,), (8, 3), (5, 2, 4)])
def test_median_absolute_deviation_is_that_of_scipy(rng, shape):
    x = rng.standard_t(2, size=shape)
    np.testing.assert_allclose(median_absolute_deviation(x), stats.median_abs_deviation(x, axis=0))
    sizes = np.sort(np.abs(x - 0.3), axis=0)
    n = shape[0]
    np.testing.assert_allclose(median_absolute_deviation(x, 0.3), 0.5 * (sizes[(n - 1) // 2] + sizes[n // 2]))


def test_the_standard_deviation_stands_in_where_half_of_a_column_agrees(rng):
    x = np.stack([rng.normal(size=9), [0, 0, 0, 0, 0, 0, 1, 5, -3], np.full(9, 2.5)], axis=1)
    np.testing.assert_allclose(mad_or_sd(x), [stats.median_abs_deviation(x[:, 0]), x[:, 1].std(), 0.0])


def test_robust_standard_deviation_of_a_normal_distribution():
    x = 4.0 + 0.7 * stats.norm.ppf((np.arange(100_000) + 0.5) / 100_000)
    assert robust_standard_deviation(x) == pytest.approx(0.7, rel=1e-4)
    x[:1000] = 1e30
    assert robust_standard_deviation(x) == pytest.approx(0.7, rel=0.03)


@pytest.mark.parametrize(
    ("column", "scale"),
    [
        ([3, 3, 3], 0),
        ([1, 2, 4, 8, 9], 1.4826 * 3),  # deviations 3, 2, 0, 4, 5 from the median 4
        ([0, 0, 0, 0, 0, 1, 1, 1], 1 / 1.349),  # median absolute deviation 0, quartiles 0 and 1
        ([5, 5, 5, 5, 5, 5, 5, 7, 1], 3),  # quartiles agree, deviations 2 and 4
        ([1e15 + 0.125, 1e15 + 0.125, 1e15 + 0.125, 1e15, 1e18], 1e18 - 1e15),  # an eighth is rounding there
    ],
)
def test_robust_standard_deviation_by_hand(column, scale):
    assert robust_standard_deviation(np.array(column, float)) == pytest.approx(scale)
