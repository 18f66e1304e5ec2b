"""Kernel Bayes' rule, its filter and low-rank factors: dense formulas, exact normal posteriors, brute force."""

import numpy as np
import pytest
from dense import dense_rule, gram

from numpyro_kme.embeddings import KernelBayesFilter, KernelBayesRule, MeanEmbedding, conditional_embedding
from numpyro_kme.embeddings.kernel_bayes import kernel_sum_rule, posterior_weights
from numpyro_kme.kernels import Gaussian, Laplace, RotationGaussian, RotationTrace
from numpyro_kme.kernels.low_rank import LowRank


@pytest.mark.parametrize("kernel", [Gaussian(0.8), pytest.param(Laplace(1.5), marks=pytest.mark.slow)])
def test_pivoted_cholesky(rng, kernel):
    x, t = rng.normal(size=(120, 2)), rng.normal(size=(7, 2))
    full = np.asarray(kernel.gram(x))
    for tolerance in (1e-1, 1e-3, 1e-9):
        factor = LowRank.fit(kernel, x, tolerance=tolerance)
        rest = full - factor.values @ factor.values.T
        assert np.diagonal(rest).min() > -1e-8 and np.diagonal(rest).max() <= tolerance + 1e-9
        np.testing.assert_allclose(factor.features(x), factor.values, atol=1e-5)
    exact = np.asarray(kernel.gram(t, x))
    np.testing.assert_allclose(factor.features(t) @ factor.values.T, exact, atol=1e-4)
    assert LowRank.fit(kernel, x, tolerance=1e-9, max_rank=5).rank == 5


@pytest.fixture
def joint(rng):
    x = rng.normal(size=(60, 2))
    return x, x @ np.array([[1.0, 0.3], [0.0, 1.0]]) + 0.5 * rng.normal(size=(60, 2)), rng.normal(size=(9, 2))


def test_weights_by_the_printed_formula(joint, rng):
    """With signed prior weights; the low-rank path at tolerance 1e-12 against dense matrices."""
    x, y, u = joint
    gamma = rng.normal(size=9)
    prior = MeanEmbedding(Gaussian(0.9), u, gamma)
    eps, delta = 1e-3, 4e-3
    rule = KernelBayesRule.fit(Gaussian(0.7), x, y, prior, eps, delta=delta, tolerance=1e-12)
    mu = np.linalg.solve(gram(x, x, 0.9) + 60 * eps * np.eye(60), gram(x, u, 0.9) @ gamma)
    np.testing.assert_allclose(rule.prior_weights, mu, rtol=1e-6, atol=1e-8)
    seen = rng.normal(size=(4, 2))
    expected = dense_rule(mu, gram(y, y, 0.7), delta) @ gram(y, seen, 0.7)
    np.testing.assert_allclose(rule.weights(seen), expected.T, atol=1e-6)
    posterior = rule.posterior(seen[:1])
    np.testing.assert_allclose(np.asarray(posterior(u)), gram(u, x, 0.9) @ expected[:, 0], atol=1e-6)
    values = rng.normal(size=60)
    np.testing.assert_allclose(posterior.expectation(values), values @ expected[:, 0], atol=1e-5)


def test_sum_rule_by_its_formula_and_on_normals(joint, rng):
    x, y, u = joint
    prior = MeanEmbedding(Gaussian(0.9), u)
    found = kernel_sum_rule(Gaussian(0.7), prior, x, y, 1e-2)
    expected = np.linalg.solve(gram(x, x, 0.9) + 0.6 * np.eye(60), gram(x, u, 0.9).mean(1))
    np.testing.assert_allclose(found.weights, expected, rtol=1e-6, atol=1e-9)
    x = rng.normal(size=(800, 1))
    y = 0.7 * x + 0.5 * rng.normal(size=(800, 1))
    other = MeanEmbedding(Gaussian(1.0), 0.5 + 0.6 * rng.normal(size=(500, 1)))
    found = kernel_sum_rule(Gaussian(1.0), other, x, y, 1e-4)
    t = np.linspace(-1.5, 2, 8)
    variance = 0.7**2 * 0.36 + 0.25
    exact = np.sqrt(1 / (1 + variance)) * np.exp(-0.5 * (t - 0.35) ** 2 / (1 + variance))
    np.testing.assert_allclose(np.asarray(found(t[:, None])), exact, atol=0.08)


@pytest.mark.parametrize("dim", [1, pytest.param(2, marks=pytest.mark.slow), 6])
def test_posterior_means_on_normals(rng, dim):
    """Joint sample from one prior, posterior under another: the exact normal posterior, and not the joint sample's."""
    n, noise, prior_sd, wide = 600, 0.6, 0.5, 2.0 * dim**0.5
    x = rng.normal(size=(n, dim)) * 1.2
    y = x + noise * rng.normal(size=(n, dim))
    prior = MeanEmbedding(Gaussian(wide), 0.4 + prior_sd * rng.normal(size=(n, dim)))
    rule = KernelBayesRule.fit(Gaussian(0.8 * wide), x, y, prior, 0.01 / n)
    seen = rng.uniform(-0.5, 1.2, size=(20, dim))
    weights = rule.weights(seen)
    means = weights @ x / weights.sum(1, keepdims=True)
    gain = prior_sd**2 / (prior_sd**2 + noise**2)
    exact = 0.4 + gain * (seen - 0.4)
    without = 1.44 / (1.44 + noise**2) * seen
    assert np.mean((means - exact) ** 2) < 0.25 * np.mean((without - exact) ** 2)


@pytest.mark.smoke
def test_conditional_embeddings_by_dense_matrices(joint, rng):
    x, y, _ = joint
    seen, t = rng.normal(size=(1, 2)), rng.normal(size=(5, 2))
    v = np.linalg.solve(gram(y, y, 0.7) + 60 * 1e-2 * np.eye(60), gram(y, seen, 0.7)[:, 0])
    found = conditional_embedding(Gaussian(0.9), Gaussian(0.7), x, y, seen, 1e-2, tolerance=1e-12)
    np.testing.assert_allclose(found.weights, v, atol=1e-8)
    np.testing.assert_allclose(found(t), gram(t, x, 0.9) @ v, atol=1e-8)


def test_no_weight_is_not_a_posterior(joint):
    x, y, u = joint
    k, far = Gaussian(0.7), np.full((1, 2), 1e3)
    prior = MeanEmbedding(k, u)
    for call in (
        lambda: kernel_sum_rule(k, MeanEmbedding(k, u + 1e3), x, y, 1e-3),
        lambda: KernelBayesRule.fit(k, x, y, MeanEmbedding(k, u + 1e3), 1e-3).posterior(y[:1]),
        lambda: KernelBayesRule.fit(k, x, y, prior, 1e-3).posterior(far),
        lambda: conditional_embedding(k, k, x, y, far, 1e-3),
    ):
        with pytest.raises(RuntimeError, match="All 60 weights are zero: the observation or the prior lies far"):
            call()


def test_what_cannot_be_solved_is_said(joint, rng):
    """Below rounding a regularisation gives noise, not weights; of a `delta` as small the solution stays finite."""
    x, y, u = joint
    prior, k = MeanEmbedding(Gaussian(0.9), u), Gaussian(0.7)
    for call in (
        lambda: kernel_sum_rule(k, prior, x, y, 1e-18),
        lambda: KernelBayesRule.fit(k, x, y, prior, 1e-18),
        lambda: KernelBayesFilter.fit(k, k, x, y, 1e-18),
        lambda: conditional_embedding(k, k, x, y, y[:1], 1e-18),
    ):
        with pytest.raises(np.linalg.LinAlgError, match=r"with c = (6|5.9)e-17, number of points times regularisation"):
            call()
    factor = rng.normal(size=(20, 1)) @ np.ones((1, 4))
    found = posterior_weights(np.ones(20), factor, 1e-14, np.ones(4))
    np.testing.assert_allclose(found, factor[:, 0] / np.sum(factor[:, 0] ** 2), rtol=1e-6)


def test_the_mode_of_an_embedding(rng):
    x, weights = rng.normal(size=(40, 2)), rng.normal(size=40)
    embedding = MeanEmbedding(Gaussian(0.8), x, weights)
    axis = np.linspace(-4, 4, 161)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    best = grid[np.argmax(np.asarray(embedding(grid)))]
    assert np.asarray(embedding(embedding.mode()[None]))[0] >= np.asarray(embedding(best[None]))[0] - 1e-6
    np.testing.assert_allclose(embedding.mode(best), best, atol=0.06)
    with pytest.raises(ValueError, match="needs a Gaussian kernel, or one on rotations; got Laplace"):
        MeanEmbedding(Laplace(1.0), x).mode()
    for kernel, points in ((Gaussian(0.8), x), (RotationTrace(), np.eye(2)[None])):
        with pytest.raises(FloatingPointError, match=f"All {len(points)} weights are zero: the embedding has no mode"):
            MeanEmbedding(kernel, points, np.zeros(len(points))).mode()
    with pytest.raises(FloatingPointError, match=r"where it must be positive: .* with a sum of -1, have no mode"):
        MeanEmbedding(Gaussian(0.8), x, np.full(40, -1 / 40)).mode()


def turned(axis, angle):
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def test_modes_are_rotations(rng):
    """The best of a fine grid of rotations, about the axis on which all points lie, signed weights included."""
    axis, angles = rng.normal(size=3), rng.uniform(-1.0, 1.0, size=25)
    points = np.stack([turned(axis, angle) for angle in angles])
    weights = rng.uniform(-0.2, 1.0, size=25)
    grid = np.stack([turned(axis, angle) for angle in np.linspace(-np.pi, np.pi, 2001)])
    for kernel in (RotationTrace(), RotationGaussian(0.6)):
        embedding = MeanEmbedding(kernel, points, weights)
        found = embedding.mode()
        np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-10)
        best = grid[np.argmax(np.asarray(embedding(grid)))]
        assert float(embedding(found[None])[0]) >= float(embedding(best[None])[0]) - 1e-9
        np.testing.assert_allclose(found, best, atol=5e-3)


def rotation(rng, length):
    """A noisy rotation of the plane, seen through noise."""
    states = [np.array([1.0, 0.0])]
    for _ in range(length):
        angle = np.arctan2(states[-1][1], states[-1][0]) + 0.3
        states.append(np.array([np.cos(angle), np.sin(angle)]) + 0.1 * rng.normal(size=2))
    states = np.stack(states)
    return states, states + 0.3 * rng.normal(size=states.shape)


def test_filter_by_dense_formulas(rng):
    states, seen = rotation(rng, 50)
    _, new = rotation(rng, 5)
    eps, delta, sx, sy = 1e-3, 2e-3, 0.7, 0.6
    found = KernelBayesFilter.fit(Gaussian(sx), Gaussian(sy), states, seen, eps, delta=delta, tolerance=1e-13)
    x, following, y, n = states[:-1], states[1:], seen[:-1], 50
    gram_x, gram_y = gram(x, x, sx), gram(y, y, sy)
    ridge = np.linalg.inv(gram_x + n * eps * np.eye(n))
    for unit, normalise in ((lambda w: w, False), (lambda w: w / w.sum(), True)):
        alphas, mus = [np.linalg.solve(gram_y + n * eps * np.eye(n), gram(y, new[:1], sy)[:, 0])], []
        for t in range(1, len(new)):
            mus.append(ridge @ gram(x, following, sx) @ ridge @ gram_x @ unit(alphas[-1]))
            alphas.append(dense_rule(mus[-1], gram_y, delta) @ gram(y, new[t : t + 1], sy)[:, 0])
        filtered = found.filter(new, normalise=normalise)
        np.testing.assert_allclose(filtered, np.stack(alphas), atol=1e-5)
        np.testing.assert_allclose(found.predict(np.stack(list(map(unit, filtered[:-1])))), np.stack(mus), atol=1e-5)
        smoothed = [alphas[-1]]
        for alpha in alphas[-2::-1]:
            operator = dense_rule(ridge @ gram_x @ unit(alpha), gram(following, following, sx), delta)
            smoothed.append(operator @ gram(following, x, sx) @ unit(smoothed[-1]))
        np.testing.assert_allclose(found.smooth(filtered, normalise=normalise), np.stack(smoothed[::-1]), atol=1e-4)
    predicted = found.predict(unit(filtered[0]))
    np.testing.assert_allclose(found.means(predicted), mus[0] @ x / mus[0].sum(), atol=1e-5)
    np.testing.assert_allclose(found.modes(filtered[2]), found.modes(filtered)[2], rtol=1e-12)


def test_filter_and_smoother_improve_on_the_observations(rng):
    states, seen = rotation(rng, 400)
    truth, new = rotation(rng, 60)
    found = KernelBayesFilter.fit(Gaussian(0.5), Gaussian(0.6), states, seen, 1e-4, tolerance=1e-4)
    filtered = found.filter(new)
    found = new, found.means(filtered), found.means(found.smooth(filtered))
    raw, mean, smooth = (np.mean((e - truth) ** 2) for e in found)
    assert mean < 0.75 * raw
    assert smooth < 0.75 * raw


def test_a_lost_state_is_said(rng):
    states, seen = rotation(rng, 50)
    found = KernelBayesFilter.fit(Gaussian(0.7), Gaussian(0.2), states, seen, 1e-3)
    new = seen[:5].copy()
    new[3] += 100.0
    with pytest.raises(FloatingPointError, match="not finite at 2 of 5 times, first at time 3"):
        found.filter(new)
    with pytest.raises(FloatingPointError, match="zero or not finite at 1 of 1 times"):
        found.means(np.zeros(50))


def fitted(x, y=None, regularisation=1e-3):
    return KernelBayesRule.fit(Gaussian(1.0), x, x if y is None else y, MeanEmbedding(Gaussian(1.0), x), regularisation)


def path(x):
    return KernelBayesFilter.fit(Gaussian(1.0), Gaussian(1.0), x, x, 1e-3)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: fitted(x, x[:3]), "as many points each; got 20 and 3"),
        (lambda x: fitted(x, regularisation=0.0), "`regularisation` must be positive"),
        (lambda x: KernelBayesFilter.fit(Gaussian(1.0), Gaussian(1.0), x[:2], x[:2], 1e-3), "at least 3 times"),
        (lambda x: LowRank.fit(Gaussian(1.0), x, tolerance=1.0), "`tolerance` must be below 1"),
        (lambda x: fitted(x, regularisation=np.ones(3)), r"`regularisation` must be one number; got shape \(3,\)"),
        (lambda x: kernel_sum_rule(Gaussian(1.0), x, x, x, 1e-3), "`prior` must be an embedding"),
        (lambda x: LowRank.fit("gaussian", x), "`kernel` must be a kernel, .* got 'gaussian'"),
        (lambda x: fitted(x).posterior(x[:1]).mode(np.full(2, np.nan)), "`start` has 2 entries that are not"),
        (lambda x: fitted(x).weights(x * np.nan), "`y` has 40 entries that are not finite"),
        (lambda x: fitted(x).posterior(x[:2]), "one observation, with a leading axis; it holds 2"),
        (lambda x: fitted(x).posterior(x[:1]).mode(np.zeros(3)), r"`start` must be one point .* got \(3,\)"),
        (lambda x: path(x).filter(x * np.nan), "`observations` has 40 entries that are not finite"),
        (lambda x: path(x).smooth(np.ones(19)), r"shape \(times, 19\), .* got \(19,\)"),
        (lambda x: path(x).smooth(np.ones((0, 19))), r"shape \(times, 19\), .* got \(0, 19\)"),
        (lambda x: path(x).means(np.ones((2, 20))), r"shape \(19,\) or \(times, 19\), .* got \(2, 20\)"),
        (lambda x: LowRank.fit(Gaussian(1.0), x, tolerance=-1.0), "`tolerance` must be positive and finite; got -1.0"),
    ],
)
def test_bad_input_raises(rng, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(rng.normal(size=(20, 2)))
