"""Proposals of Metropolis moves: what they are fitted to, and what those of the Student distribution leave as it is."""

import numpy as np
import pytest
from scipy import stats

from numpyro_kme.samplers.tempering import DEGREES, LOCAL, ProposalDistribution


def test_a_proposal_has_the_moments_and_correlations_of_the_particles(rng):
    particles = np.float32(rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3)) * [0.1, 1.0, 300.0] + 5.0)
    found = ProposalDistribution.fit(particles)
    np.testing.assert_allclose(found.mean, particles.mean(axis=0), rtol=1e-3)
    np.testing.assert_allclose(found.sd, particles.std(axis=0), rtol=1e-3)
    np.testing.assert_allclose(found.root @ found.root.T, np.corrcoef(particles.T), atol=1e-3)
    np.testing.assert_allclose(found.inverse @ found.root, np.eye(3), atol=1e-4)


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_the_student_distribution_is_left_as_it_is(dim, rng):
    """With 4 degrees of freedom; its quadratic form over the dimension has an F distribution."""
    count = 100_000
    proposal = ProposalDistribution.fit(rng.normal(size=(500, dim)) @ rng.normal(size=(dim, dim)) + 5.0)
    _, mean, sd, root, inverse = proposal
    white = rng.normal(size=(count, dim)) / np.sqrt(rng.chisquare(DEGREES, size=(count, 1)) / DEGREES)
    u = mean + sd * (white @ root.T)
    found, log_ratio = proposal.propose(np.random.default_rng(0), u)
    by_student = np.random.default_rng(0).random(count) >= LOCAL
    assert (log_ratio[~by_student] == 0.0).all() and 0.4 < by_student.mean() < 0.6
    forms = [np.sum(np.square((a - mean) / sd @ inverse.T), axis=1)[by_student] for a in (u, found)]
    assert stats.kstest(forms[1] / dim, stats.f(dim, DEGREES).cdf).statistic < 3.0 / np.sqrt(by_student.sum())
    before, after = (-0.5 * (DEGREES + dim) * np.log1p(form / DEGREES) for form in forms)
    np.testing.assert_allclose(log_ratio[by_student], before - after, atol=1e-6)


def test_differences_are_of_particles(rng):
    """A multiple of one, or one of them whole, up to little noise; each call has random numbers of its own."""
    particles = rng.normal(size=(30, 2))
    proposal, state, u = ProposalDistribution.fit(particles), np.random.default_rng(0), np.zeros((400, 2))
    (moved, log_ratio), (other, _) = proposal.propose(state, u), proposal.propose(state, u)
    steps = moved[log_ratio == 0.0]
    differences = (particles[:, None] - particles).reshape(-1, 2)
    apart = [np.linalg.norm(steps[:, None] - scale * differences, axis=2).min(axis=1) for scale in (1.0, 2.38 / 2.0)]
    assert 100 < len(steps) < 300 and np.max(np.minimum(*apart)) < 0.01
    assert len(np.unique(np.concatenate([moved, other])[:, 0])) == 800
