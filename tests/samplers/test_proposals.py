"""Proposals of Metropolis moves: what they are fitted to, and what those of the Student distribution leave as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from numpyro_kme.samplers.proposals import LOCAL, fit_proposal, propose, random_numbers


def test_a_proposal_has_the_moments_and_correlations_of_the_particles(rng):
    particles = np.float32(rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3)) * [0.1, 1.0, 300.0] + 5.0)
    found = fit_proposal(jnp.asarray(particles))
    np.testing.assert_allclose(found.mean, particles.mean(axis=0), rtol=1e-3)
    np.testing.assert_allclose(found.sd, particles.std(axis=0), rtol=1e-3)
    np.testing.assert_allclose(found.root @ found.root.T, np.corrcoef(particles.T), atol=1e-3)
    np.testing.assert_allclose(found.inverse @ found.root, np.eye(3), atol=1e-4)


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_the_student_distribution_is_left_as_it_is(dim, rng):
    """With 4 degrees of freedom, 5 in odd dimensions; its quadratic form over the dimension has an F distribution."""
    degrees, count = 4 + dim % 2, 100_000
    proposal = fit_proposal(jnp.asarray(rng.normal(size=(500, dim)) @ rng.normal(size=(dim, dim)) + 5.0, jnp.float32))
    mean, sd, root, inverse = (np.asarray(a) for a in proposal[1:])
    white = rng.normal(size=(count, dim)) / np.sqrt(rng.chisquare(degrees, size=(count, 1)) / degrees)
    u = jnp.asarray(mean + sd * (white @ root.T), jnp.float32)
    numbers = random_numbers(jax.random.key(0), 1, count, dim)
    found, log_ratio = jax.jit(propose)(proposal, u, numbers.uniform[0], numbers.normal[0])
    by_student = np.asarray(numbers.uniform[0, 1]) >= LOCAL
    forms = [np.sum(np.square((np.asarray(a) - mean) / sd @ inverse.T), axis=1)[by_student] for a in (u, found)]
    assert stats.kstest(forms[1] / dim, stats.f(dim, degrees).cdf).statistic < 3.0 / np.sqrt(by_student.sum())
    before, after = (-0.5 * (degrees + dim) * np.log1p(form / degrees) for form in forms)
    np.testing.assert_allclose(log_ratio[by_student], before - after, atol=0.01)
