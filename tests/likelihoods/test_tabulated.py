"""Densities of single residuals from a table, against the same densities kernel by kernel."""

import numpy as np
import pytest

from numpyro_kme import fit_likelihood
from numpyro_kme.likelihoods.prepared import prepare

SHAPES = {
    "normal": lambda rng, m: rng.normal(size=m),
    "log of gamma": lambda rng, m: np.log(rng.gamma(3.0, size=m)),
    "heavy tails": lambda rng, m: rng.standard_t(2, size=m),
    "two widths": lambda rng, m: np.where(rng.random(m) < 0.5, 0.05, 1.0) * rng.normal(size=m),
}


def learnt(shape, rng, m=300):
    z = rng.normal(size=(m, 1))
    return fit_likelihood(z, 0.7 * z + (1.0 + 0.3 * np.tanh(z)) * SHAPES[shape](rng, m)[:, None])


def at_many(fitted, rng, shape):
    """Twenty outputs of each of six calls, among them far ones, in brief, and points."""
    y = 0.2 + SHAPES[shape](rng, 120).reshape(6, 20, 1)
    y[0, :2, 0] = fitted.surrogate.transform.centre[0] + np.array([4.5, -4.0]) * fitted.surrogate.transform.scale[0]
    return prepare(fitted, y), rng.normal(size=(30, 6, 1, 1))


@pytest.mark.filterwarnings("ignore:The observation lies")
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_kernels_one_by_one(rng, shape):
    """In tails and between them; sums of twenty too, in which errors add up."""
    prepared, z = at_many(learnt(shape, rng), rng, shape)
    brief = prepared.brief()
    assert brief.parts[0].surrogate.density.table.serves(np.zeros((30, 6, 20, 1)), z)
    exact, found = prepared.log_densities(z), brief.log_densities(z)
    np.testing.assert_allclose(found, exact, atol=5e-3)
    np.testing.assert_allclose(found.sum(axis=-1), exact.sum(axis=-1), atol=2e-2)
