"""Systematic resampling against counting by hand."""

import jax
import numpy as np
import pytest

from numpyro_kme._core.host import numpy_rng
from numpyro_kme.samplers.importance import systematic, systematic_shuffled

WEIGHTS = np.array([0.05, 0.0, 0.3, 0.01, 0.44, 0.2])


def by_hand(offset, weights, n):
    """Walk along the weights laid end to end, and note the piece in which each of `n` evenly spaced marks lies."""
    found = []
    for k in range(n):
        left, index = (k + offset) / n, 0
        while left > weights[index] and index < len(weights) - 1:
            left, index = left - weights[index], index + 1
        found.append(index)
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1, 7, 40])
def test_systematic_by_hand(seed, n):
    key = jax.random.key(seed)
    expected = by_hand(numpy_rng(key).random(), WEIGHTS, n)
    assert systematic(numpy_rng(key), WEIGHTS, n).tolist() == expected
    assert sorted(systematic_shuffled(key, WEIGHTS, n)) == expected


def test_every_particle_comes_as_often_as_its_weight_asks():
    rng = np.random.default_rng(7)
    counts = np.array([np.bincount(systematic(rng, WEIGHTS, 50), minlength=6) for _ in range(400)])
    assert (np.abs(counts - 50 * WEIGHTS) < 1.0 + 1e-4).all()
    np.testing.assert_allclose(counts.mean(axis=0), 50 * WEIGHTS, atol=5 * 0.5 / np.sqrt(400))
