"""Squared MMD against double loops, closed forms and its own expectations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

from numpyro_kme import kernels as K
from numpyro_kme.embeddings.mmd import squared_mmd


def gaussian_gram(x, y, l):
    return np.exp(-0.5 * np.sum(((x[:, None] - y[None]) / l) ** 2, axis=-1))


def double_loop(x, y, v, w, l, unbiased):
    """The two estimators, term by term."""
    total = 0.0
    for points, weights in ((x, v), (y, w)):
        gram = gaussian_gram(points, points, l)
        if unbiased:
            pairs = sum(
                weights[i] * weights[j] * gram[i, j] for i in range(len(points)) for j in range(len(points)) if i != j
            )
            total += pairs / (1 - np.sum(weights**2))
        else:
            total += weights @ gram @ weights
    return total - 2 * v @ gaussian_gram(x, y, l) @ w


def random_weights(rng, n):
    weights = rng.normal(size=n) + 2.0
    return weights / weights.sum()


@pytest.mark.x64
@pytest.mark.parametrize(
    ("dim", "sizes", "unbiased"),  # by differences or by products; one tile, or several, partly filled
    [
        (1, (7, 5), True),
        (3, (300, 620), True),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in ((3, (7, 5), False), (1, (300, 620), False))),
    ],
)
def test_matches_a_double_loop(dim, sizes, unbiased, rng):
    x, y = (rng.normal(size=(n, dim)) + shift for n, shift in zip(sizes, (0.0, 0.3), strict=True))
    v, w = (random_weights(rng, n) for n in sizes)
    l = np.array([0.7, 1.0, 2.0])[:dim]
    value = squared_mmd(K.Gaussian(l), x, y, x_weights=v, y_weights=w, unbiased=unbiased)
    np.testing.assert_allclose(value, double_loop(x, y, v, w, l, unbiased), rtol=1e-10)
    if sizes == (7, 5):  # without weights it is the same sum, whatever the sizes
        value = squared_mmd(K.Gaussian(l), x, y, unbiased=unbiased)
        uniform = [np.full(n, 1 / n) for n in sizes]
        np.testing.assert_allclose(value, double_loop(x, y, *uniform, l, unbiased), rtol=1e-10)


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, None))
def estimates(x, y, weights):
    """Both estimators for each pair of samples."""
    kernel = K.Gaussian(0.8)
    return tuple(squared_mmd(kernel, x, y, x_weights=weights, unbiased=unbiased) for unbiased in (True, False))


def overlap(mean_a, sd_a, mean_b, sd_b, l=0.8):
    """`E exp(-|X - Y|^2 / (2 l^2))` for independent normals."""
    variance = l**2 + sd_a**2 + sd_b**2
    return np.prod(l / np.sqrt(variance) * np.exp(-0.5 * (mean_a - mean_b) ** 2 / variance))


def test_expectations_of_both_estimators(rng):
    """Over 400 pairs of samples of P and Q, and of P and P."""
    p, q = (np.zeros(2), np.ones(2)), (np.array([0.5, -1.0]), np.array([1.5, 0.7]))
    x, y, z = (rng.normal(size=(400, n, 2)).astype(np.float32) for n in (20, 30, 30))
    y = y * np.float32(q[1]) + np.float32(q[0])
    uniform, rising = np.full(20, 0.05), np.arange(1.0, 21.0) / 210.0
    unbiased, weighted = (np.asarray(estimates(x, y, weights)[0]) for weights in (uniform, rising))
    null_unbiased, null_biased = map(np.asarray, estimates(x, z, uniform))
    between = overlap(*p, *p) + overlap(*q, *q) - 2 * overlap(*p, *q)
    for values, expected in (
        (unbiased, between),
        (weighted, between),
        (null_unbiased, 0.0),
        (null_biased, (1 / 20 + 1 / 30) * (1 - overlap(*p, *p))),
    ):
        error = values.std(ddof=1) / np.sqrt(len(values))
        assert abs(values.mean() - expected) < 5 * error
    assert null_unbiased.min() < 0  # never clipped
    assert null_biased.min() > 0


@pytest.mark.x64
def test_energy_distance_against_scipy(rng):
    from scipy.stats import energy_distance

    x, y = rng.normal(size=(40, 1)), rng.normal(size=(25, 1)) + 0.4
    value = squared_mmd(K.Energy(2.0), x, y, unbiased=False)
    np.testing.assert_allclose(value, energy_distance(x[:, 0], y[:, 0]) ** 2 / 2.0, rtol=1e-10)
    induced = squared_mmd(K.DistanceInduced(0.3, 2.0), x, y, unbiased=False)
    np.testing.assert_allclose(induced, value, rtol=1e-10)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_square_below_zero_is_refused_and_rounding_is_not(scale, rng):
    x, y = np.float32(rng.normal(size=(20, 2))), np.float32(rng.normal(1.0, 1.0, size=(20, 2)))
    indefinite = scale * K.FromCallable(lambda a, b: 3.0 + jnp.sum((a - b) ** 2))
    with pytest.raises(RuntimeError, match=r"The squared MMD must be at least 0; got -.* which this one is not"):
        squared_mmd(indefinite, x, y, unbiased=False)
    assert abs(squared_mmd(scale * K.Gaussian(1.0), x, x[::-1], unbiased=False)) < 1e-3 * scale


@pytest.mark.x64
@pytest.mark.parametrize("size", [pytest.param(8, marks=pytest.mark.slow), 300])  # one tile, or two
def test_gradients(size, rng):
    x, y = rng.normal(size=(size, 2)), rng.normal(size=(5, 2))
    x[1] = x[0]

    ours = jax.jit(jax.grad(lambda l, x: squared_mmd(K.Gaussian(l), x, y), argnums=(0, 1)))(0.7, x)
    by_scale, by_point = 0.0, np.zeros_like(x)  # k' = k r^2 / l^3 by the scale and -k (a - b) / l^2 by the first point
    for a, b, factor in ((x, x, 1 / size / (size - 1)), (y, y, 1 / 5 / 4), (x, y, -2 / size / 5)):
        apart = a[:, None] - b[None]
        gram = factor * gaussian_gram(a, b, 0.7)
        by_scale += np.sum(gram * np.sum(apart**2, axis=-1)) / 0.7**3
        if a is x:
            by_point -= (1 + (b is x)) * np.sum(gram[..., None] * apart, axis=1) / 0.7**2
    for value, reference in zip(ours, (by_scale, by_point), strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_no_full_gram_matrix_is_held():
    n, dim = 4096, 5
    x = jax.ShapeDtypeStruct((n, dim), jnp.float32)

    def value(l, x, y):
        return squared_mmd(K.Laplace(l), x, y)

    memory = jax.jit(jax.value_and_grad(value, argnums=(0, 1))).lower(1.0, x, x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.1 * n * n * 4


def test_a_data_frame_is_its_numbers(rng):
    x, y = rng.normal(size=(2, 9, 3))
    found = squared_mmd(K.Gaussian(1.0), pandas.DataFrame(x), pandas.DataFrame(y))
    np.testing.assert_array_equal(found, squared_mmd(K.Gaussian(1.0), x, y))


def test_bad_input():
    kernel, x, y = K.Gaussian(1.0), np.zeros((4, 2)), np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"`y` must have 2 columns; got shape \(3, 1\)"):
        squared_mmd(kernel, x, y[:, :1])
    with pytest.raises(ValueError, match="`y` must have at least 2 points for an unbiased estimate; got 1"):
        squared_mmd(kernel, x, y[:1])
    with pytest.raises(ValueError, match=r"`x_weights` must have shape \(4,\).*got \(3,\)"):
        squared_mmd(kernel, x, y, x_weights=np.ones(3) / 3)
    with pytest.raises(ValueError, match="`y_weights` must sum to one; got a sum of 3"):
        squared_mmd(kernel, x, y, y_weights=np.ones(3))
    with pytest.raises(ValueError, match="have a sum of squares of 1, so the unbiased estimate divides by zero"):
        squared_mmd(kernel, x, y, y_weights=np.array([1.0, 0.0, 0.0]))
    squared_mmd(kernel, x, y[:1], unbiased=False)


@pytest.mark.parametrize("far", [0.0, 300.0])
def test_points_far_away_cost_no_digits_in_single_precision(far, rng):
    """Two tight clouds `far` length scales apart: multiplied-out distances would lose them in float32."""
    x = np.concatenate([rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) + far])
    y = x + 0.7
    exact = double_loop(x, y, *[np.full(60, 1 / 60)] * 2, np.ones(2), True)
    single = squared_mmd(K.Gaussian(np.float32(1.0)), *(np.float32(points) for points in (x, y)))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, rtol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("unbiased", [True, False])
def test_many_points_cost_no_digits_in_single_precision(unbiased, rng):
    """Thousands of tiles, whose sums are a hundred times the squared MMD."""
    number = 8_000
    x, y = rng.normal(size=(number, 1)), 0.1 + rng.normal(size=(number, 1))
    found = squared_mmd(K.Gaussian(1.0), x.astype(np.float32), y.astype(np.float32), unbiased=unbiased)
    assert found.dtype == np.float32

    def mean(a, b):
        blocks = np.split(a, 32)
        return sum(np.exp(-0.5 * (block - b.T) ** 2).sum() for block in blocks) / number**2

    exact = mean(x, x) + mean(y, y) - 2.0 * mean(x, y)
    if unbiased:
        exact += (mean(x, x) + mean(y, y) - 2.0) / (number - 1)
    np.testing.assert_allclose(found, exact, rtol=1e-4)
