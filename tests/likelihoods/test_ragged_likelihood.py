"""The likelihood of data sets of any length: normal trials, whose posterior is known at every length."""

import numpy as np
import pytest

from numpyro_kme import fit_likelihood
from numpyro_kme.kernels import EmpiricalMeasure, EmpiricalMeasureRule, Gaussian, WithLength, pad
from numpyro_kme.likelihoods import KernelMeans, KernelStatistics

pytestmark = pytest.mark.slow  # one length, and what is refused: test_ragged_simulators
SHORTEST, LONGEST = 5, 40
GRID = np.linspace(-4.0, 4.0, 1601)[:, None]


def trials(rng, mu, n, longest=LONGEST):
    return pad(rng.normal(mu, 1.0, size=n), longest)


def simulated(rng, m, lengths_of):
    z = rng.normal(size=m)
    return z[:, None], np.stack([trials(rng, mu, n) for mu, n in zip(z, lengths_of(z))])


def posterior(surrogate, y):
    """Mean, and half the width of the middle 68%, of the posterior under a standard normal prior, on a grid."""
    density = surrogate.at(y).log_density(GRID) - 0.5 * GRID[:, 0] ** 2
    cumulated = np.cumsum(np.exp(density - density.max()))
    low, middle, high = GRID[np.searchsorted(cumulated / cumulated[-1], [0.1587, 0.5, 0.8413]), 0]
    return middle, 0.5 * (high - low)


def compared(surrogate, rng, n, values=(-1.0, -0.5, 0.0, 0.5, 1.0)):
    """Root mean squared error of the middle, and mean width, in standard deviations of the exact posterior."""
    found = []
    for mu in values:
        y = trials(rng, mu, n)
        middle, width = posterior(surrogate, y)
        found.append(((middle - np.nansum(y) / (n + 1)) * np.sqrt(n + 1), width * np.sqrt(n + 1)))
    errors, widths = np.transpose(found)
    return np.sqrt(np.mean(np.square(errors))), widths.mean()


@pytest.fixture(scope="module")
def learnt():
    rng = np.random.default_rng(3)
    z, x = simulated(rng, 400, lambda z: rng.integers(SHORTEST, LONGEST + 1, size=len(z)))
    return KernelStatistics(EmpiricalMeasureRule()).fit(z, x), z, x


@pytest.mark.parametrize("n", [10, 20, 40])
def test_the_posterior_is_that_of_the_own_length(learnt, n):
    error, width = compared(learnt[0], np.random.default_rng(n), n)
    assert error < 0.5
    assert 0.75 < width < 1.35


@pytest.fixture(scope="module")
def told():
    """`n ~ 20 exp(z / 2)`, and trials that tell nothing."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=200)
    n = np.clip(np.round(20.0 * np.exp(0.5 * z + 0.2 * rng.normal(size=200))), 1, 80).astype(int)
    x = np.stack([trials(rng, 0.0, k, 80) for k in n])
    return KernelStatistics(EmpiricalMeasureRule()).fit(z[:, None], x)


def test_lengths_tell_of_the_parameter_where_it_decides_them(told):
    """The exact posterior is known from `log n` alone."""
    middle, width = posterior(told, trials(np.random.default_rng(2), 0.0, 30, 80))
    precision = 1.0 + (0.5 / 0.2) ** 2
    assert abs(middle - (0.5 / 0.2**2) * np.log(30 / 20) / precision) < 0.15
    assert 0.7 < width * np.sqrt(precision) < 1.4


def test_kernel_means_compare_lengths_too(learnt):
    """The published form smooths all lengths by one epsilon: wider where data sets are long, but not an average."""
    form = KernelMeans(data_kernel=WithLength(EmpiricalMeasure(Gaussian(3.0), 0.1), 0.5))
    fitted = fit_likelihood(learnt[1][:120], learnt[2][:120], form=form)
    y = trials(np.random.default_rng(5), 0.4, 30)
    middle, width = posterior(fitted, y)
    assert abs(middle - 0.4) < 0.4 and 0.5 < width * np.sqrt(31) < 3.0
