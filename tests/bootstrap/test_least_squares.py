"""Minimisers of squared distances to emulated models."""

import numpy as np
import pytest
from scipy.optimize import minimize

from numpyro_kme.bootstrap.emulator import Ellipsoid, Emulator, monomials
from numpyro_kme.bootstrap.least_squares import Targets
from numpyro_kme.bootstrap.least_squares import minimise as minimise_all

REGION = Ellipsoid(np.zeros(2), np.eye(2), 4.0, np.full(2, -np.inf), np.full(2, np.inf))


def case(rng, rows=6, own=False, degree=3, proportion=False, weight=0.3):
    basis = monomials(REGION, degree)
    coefficients = rng.normal(size=(rows if own else 1, len(basis.factors), 5)) * 0.05
    coefficients[:, 0] += 1.0
    coefficients[:, 1:3, :2] += np.eye(2)
    data = 1.0 + 0.3 * rng.normal(size=(rows, 5))
    return Emulator(basis, coefficients), Targets(data, proportion, 0.2 * rng.normal(size=(rows, 2)), weight)


def total(emulator, targets, row, x):
    """Least over the mixing proportion, by a grid of it."""
    m, d = emulator.rows(np.array([row])).at(x[None])[0], targets.data[row]
    c = np.linspace(0.0, 1.0, 20_001)[:, None] if targets.fit_proportion else np.ones((1, 1))
    anchor = 0.5 * targets.weight * np.sum((x - targets.anchors[row]) ** 2)
    return np.square(c * m - d).sum(axis=1).min() + anchor


@pytest.mark.parametrize("proportion", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["one model", "a model for each"])
def test_totals_gradients_and_hessians_are_those_of_the_squared_distance(own, proportion, rng):
    emulator, targets = case(rng, own=own, proportion=proportion)
    x, h = 0.3 * rng.normal(size=(6, 2)), 1e-5
    value, gradient, hessian = targets.expand(emulator, x)
    np.testing.assert_allclose(value, [total(emulator, targets, b, x[b]) for b in range(6)], atol=1e-7)
    for a, step in enumerate(h * np.eye(2)):
        above, below = (targets.expand(emulator, x + sign * step) for sign in (1, -1))
        np.testing.assert_allclose(gradient[:, a], (above[0] - below[0]) / (2 * h), atol=1e-6)
        np.testing.assert_allclose(hessian[:, a], (above[1] - below[1]) / (2 * h), atol=1e-5)


@pytest.mark.parametrize("proportion", [False, True])
def test_minima_are_those_of_a_general_minimiser(proportion, rng):
    emulator, targets = case(rng, proportion=proportion)
    found = minimise_all(targets, emulator, REGION, np.zeros((6, 2)))
    assert found.converged.all()
    for b in range(6):
        exact = minimize(lambda x, b=b: total(emulator, targets, b, x), found.x[b], method="Nelder-Mead")
        assert found.total[b] <= exact.fun + 1e-7
        np.testing.assert_allclose(found.x[b], exact.x, atol=1e-3)


def test_a_linear_model_with_an_anchor_is_ridge_regression(rng):
    emulator, targets = case(rng, degree=1)
    found = minimise_all(targets, emulator, REGION, np.zeros((6, 2)))
    constant, jacobian = emulator.at(np.zeros((1, 2)))[0], emulator.tangents(np.zeros((1, 2)))[0]
    normal = 2.0 * jacobian @ jacobian.T + 0.3 * np.eye(2)
    right = 2.0 * (targets.data - constant) @ jacobian.T + 0.3 * targets.anchors
    np.testing.assert_allclose(found.x, np.linalg.solve(normal, right.T).T, atol=1e-6)


def test_minima_beyond_a_bound_lie_on_it_where_the_others_are_least(rng):
    emulator, targets = case(rng, degree=1)
    free = minimise_all(targets, emulator, REGION, np.zeros((6, 2))).x
    bound = Ellipsoid(np.zeros(2), np.eye(2), 4.0, np.full(2, -np.inf), np.array([free[:, 0].min() - 0.1, np.inf]))
    found = minimise_all(targets, emulator, bound, np.full((6, 2), -1.0))
    np.testing.assert_allclose(found.x[:, 0], bound.high[0])
    assert found.converged.all()
    gradient = targets.expand(emulator, found.x)[1]
    np.testing.assert_allclose(gradient[:, 1], 0.0, atol=1e-4)


def test_proportions_are_least_squares_inside_their_bounds(rng):
    _, targets = case(rng, proportion=True)
    m = np.stack([0.5 * targets.data[0], 2.0 * targets.data[1], -targets.data[2], *rng.normal(size=(3, 5))])
    np.testing.assert_allclose(targets.proportion(m)[:3], [1.0, 0.5, 0.0])
