"""Parts of adaptive importance sampling against SciPy and sums by hand."""

import jax
import numpy as np
import pytest
from scipy import special, stats

from numpyro_kme._core.keys import split
from numpyro_kme.embeddings.measures import Normal
from numpyro_kme.samplers import importance


@pytest.mark.parametrize("dim", [1, 3])
def test_a_proposal_is_a_normal_and_a_kernel_density_of_the_same_covariance(dim, rng):
    particles, weights = rng.normal(size=(400, dim)) @ np.diag(1.0 + np.arange(dim)), rng.dirichlet(np.ones(400))
    one, kernels, share = importance._fitted_proposal(jax.random.key(0), particles, weights)
    mean, covariance = weights @ particles, np.atleast_2d(np.cov(particles.T, aweights=weights, ddof=0))
    np.testing.assert_allclose(one.centres, mean[None], rtol=1e-12)
    np.testing.assert_allclose(one.root @ one.root.T, covariance, rtol=1e-5)
    rule = stats.gaussian_kde(rng.normal(size=(dim, importance.COMPONENTS)), "silverman").factor
    width = kernels.root[0, 0] / one.root[0, 0]
    assert np.min(np.abs(rule * np.array(importance.WIDTHS) - width)) < 1e-12 * width
    np.testing.assert_allclose(kernels.root @ kernels.root.T, width**2 * covariance, rtol=1e-5)
    unshrunk = mean + (kernels.centres - mean) / np.sqrt(1.0 - width**2)
    distances = np.abs(unshrunk[:, None] - particles).max(axis=2)
    assert distances.min(axis=1).max() < 1e-10
    points = 30.0 + rng.normal(size=(50, dim))  # far out too
    points[:25] -= 30.0
    each = [stats.multivariate_normal(centre, width**2 * covariance).logpdf(points) for centre in kernels.centres]
    of_kernels = special.logsumexp(each, axis=0) - np.log(len(each))
    np.testing.assert_allclose(kernels.log_densities(points), of_kernels, rtol=1e-6)
    of_one = stats.multivariate_normal(mean, covariance).logpdf(points)
    both = importance.Mixed(one, kernels, share)
    expected = special.logsumexp([of_one + np.log(share), of_kernels + np.log(1.0 - share)], axis=0)
    np.testing.assert_allclose(both.log_densities(points), expected, rtol=1e-5)
    drawn = kernels.sample(jax.random.key(1), 4000)
    total = width**2 * covariance + np.atleast_2d(np.cov(kernels.centres.T, ddof=0))
    np.testing.assert_allclose(drawn.mean(axis=0), kernels.centres.mean(axis=0), atol=5 * np.sqrt(total.max() / 4000))
    np.testing.assert_allclose(np.atleast_2d(np.cov(drawn.T)), total, atol=5 * total.max() * np.sqrt(2 / 4000))
    half = both.sample(jax.random.key(2), 4001)
    assert half.shape == (4001, dim) and np.array_equal(half[:2001], one.sample(split(jax.random.key(2), 2)[0], 2001))


def test_kernels_are_as_narrow_as_modes(rng):
    """Two modes of a fiftieth of their distance: a kernel of the rule of thumb is ten times too wide."""
    particles = np.repeat([-1.0, 1.0], 500)[:, None] + 0.04 * rng.normal(size=(1000, 1))
    equal = np.full(1000, 1e-3)
    for seed in range(5):
        one, kernels, _ = importance._fitted_proposal(jax.random.key(seed), particles, equal)
        rule = (4.0 / 300.0) ** 0.2
        np.testing.assert_allclose(kernels.root[0, 0], importance.WIDTHS[-1] * rule * one.root[0, 0], rtol=1e-6)


@pytest.mark.parametrize("dim, most, least", [(2, 3, 0.8), (10, 6, 0.4), (20, 12, 0.05)])
def test_proposals_reach_the_posterior_in_many_dimensions(dim, most, least):
    """A normal posterior, a third as wide as the prior: how many rounds it takes, and the effective proportion of
    particles; kernels around the particles themselves reach .03 and 0 in ten and twenty dimensions, in all fifteen."""
    prior, y, rounds = Normal(np.zeros(dim), np.eye(dim)), np.linspace(-1.0, 1.0, dim), []

    def log_likelihood(z):
        rounds.append(len(z))
        return -0.5 * np.sum(np.square((y - z) / 0.3), axis=1)

    for seed in range(3):
        rounds.clear()
        found = importance.adapted_proposal(jax.random.key(seed), log_likelihood, prior, 1000)
        assert len(rounds) <= most
        z = found.sample(jax.random.key(10 + seed), 4000)
        weights = special.softmax(log_likelihood(z) + prior.log_densities(z) - found.log_densities(z))
        assert 1.0 / np.sum(weights**2) > least * 4000
