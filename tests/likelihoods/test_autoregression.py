"""Residuals given those before them, where straight lines do not suffice: known densities, quadrature, Jacobians."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

from numpyro_kme import fit_likelihood
from numpyro_kme.likelihoods.prepared import prepare
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans

FORM = ResidualKernelMeans()


def turning(rng, z):
    """A series whose next value follows the last one by a curve, as its spread does."""
    x = [z[:, 0] + rng.normal(size=len(z))]
    for _ in range(2):
        x.append(z[:, 0] + 2.0 * np.sin(x[-1]) + np.exp(0.5 * np.tanh(x[-1])) * rng.normal(size=len(z)))
    return np.stack(x, axis=1)


def log_density_of_series(x, z):
    means, scales = z + 2.0 * np.sin(x[:, :-1]), np.exp(0.5 * np.tanh(x[:, :-1]))
    return stats.norm.logpdf(x[:, 0], z[:, 0]) + stats.norm.logpdf(x[:, 1:], means, scales).sum(axis=1)


@pytest.fixture(scope="module")
def series():
    rng = np.random.default_rng(5)
    z = rng.normal(size=(1000, 1))
    return fit_likelihood(z, turning(rng, z))


def log_densities(surrogate, x, z):
    """At pairs of series `(k, n)` and coordinates `(k, D)`."""
    return np.array([surrogate.at_rows(row[None]).log_density(point[None])[0] for row, point in zip(x, z)])


def divergence(surrogate, coordinates):
    """Mean of the log density of new series over the learnt one: a Kullback-Leibler divergence, with its error."""
    rng = np.random.default_rng(6)
    theta = rng.normal(size=(400, 1))
    x = turning(rng, theta)
    return np.mean(log_density_of_series(x, theta) - log_densities(surrogate, x, coordinates.table(theta)))


def test_a_series_whose_next_value_follows_the_last_by_a_curve(series):
    """Ten seeds gave 0.05 to 0.09 nats; straight lines alone, with the joint kernels, 0.28 to 0.33."""
    assert series.surrogate.decorrelation.curved is not None
    assert "x[1], x[2]" in series.surrogate.describe()["given those before"]
    assert divergence(series.surrogate, series.coordinates) < 0.15


@pytest.mark.x64
def test_the_density_of_a_series_integrates_to_one(series):
    surrogate = series.surrogate
    first = np.array([0.4])
    grid = np.sinh(np.linspace(-6.0, 6.0, 161))
    rows = np.stack([np.full((161, 161), first), *np.meshgrid(grid, grid, indexing="ij")], axis=-1).reshape(-1, 3)
    z = np.array([[0.3]])
    found = np.exp(surrogate.at_rows(rows).log_density(z[:, None])[0]).reshape(161, 161)
    alone = np.exp(surrogate.marginal(np.array([True, False, False])).at_rows(rows[:1, :]).log_density(z))
    np.testing.assert_allclose(trapezoid(trapezoid(found, grid, axis=1), grid), alone[0], rtol=0.1)


def test_an_interval_is_the_integral_over_it(series):
    y, z = np.array([0.5, 1.0, np.nan]), np.array([[-0.5], [0.4]])
    ends = np.array([-np.inf, -np.inf, -1.0]), np.array([np.inf, np.inf, 2.0])
    found = prepare(series, y, bounds=ends).log_densities(z)
    learnt = series.surrogate.marginal(np.ones(3, bool), np.isnan(y))
    assert learnt.decorrelation.curved is not None
    grid = np.linspace(-1.0, 2.0, 2001)
    rows = np.where(np.isnan(y), grid[:, None], y)
    densities = np.exp(learnt.at_rows(rows).log_density(z[:, None]))
    np.testing.assert_allclose(np.exp(found), trapezoid(densities, grid, axis=1), rtol=0.02)


def test_by_jax_and_in_float32(series):
    at = series.surrogate.at(np.array([0.5, -1.0, 2.0]))
    z = np.linspace(-2.0, 2.0, 9)[:, None]
    expected = at.log_density(z)
    found, slopes = jax.jit(jax.vmap(jax.value_and_grad(at.log_density)))(jnp.asarray(z))
    np.testing.assert_allclose(found, expected, atol=2e-3)
    np.testing.assert_allclose(at.brief().log_density(z), expected, atol=2e-2)
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize("left_out", [dict(decorrelate=False), dict(curved=False)])
def test_without_decorrelation_or_curves_there_is_none(left_out, rng):
    z = rng.normal(size=(300, 1))
    learnt = replace(FORM, **left_out).fit(z, turning(rng, z))
    again = replace(FORM, **left_out).again(learnt, z, turning(rng, z), np.arange(150))
    assert np.array_equal(again.decorrelation.coefficients, learnt.decorrelation.coefficients)
    assert again.form.steps == FORM.steps // 3
    assert learnt.decorrelation.curved is None and "given those before" not in learnt.describe()
