"""Polynomial surfaces of losses that jump, against minima found by SciPy and by hand."""

import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import special
from scipy.optimize import minimize

from numpyro_kme.bootstrap import Fit, Settings, posterior_bootstrap
from numpyro_kme.bootstrap.fit import full_data
from numpyro_kme.bootstrap.newton import Problems
from numpyro_kme.bootstrap.preparation import QUIET, times_needed
from numpyro_kme.bootstrap.surface import Surface, settle
from numpyro_kme.bootstrap.weights import Reweightings
from numpyro_kme.engines.posterior_bootstrap import PosteriorBootstrap, warn_of
from numpyro_kme.kernels.base import register
from numpyro_kme.losses import Generator, NormalNoise
from numpyro_kme.losses.base import Loss, WeightedObjective
from numpyro_kme.losses.generator import QuadratureNodes
from numpyro_kme.models.simulator import Simulator

NOWHERE = QuadratureNodes(np.zeros((1, 1)), jnp.ones((1, 1)))


@register
class Quartic(WeightedObjective):
    """`|u - mean_w|^2 + sum_a u_a^3 (u_a + 1) / 100`, correlated by a shear."""

    generator: Any
    data: Any

    def value(self, reduced, u, nodes):
        data, weights = reduced
        apart = u - weights @ data
        return apart @ jnp.asarray([[1.0, 0.5], [0.5, 2.0]]) @ apart + 0.01 * jnp.sum(u**3 * (u + 1.0))


def reweighted(rng, rows, n):
    return Reweightings(rng.dirichlet(np.ones(n), rows), None, np.zeros(rows, int))


def quartics(rng, rows=20):
    data = rng.normal(size=(50, 2)) * [1.0, 3.0] + [1.0, -1.0]
    problems = Problems(Quartic(None, data), NOWHERE, reweighted(rng, rows, 50))

    def exact(weights):
        one = lambda u: float(problems.objective.value((data, weights), u, None))  # noqa: E731
        with jax.enable_x64(True):
            return minimize(one, weights @ data, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-14})

    return problems, [exact(weights) for weights in problems.reweightings.weights]


@pytest.fixture
def around(rng):
    problems, exact = quartics(rng)
    minima = np.array([one.x for one in exact])
    return problems, exact, Surface(minima.mean(axis=0), np.linalg.cholesky(np.cov(minima.T)))


def test_surfaces_of_polynomials_have_their_minima_values_and_hessians(around):
    problems, exact, surface = around
    found = surface.minimise(problems)
    assert found.convex.all() and len(found.u) == len(exact) == 20
    np.testing.assert_allclose(found.u, [one.x for one in exact], atol=1e-5)
    np.testing.assert_allclose(found.value, [one.fun for one in exact], rtol=1e-6, atol=1e-9)
    by_hand = np.array([[2.0, 1.0], [1.0, 4.0]]) + [np.diag(0.12 * u**2 + 0.06 * u) for u in found.u]
    np.testing.assert_allclose(found.hessian, by_hand, rtol=1e-5, atol=1e-6)


def test_what_lies_outside_of_the_ball_is_followed(around):
    problems, exact, surface = around
    away = Surface(surface.centre + surface.root @ np.array([6.0, -6.0]), surface.root)
    first = away.minimise(problems)
    assert not first.convex.any()
    found = away.follow(problems, first)
    assert found.convex.all()
    np.testing.assert_allclose(found.u, [one.x for one in exact], atol=1e-5)


def test_a_ball_finds_its_place_and_size(around):
    problems, exact, surface = around
    start = Surface(surface.centre + 5.0 * np.diag(surface.root), 0.05 * np.diag(np.diag(surface.root)))
    none = np.empty((0, 2))
    first = Fit(start.centre, 0.0, np.eye(2), none, np.empty(0), np.ones(2), 1, 1, False)
    ball, full, some = settle(problems.objective, NOWHERE, problems.reweightings, first, start)
    truth = surface.minimise(Problems(problems.objective, NOWHERE, full_data(problems.objective)))
    assert full.converged
    np.testing.assert_allclose(full.u, truth.u[0], atol=1e-5)
    np.testing.assert_allclose(full.value, truth.value[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(some, [one.x for one in exact], atol=1e-4)
    assert surface.agrees(replace(ball, root=ball.root / 1.15))


@register
class Staircase(Quartic):
    """With stairs of a thousandth, the same for all reweightings, which in a narrow ball hide the rest."""

    def value(self, reduced, u, nodes):
        return super().value(reduced, u, nodes) + 1e-3 * jnp.sin(jnp.floor(1e5 * u) @ jnp.array([7.0, 11.0]))


@pytest.mark.parametrize("narrow", [1e-3, 0.01, 1.0])
def test_a_ball_does_not_stay_where_it_is_narrower_than_the_stairs(around, narrow):
    problems, _, surface = around
    stairs = replace(problems, objective=Staircase(None, problems.objective.data))
    start, none = replace(surface, root=narrow * surface.root), np.empty((0, 2))
    first = Fit(start.centre, 0.0, np.eye(2), none, np.empty(0), np.ones(2), 1, 1, False)
    ball, full, some = settle(stairs.objective, NOWHERE, stairs.reweightings, first, start)
    widths = np.linalg.svd(np.linalg.solve(surface.root, ball.root), compute_uv=False)
    assert full.converged and widths.min() > 0.7 and widths.max() < 1.6
    exact = surface.minimise(problems).u
    assert np.all(np.std(some - exact, axis=0) < 0.15 * np.std(exact, axis=0))


@register
class Undefined(Quartic):
    """Not a number on one side of a line."""

    def value(self, reduced, u, nodes):
        return jnp.where(u[0] < 1.0, jnp.nan, super().value(reduced, u, nodes))


def test_where_a_loss_is_no_number_there_is_no_minimum(around):
    problems, _, surface = around
    found = surface.minimise(replace(problems, objective=Undefined(None, problems.objective.data)))
    assert not found.convex.any() and np.isfinite(found.u).all()
    first = Fit(surface.centre, 0.0, np.eye(2), np.empty((0, 2)), np.empty(0), np.ones(2), 1, 1, False)
    nowhere = Undefined(None, problems.objective.data)
    _, full, some = settle(nowhere, NOWHERE, problems.reweightings, first, surface)
    assert not full.converged and np.isfinite(full.u).all() and np.isfinite(some).all()


@dataclass(frozen=True)
class Shares(Loss):
    """Squared difference of means: of a share, by draws that are 0 or 1."""

    def value(self, x, w, y, v):
        return jnp.square(w @ x - v @ y)


def switch(u, z):
    return jnp.where(z[0] < u[0], 1.0, 0.0)


@pytest.fixture(scope="module")
def switched():
    x = (np.random.default_rng(1).random(300) < 0.3).astype(float)
    bound = Shares().objective(x, Generator(switch, NormalNoise(1), 1))
    return x, posterior_bootstrap(jax.random.key(0), bound, np.linspace(-2.0, 2.0, 16)[:, None])


def test_a_switch_has_its_exact_minimisers(switched):
    x, draws = switched
    assert draws.converged.all() and not draws.derivatives.automatic
    exact = special.ndtri(draws.reweightings.weights @ x)
    apart = np.abs(draws.u[:, 0] - exact) / exact.std()
    assert np.sqrt(np.mean(np.square(apart))) < 0.05 and apart.max() < 0.3  # of 500, some lie beyond three deviations
    assert draws.quadrature.noise < 0.1


def test_what_fails_where_points_jump_names_the_cause_and_the_option(switched):
    failed = replace(switched[1], converged=np.zeros(500, bool))
    with pytest.warns(UserWarning, match=r'Simulated points jump .* `method="emulated"`'):
        warn_of(failed, "")


@pytest.mark.parametrize("apart", [0.0, 0.1, 0.7])
def test_a_surface_of_one_set_of_nodes_is_compared_with_another_set(apart, rng):
    """The deviation of two minima, at most by half and twice as large further out, falls as the root of the nodes."""
    objective = SimpleNamespace(adapt_nodes=lambda u, num: None, generator=None)
    objective.generator = SimpleNamespace(noise=SimpleNamespace(independent=True))
    surface = SimpleNamespace(centre=np.zeros(1), root=np.eye(1), drawn_in=lambda u: u)
    surface.minimise = lambda problems: SimpleNamespace(u=np.full((3, 1), problems.nodes.values[0, 0]))
    ready = SimpleNamespace(
        objective=objective, nodes=NOWHERE, surface=surface, scale=np.ones(1), fit=SimpleNamespace(u=0.0)
    )
    times = times_needed(ready, reweighted(rng, 3, 5), lambda: NOWHERE._replace(values=np.full((1, 1), apart)))
    moved = 2.0 * np.sqrt(1.25) * apart / 2.0
    assert (times == 1) == (moved <= QUIET)
    assert moved / np.sqrt(times) <= QUIET and (times == 1 or moved / np.sqrt(times / 2) > QUIET)


@dataclass(frozen=True)
class Means(Loss):
    def value(self, x, w, y, v):
        return jnp.sum(jnp.square(w @ x - v @ y))


def products(u, z):
    return u + jnp.stack([z[0] * z[1] * z[2] + z[3] ** 3, z[4] * z[5] + jnp.exp(z[6])])


@pytest.mark.slow  # test_bootstrap doubles them
def test_nodes_are_multiplied_until_minima_agree(rng):
    bound = Means().objective(rng.normal(size=(400, 2)), Generator(products, NormalNoise(7), 2))
    few, enough = (
        posterior_bootstrap(
            jax.random.key(0), bound, rng.normal(size=(8, 2)), settings=Settings(num_samples=120, num_nodes=nodes)
        )
        for nodes in (512, None)
    )
    assert few.quadrature.noise > 0.15 and few.nodes.weights.shape[1] == 512
    assert enough.quadrature.noise < 0.5 * few.quadrature.noise and enough.nodes.weights.shape[1] > 1024


@pytest.mark.slow
def test_a_posterior_that_surfaces_miss_is_told():
    """A mixture of exponentials with outliers, whose loss has a curved ridge, along which balls wander."""
    rng = np.random.default_rng([21, 0])
    u = rng.random((400, 2))
    x = -np.where(u[:, 0] < 0.4, 0.5, 3.5) * np.log1p(-u[:, 1])
    far = rng.random(400) < 0.1
    x[far] = x.max() + 10.0 * x.std() + np.round(rng.normal(size=far.sum()))

    def draw(rng_key, p, a, b):
        first, second = jax.random.split(rng_key)
        return jnp.where(jax.random.uniform(first) < p, a, a + b) * jax.random.exponential(second)

    def model(x):
        p = numpyro.sample("p", dist.Uniform(0.0, 1.0))
        a, b = (numpyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in "ab")
        with numpyro.plate("n", len(x)):
            numpyro.sample("x", Simulator(draw, p, a, b), obs=x)

    scale = np.median(np.abs(x[:, None] - x)[np.triu_indices(400, 1)])
    level = -np.log1p(-(np.arange(1000) + 0.5) / 1000.0)  # quantiles of an exponential

    def loss(v):
        p, a, b = special.expit(v[0]), np.exp(v[1]), np.exp(v[2])
        y, w = np.concatenate([a * level, (a + b) * level]), np.repeat([p, 1.0 - p], 1000) / 1000.0
        gram = lambda s, t: np.exp(-0.5 * np.square((s[:, None] - t) / scale))  # noqa: E731
        return 1e3 * (w @ gram(y, y) @ w - 2.0 * np.mean(gram(x, y) @ w))

    exact = minimize(loss, [0.0, -0.5, 1.5], method="Nelder-Mead", options={"fatol": 1e-7}).x
    engine = PosteriorBootstrap(model, num_samples=64, progress_bar=False)
    for key in (0, 2, 4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            engine.run(jax.random.key(key), x)
        told = any("half as wide again" in str(w.message) or "full-data minimum" in str(w.message) for w in caught)
        found = engine.get_samples()
        u = np.stack([special.logit(found["p"]), np.log(found["a"]), np.log(found["b"])], axis=1)
        assert told or np.all(np.abs(u.mean(axis=0) - exact) < u.std(axis=0)), (key, u.mean(axis=0), u.std(axis=0))
