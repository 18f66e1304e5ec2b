"""Fills of what simulations do not record, by order statistics."""

import numpy as np

from numpyro_kme.likelihoods import recorded


def test_lost_entries_come_from_simulations_that_are_alike_in_the_others(rng):
    """Whatever monotone map standardises them: the entries are equal, and donors are next to what was lost."""
    value = rng.standard_cauchy(300)
    lost = rng.random(300) < 0.3
    x = np.column_stack([value, np.where(lost, np.nan, value)])
    found = recorded._filled(np.zeros((300, 1)), x)
    np.testing.assert_array_equal(found[~lost], x[~lost])
    donors = np.sort(value[~lost])
    np.testing.assert_array_equal(np.isin(found[lost, 1], donors), True)
    ranks = np.searchsorted(donors, found[lost, 1]) - np.searchsorted(donors, value[lost])
    assert np.all((ranks >= -recorded.DONORS) & (ranks < recorded.DONORS))
