"""Rows that are the same: which are the first of each kind, in random orders and halves."""

import numpy as np

from numpyro_kme._core.repeats import Repeats

TABLE = np.array([[2.0, 1.0], [0.0, 3.0], [2.0, 1.0], [5.0, 0.0], [0.0, 3.0], [2.0, 1.0], [1.0, 1.0]])


def test_kinds_are_numbered_as_they_appear():
    found = Repeats.of(TABLE)
    assert found.first.tolist() == [0, 1, 3, 6]
    assert found.kind.tolist() == [0, 1, 0, 2, 1, 0, 3]
    np.testing.assert_array_equal(TABLE[found.first][found.kind], TABLE)


def test_a_random_order_begins_with_one_of_each():
    found, firsts = Repeats.of(TABLE), set()
    for seed in range(40):
        order = found.at_random(np.random.default_rng(seed))
        assert sorted(order) == list(range(7))
        assert sorted(found.kind[order[:4]]) == [0, 1, 2, 3]
        firsts |= set(order[:4].tolist())
    assert firsts == set(range(7))  # any row of a kind


def test_halves_share_no_kind():
    found, halves = Repeats.of(TABLE), set()
    for seed in range(40):
        half, others = found.halves(np.random.default_rng(seed))
        kinds = set(found.kind[half])
        assert len(kinds) == 2
        assert sorted(half) == [row for row in range(7) if found.kind[row] in kinds]
        assert sorted(others) == [row for row in found.first if found.kind[row] not in kinds]
        halves.add(frozenset(kinds))
    assert len(halves) == 6
