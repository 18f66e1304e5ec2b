"""Densities by NumPy, over outputs under plates, against those of one output at one point by JAX."""

import jax
import numpy as np
import pytest

import numpyro_kme as kme
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods.prepared import prepare
from numpyro_kme.likelihoods.published.learning import Hyperparameters

KNOWN = Hyperparameters(Gaussian(np.ones(2)), Gaussian(np.full(2, 0.5)), np.array(0.01))
FORMS = {"residual": kme.ResidualKernelMeans(), "published": kme.KernelMeans(hyperparameters=KNOWN)}
density = jax.jit(lambda likelihood, point: likelihood.log_density(point))


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
    prepared = prepare(fitted, y)
    assert np.ptp(expected) > 1.0
    for found in (prepared.log_densities(z), jax.jit(jax.vmap(prepared.log_density))(z)):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(prepare(fitted, y[0, 0]).log_densities(z[:, 0]), expected[:, 0, 0], rtol=1e-8, atol=1e-8)
