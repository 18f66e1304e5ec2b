"""Keys made on the host are those of `jax.random`."""

import jax
import numpy as np
import pytest
from jax import random

from numpyro_kme._core import keys


@pytest.mark.parametrize("seed", [0, 1, 2**31 + 5])
def test_keys_are_those_of_jax(seed):
    key, numbers = random.key(seed), np.array([0, 1, 7, 2**31, 2**32 - 1], np.uint32)
    expected = [random.key_data(random.fold_in(key, number)) for number in numbers]
    found = keys.fold_in(keys.data_of(key), numbers)
    np.testing.assert_array_equal(found, expected)
    again = [random.key_data(random.fold_in(random.wrap_key_data(words), 3)) for words in found]
    np.testing.assert_array_equal(keys.fold_in(found, 3), again)
    for ours, theirs in zip(keys.split(key, 3), random.split(key, 3), strict=True):
        assert ours == theirs


def test_old_keys_are_taken_and_other_kinds_are_left_to_jax():
    raw = np.asarray(random.key_data(random.key(4)))
    np.testing.assert_array_equal(keys.data_of(raw), raw)
    with jax.default_prng_impl("rbg"):
        key = random.key(4)
        expected = [random.key_data(random.fold_in(key, number)) for number in range(3)]
        np.testing.assert_array_equal(keys.fold_in(keys.data_of(key), np.arange(3)), expected)
