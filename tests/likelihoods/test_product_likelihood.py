"""Likelihoods with a product of densities of single residuals: by JAX and NumPy, and of intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import trapezoid

import numpyro_kme as kme
from numpyro_kme.likelihoods.prepared import prepare

FORM = kme.ResidualKernelMeans(bounds=False)
RNG = np.random.default_rng(3)
THETA = 3.0 * RNG.normal(size=(300, 1))
X = THETA + RNG.standard_t(1.0, size=(300, 5))
Y, Z = np.array([0.3, 1.2, -0.4, 9.0, 0.7]), np.array([[0.1], [-0.4], [0.5]])
GRID = np.sinh(np.linspace(-12.0, 12.0, 3001))
log_densities = jax.jit(lambda likelihood, z: jax.vmap(likelihood.log_density)(z))


@pytest.fixture(scope="module")
def fitted():
    """Five Cauchy draws around one location, as a vector; with a line in the middle of each, no product is needed."""
    assert kme.fit_likelihood(THETA, X).surrogate.density.apart is None
    learnt = kme.fit_likelihood(THETA, X, form=FORM)
    assert "a product of their densities" in learnt.surrogate.describe()["residuals"]
    return learnt


def test_by_numpy_by_jax_and_in_brief_over_a_plate_of_outputs(fitted, rng):
    rows, points = rng.standard_t(1.0, size=(4, 5)), rng.normal(size=(6, 4, 1))
    prepared = prepare(fitted, rows)
    found = prepared.log_densities(points)
    for i, row in enumerate(rows):
        by_jax = log_densities(fitted.at(row), jnp.asarray(points[:, i]))
        np.testing.assert_allclose(by_jax, found[:, i], atol=5e-3)
    np.testing.assert_allclose(prepared.brief().log_densities(points), found, atol=5e-3)


@pytest.mark.parametrize("end", [(-1.0, 0.5), (-np.inf, 0.0), (2.0, np.inf)])
def test_an_interval_is_the_integral_over_it(fitted, end):
    inside, y = np.arange(5) == 2, np.where(np.arange(5) == 2, np.nan, Y)
    ends = tuple(np.where(inside, bound, far) for bound, far in zip(end, (-np.inf, np.inf)))
    found = prepare(fitted, y, bounds=ends).log_densities(Z)
    learnt = fitted.surrogate.marginal(np.ones(5, bool), inside)
    assert learnt.density.apart is not None
    grid = np.unique(np.clip(np.append(GRID, np.linspace(-1.0, 2.0, 301)), *end))
    rows = np.where(inside, grid[:, None], Y)
    expected = trapezoid(np.exp(learnt.at_rows(rows).log_density(Z[:, None])), grid, axis=1)
    np.testing.assert_allclose(np.exp(found), expected, rtol=0.03)
