"""The loss near one parameter: against direct sums over the same nodes, and its minima against a closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from numpyro_kme.bootstrap import Settings, posterior_bootstrap
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD, DrawnNoise, Generator, NormalNoise
from numpyro_kme.losses.generator import QuadratureNodes, vectors
from numpyro_kme.losses.local_mmd import LocalMMD, pivots_of

ANCHOR = np.array([0.3, 0.8])


def turned(u, z):
    return jnp.stack([u[0] + z[0], u[1] * z[1] + jnp.sin(u[0]) * z[0]])


def line(u, z, i):
    return u[0] + u[1] * z[0] + 0.1 * i


def bound(noise, covariates, fit_proportion, rng):
    x = rng.normal(size=(40, 2))
    if not covariates:
        generator, kernel = Generator(turned, noise, 2), Gaussian(1.5)
        return MMD(kernel, fit_proportion).objective(x, generator)
    c = np.linspace(0.0, 2.0, 40)
    generator = Generator(line, noise, 2, covariates=c)
    return MMD(Gaussian(1.5), fit_proportion, Gaussian(1.0)).objective((c, x[:, 0]), generator)


def local(direct):
    """The loss near the anchor, without a correction; and sets of few nodes and of many."""
    few, many = (direct.generator.draw_nodes(jax.random.key(i), *size) for i, size in enumerate([(64, 3), (1024, 2)]))
    points = vectors(direct.generator.points(jnp.asarray(ANCHOR), first(many)))
    return LocalMMD.of(direct, pivots_of(direct.kernel, points, 300, 1e-9), ANCHOR, 300), few, many


def pick(nodes, number):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[number], nodes)


def first(nodes):
    return pick(nodes, 0)


@jax.jit
def measured(objective, weights, u, nodes):
    """Value, value and gradient, and report."""
    reduced = objective.reduce(weights)
    return objective.value(reduced, u, nodes), objective.slope(reduced, u, nodes), objective.report(reduced, u, nodes)


CASES = [
    pytest.param(NormalNoise(2), False, False, marks=pytest.mark.slow),
    (NormalNoise(2), False, True),
    pytest.param(DrawnNoise(lambda rng_key: jax.random.normal(rng_key, (2,))), False, True, marks=pytest.mark.slow),
    pytest.param(NormalNoise(1), True, False, marks=pytest.mark.slow),
]


@pytest.mark.x64
@pytest.mark.parametrize("noise, covariates, fit_proportion", CASES)
def test_without_a_correction_it_is_the_loss_by_direct_sums(noise, covariates, fit_proportion, rng):
    direct = bound(noise, covariates, fit_proportion, rng)
    near, few, _ = local(direct)
    near, nodes = near.corrected(few, near.expansions(first_only(few)), 1.0)
    weights, u = rng.dirichlet(np.ones(40)), ANCHOR + 0.05
    _, expected, exact = measured(direct, weights, u, first(few))
    value, found, report = measured(near, weights, u, first(nodes))
    np.testing.assert_allclose([value, found[0]], [expected[0]] * 2, atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-4)
    assert set(report) == set(exact)
    for name, number in exact.items():
        np.testing.assert_allclose(report[name], number, rtol=2e-3, atol=1e-9)


def first_only(nodes):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:1], nodes)


@pytest.mark.x64
@pytest.mark.parametrize("noise, covariates, fit_proportion", CASES)
def test_at_the_anchor_it_is_the_loss_over_the_many_nodes(noise, covariates, fit_proportion, rng):
    """Value and gradient, from sets of few nodes that differ; away from it their error is of second order."""
    direct = bound(noise, covariates, fit_proportion, rng)
    near, few, many = local(direct)
    size = many.weights.size
    near, nodes = near.corrected(few, near.expansions(many), size / few.weights.shape[1])
    together = QuadratureNodes(jax.tree.map(np.concatenate, many.values), np.full(size, 1.0 / size))
    weights = rng.dirichlet(np.ones(40))

    def slope(objective, u, nodes):
        return np.asarray(measured(objective, weights, u, nodes)[1][1])

    expected = measured(direct, weights, ANCHOR, together)[1]
    np.testing.assert_allclose(measured(near, weights, ANCHOR, first(nodes))[0], expected[0], atol=2e-5)
    for number in range(len(few.weights)):
        np.testing.assert_allclose(slope(near, ANCHOR, pick(nodes, number)), expected[1], atol=2e-4)
    away = ANCHOR + 0.1
    exactly, corrected = slope(direct, away, together), slope(near, away, first(nodes))
    plain = slope(direct, away, first(few))
    assert np.abs(corrected - exactly).max() < 0.5 * np.abs(plain - exactly).max() + 2e-4


@pytest.mark.slow
def test_replicates_are_the_minimisers_in_closed_form(rng):
    """The location of a normal distribution in two dimensions, a tenth outliers."""
    x = rng.normal([1.0, -2.0], 1.0, size=(300, 2))
    x[:30] += 20.0
    generator = Generator(lambda u, z: u + z, NormalNoise(2), 2)
    direct = MMD(Gaussian(1.2)).objective(x, generator)
    found = posterior_bootstrap(
        jax.random.key(0), direct, rng.normal(0.0, 2.0, (64, 2)), settings=Settings(num_samples=20)
    )
    assert found.converged.all() and found.quadrature.noise < 0.05 and len(found.nodes.weights) == 1

    def loss(u, w):
        return -1e3 * w @ np.exp(-0.5 * np.square(x - u).sum(axis=1) / (1.2**2 + 1.0))

    exact = [minimize(loss, u, (w,), tol=1e-12).x for u, w in zip(found.u, found.reweightings.weights)]
    assert np.abs((found.u - exact) / found.u.std(axis=0)).max() < 0.1
    norm = (1.2**2 / (1.2**2 + 2.0)), (1.2**2 / (1.2**2 + 1.0))
    cross = np.array([-loss(u, w) * 1e-3 for u, w in zip(exact, found.reweightings.weights)])
    squares = [w @ np.asarray(Gaussian(1.2).gram(jnp.asarray(x))) @ w for w in found.reweightings.weights]
    np.testing.assert_allclose(found.value, norm[0] - 2.0 * norm[1] * cross + squares, atol=2e-4)


@pytest.mark.slow
def test_where_replicates_lie_in_two_basins_direct_sums_are_minimised(rng):
    """Two clusters of data, between which weights decide: no expansion about one of them serves the other."""
    x = rng.normal(0.0, 0.3, size=(60, 2)) + np.repeat([[-2.0, 0.0], [2.0, 0.0]], 30, axis=0)
    direct = MMD(Gaussian(0.7)).objective(x, Generator(lambda u, z: u + 0.3 * z, NormalNoise(2), 2))
    settings = Settings(num_samples=32, restart_every=1)
    found = posterior_bootstrap(jax.random.key(0), direct, rng.normal(0.0, 2.0, (64, 2)), settings=settings)
    heavier = found.reweightings.weights[:, :30].sum(axis=1) > 0.5
    clear = np.abs(found.reweightings.weights[:, :30].sum(axis=1) - 0.5) > 0.02
    assert found.moved.any() and heavier[clear].any() and not heavier[clear].all()
    np.testing.assert_array_equal(found.u[clear, 0] < 0.0, heavier[clear])
