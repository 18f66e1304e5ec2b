"""Emulated embeddings: derivatives, exactness on polynomials, leave-one-out errors, regions."""

import numpy as np
import pytest

from numpyro_kme.bootstrap.emulator import Basis, Ellipsoid, Emulator, candidates, fit, monomials

ROOT = np.array([[0.5, 0.0, 0.0], [0.2, 1.5, 0.0], [0.1, -0.3, 0.7]])
REGION = Ellipsoid(np.array([1.0, -2.0, 0.5]), ROOT, 3.0, np.full(3, -np.inf), np.full(3, np.inf))


def basis(degree, rng):
    return Basis(REGION, monomials(REGION, degree).factors, rng.normal(size=(5, 3)), 1.3)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_derivatives_are_limits_of_differences(degree, rng):
    own, x, h = basis(degree, rng), rng.normal(size=(4, 3)), 1e-5
    weights = rng.normal(size=own.values(x).shape)
    for a, step in enumerate(h * np.eye(3)):
        first = (own.values(x + step) - own.values(x - step)) / (2 * h)
        np.testing.assert_allclose(own.jacobian(x)[:, a], first, atol=1e-6)
        second = (own.jacobian(x + step) - own.jacobian(x - step)) / (2 * h)
        np.testing.assert_allclose(own.curvature(x, weights)[:, a], np.einsum("rpk,rk->rp", second, weights), atol=1e-5)


def test_monomials_span_all_polynomials_of_their_degree(rng):
    """A cubic in three parameters is reproduced at points that it was not fitted to, with its derivatives."""
    coefficients = rng.normal(size=(3, 2))

    def cubic(x):
        return np.stack([(x @ c) ** 3 - 2.0 * (x @ c) + 1.0 for c in coefficients.T], axis=1)

    x, new = (REGION.center + rng.uniform(-1.0, 1.0, (m, 3)) @ ROOT.T for m in (60, 10))
    emulator = fit(REGION, x, cubic(x)[:, None])
    np.testing.assert_allclose(emulator.at(new), cubic(new), rtol=1e-6, atol=1e-8)
    expected = np.stack([(3.0 * (new @ c) ** 2 - 2.0)[:, None] * c for c in coefficients.T], axis=2)
    np.testing.assert_allclose(emulator.tangents(new), expected, rtol=1e-6, atol=1e-6)


def test_what_no_polynomial_follows_is_followed_by_gaussian_functions(rng):
    x, new = (REGION.center + rng.uniform(-2.5, 2.5, (m, 3)) @ ROOT.T for m in (300, 50))

    def wave(x):
        return np.sin(REGION.whiten(x)[:, :1])

    emulator = fit(REGION, x, wave(x)[:, None])
    assert len(emulator.basis.knots) == 300
    assert np.abs(emulator.at(new) - wave(new)).max() < 0.15


def test_left_out_residuals_are_those_of_regressions_without_the_point(rng):
    """By refits of the polynomial; with Gaussian functions by the matrix that maps targets to fitted values."""
    x, y = REGION.center + rng.normal(size=(20, 3)) @ ROOT.T, rng.normal(size=(20, 2))
    tried = list(candidates(REGION, x))
    assert [len(one.basis.knots) for one in tried] == [0, 0] + [20] * 6
    for one in tried:
        hat = one.basis.values(x) @ one.solve(np.eye(20))
        expected = (y - hat @ y) / (1.0 - np.diagonal(hat))[:, None]
        np.testing.assert_allclose(one.left_out(y), expected, atol=1e-6)
    for out in range(20):
        kept, values = np.arange(20) != out, tried[1].basis.values(x)
        coefficients = np.linalg.lstsq(values[kept], y[kept], rcond=None)[0]
        np.testing.assert_allclose(tried[1].left_out(y)[out], y[out] - values[out] @ coefficients, atol=1e-7)


def test_each_reweighting_may_have_a_model_of_its_own(rng):
    x = REGION.center + rng.normal(size=(40, 3)) @ ROOT.T
    embeddings = rng.normal(size=(40, 3, 4))
    whole = fit(REGION, x, embeddings)
    assert whole.coefficients.shape[0] == 3
    one = Emulator(whole.basis, whole.coefficients[[2]])
    np.testing.assert_allclose(whole.at(x[:3])[2], one.at(x[[2]])[0], atol=1e-10)
    np.testing.assert_allclose(whole.rows(np.array([2])).at(x[[2]]), one.at(x[[2]]), atol=1e-10)


def test_points_are_moved_into_the_box_and_the_ball():
    region = Ellipsoid(np.zeros(2), np.diag([1.0, 2.0]), 3.0, np.array([-1.0, -np.inf]), np.full(2, np.inf))
    moved = region.project(np.array([[0.5, 1.0], [-4.0, 0.0], [0.0, 12.0]]))
    np.testing.assert_allclose(moved, [[0.5, 1.0], [-1.0, 0.0], [0.0, 6.0]])
    np.testing.assert_array_equal(region.at_edge(moved), [False, False, True])
    assert region.holds(np.array([0.0, 5.9])) and not region.holds(np.array([0.0, 6.1]))
