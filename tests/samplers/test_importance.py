"""Parts of adaptive importance sampling against SciPy and sums by hand."""

import jax
import numpy as np
import pytest
from scipy import stats

from numpyro_kme.samplers import importance


@pytest.mark.parametrize("dim", [1, 3])
def test_the_kernel_density_has_silvermans_bandwidth(dim, rng):
    particles, weights = rng.normal(size=(400, dim)) @ np.diag(1.0 + np.arange(dim)), rng.dirichlet(np.ones(400))
    found = importance._kernel_density(jax.random.key(0), particles, weights)
    rule = stats.gaussian_kde(rng.normal(size=(dim, importance.COMPONENTS)), "silverman").factor
    covariance = np.atleast_2d(np.cov(particles.T, aweights=weights, ddof=0))
    np.testing.assert_allclose(found.covariances[0], rule**2 * covariance, rtol=1e-5)
    np.testing.assert_allclose(found.weights, 1 / importance.COMPONENTS)
    assert {tuple(row) for row in np.asarray(found.means)} <= {tuple(row) for row in particles}
