"""Arrays of any length: reading them, and kernels on them."""

from functools import reduce
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from numpyro_kme import kernels
from numpyro_kme.kernels import (
    EmpiricalMeasure,
    EmpiricalMeasureRule,
    Gaussian,
    GaussianProcessPath,
    Linear,
    Signature,
    SignatureRule,
    WithLength,
    cut,
    lengths,
    pad,
)
from numpyro_kme.kernels.gram import squared_distances

pytestmark = pytest.mark.smoke
RNG = np.random.default_rng(0)
SETS = [RNG.normal(size=(n, 2)) for n in (1, 3, 7, 4)]
X = np.stack([pad(one, 7) for one in SETS])


def test_lengths_count_rows_to_the_last_that_is_not_all_nan():
    x = X.copy()
    x[2, 3] = np.nan  # a row in the middle, which counts
    x[1, 2, 0] = np.nan  # a row in part
    assert lengths(x).tolist() == [1, 3, 7, 4] == lengths(jnp.asarray(x)).tolist()
    assert lengths(np.full((1, 4), np.nan)).tolist() == [0]


def test_cut_is_pad_for_a_length_that_is_traced():
    rows = RNG.normal(size=(7, 2)).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(cut)(rows, 3), pad(rows[:3], 7))


@pytest.mark.parametrize("shape", [(8,), (8, 2), ()])
def test_pad_refuses_what_is_longer_than_the_longest(shape):
    with pytest.raises(ValueError, match="at most `longest` = 7"):
        pad(np.zeros(shape), 7)


def double_loop(a, b, inner, eps):
    """`exp(-|mu_a - mu_b|^2 / (2 eps^2))` of plain data sets."""

    def mean(x, y):
        return np.mean([[np.exp(-0.5 * np.sum((p - q) ** 2) / inner**2) for q in y] for p in x])

    return np.exp(-0.5 * (mean(a, a) + mean(b, b) - 2.0 * mean(a, b)) / eps**2)


KERNEL = EmpiricalMeasure(Gaussian(1.3), 0.7)
EXPECTED = np.array([[double_loop(a, b, 1.3, 0.7) for b in SETS] for a in SETS])
ALIKE = np.exp(-0.5 * (np.subtract.outer(*[np.log([1, 3, 7, 4])] * 2) / 0.5) ** 2)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (KERNEL, EXPECTED),
        (2.0 * KERNEL, 2.0 * EXPECTED),
        (KERNEL + KERNEL, 2.0 * EXPECTED),
        (KERNEL * KERNEL, EXPECTED**2),
        (WithLength(KERNEL, 0.5), EXPECTED * ALIKE),
        (2.0 * WithLength(KERNEL, 0.5), 2.0 * EXPECTED * ALIKE),
    ],
    ids=["measure", "scaled", "sum", "product", "with length", "scaled, with length"],
)
def test_sets_of_any_length_against_double_loops(kernel, expected):
    assert kernel.any_length
    for x in (X, jnp.asarray(X)):
        points = kernel.points(x)
        np.testing.assert_allclose(kernel.gram(points), expected, rtol=1e-5)
        np.testing.assert_allclose(kernel.log_gram(points, points), np.log(expected), atol=1e-5)
        np.testing.assert_allclose(kernel.diagonal(points), np.diag(expected), rtol=1e-5)
        np.testing.assert_allclose(kernel(kernel.point(x[1]), kernel.point(x[3])), expected[1, 3], rtol=1e-5)


def test_a_kernel_on_vectors_does_not_take_them():
    assert not (KERNEL + Linear()).any_length
    with pytest.raises(ValueError, match=r"Gaussian compares arrays of one length.*EmpiricalMeasure"):
        WithLength(Gaussian(1.0), 0.5)


def test_the_rule_scales_to_rows_and_to_sets_and_passes_over_what_is_behind_the_end():
    x = np.stack([pad(5.0 * RNG.normal(size=(n, 2)), 9) for n in RNG.integers(1, 10, size=40)])
    kernel = EmpiricalMeasureRule(multiple=1.0)(x)
    rows = x[~np.isnan(x).any(axis=2)]
    assert np.isclose(kernel.inner.length_scale, kernels.median_heuristic(rows))
    squared = EmpiricalMeasure(kernel.inner, 1.0).squared_mmd(kernel.points(x))
    assert np.isclose(kernel.length_scale**2, np.median(squared[np.triu_indices(40, 1)]), rtol=1e-4)


def signature(path, level):
    """Products of increments at rows in increasing order, level after level, by loops."""
    increments = np.diff(path, axis=0)
    found = [np.ones(1)]
    for r in range(1, level + 1):
        total = np.zeros((path.shape[1],) * r)
        for rows in combinations(range(len(increments)), r):
            total += reduce(np.multiply.outer, [increments[i] for i in rows])
        found.append(total.ravel())
    return np.concatenate(found)


PATHS = [RNG.normal(size=(n, 2)).cumsum(axis=0) for n in (2, 4, 5)]


@pytest.mark.parametrize("level", [2, *(pytest.param(level, marks=pytest.mark.slow) for level in (1, 3))])
def test_signatures_of_any_length_against_loops(level):
    kernel = Signature(0.6, [2.0, 3.0], level)

    def embedded(path):
        rows = np.column_stack([path / [2.0, 3.0], np.arange(1, len(path) + 1) / 5])
        found = signature(np.concatenate([np.zeros((1, 3)), rows]), level)
        return found / np.linalg.norm(found)

    expected = [[np.exp(-0.5 * np.sum((embedded(a) - embedded(b)) ** 2) / 0.36) for b in PATHS] for a in PATHS]
    x = np.stack([pad(path, 5) for path in PATHS])
    points = kernel.points(x)
    np.testing.assert_allclose(kernel.gram(points), expected, rtol=1e-4)
    np.testing.assert_allclose(kernel(kernel.point(x[0]), kernel.point(x[1])), expected[0][1], rtol=1e-4)
    np.testing.assert_allclose(kernel.points(jnp.asarray(x)), points, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kernel.diagonal(points), 1.0)
    np.testing.assert_allclose(Signature(0.6, 2.0).points(x[..., :1]), Signature(0.6, 2.0).points(x[..., 0]))


def test_the_rule_for_series():
    x = np.stack([pad(RNG.normal(size=(n, 2)).cumsum(axis=0) * [1.0, 50.0], 9) for n in RNG.integers(3, 10, size=40)])
    kernel = SignatureRule(level=2)(x)
    assert 20.0 < kernel.scales[1] / kernel.scales[0] < 120.0
    squared = squared_distances(*[Signature(1.0, kernel.scales, 2).points(x)] * 2)
    assert np.isclose((kernel.length_scale / 0.5) ** 2, np.median(squared[np.triu_indices(40, 1)]), rtol=1e-3)
    with pytest.raises(ValueError, match="A column of most series is constant"):
        SignatureRule()(np.ones((5, 4)))


@pytest.mark.slow
def test_gaussian_process_paths_of_any_length_are_those_of_their_own_rows():
    kernel = GaussianProcessPath(Gaussian(0.8), 0.3)
    paths = [np.column_stack([np.sort(RNG.uniform(0, 3, n)), RNG.normal(size=n)]) for n in (2, 4, 2)]
    x = np.stack([pad(path, 4) for path in paths])
    own = [[kernel.log_pair(kernel.point(a), kernel.point(b)) for b in paths] for a in paths]
    points = kernel.points(x)
    np.testing.assert_allclose(kernel.log_gram(points, points), own, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(kernel.diagonal(points), np.exp(np.diag(own)), rtol=1e-3)
    np.testing.assert_allclose(kernel.log_pair(kernel.point(x[0]), kernel.point(paths[1])), own[0][1], rtol=1e-4)
    a, b = paths[0], paths[1]  # against the joint normal density of both paths over that of the second
    places, values = np.concatenate([a[:, 0], b[:, 0]]), np.concatenate([a[:, 1], b[:, 1]])

    def log_normal(t, y):
        covariance = np.exp(-0.5 * ((t[:, None] - t[None]) / 0.8) ** 2) + 0.09 * np.eye(len(t))
        return scipy.stats.multivariate_normal(np.zeros(len(t)), covariance).logpdf(y)

    assert np.isclose(own[0][1], log_normal(places, values) - log_normal(b[:, 0], b[:, 1]), atol=1e-4)


@pytest.mark.parametrize("of", [lambda k: k, lambda k: 2.0 * k, lambda k: k + k, lambda k: WithLength(k, 0.5)])
def test_one_path_has_its_own_places(of):
    """Whatever the paths beside it share."""
    kernel, times = of(GaussianProcessPath(Gaussian(0.8), 0.3)), np.linspace(0.0, 2.0, 4)
    x = np.stack([np.column_stack([times, RNG.normal(size=4)]) for _ in range(3)])
    each = [[kernel.log_pair(kernel.point(a), kernel.point(b)) for b in x] for a in x]
    points = kernel.points(x)
    np.testing.assert_allclose(kernel.log_gram(points, points), each, rtol=1e-4, atol=1e-4)
    alone = jax.tree.map(lambda leaf: leaf[None], kernel.point(x[1]))
    np.testing.assert_allclose(kernel.log_gram(alone, points)[0], each[1], rtol=1e-4, atol=1e-4)
