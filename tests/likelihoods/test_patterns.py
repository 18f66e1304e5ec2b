"""Observations with entries that were not observed: likelihoods of the others, against fits that never had them, and
integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import trapezoid

from numpyro_kme import KernelMeans, fit_likelihood
from numpyro_kme.kernels import EmpiricalMeasure, Gaussian
from numpyro_kme.likelihoods.prepared import prepare
from numpyro_kme.likelihoods.published.learning import Hyperparameters

RNG = np.random.default_rng(5)
THETA = RNG.normal(size=(200, 2))
X = THETA @ RNG.normal(size=(2, 5)) + RNG.normal(size=(200, 5)) @ np.tril(RNG.normal(size=(5, 5)))
X[:, 1] = np.exp(X[:, 1] / 2)  # skewed
X[:, 3] = THETA[:, 0] + RNG.exponential(size=200)  # with a bound
Y = X[7]
LACKING = np.where([False, True, False, False, True], np.nan, Y)
POINTS = RNG.normal(size=(50, 2))
KNOWN = Hyperparameters(Gaussian(np.ones(2)), Gaussian(np.full(2, 0.4)), np.array(0.01))


@pytest.fixture(scope="module")
def residual():
    return fit_likelihood(THETA, X)


def test_the_residual_form_is_that_of_simulations_without_the_others(residual):
    seen = ~np.isnan(LACKING)
    expected = fit_likelihood(THETA, X[:, seen]).at(LACKING[seen])
    found = residual.at(LACKING)
    # bandwidths are learnt in float32: another order of its sums moves them by up to 1e-5
    np.testing.assert_allclose(found.log_density(POINTS), expected.log_density(POINTS), rtol=1e-4)
    np.testing.assert_allclose(found.brief().log_density(POINTS), expected.log_density(POINTS), atol=0.05)
    whole = residual.at(Y).log_density(POINTS)
    assert np.ptp(whole - expected.log_density(POINTS)) > 0.5  # what is left out said something


def test_constant_statistics_may_be_missing_or_not():
    x = np.insert(X, 2, 7.0, axis=1)
    with pytest.warns(UserWarning, match="constant"):
        fitted = fit_likelihood(THETA, x)
    found = fitted.at(np.array([np.nan, Y[1], np.nan, Y[2], Y[3], Y[4]])).log_density(POINTS)
    with pytest.raises(ValueError, match=r"x\[2\] is 7"):
        fitted.at(np.array([np.nan, Y[1], 6.0, Y[2], Y[3], Y[4]]))
    expected = fit_likelihood(THETA, X[:, 1:]).at(Y[1:]).log_density(POINTS)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="none of these varies"):
        fitted.at(np.array([np.nan, np.nan, 7.0, np.nan, np.nan, np.nan]))


@pytest.mark.x64
def test_the_published_form_is_the_integral_over_the_others():
    x = X[:80, [0, 2]]
    fitted = fit_likelihood(THETA[:80], x, form=KernelMeans(hyperparameters=KNOWN))
    scale = np.std(x[:, 1])
    grid = np.linspace(x[:, 1].min() - 8 * scale, x[:, 1].max() + 8 * scale, 801)
    z = fitted.coordinates.table(POINTS[:5])
    sign, log_size = fitted.surrogate.at_rows(np.stack([np.full(801, Y[0]), grid], axis=1)).signed_log(z[:, None])
    values = sign * np.exp(log_size)
    sign, log_size = fitted.at(np.array([Y[0], np.nan])).signed_log(z)
    np.testing.assert_allclose(sign * np.exp(log_size), trapezoid(values, grid, axis=1), rtol=2e-3)


ROWS = np.stack([LACKING, Y, np.where(np.arange(5) == 0, np.nan, Y + 0.1), LACKING, np.full(5, np.nan), Y - 0.1])


@pytest.mark.parametrize(
    ("groups", "lead"),
    [
        ("more", (3, 1, 2)),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in [("shared", (6,)), ("shared", (3, 1, 2)), ("own", (6,)), ("own", (3, 1, 2)), ("more", (6,))]
        ),
    ],
)
def test_outputs_that_lack_different_entries(residual, lead, groups):
    """Each as if it were alone."""
    shape = {"shared": (), "own": lead, "more": (2, *lead)}[groups]
    arguments = np.random.default_rng(1).normal(size=(*shape, 2))
    found = np.asarray(residual(arguments).log_prob(ROWS.reshape(*lead, 5)))
    batch = np.broadcast_shapes(lead, shape)
    numbers = np.broadcast_to(np.arange(6).reshape(lead), batch)
    theta = np.broadcast_to(arguments, (*batch, 2))
    expected = [
        0.0 if n == 4 else residual.at(ROWS[n]).log_density(residual.coordinates.table(t[None]))[0]
        for n, t in zip(numbers.ravel(), theta.reshape(-1, 2))
    ]
    np.testing.assert_allclose(found, np.reshape(expected, batch), rtol=2e-4, atol=2e-4)
    z = residual.coordinates.table(np.stack([arguments, arguments + 0.1]))
    on_host = prepare(residual, ROWS.reshape(*lead, 5)).log_densities(z)
    np.testing.assert_allclose(on_host[0], np.reshape(expected, batch), rtol=1e-6)


def test_gradients_are_finite_and_signs_are_known(residual):
    rows = ROWS[3:5]  # some entries, and none
    total = jax.jit(jax.value_and_grad(lambda theta: jnp.sum(residual(theta).log_prob(rows))))
    (_, slope), step = total(jnp.array([0.1, 0.2])), 1e-2
    above, below = (total(jnp.array([0.1 + move, 0.2]))[0] for move in (step, -step))
    np.testing.assert_allclose(slope[0], (above - below) / (2 * step), rtol=0.02)
    np.testing.assert_array_equal(jax.jit(lambda theta: residual(theta).signs(rows))(np.zeros(2)), np.ones(2))


def test_what_is_refused(residual):
    with pytest.raises(ValueError, match="All 5 entries of the observation are NaN"):
        residual(np.zeros(2)).log_prob(np.full(5, np.nan))
    with pytest.raises(ValueError, match="1 entries that are not finite"):
        residual(np.zeros(2)).log_prob(np.where(np.arange(5) == 0, np.inf, LACKING))
    with pytest.raises(ValueError, match="`value` must have shape"):
        residual(np.zeros(2)).log_prob(LACKING[:4])
    sets, kernel = RNG.normal(size=(40, 6, 1)) + THETA[:40, :1, None], EmpiricalMeasure(Gaussian(1.0), 0.3)
    known = Hyperparameters(Gaussian(np.ones(2)), kernel, np.array(0.01))
    whole = fit_likelihood(THETA[:40], sets, form=KernelMeans(data_kernel=kernel, hyperparameters=known))
    with pytest.raises(NotImplementedError, match=r"compares data as a whole, and 1 of 6 entries"):
        whole(np.zeros(2)).log_prob(np.where(np.arange(6)[:, None] == 0, np.nan, sets[0]))
