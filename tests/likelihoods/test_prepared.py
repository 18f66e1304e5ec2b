"""Densities by NumPy, over outputs under plates, against those of one output at one point by JAX."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import numpyro_kme as kme
from numpyro_kme.kernels import Gaussian
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import LikelihoodAt
from numpyro_kme.likelihoods.prepared import PreparedLikelihood
from numpyro_kme.likelihoods.published.hyperparameters import Hyperparameters

KNOWN = Hyperparameters(Gaussian(np.ones(2)), Gaussian(np.full(2, 0.5)), np.array(0.01))
FORMS = {"residual": kme.ResidualKernelMeans(), "published": kme.KernelMeans(hyperparameters=KNOWN)}
density = jax.jit(lambda likelihood, point: likelihood.log_density(point))


@register
class ByJax(LikelihoodAt):
    """A likelihood without a method for NumPy."""

    wrapped: Any
    data: Any

    def signed_log(self, z):
        return self.wrapped.signed_log(z)

    def log_density(self, z):
        return self.wrapped.log_density(z)


@pytest.fixture(scope="module", params=FORMS)
def fitted(request):
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(80, 2))
    x = np.exp(0.4 * theta) + 0.3 * (1.0 + 0.3 * np.tanh(theta[:, :1])) * rng.normal(size=(80, 2))
    return kme.fit_likelihood(theta, x, form=FORMS[request.param])


def one_by_one(fitted, y, z):
    """Over the shape of `y` `(3, 2, n)` and `z` `(k, 2, D)`: the second axis of the outputs has points of its own."""
    likelihoods = [[fitted.at(one) for one in row] for row in y]
    found = [[[density(at, p) for at, p in zip(row, points)] for row in likelihoods] for points in z]
    return np.array(found)


@pytest.mark.x64
def test_densities_by_numpy_are_those_by_jax(fitted, rng):
    """Within the simulations and far outside of them."""
    y = np.exp(0.4 * rng.normal(size=(3, 2, 2)))
    z = np.concatenate([rng.normal(size=(4, 2, 2)), 6.0 * rng.normal(size=(2, 2, 2))])
    expected = one_by_one(fitted, y, z)
    found = PreparedLikelihood.of(fitted, y).log_densities(z)
    assert found.shape == (6, 3, 2) and np.ptp(expected) > 1.0
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.x64
def test_one_output_needs_no_axes_and_a_form_without_numpy_is_compiled(fitted, rng):
    y, z = np.exp(0.4 * rng.normal(size=2)), rng.normal(size=(700, 2))
    prepared = PreparedLikelihood.of(fitted, y)
    found = prepared.log_densities(z)
    expected = [float(density(fitted.at(y), one)) for one in z[:5]]
    np.testing.assert_allclose(found[:5], expected, rtol=1e-9, atol=1e-9)
    compiled = replace(prepared, likelihood=ByJax(prepared.likelihood, y))
    compiled = replace(compiled, varies=(False,) * (len(prepared.varies)) + (True,))
    np.testing.assert_allclose(compiled.log_densities(z), found, rtol=1e-9, atol=1e-9)


def test_what_is_brief_is_near(fitted, rng):
    """Float32 in the parts where nothing cancels."""
    prepared, z = PreparedLikelihood.of(fitted, np.ones(2)), rng.normal(size=(50, 2))
    found, brief = prepared.log_densities(z), prepared.brief().log_densities(z)
    assert found.shape == (50,) and found.dtype == np.float64
    np.testing.assert_allclose(brief, found, atol=1e-3)


def test_a_form_whose_likelihoods_of_one_and_of_many_have_other_parts_is_refused():
    """Which parts differ between outputs would be read off the wrong ones."""
    surrogate = SimpleNamespace(at_rows=lambda rows: (rows,))
    fitted = SimpleNamespace(event_shape=(2,), surrogate=surrogate, at=lambda y: (y, y.sum()))
    with pytest.raises(ValueError, match="longer than"):
        PreparedLikelihood.of(fitted, np.eye(2))
