"""Parts of adaptive importance sampling against SciPy and sums by hand."""

import jax
import numpy as np
import pytest
from scipy import special, stats

from numpyro_kme.samplers import importance


@pytest.mark.parametrize("dim", [1, 3])
def test_the_kernel_density_has_silvermans_bandwidth(dim, rng):
    particles, weights = rng.normal(size=(400, dim)) @ np.diag(1.0 + np.arange(dim)), rng.dirichlet(np.ones(400))
    found = importance._kernel_density(jax.random.key(0), particles, weights)
    rule = stats.gaussian_kde(rng.normal(size=(dim, importance.COMPONENTS)), "silverman").factor
    covariance = rule**2 * np.atleast_2d(np.cov(particles.T, aweights=weights, ddof=0))
    np.testing.assert_allclose(found.root @ found.root.T, covariance, rtol=1e-5)
    assert {tuple(row) for row in found.centres} <= {tuple(row) for row in particles}
    points = 30.0 + rng.normal(size=(50, dim))  # far out too
    points[:25] -= 30.0
    each = [stats.multivariate_normal(centre, covariance).logpdf(points) for centre in found.centres]
    np.testing.assert_allclose(
        found.log_densities(points), special.logsumexp(each, axis=0) - np.log(len(each)), rtol=1e-6
    )
    drawn = found.sample(jax.random.key(1), 4000)
    total = covariance + np.atleast_2d(np.cov(found.centres.T, ddof=0))
    np.testing.assert_allclose(drawn.mean(axis=0), found.centres.mean(axis=0), atol=5 * np.sqrt(total.max() / 4000))
    np.testing.assert_allclose(np.atleast_2d(np.cov(drawn.T)), total, atol=5 * total.max() * np.sqrt(2 / 4000))
