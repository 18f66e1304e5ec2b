"""Densities of single residuals from a table, against the same densities kernel by kernel."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from numpyro_kme import fit_likelihood
from numpyro_kme.likelihoods.prepared import prepare
from numpyro_kme.likelihoods.residual import tabulated
from numpyro_kme.likelihoods.residual.density import KernelMixture

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


def test_mixture_of_three_kernels_by_hand():
    """Where weights differ, and beyond the grid, where the heavy-tailed density is all there is."""
    centres, widths = np.array([-1.0, 0.3, 4.0]), np.array([0.2, 0.1, 0.9])
    residuals = centres[None, :, None] / np.sqrt(0.75)
    kernels = KernelMixture(None, residuals, np.array(0.5), widths[None] / 0.5, np.array([1e-3]))
    table = tabulated.Tabulated.of(kernels)
    weights, v = np.array([[[0.2, 0.5, 0.3]], [[0.9, 0.0, 0.1]]]), np.linspace(-30.0, 40.0, 1001)
    found = table.log_density(weights, np.broadcast_to(v, (2, 1001))[..., None], 1e-3)
    tail = np.log(1e-3) + stats.t(3, scale=2.0).logpdf(v)
    for row, own in zip(found, weights[:, 0]):
        logs = stats.norm.logpdf(v[:, None], centres, widths)
        near = logsumexp(logs, axis=1, b=0.999 * own)
        errors = np.abs(row - np.logaddexp(near, tail))
        assert errors.max() < 2e-2 and errors.mean() < 1e-3
    np.testing.assert_allclose(found[:, [0, -1]], np.broadcast_to(tail[[0, -1]], (2, 2)), rtol=1e-6)


def test_intervals_take_it_too(rng):
    """Thirty-two densities for each interval, at the same coordinates."""
    fitted = learnt("log of gamma", rng)
    ends = np.array([-np.inf, -0.3, 1.0])[:, None], np.array([-0.5, 0.2, np.inf])[:, None]
    prepared = prepare(fitted, np.full((3, 1), np.nan), np.ones(3, bool), ends)
    z = rng.normal(size=(40, 1, 1))
    np.testing.assert_allclose(prepared.brief().log_densities(z), prepared.log_densities(z), atol=5e-3)
