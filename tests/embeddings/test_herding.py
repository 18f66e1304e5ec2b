"""Herding against a NumPy loop, and its rate."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_kme import kernels as K
from numpyro_kme.embeddings.means import MeanEmbedding, herd

SCALE = 0.5


def gram(x, y):
    return np.exp(-0.5 * np.sum((x[:, None] - y[None]) ** 2, axis=-1) / SCALE**2)


def embedding(t):
    """Closed form for a standard normal in two dimensions."""
    return SCALE**2 / (SCALE**2 + 1) * jnp.exp(-0.5 * jnp.sum(t**2, axis=-1) / (SCALE**2 + 1))


def mmd(points):
    squared = gram(points, points).mean() - 2 * np.asarray(embedding(points)).mean() + SCALE**2 / (SCALE**2 + 2)
    return np.sqrt(squared)


def numpy_herding(values, candidates, num_samples):
    total, chosen = np.zeros(len(values)), []
    for s in range(1, num_samples + 1):
        chosen.append(int(np.argmax(values - total / s)))
        total += gram(candidates[chosen[-1:]], candidates)[0]
    return np.array(chosen)


@functools.cache
def herded():
    rng = np.random.default_rng(11)
    candidates = rng.normal(size=(3000, 2)) * 1.2
    values = np.asarray(embedding(candidates))
    return candidates, values, np.asarray(herd(K.Gaussian(SCALE), values, candidates, 400))


def test_agrees_with_numpy():
    candidates, values, order = herded()
    reference = numpy_herding(values, candidates, 400)
    np.testing.assert_array_equal(order[:5], reference[:5])
    for size in (50, 400):  # ties may change the path, not the distance
        assert mmd(candidates[order[:size]]) == pytest.approx(mmd(candidates[reference[:size]]), rel=0.1)


def test_falls_faster_than_random_draws():
    candidates, _, order = herded()
    sizes = np.array([25, 50, 100, 200, 400])
    distances = [mmd(candidates[order[:size]]) for size in sizes]
    assert np.polyfit(np.log(sizes), np.log(distances), 1)[0] < -0.75
    random = [mmd(np.random.default_rng(seed).normal(size=(400, 2))) for seed in range(20)]
    assert distances[-1] < 0.3 * np.min(random)


@pytest.mark.smoke
def test_signed_embeddings(rng):
    """A difference of measures with negative parts is followed where it is positive."""
    points = rng.normal(size=(30, 2))
    signed = MeanEmbedding(K.Gaussian(SCALE), points, np.where(np.arange(30) < 20, 0.1, -0.1))
    candidates = rng.normal(size=(500, 2))
    values = np.asarray(signed(candidates))
    assert values.min() < 0
    order = np.asarray(herd(K.Gaussian(SCALE), values, candidates, 30))
    reference = numpy_herding(values, candidates, 30)

    def distance(chosen):
        found = MeanEmbedding(K.Gaussian(SCALE), candidates[chosen])
        return float(found.inner(found) - 2.0 * found.inner(signed) + signed.inner(signed))

    assert distance(order) == pytest.approx(distance(reference), rel=1e-3)


def test_bad_input():
    kernel, candidates = K.Gaussian(1.0), np.zeros((4, 2))
    with pytest.raises(ValueError, match=r"`embedding_values` must have shape \(4,\), one per candidate; got \(3,\)"):
        herd(kernel, np.zeros(3), candidates, 2)
    with pytest.raises(ValueError, match="`num_samples` must be at least 1; got 0"):
        herd(kernel, np.zeros(4), candidates, 0)
    with pytest.raises(ValueError, match="`embedding_values` has 1 entries that are not finite"):
        herd(kernel, np.array([0.0, np.nan, 0.0, 0.0]), candidates, 2)
