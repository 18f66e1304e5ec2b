"""Choice of kernels and regularisation: dense criteria by other code, and choices that must come out."""

import jax
import numpy as np
import pytest
from dense import dense_rule, gram

import numpyro_kme as kme
from numpyro_kme.embeddings.parameter_choice import (
    KernelBayesSettings,
    choose_by_folds,
    choose_by_holdout,
    choose_by_prediction,
    kernel_bayes_candidates,
    scaled_kernel,
)
from numpyro_kme.kernels import Gaussian, RotationTrace

KEY = jax.random.key(0)


def gaussians(scale_x, scale_y, *settings):
    return KernelBayesSettings(Gaussian(scale_x), Gaussian(scale_y), *settings)


@pytest.fixture
def joint(rng):
    x = rng.normal(size=(30, 2))
    return x, x + 0.5 * rng.normal(size=(30, 2))


@pytest.mark.parametrize("compare_in", [None, 1.3])
def test_folds_by_the_printed_criterion(joint, compare_in):
    """Posteriors one by one with dense matrices, embedded and compared by a double sum."""
    x, y = joint
    tried = [gaussians(0.9, 0.7, 1e-3), gaussians(0.5, 0.7, 1e-2, 1e-3)]
    norm = None if compare_in is None else Gaussian(compare_in)
    chosen = choose_by_folds(KEY, x, y, tried, num_folds=4, compare_in=norm, tolerance=1e-13)
    folds = np.array_split(np.asarray(jax.random.permutation(KEY, 30)), 4)
    expected = []
    for sx, eps, delta in [(0.9, 1e-3, 2e-3), (0.5, 1e-2, 1e-3)]:
        total = 0.0
        for fold in folds:
            rest = np.array([i for i in range(30) if i not in fold])
            n, s = len(rest), compare_in or sx
            mu = np.linalg.solve(gram(x[rest], x[rest], sx) + n * eps * np.eye(n), gram(x[rest], x[rest], sx).mean(1))
            operator = dense_rule(mu, gram(y[rest], y[rest], 0.7), delta)
            rho = np.mean([operator @ gram(y[rest], y[j : j + 1], 0.7)[:, 0] for j in fold], axis=0)
            points = np.concatenate([x[rest], x[fold]])
            weights = np.concatenate([rho, np.full(len(fold), -1 / len(fold))])
            total += weights @ gram(points, points, s) @ weights
        expected.append(total)
    np.testing.assert_allclose(chosen.errors, expected, rtol=1e-5)
    assert chosen.settings is tried[int(np.argmin(expected))]


def test_prediction_by_leaving_out(joint):
    """The posterior mean of every held-out pair with dense matrices."""
    x, y = joint
    tried = [gaussians(0.9, 0.7, 1e-3), gaussians(2.0, 0.05, 1e-3)]
    chosen = choose_by_prediction(KEY, x, y, tried, num_folds=4, tolerance=1e-13)
    total = 0.0
    for fold in np.array_split(np.asarray(jax.random.permutation(KEY, 30)), 4):
        rest = np.array([i for i in range(30) if i not in fold])
        n = len(rest)
        mu = np.linalg.solve(gram(x[rest], x[rest], 0.9) + n * 1e-3 * np.eye(n), gram(x[rest], x[rest], 0.9).mean(1))
        operator = dense_rule(mu, gram(y[rest], y[rest], 0.7), 2e-3)
        for j in fold:
            rho = operator @ gram(y[rest], y[j : j + 1], 0.7)[:, 0]
            total += np.sum((x[j] - rho @ x[rest] / rho.sum()) ** 2)
    np.testing.assert_allclose(chosen.errors[0], total / 30, rtol=1e-5)
    assert chosen.settings is tried[0]


def test_folds_reject_what_is_far_too_narrow(joint):
    x, y = joint
    good, narrow = gaussians(1.0, 1.0, 1e-3), gaussians(1.0, 0.01, 1e-3)
    chosen = choose_by_folds(KEY, x, y, [narrow, good], num_folds=5)
    assert chosen.settings is good and chosen.errors[0] > 5 * chosen.errors[1]
    singular = good._replace(regularisation=1e-18)
    for choose in (choose_by_folds, choose_by_prediction):
        chosen = choose(KEY, x, y, [singular, good], num_folds=5)
        assert chosen.settings is good and np.isinf(chosen.errors[0])
        with pytest.raises(np.linalg.LinAlgError, match="None of the 1 candidates, with regularisations from 1e-18"):
            choose(KEY, x, y, [singular], num_folds=5)


def test_candidates_are_all_products():
    tried = kernel_bayes_candidates(Gaussian(2.0), RotationTrace(), [0.1, 0.3], scales_x=(0.5, 3.0))
    found = [(float(one.kernel_x.length_scale), one.regularisation, one.delta) for one in tried]
    assert found == [(1.0, 0.1, 0.2), (1.0, 0.3, 0.6), (6.0, 0.1, 0.2), (6.0, 0.3, 0.6)]
    assert all(one.kernel_y == RotationTrace() for one in tried)
    tried = kernel_bayes_candidates(Gaussian(2.0), Gaussian(1.0), [0.1], scales_x=(1.0,), delta_ratios=(2.0, 0.01))
    assert [one.delta for one in tried] == [0.2, 0.001]
    both = kernel_bayes_candidates(Gaussian(2.0), Gaussian(1.0), [0.1], scales_x=(1.0, 2.0), scales_y=(1.0, 4.0))
    assert [float(one.kernel_y.length_scale) for one in both] == [1.0, 4.0, 1.0, 4.0]
    np.testing.assert_array_equal(scaled_kernel(Gaussian(np.array([1.0, 2.0])), 3.0).length_scale, [3.0, 6.0])


def circle(rng, length):
    angle = 0.3 * np.arange(length) + 0.05 * np.cumsum(rng.normal(size=length))
    states = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return states, states + 0.3 * rng.normal(size=states.shape)


def test_halves_by_hand(rng):
    """The error of the second half, learnt from the first; a filter that breaks down is infinitely bad."""
    states, seen = circle(rng, 80)
    good, lost = gaussians(0.7, 0.8, 1e-3), gaussians(0.7, 1e-3, 1e-3)
    chosen = choose_by_holdout(states, seen, [lost, good])
    found = kme.embeddings.KernelBayesFilter.fit(Gaussian(0.7), Gaussian(0.8), states[:40], seen[:40], 1e-3)
    weights = found.filter(seen[40:])
    error = np.mean([np.sum((w @ states[:39] / w.sum() - truth) ** 2) for w, truth in zip(weights, states[40:])])
    np.testing.assert_allclose(chosen.errors[1], error, rtol=1e-8)
    assert chosen.settings is good and np.isinf(chosen.errors[0])
    modes = choose_by_holdout(states, seen, [good], modes=True).errors[0]
    expected = np.mean(np.sum((found.modes(weights) - states[40:]) ** 2, axis=1))
    np.testing.assert_allclose(modes, expected, rtol=1e-8)
    with pytest.raises(np.linalg.LinAlgError, match="None of the 1 candidates"):
        choose_by_holdout(states, seen, [lost])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x, one: choose_by_folds(KEY, x, x[:3], [one]), "as many points each; got 30 and 3"),
        (lambda x, one: choose_by_folds(KEY, x, x, [one], num_folds=16), "at most half of the 30 points; got 16"),
        (lambda x, one: choose_by_folds(KEY, x, x, []), "at least one candidate"),
        (lambda x, one: choose_by_folds(KEY, x, x, [one._replace(regularisation=0.0)]), "`regularisation` must be"),
        (lambda x, one: choose_by_folds(KEY, x, x, [one._replace(delta=0.0)]), "`delta` must be positive and finite"),
        (lambda x, one: choose_by_holdout(x, x, [1e-3]), "`settings` must be candidates .* got 0.001"),
        (lambda x, one: choose_by_holdout(x, x[:7], [one]), "must be one path; got 30 and 7 points"),
        (lambda x, one: choose_by_holdout(x[:7], x[:7], [one]), "at least 8 times to be halved; got 7"),
    ],
)
def test_bad_input_raises(joint, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(joint[0], gaussians(1.0, 1.0, 1e-3))
