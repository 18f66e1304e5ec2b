"""Parts of adaptive importance sampling against SciPy and sums by hand."""

import jax
import numpy as np
import pytest
from scipy import special

from numpyro_kme.embeddings.measures import Normal
from numpyro_kme.samplers import importance


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


def test_candidates_lead_to_a_needle(rng):
    """A posterior that is flat but for a narrow mode, which no draw from the prior is near; candidates are,
    as those of rounds of simulations."""
    prior, centre = Normal(np.zeros(2), np.eye(2)), np.array([2.0, -1.0])

    def log_likelihood(z):
        return np.logaddexp(-40.0, -0.5 * np.sum(np.square((z - centre) / 1e-3), axis=1))

    candidates = np.concatenate([rng.normal(size=(200, 2)), centre + 2e-3 * rng.normal(size=(800, 2))])
    for given, least, most in ((candidates, 0.3, 1.0), (None, 0.0, 1e-3)):
        found = importance.adapted_proposal(jax.random.key(0), log_likelihood, prior, 1000, given)
        near = np.linalg.norm(found.sample(jax.random.key(1), 4000) - centre, axis=1) < 5e-3
        assert least <= np.mean(near) <= most


def test_standard_errors_by_hand(rng):
    """Normal draws, and other normal densities: by the formula with their moments, and the mean over the numbers."""
    draws = np.stack([rng.normal(size=200_000), 3.0 * rng.normal(size=200_000), np.ones(200_000)], axis=1)
    x, shift, width = draws[:, 0], 0.3, 1.25
    moved = [sign * shift * x - 0.5 * shift**2 for sign in (1.0, -1.0)]
    wider = 0.5 * x**2 * (1.0 - 1.0 / width**2) - np.log(width) + 0.7
    errors = importance.StandardErrors.of(np.array([*moved, wider]), (0.5, 0.5, 2.0), 400.0, draws)
    of_mean, of_sd = shift**2, 2.0 * (width - 1.0) ** 2
    expected = np.sqrt([0.75 * of_mean + 1.0 / 400.0, 0.75 * of_sd + 0.5 / 400.0])  # half own, half the mean of two
    found = errors.of_moments(draws)
    np.testing.assert_allclose(found[:, 0], expected, rtol=0.03)
    other = np.sqrt([0.25 * of_mean + 1.0 / 400.0, 0.25 * of_sd + 0.5 / 400.0])
    np.testing.assert_allclose(found[:, 1], other * [3.0, 1.0], rtol=0.03)
    np.testing.assert_array_equal(found[:, 2], 0.0)
    np.testing.assert_allclose(errors.of_log_evidence, np.sqrt(2.0 * 0.7**2 + 1.0 / 400.0), rtol=0.01)
    np.testing.assert_allclose(errors.of_moments(draws[:, :2].reshape(-1, 1, 2)), found[:, None, :2])
