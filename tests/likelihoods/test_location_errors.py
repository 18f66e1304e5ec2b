"""Errors of learnt locations: against the Gaussian process that a ridge regression is, and a posterior by hand."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.locations import moved_means
from numpyro_kme.likelihoods.recorded import Recorded
from numpyro_kme.likelihoods.residual import location_errors
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.residual.location_errors import LocationErrors
from numpyro_kme.likelihoods.residual.smoothness import INTERCEPT, RIDGE, Inputs, Smoothness, features
from numpyro_kme.models.coordinates import Coordinates


def variances(errors, z):
    """Variances of the locations at points `(k, D)`, `(k, n)`."""
    return np.mean(np.square(errors.at(z)), axis=1)


TWO = jax.tree.map(
    lambda *leaves: np.stack(leaves),
    Smoothness(np.array([-1.0, 0.2, -0.5, -2.0]), -0.3, np.array([0.4, 0.9]), -1.0),
    Smoothness(np.array([0.1, -1.0, -0.7, 0.0]), 0.5, np.array([-0.2, 0.3]), -0.5),
)


def process(smoothness, i, a, b, points):
    """Prior covariance of regression `i` with these inducing points, by hand."""
    near = [np.exp(-0.5 * np.sum(np.square((p[:, None] - points) / np.exp(smoothness.length[i])), -1)) for p in (a, b)]
    among = np.exp(-0.5 * np.sum(np.square((points[:, None] - points) / np.exp(smoothness.length[i])), -1))
    radial = near[0] @ np.linalg.solve(among + RIDGE * np.eye(len(points)), near[1].T)
    straight = (features(a) * np.exp(2.0 * smoothness.linear[i])) @ features(b).T
    return INTERCEPT**2 + straight + np.exp(2.0 * smoothness.rbf[i]) * radial


@pytest.mark.parametrize("size", [6, 30])  # fewer simulations than columns, and more
def test_variances_are_those_of_the_gaussian_process(rng, monkeypatch, size):
    """Of two groups with different inducing points, within five standard errors of squares of normals."""
    monkeypatch.setattr(location_errors, "DRAWS", 20_000)
    z, new, noise = rng.normal(size=(size, 2)), 2.0 * rng.normal(size=(4, 2)), rng.uniform(0.5, 2.0, size=(2, size))
    some = (Inputs(z, z[:4]), Inputs(z, z[:3]))
    parts = [LocationErrors.of(TWO.regress(at, noise, noise), z[:4], i) for i, at in enumerate(some)]
    errors = LocationErrors.together(parts)
    expected = []
    for at in some:
        for i in range(2):
            covariance = [process(TWO, i, *pair, at.inducing_points) for pair in ((z, z), (new, z), (new, new))]
            variance = noise[i] * (np.exp(2.0 * TWO.noise[i]) + 1e-6)
            known = covariance[1] @ np.linalg.solve(covariance[0] + np.diag(variance), covariance[1].T)
            expected.append(np.diagonal(covariance[2] - known))
    np.testing.assert_allclose(variances(errors, new), np.transpose(expected), rtol=5.0 * np.sqrt(2.0 / 20_000))
    np.testing.assert_array_equal(variances(errors.some(np.array([2, 0])), new), variances(errors, new)[:, [2, 0]])


@pytest.fixture(scope="module")
def learnt():
    rng = np.random.default_rng(3)
    z = rng.normal(size=(120, 2))
    x = np.stack([z[:, 0] + np.sin(2.0 * z[:, 1]), z[:, 1] ** 2 - z[:, 0], z.sum(axis=1)], axis=1)
    return ResidualKernelMeans().fit(z, x + 0.3 * rng.normal(size=x.shape))


def test_some_statistics_and_what_only_evaluates(learnt):
    z = np.zeros((3, 2))
    seen = learnt.marginal(np.array([True, False, True]))
    np.testing.assert_array_equal(variances(seen.location_errors, z), variances(learnt.location_errors, z)[:, [0, 2]])
    only = learnt.at(np.zeros(3)).surrogate
    assert only.location_errors is None and only.location_changes(np.zeros(3), z) is None


def test_means_move_by_their_covariance_with_a_change(rng):
    """A normal posterior times `exp(a' theta)` has its mean moved by `S a`; what chance gives is taken off."""
    root = np.array([[1.0, 0.0], [0.6, 0.5]])
    draws, a = rng.normal(size=(40_000, 2)) @ root.T, np.array([[0.3, -0.2], [-0.1, 0.4]])
    expected = a @ root @ root.T / np.linalg.norm(root, axis=1)
    found = moved_means(draws, draws @ a.T)
    np.testing.assert_allclose(found, np.sqrt(np.mean(expected**2, axis=0)), atol=5.0 * 0.5 / np.sqrt(40_000))
    few = draws[:100]
    assert np.all(moved_means(few, rng.normal(size=(100, 2000))) < 0.03)  # 0.1 with what chance gives
    for precision in (
        np.float64,
        np.float32,
    ):  # numbers that are the same in all draws, such as a corner of a Cholesky factor
        assert moved_means(np.ones((100, 1), precision), few @ a.T) == 0.0


GRID = np.linspace(-4.0, 4.0, 1601)[:, None]


def curve(z):
    return z + 0.5 * np.sin(2.0 * z)


def quantiles(log_density):
    weights = np.exp(log_density - np.max(log_density))
    return np.interp((np.arange(400) + 0.5) / 400, np.cumsum(weights) / np.sum(weights), GRID[:, 0])


def test_posterior_means_are_off_by_about_as_much():
    """Over 16 sets of 100 simulations; what is off by other errors than the location's is not in it."""
    y, prior, off, told = np.array([0.8]), -0.5 * GRID[:, 0] ** 2, [], []
    exact = quantiles(prior - 0.5 * ((y - curve(GRID[:, 0])) / 0.3) ** 2)
    for seed in range(16):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(100, 1))
        learnt = ResidualKernelMeans().fit(z, curve(z) + 0.3 * rng.normal(size=z.shape))
        own = quantiles(prior + learnt.at(y).log_density(GRID))
        off.append((own.mean() - exact.mean()) / exact.std())
        told.append(moved_means(own[:, None], learnt.location_changes(y, own[:, None]))[0])
    assert 0.35 < np.sqrt(np.mean(np.square(told)) / np.mean(np.square(off))) < 1.6


def test_changes_of_the_likelihood_by_hand(learnt, rng):
    """Finite differences of `-u^2 / 2` by the intercept of each location, times the drawn errors."""
    y, z, step = np.array([0.4, -0.3, 0.2]), 0.5 * rng.normal(size=(7, 2)), 1e-5
    standard = (y - learnt.transform.centre) / learnt.transform.scale
    errors, expected = learnt.location_errors.at(z), 0.0
    for i in range(3):
        moved = step * np.eye(3)[i]
        offsets = learnt.location.offset + moved, learnt.location.offset - moved
        ends = [replace(learnt, location=replace(learnt.location, offset=offset)) for offset in offsets]
        up, down = (-0.5 * np.square(end.standardised(standard, z, np).residuals).sum(axis=1) for end in ends)
        expected += ((up - down) / (2.0 * step))[:, None] * errors[:, :, i]
    np.testing.assert_allclose(learnt.location_changes(y, z), expected, rtol=1e-5)


def test_changes_of_observations_along_plates_add_up(learnt, rng):
    """Groups with parameters of their own, each with trials of which some are masked, scaled or lack a statistic."""
    fitted = FittedLikelihood(learnt, Coordinates.standardise(rng.normal(size=(50, 2))), (3,), np.zeros((1, 2)))
    y, z, weights = rng.normal(size=(4, 2, 3)), 0.5 * rng.normal(size=(6, 2, 2)), rng.integers(0, 3, (4, 2)) / 2.0
    y[1, 0, 2], y[2, 1], weights[1:3] = np.nan, np.nan, 1.5
    expected = 0.0
    for trial, group in np.argwhere(weights):
        one, seen = y[trial, group], ~np.isnan(y[trial, group])
        if seen.any():
            expected = expected + weights[trial, group] * learnt.marginal(seen).location_changes(one, z[:, group])
    np.testing.assert_allclose(fitted.location_changes(y, z, weights), expected)
    assert fitted.location_changes(y, z, 0.0) is None


def test_an_output_that_records_nothing_but_missing_values_counts(rng):
    z = rng.normal(size=(60, 1))
    x = np.where(rng.uniform(size=z.shape) < 0.5, np.nan, z)
    learnt = Recorded(ResidualKernelMeans()).fit(z, x)
    fitted = FittedLikelihood(learnt, Coordinates.standardise(z), (1,), z)
    expected = learnt.location_changes(learnt.point(np.array([np.nan])), z[:5])
    np.testing.assert_array_equal(fitted.location_changes(np.array([np.nan]), z[:5]), expected)
    assert np.any(expected != 0.0)
