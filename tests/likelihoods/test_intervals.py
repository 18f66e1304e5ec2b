"""Entries that are known to lie in intervals: the learnt density against its numerical integral."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import trapezoid

from numpyro_kme import KernelMeans, fit_likelihood
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods.prepared import prepare
from numpyro_kme.likelihoods.published.learning import Hyperparameters

RNG = np.random.default_rng(2)
THETA = RNG.normal(size=(300, 2))
X = THETA @ RNG.normal(size=(2, 4)) + RNG.normal(size=(300, 4)) @ np.tril(RNG.normal(size=(4, 4)))
X[:, 1] = np.exp(X[:, 1] / 2)  # skewed
Y, Z = X[5], RNG.normal(size=(6, 2))


@pytest.fixture(scope="module")
def fitted():
    return fit_likelihood(THETA, X)


def bounds(**ends):
    """Ends `(4,)` of the entries `x0` to `x3`, and the observation with NaN there."""
    low, high, y = np.full(4, -np.inf), np.full(4, np.inf), Y.copy()
    for name, (bottom, top) in ends.items():
        i = int(name[1])
        low[i], high[i], y[i] = bottom, top, np.nan
    return y, (low, high)


@pytest.mark.parametrize(
    "end",
    [
        (Y[2] - 0.5, Y[2] + 1.5),
        pytest.param((-np.inf, Y[2]), marks=pytest.mark.slow),
        (Y[2] + 1.0, np.inf),
        pytest.param((Y[2], Y[2] + 0.01), marks=pytest.mark.slow),
    ],
)
def test_one_interval(fitted, end):
    y, ends = bounds(x2=end)
    found = prepare(fitted, y, bounds=ends).log_densities(Z)
    inside = np.isnan(y)
    learnt = fitted.surrogate.marginal(np.ones(4, bool), inside)
    spread = np.std(X[:, 2])
    far = Y[2] + spread * np.sinh(np.linspace(-80.0, 80.0, 64_001))  # its logarithm has heavy tails
    grid = np.linspace(*end, 4_001) if np.isfinite(end).all() else np.clip(far, *end)
    rows = np.where(inside, grid[:, None], Y)
    densities = np.exp(learnt.at_rows(rows).log_density(Z[:, None]))
    np.testing.assert_allclose(np.exp(found), trapezoid(densities, grid, axis=1), rtol=0.002)


def test_two_intervals(fitted):
    y, ends = bounds(x0=(-np.inf, Y[0] + 0.3), x1=(0.5 * Y[1], 1.5 * Y[1]))
    near = np.asarray(fitted.coordinates.table(THETA[5:6])) + 0.2 * Z
    found = prepare(fitted, y, bounds=ends).log_densities(near)
    learnt = fitted.surrogate.marginal(np.ones(4, bool), np.isnan(y))
    # tails are heavy
    first, second = Y[0] + 0.3 - np.sinh(np.linspace(8.0, 0.0, 301)), np.linspace(0.5 * Y[1], 1.5 * Y[1], 101)
    rows = np.stack([np.array([a, b, Y[2], Y[3]]) for a in first for b in second])
    densities = np.exp(np.stack([learnt.at_rows(rows).log_density(z[None, None])[0] for z in near]))
    expected = trapezoid(trapezoid(densities.reshape(-1, 301, 101), second, axis=2), first, axis=1)
    np.testing.assert_allclose(found, np.log(expected), atol=0.1)


def test_whole_lines_are_missing_entries_and_intervals_add_up(fitted):
    y, ends = bounds(x2=(-np.inf, np.inf))
    np.testing.assert_array_equal(prepare(fitted, y, bounds=ends).log_densities(Z), prepare(fitted, y).log_densities(Z))
    parts = [(-np.inf, Y[2]), (Y[2], Y[2] + 1.0), (Y[2] + 1.0, np.inf)]
    total = sum(np.exp(prepare(fitted, y, bounds=bounds(x2=end)[1]).log_densities(Z)) for end in parts)
    y, ends = bounds(x2=(-np.inf, 1e9))
    np.testing.assert_allclose(total, np.exp(prepare(fitted, y, bounds=ends).log_densities(Z)), rtol=0.05)


def test_by_jax_and_for_each_element_of_a_plate(fitted):
    y, (low, high) = bounds(x2=(-np.inf, Y[2]))
    rows = np.stack([y, Y, y + 0.1, np.full(4, np.nan)])
    tops = np.stack([high, high, high + 0.2, np.full(4, np.inf)])
    ends = np.broadcast_to(low, tops.shape), tops
    each = [prepare(fitted, rows[i], bounds=(low, tops[i])).log_densities(Z) for i in range(3)]
    expected = np.stack([*each, np.zeros(6)], axis=1)
    np.testing.assert_allclose(prepare(fitted, rows, bounds=ends).log_densities(Z), expected, rtol=1e-9)
    brief = prepare(fitted, rows, bounds=ends).brief().log_densities(Z)
    np.testing.assert_allclose(brief, expected, atol=0.05)

    rows, ends = rows[[0, 2, 3]], (ends[0][1:], ends[1][[0, 2, 3]])
    of_theta = lambda theta: jnp.sum(fitted(theta).observing(rows, bounds=ends).log_prob(rows))  # noqa: E731
    total = jax.jit(jax.value_and_grad(of_theta))
    theta, step = np.array([0.2, -0.1]), 1e-3

    def by_numpy(move):
        z = fitted.coordinates.table(theta[None] + [move, 0.0])
        return prepare(fitted, rows, bounds=ends).log_densities(z).sum()

    value, slope = total(jnp.asarray(theta))
    np.testing.assert_allclose(value, by_numpy(0.0), rtol=1e-3)
    np.testing.assert_allclose(slope[0], (by_numpy(step) - by_numpy(-step)) / (2 * step), rtol=0.005)


def test_far_intervals_are_improbable_and_finite(fitted):
    y, ends = bounds(x2=(1e6, np.inf))
    far = prepare(fitted, y, bounds=ends).log_densities(Z)
    y, ends = bounds(x2=(Y[2] - 1.0, np.inf))
    assert np.isfinite(far).all() and (far < prepare(fitted, y, bounds=ends).log_densities(Z) - 3.0).all()


def test_what_is_refused():
    known = Hyperparameters(Gaussian(np.ones(2)), Gaussian(np.ones(4)), np.array(0.01))
    published = fit_likelihood(THETA[:60], X[:60], form=KernelMeans(hyperparameters=known))
    y, ends = bounds(x2=(-np.inf, Y[2]))
    with pytest.raises(NotImplementedError, match="no likelihood of intervals"):
        prepare(published, y, bounds=ends)
