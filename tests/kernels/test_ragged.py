"""Arrays of any length: reading them, and kernels on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_kme import kernels
from numpyro_kme.kernels import EmpiricalMeasure, Gaussian, Linear, WithLength, cut, lengths, pad
from numpyro_kme.kernels.kernel_rules import EmpiricalMeasureRule

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


def test_points_may_be_read_inside_a_program():
    gram = jax.jit(lambda x: KERNEL.gram(KERNEL.points(x), KERNEL.points(X)))
    np.testing.assert_allclose(gram(X), EXPECTED, rtol=1e-5)


def test_sets_of_one_length_are_read_as_before():
    whole = RNG.normal(size=(3, 5, 2))
    assert KERNEL.points(whole) is not None and isinstance(KERNEL.points(whole), np.ndarray)


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
