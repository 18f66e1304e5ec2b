"""Residuals given those before them, where straight lines do not suffice: known densities, quadrature, Jacobians."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

from numpyro_kme import fit_likelihood
from numpyro_kme.likelihoods.prepared import prepare
from numpyro_kme.likelihoods.residual import form as residual_form
from numpyro_kme.likelihoods.residual.autoregression import Autoregression, fit_autoregression
from numpyro_kme.likelihoods.residual.decorrelation import TriangularMap
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.residual.functions import RidgeFunctions

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
    assert "1, 2" in series.surrogate.describe()["given those before"]
    assert divergence(series.surrogate, series.coordinates) < 0.15


def test_nothing_is_added_where_straight_lines_suffice(rng):
    z = rng.normal(size=(400, 2))
    u = rng.normal(size=(400, 5))
    u[:, 1:] += 0.8 * u[:, :-1]
    for draws in (u, u[:, :1]):
        assert FORM.dependence(z, draws).decorrelation.curved is None


def some_functions(rng, n, dim):
    """Functions of coordinates and of the residuals before each."""
    known = np.arange(dim + n) < dim + np.arange(n)[:, None]
    twice = np.concatenate([known, known], axis=1)
    points, precision = rng.normal(size=(n, dim + n)), np.where(known, 0.3, 0.0)
    return RidgeFunctions(rng.normal(size=n), 0.3 * twice * rng.normal(size=twice.shape), points, precision, np.eye(n))


@pytest.mark.parametrize(("gain", "taken"), [(-0.5, False), (0.5, False), (2.0, True)])
def test_curves_are_taken_where_the_joint_density_gains_by_them(gain, taken, rng, monkeypatch):
    """What each residual gains by itself the joint kernels may have gained already."""
    z, u, curves = rng.normal(size=(50, 1)), rng.normal(size=(50, 2)), some_functions(rng, 2, 1)
    found = SimpleNamespace(functions=Autoregression(curves, curves), residuals=u, improvement=np.array([0.0, 1.0]))
    monkeypatch.setattr(residual_form, "fit_autoregression", lambda *_: found)

    def embedded(self, z, v, rows, decorrelation, improvement, still):
        score = 0.0 if decorrelation.curved is None else gain * residual_form.WORTH
        return residual_form.Dependence(decorrelation, None, improvement, None, score, still)

    monkeypatch.setattr(ResidualKernelMeans, "_embedded", embedded)
    assert (FORM.dependence(z, u).decorrelation.curved is not None) == taken


@pytest.mark.x64
def test_the_map_is_triangular_and_its_log_scales_are_its_slopes(rng):
    lower = np.tril(rng.normal(size=(3, 3)), -1)
    curved = Autoregression(some_functions(rng, 3, 2), some_functions(rng, 3, 2))
    triangular = TriangularMap(lower, lower[:, :, None] * rng.normal(size=2), np.array([0.0, 0.3, -0.5]), curved)
    u, z = rng.normal(size=3), rng.normal(size=2)
    jacobian = jax.jit(jax.jacfwd(lambda u: triangular(u, jnp.asarray(z))[0]))(u)
    v, log_scale = (np.asarray(part) for part in jax.jit(lambda u: triangular(u, jnp.asarray(z)))(u))
    np.testing.assert_allclose(jacobian, np.tril(jacobian))
    np.testing.assert_allclose(np.diagonal(jacobian), np.exp(-log_scale))
    given = [triangular.given(list(u), z, i, np) for i in range(3)]
    np.testing.assert_allclose(v, [(x - location) * np.exp(-scale) for x, (location, scale) in zip(u, given)])
    np.testing.assert_allclose(triangular(u, z, np)[0], v)


def test_every_entry_may_be_in_an_interval(series):
    """By the integral of the learnt density over the box."""
    low, high, theta = np.array([-1.0, 0.5, 0.0]), np.array([0.5, 2.0, 1.5]), np.array([[0.2], [1.0]])
    nothing, z = np.full(3, np.nan), series.coordinates.table(theta)
    found = prepare(series, nothing, bounds=(low, high)).log_densities(z)
    points, weights = np.polynomial.legendre.leggauss(12)
    cube = np.stack(np.meshgrid(*[0.5 + 0.5 * points] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    weights = np.prod(np.stack(np.meshgrid(*[0.5 * weights] * 3, indexing="ij")), axis=0).ravel()
    at = series.surrogate.at_rows(low + cube * (high - low))
    densities = np.exp(np.stack([at.log_density(row[None, None])[0] for row in z]))
    np.testing.assert_allclose(np.exp(found), densities @ weights * np.prod(high - low), rtol=0.05)
    by_jax = jax.jit(lambda theta: series(theta).observing(nothing, bounds=(low, high)).log_prob(nothing))
    np.testing.assert_allclose([by_jax(row) for row in theta], found, rtol=1e-3)


def test_functions_do_not_see_later_residuals(series):
    curved = series.surrogate.decorrelation.curved
    rng = np.random.default_rng(0)
    u, z = rng.normal(size=(5, 3)), rng.normal(size=(5, 1))
    changed = np.concatenate([u[:, :1], u[:, 1:] + 3.0], axis=1)
    for before, after in zip(curved(u, z, np), curved(changed, z, np)):
        np.testing.assert_allclose(before[:, :2], after[:, :2], atol=1e-12)
        assert np.any(before[:, 2] != after[:, 2])


def test_held_out_residuals_are_about_those_of_the_functions(series, rng):
    z = rng.normal(size=(600, 1))
    u = rng.normal(size=(600, 2))
    u[:, 1] = 0.7 * (np.sin(2.0 * u[:, 0]) + np.exp(0.5 * u[:, 0]) * u[:, 1])
    fitted = fit_autoregression(FORM, z, u, u, np.arange(600))
    location, log_scale = fitted.functions(u, z, np)
    w = (u - location) * np.exp(-log_scale)
    np.testing.assert_array_equal(w[:, 0], u[:, 0])
    assert np.corrcoef(w[:, 1], fitted.residuals[:, 1])[0, 1] > 0.98
    inside = np.abs(u[:, 0]) < 2.0
    # of the standard deviation of what is left
    scale = 0.7 * np.exp(0.5 * u[:, 0])
    errors = (location[:, 1] - 0.7 * np.sin(2.0 * u[:, 0])) / scale, log_scale[:, 1] - np.log(scale)
    for error, least in zip(errors, (0.3, 0.2)):
        assert np.sqrt(np.mean(np.square(error[inside]))) < least
    assert fitted.improvement[0] == 0.0 and fitted.improvement[1] > 0.2


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
    assert not learnt.form_of_part.curved and learnt.form_of_part.steps == FORM.steps // 3
    assert learnt.decorrelation.curved is None and "given those before" not in learnt.describe()
