"""Descent in a box: minima that SciPy finds, warm starts, points without a value."""

from typing import Any

import jax
import numpy as np
import pytest
from scipy import optimize

from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.descent import ENOUGH, descend_all, ravel


@register
class Point:
    """Two vectors and a number."""

    a: Any
    b: Any


def at(a, b):
    return Point(np.asarray(a, float), np.asarray(b, float))


def descend(loss, start, bounds, steps, *args, curvature, enough=ENOUGH):
    """One function alone, from about known curvatures."""

    def one(trees, _):
        found = loss(jax.tree.map(lambda leaf: leaf[0], trees), *args)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], found)

    starts = jax.tree.map(lambda leaf: np.asarray(leaf)[None], start)
    found, _ = descend_all(one, starts, bounds, steps, np.diag(1.0 / ravel(curvature))[None], enough)
    return jax.tree.map(lambda leaf: leaf[0], found)


LOW, HIGH = at([-2.0, -2.0], -1.0), at([3.0, 3.0], 4.0)


@pytest.fixture
def bowl(rng):
    root = rng.normal(size=(3, 3))
    return root @ root.T + 0.1 * np.eye(3), 3.0 * rng.normal(size=3)


def quadratic(point, matrix, middle):
    """Half a squared distance from `middle`."""
    away = ravel(point) - middle
    slope = matrix @ away
    return 0.5 * away @ slope, at(slope[:2], slope[2])


def valley(point):
    """Rosenbrock's function, and a square."""
    (x, y), z = point.a, point.b
    slope = [-2.0 * (1.0 - x) - 400.0 * x * (y - x * x), 200.0 * (y - x * x)]
    return (1.0 - x) ** 2 + 100.0 * (y - x * x) ** 2 + z**2, at(slope, 2.0 * z)


@pytest.mark.parametrize("curvature", [0.1, 1.0, 100.0])
def test_minima_in_a_box_are_those_of_scipy(bowl, curvature):
    found = descend(
        quadratic, at([0, 0], 0), (LOW, HIGH), 200, *bowl, curvature=at([curvature] * 2, curvature), enough=1e-12
    )
    bounds = np.stack([ravel(LOW), ravel(HIGH)], axis=1)
    expected = optimize.lsq_linear(np.linalg.cholesky(bowl[0]).T, np.linalg.cholesky(bowl[0]).T @ bowl[1], bounds.T)
    np.testing.assert_allclose(ravel(found), expected.x, atol=1e-4)


def test_a_bent_valley_is_followed_to_its_end():
    start = at([-1.2, 1.0], 3.0)
    found = descend(valley, start, (LOW, HIGH), 200, curvature=at([100.0, 100.0], 2.0), enough=1e-12)
    np.testing.assert_allclose(ravel(found), [1.0, 1.0, 0.0], atol=1e-4)


def test_a_start_outside_the_box_is_moved_inside_and_no_point_is_outside(bowl):
    seen = []

    def loss(point, *args):
        seen.append(ravel(point))
        return quadratic(point, *args)

    descend(loss, at([9, -9], 9), (LOW, HIGH), 50, *bowl, curvature=at([1, 1], 1))
    assert np.all(np.array(seen) >= ravel(LOW)) and np.all(np.array(seen) <= ravel(HIGH))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_points_without_a_value_are_left(bad):
    """Beyond 1 there is none; the minimum is at 0.9."""

    def loss(point):
        x = float(point.b)
        value = 50.0 * (x - 0.9) ** 2 if x < 1.0 else bad
        return value, at([0, 0], 100.0 * (x - 0.9))

    found = descend(loss, at([0, 0], -1), (LOW, HIGH), 50, curvature=at([1, 1], 0.1), enough=1e-9)
    np.testing.assert_allclose(found.b, 0.9, atol=1e-3)


def test_where_the_first_curvature_misleads_its_diagonal_does_not():
    """It says to step along the first two variables together; beyond 0 of the second there is no value."""

    def losses(points, rows):
        first, second = points.a[0]
        value = 0.5 * (first - 2.0) ** 2 if second <= 0.0 else np.nan
        return [value], at([[first - 2.0, 0.0]], [0.0])

    inverse = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    found, _ = descend_all(losses, at(np.zeros((1, 2)), np.zeros(1)), (LOW, HIGH), 20, inverse[None], 1e-9)
    np.testing.assert_allclose(ravel(found), [2.0, 0.0, 0.0], atol=1e-3)
