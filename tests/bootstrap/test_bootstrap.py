"""The posterior bootstrap against exact minimisers, and its promise not to depend on batching or devices."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from numpyro_kme._core import progress
from numpyro_kme._core.host import on_host
from numpyro_kme.bootstrap import (
    DirichletProcess,
    Settings,
    fit,
    newton,
    posterior_bootstrap,
    preparation,
    replicates,
)
from numpyro_kme.bootstrap.fit import by_basin, full_data, newton_step, starting_scale
from numpyro_kme.bootstrap.local import SETS
from numpyro_kme.bootstrap.second_attempts import rescue, restart
from numpyro_kme.bootstrap.weights import draw_weights
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD, DrawnNoise, Generator, Loss, NormalNoise, WeightedObjective
from numpyro_kme.losses.base import TaylorExpansion
from numpyro_kme.losses.local_mmd import LocalMMD

L = 1.5


def location(u, noise):
    """Normal vector with mean `u` and unit variance."""
    return u + noise


def location_keyed(u, rng_key):
    """The same from a key."""
    return u + jax.random.normal(rng_key, u.shape)


class Means(Loss):
    """Half the squared distance of the means: for a location, `u` is the weighted mean less the nodes' own."""

    def value(self, x, w, y, v):
        return 0.5 * jnp.sum(jnp.square(w @ x - v @ y))


def folded(u, noise):
    """Normal scalar with mean `|u|`: two equally good parameters."""
    return jnp.abs(u[0]) + noise[0]


SCALAR = Generator(lambda u, noise: u[0] + noise[0], NormalNoise(1), 1)
PLANE = Generator(location, NormalNoise(2), 2)
STARTS = np.random.default_rng(9).normal(0.0, 3.0, (40, 2))


def exact_location(x, w):
    """Minimum-MMD mean of N(u, I) under the Gaussian kernel: mean shift with bandwidth `sqrt(L^2 + 1)`."""
    u = np.average(x, axis=0, weights=w)
    for _ in range(500):
        pull = w * np.exp(-np.sum((x - u) ** 2, axis=1) / (2 * (L**2 + 1)))
        u = pull @ x / pull.sum()
    return u


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Valley(WeightedObjective):
    """Rosenbrock's function, with or without its exact Hessian."""

    generator: Generator
    exact: bool = True

    def reduce(self, weights, extra=None):
        return weights

    def value(self, reduced, u, nodes):
        return (1.0 - u[0]) ** 2 + 30.0 * (u[1] - u[0] ** 2) ** 2


class ExactValley(Valley):
    """Rosenbrock's function with a cheap Hessian."""

    has_cheap_hessian = True

    def expand(self, reduced, u, nodes):
        value = lambda t: self.value(reduced, t, nodes)  # noqa: E731
        return TaylorExpansion(value(u), jax.grad(value)(u), jax.hessian(value)(u))


def minimum(objective, start, hessian, **settings):
    """Where one loss without data is minimised from one start."""
    method = objective.expand if objective.has_cheap_hessian else objective.slope
    at_points = on_host(jax.jit(jax.vmap(lambda u: tuple(method(None, u, None)))))
    control = newton.Control(**settings)
    found = newton.minimise(lambda _, points: at_points(points), np.array([start]), np.array([hessian]), control)
    return jax.tree.map(lambda leaf: leaf[0], found)


@pytest.mark.parametrize("objective", [Valley(SCALAR), ExactValley(SCALAR)], ids=["updated", "exact"])
def test_newton_walks_down_a_curved_valley(objective):
    start, hessian = np.array([-1.2, 1.0]), np.array([[2.0 - 120.0 + 360.0 * 1.44, 144.0], [144.0, 60.0]])
    settings = dict(scale=np.ones(2), largest_remaining=1e-9, damping=0.1, stride=1.0)
    run = lambda steps: minimum(objective, start, hessian, max_steps=steps, **settings)  # noqa: E731
    found = run(200)
    np.testing.assert_allclose(found.u, [1.0, 1.0], atol=1e-7)
    assert bool(found.convex) and int(found.steps) < 150
    stopped = run(3)
    assert int(stopped.steps) == 3
    assert float(stopped.value) <= float(objective.value(None, start, None))
    assert np.abs(stopped.remaining).max() > 1e-3


@pytest.mark.x64
def test_weights_are_dirichlet_and_belong_to_their_replicate():
    data, key = np.zeros((20, 1)), jax.random.key(0)
    w = draw_weights(DirichletProcess(), key, np.arange(4000), data)
    np.testing.assert_allclose(w.sum(axis=1), 1.0, rtol=1e-12)
    variance = (1 / 20) * (1 - 1 / 20) / 21
    assert np.abs(w.mean(axis=0) - 0.05).max() < 5 * np.sqrt(variance / 4000)
    np.testing.assert_allclose(w.var(axis=0).mean(), variance, rtol=0.05)
    np.testing.assert_allclose(w[:5], DirichletProcess().weights(key, np.arange(5), 20), rtol=1e-12)
    np.testing.assert_array_equal(w[[7, 2]], draw_weights(DirichletProcess(), key, np.array([7, 2]), data))
    prior = DirichletProcess(5.0, lambda key, num: jax.random.normal(key, (num, 1)), 10)
    centering = draw_weights(prior, key, np.arange(4000), data)[:, 20:].sum(axis=1)
    assert abs(centering.mean() - 5 / 25) < 5 * np.sqrt(0.2 * 0.8 / 26 / 4000)
    points = prior.points(key, np.arange(3), data)
    assert points.shape == (3, 10, 1)
    assert len(np.unique(points)) == 30


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((-1.0,), "`concentration` must be finite and not negative; got -1.0"),
        ((2.0,), "`centering` must be given when `concentration` is positive"),
        (
            (2.0, lambda key, num: jnp.zeros((num, 3))),
            r"shape \[\(100, 3\)\] for 100 draws; the data ask for \[\(100, 2\)\]",
        ),
    ],
)
def test_a_process_that_makes_no_sense_raises_an_error(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        DirichletProcess(*arguments).points(jax.random.key(0), np.arange(2), np.zeros((5, 2)))


@pytest.fixture(scope="module")
def plane():
    """Normal data in the plane with far outliers, their squared MMD, and a bootstrap of 40 replicates."""
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(1.0, 1.0, (90, 2)), rng.normal(20.0, 1.0, (10, 2))])
    bound = MMD(Gaussian(L)).objective(x, PLANE)
    return (
        x,
        bound,
        posterior_bootstrap(jax.random.key(1), bound, STARTS, settings=Settings(num_samples=40, num_nodes=128)),
    )


def test_scales_of_starting_points_by_hand(rng):
    """Half the distance of two quantiles; a tenth of the size of points that agree, which may be zero."""
    points = np.stack([0.3 * rng.normal(size=50), np.full(50, -40.0), np.zeros(50)], axis=1)
    low, high = np.quantile(points[:, 0], [0.16, 0.84])
    np.testing.assert_allclose(starting_scale(points), [0.5 * (high - low), 4.0, 0.1])


def test_replicates_that_agree_have_the_standard_deviation_of_rounding():
    sd = preparation.posterior_sd(np.stack([np.full(9, 3e5), np.zeros(9)], axis=1))
    eps = np.finfo(np.float64).eps
    assert (sd > eps * np.array([3e5, 1.0])).all() and (sd < 1e6 * eps * np.array([3e5, 1.0])).all()


def test_newton_steps_by_hand(rng):
    """Along a direction of negative curvature uphill is avoided; without curvature there is no step beyond bounds."""
    root = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    hessian, gradient = root @ np.diag([4.0, -0.5, 1.0]) @ root.T, rng.normal(size=(5, 3))
    expected = -gradient @ np.linalg.inv(root @ np.diag([4.0, 0.5, 1.0]) @ root.T)
    np.testing.assert_allclose(newton_step(hessian, gradient), expected, rtol=1e-9)
    np.testing.assert_allclose(newton_step(np.diag([1e200, 1e180]), np.array([1e200, 0.0])), [-1.0, 0.0])
    np.testing.assert_allclose(newton_step(np.diag([2.0, 0.0]), np.array([2.0, 1e-9])), [-1.0, -0.5], rtol=1e-6)


def test_starts_are_ranked_by_few_nodes(monkeypatch):
    class Ranked(Exception):
        pass

    def rank(objective, nodes, starts):
        raise Ranked(nodes.weights.shape[1])

    monkeypatch.setattr(preparation, "rank_starts", rank)
    x, used = np.random.default_rng(0).normal(size=(50, 2)), []
    for data, generator in ((x[:, 0], SCALAR), (x, PLANE)):
        with pytest.raises(Ranked) as error:
            starts = STARTS[:, : generator.dim]
            posterior_bootstrap(
                jax.random.key(0),
                MMD(Gaussian(L)).objective(data, generator),
                starts,
                settings=Settings(num_samples=8, num_nodes=512),
            )
        used.append(error.value.args[0])
    assert all(8 <= num <= 128 for num in used)


def test_pilots_share_the_nodes_of_the_full_data_and_are_none_of_the_replicates(monkeypatch):
    class Asked(Exception):
        pass

    def prepare(rng_key, objective, nodes, pilot, starts, settings):
        raise Asked(pilot)

    monkeypatch.setattr(replicates, "prepare", prepare)
    bound = Means().objective(np.random.default_rng(2).normal(size=(30, 2)), PLANE)
    with pytest.raises(Asked) as error:
        posterior_bootstrap(jax.random.key(0), bound, STARTS, settings=Settings(num_samples=40, num_nodes=64))
    pilot = error.value.args[0]
    weights_key = jax.random.split(jax.random.split(jax.random.key(0), 3)[1])[0]
    own = DirichletProcess().weights(weights_key, np.arange(40), 30)
    assert not pilot.sets.any() and len(pilot) == 16
    assert np.abs(pilot.weights[:, None] - np.asarray(own)[None]).max(axis=2).min() > 1e-3


@pytest.mark.parametrize("jumps", [False, True])
def test_derivatives_are_compared_over_about_a_posterior_sd_and_over_a_wide_step_without_any(jumps, monkeypatch):
    """Of the mean of 50 normals. A simulation of the rounded mean has derivatives that are zero almost everywhere."""

    class Compared(Exception):
        pass

    def compare(problems, u, steps):
        raise Compared(steps)

    monkeypatch.setattr(preparation, "compare_derivatives", compare)
    generator = Generator(lambda u, z: (jnp.round(u[0]) if jumps else u[0]) + z[0], NormalNoise(1), 1)
    bound = MMD(Gaussian(3.0)).objective(np.random.default_rng(0).normal(0.4, 1.0, 50), generator)
    with pytest.raises(Compared) as error:
        posterior_bootstrap(jax.random.key(0), bound, STARTS[:, :1], settings=Settings(num_samples=8, num_nodes=64))
    sd, width = 1.0 / np.sqrt(50), starting_scale(STARTS[:, :1])[0]
    (step,) = error.value.args[0]
    assert width / 200 < step < width / 10 if jumps else sd / 2 < step < 2 * sd


@pytest.mark.x64
def test_replicates_are_the_exact_minimisers_for_their_weights(plane):
    x, _, draws = plane
    weights_key = jax.random.split(jax.random.split(jax.random.key(1), 4)[1])[0]
    weights = np.asarray(DirichletProcess().weights(weights_key, np.arange(40), len(x)))
    exact = np.array([exact_location(x, w) for w in weights])
    sd = exact.std(axis=0)
    assert np.abs((draws.u - exact) / sd[None]).max() < 0.05
    np.testing.assert_allclose(draws.fit.u, exact_location(x, np.full(100, 0.01)), atol=0.05 * sd.min())
    assert draws.converged.all() and draws.compared == 2 and not draws.moved.any()
    assert draws.quadrature.noise < 0.05
    assert draws.derivatives.automatic and draws.derivatives.disagreement.max() < 0.01
    u, w = draws.u[3], weights[3]
    data = w @ np.exp(-np.sum((x[:, None] - x) ** 2, axis=-1) / (2 * L**2)) @ w
    own = L**2 / (L**2 + 2)
    cross = L**2 / (L**2 + 1) * w @ np.exp(-np.sum((x - u) ** 2, axis=1) / (2 * (L**2 + 1)))
    np.testing.assert_allclose(draws.value[3], own - 2 * cross + data, rtol=0.1)


def test_the_reported_loss_is_the_whole_squared_mmd(plane):
    """By direct sums over its nodes; of the local loss, whose nodes are many more, in closed form."""
    x, bound, draws = plane
    settings = Settings(num_samples=8, num_nodes=128, method="linear")
    linear = posterior_bootstrap(jax.random.key(1), bound, STARTS, settings=settings)
    y, v = linear.fit.u + linear.nodes.values[0], linear.nodes.weights[0]

    def gram(a, b, square=0.0):
        scale = L**2 + square
        return L**2 / scale * np.exp(-np.sum((a[:, None] - b) ** 2, axis=-1) / (2 * scale))

    expected = np.mean(gram(x, x)) + v @ gram(y, y) @ v - 2.0 * v @ gram(y, x).mean(axis=1)
    np.testing.assert_allclose(linear.fit.value, expected, atol=1e-9)
    full = full_data(bound)
    parts = newton.Problems(bound, linear.nodes, full).values(linear.fit.u) + newton.offsets(bound, full)
    np.testing.assert_allclose(parts, expected, atol=1e-9)
    u = draws.fit.u[None]
    exactly = np.mean(gram(x, x)) + gram(u, u, 2.0)[0, 0] - 2.0 * gram(u, x, 1.0).mean()
    np.testing.assert_allclose(draws.fit.value, exactly, atol=5e-4)
    assert draws.fit.value > -5 * draws.fit.numbers["loss_error"]
    behind = linear.fit.numbers["loss_error"] / draws.fit.numbers["loss_error"]
    assert behind**2 == pytest.approx(SETS, rel=0.5)  # times as many nodes


def test_results_do_not_depend_on_how_many_replicates_there_are(plane, monkeypatch):
    """The fit and all replicates are checked for impossible values (test_impossible has the checks), and 16 different
    replicates for their quadrature."""
    _, bound, draws = plane
    checked, looked_at = [], []

    def quadrature(rng_key, objective, reweightings, found, rows, *others):
        looked_at.extend(rows)

    monkeypatch.setattr(replicates, "_quadrature", quadrature)
    monkeypatch.setattr(replicates, "require_possible", lambda value, numbers, _: checked.append((value, set(numbers))))
    fewer = posterior_bootstrap(jax.random.key(1), bound, STARTS, settings=Settings(num_samples=33, num_nodes=128))
    np.testing.assert_array_equal(fewer.u, draws.u[:33])
    (of_the_fit, names), (of_replicates, same) = checked
    assert of_the_fit == fewer.fit.value and names == same == {"loss_error"}
    np.testing.assert_array_equal(of_replicates, fewer.value)
    assert len(looked_at) == len(set(looked_at)) == 16 and set(looked_at) <= set(range(33))
    assert np.abs(fewer.u[:5] - draws.u[5:10]).max() > 0.1 * draws.u.std()


def test_one_step_is_close_and_says_how_far(plane):
    _, bound, draws = plane
    linear = posterior_bootstrap(
        jax.random.key(1), bound, STARTS, settings=Settings(num_samples=40, num_nodes=128, method="linear")
    )
    sd = draws.u.std(axis=0)
    np.testing.assert_array_equal(linear.u, linear.linear)
    error = np.abs((linear.u - draws.u) / sd[None]).max(axis=1)
    assert 0.001 < error.mean() < 0.3
    large = error > 0.05
    assert large.any() and np.abs(linear.remaining[large] / error[large] - 1.0).max() < 0.5


@pytest.mark.x64
def test_noise_is_drawn_anew_for_each_block_of_replicates():
    x = np.random.default_rng(2).normal(0.0, 1.0, (60, 2))
    bound = Means().objective(x, Generator(location_keyed, DrawnNoise(), 2))
    draws = posterior_bootstrap(jax.random.key(0), bound, STARTS, settings=Settings(num_samples=64, num_nodes=60))
    np.testing.assert_array_equal(draws.reweightings.sets, 1 + np.arange(64) // 16)
    noise = np.asarray(jax.vmap(jax.vmap(lambda key: jax.random.normal(key, (2,))))(draws.nodes.values))
    exact = draws.reweightings.weights @ x - noise.mean(axis=1)[draws.reweightings.sets]
    np.testing.assert_allclose(draws.u, exact, atol=1e-6)
    assert draws.converged.all() and draws.quadrature.noise > 0.3  # as many nodes as data


@pytest.mark.slow  # the same by the engine: test_the_prior_guess_reaches_the_fit
def test_a_prior_pulls_towards_the_centering_measure():
    """Data and points of the centering measure, weighed together."""
    x = np.random.default_rng(2).normal(0.0, 1.0, (60, 2))
    process = DirichletProcess(100.0, lambda key, num: 3.0 + jax.random.normal(key, (num, 2)), 50)
    bound = Means().objective(x, PLANE)
    draws = posterior_bootstrap(jax.random.key(1), bound, STARTS, process, Settings(num_samples=16, num_nodes=60))
    joined = np.concatenate([np.broadcast_to(x, (16, 60, 2)), draws.reweightings.extra], axis=1)
    noise = draws.nodes.values[draws.reweightings.sets].mean(axis=1)
    np.testing.assert_allclose(draws.u, np.einsum("rn,rnd->rd", draws.reweightings.weights, joined) - noise, atol=1e-6)
    assert draws.converged.all() and (draws.u.mean(axis=0) > 1.2).all()  # 100 of 160 parts of a pull to 3


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ridge(WeightedObjective):
    """A well at 0 with its minimum -1, and a ridge that sinks towards -1/2 on the right."""

    generator: Generator
    data: np.ndarray

    def reduce(self, weights, extra=None):
        return weights

    def value(self, reduced, u, nodes):
        return -jnp.exp(-jnp.square(u[0])) - 0.5 * jax.nn.sigmoid(u[0] - 4.0)


@pytest.mark.x64
def test_a_replicate_that_stopped_short_goes_on_from_where_it_came_to():
    """Where the full data's minimum leads to another that is higher, as from the ridge into nothing."""
    ridge = Ridge(SCALAR, np.zeros((2, 1)))
    problems = newton.Problems(ridge, SCALAR.draw_nodes(jax.random.key(0), 8, 1), full_data(ridge))
    control = newton.Control(np.ones(1), largest_remaining=1e-6, max_steps=3)
    found = problems.solve(np.array([0.4]), np.eye(1), control)
    assert np.abs(found.remaining).max() > control.largest_remaining and abs(found.u[0, 0]) < 0.5
    full = SimpleNamespace(u=np.array([9.0]), hessian=np.eye(1))
    ended = rescue(problems, full, found, found.value, control)
    np.testing.assert_allclose(ended.u, 0.0, atol=0.01)
    assert ended.convex.all() and np.abs(ended.remaining).max() <= control.largest_remaining


@pytest.mark.parametrize("loss", [MMD(), Means()], ids=["rows by NumPy", "one program"])
def test_compiling_is_said(monkeypatch, capsys, loss):
    for name in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "_moves", lambda: True)
    objective = loss.objective(np.linspace(-1.0, 1.0, 5), SCALAR)
    problems = newton.Problems(objective, SCALAR.draw_nodes(jax.random.key(0), 8, 1), full_data(objective))
    with progress.steps("bootstrapping", 1, True):
        problems.values(np.zeros(1))
    assert "bootstrapping, compiling" in capsys.readouterr().err


@pytest.mark.x64
def test_points_that_run_away_along_a_ridge_are_one_basin():
    ridge = Ridge(SCALAR, np.zeros((2, 1)))
    nodes = SCALAR.draw_nodes(jax.random.key(0), 8, 1)
    u = np.array([9.0, 20.0, 40.0, 0.5, 0.6, 30.0, 0.5])[:, None]
    values = np.array([float(ridge.value(None, one, None)) for one in u])
    np.testing.assert_array_equal(by_basin(ridge, nodes, u, values, np.ones(1)), [3, 2, 4, 5, 1, 0])


def test_equally_good_minima_are_reported():
    x = np.random.default_rng(3).normal(2.0, 1.0, 200)
    bound = MMD(Gaussian(0.8)).objective(x, Generator(folded, NormalNoise(1), 1))
    nodes = bound.generator.draw_nodes(jax.random.key(0), 65, 1)
    found = fit(bound, nodes, np.linspace(-4.0, 4.0, 16)[:, None], np.ones(1))
    np.testing.assert_allclose(np.abs(found.u), np.abs(found.others[0]), atol=1e-4)
    assert found.converged and found.u[0] * found.others[0, 0] < 0


class Wells:
    """Losses with a minimum on either side of zero, at -1 and 1, of values `(R, 2)`."""

    objective = SimpleNamespace(is_smooth=True)

    def __init__(self, heights):
        self.reweightings = heights

    def rows(self, index):
        return Wells(self.reweightings[index])

    def solve(self, start, hessian, control):
        n = len(self.reweightings)
        side = np.broadcast_to(start > 0, (n, 1))
        value = np.take_along_axis(self.reweightings, side.astype(int), axis=1)[:, 0]
        nothing, curved = np.zeros((n, 1)), np.ones((n, 1, 1))
        return newton.Minimum(2.0 * side - 1.0, value, nothing, curved, nothing, np.ones(n, bool), np.ones(n, int))


@pytest.mark.parametrize("every", [1, 7])
def test_replicates_that_are_lower_in_another_well_are_moved_there(every, rng):
    """All of them, where one of those that are compared is; none to where it is higher."""
    wells = Wells(rng.normal(size=(50, 2)))
    lower = wells.reweightings[:, 1] < wells.reweightings[:, 0]
    lower[0], wells.reweightings[0] = True, [0.0, -1.0]
    full, control = SimpleNamespace(others=np.ones((1, 1)), scale=np.ones(1), hessian=None), newton.Control(np.ones(1))
    found, moved, compared = restart(wells, full, None, wells.solve(-np.ones(1), None, None), control, every)
    np.testing.assert_array_equal(moved, lower)
    np.testing.assert_array_equal(found.u[:, 0] > 0, lower)
    np.testing.assert_array_equal(found.value, wells.reweightings.min(axis=1))
    assert compared == len(range(0, 50, every))


def correlated(u, noise):
    """Normal vector in the plane with means `u[:2]`, unit variances and the correlation `tanh(u[2] / 2)`."""
    r = jnp.tanh(0.5 * u[2])
    return jnp.stack([u[0] + noise[0], u[1] + r * noise[0] + jnp.sqrt((1.0 - r) * (1.0 + r)) * noise[1]])


@pytest.mark.x64
def test_with_covariates_starts_are_followed_on_some_of_the_data(rng):
    """Their loss is that of these data, at their own covariates."""
    t, noise = rng.uniform(0.0, 3.0, 300), rng.normal(size=300)

    def line(u, noise, i):
        return u[0] + u[1] * jnp.asarray(t)[i] + noise[0]

    kernels = Gaussian(1.2), Gaussian(0.8)
    loss = MMD(kernels[0], covariate_kernel=kernels[1])
    bound = loss.objective((t, 0.5 + t + noise), Generator(line, NormalNoise(1), 2, covariates=t))
    pilot = newton.Reweightings(rng.dirichlet(np.ones(300), 3), None, np.ones(3, int))
    nodes = bound.generator.draw_nodes(jax.random.key(0), 512, 2)
    few = preparation._with_few(jax.random.key(1), newton.Problems(bound, nodes, pilot))
    chosen = np.asarray(few.objective.generator.covariates)
    assert len(set(chosen)) == 128 and set(chosen) < set(t)
    place = np.array([np.flatnonzero(t == one)[0] for one in chosen])
    weights = pilot.weights[:, place] / pilot.weights[:, place].sum(axis=1, keepdims=True)
    index, z = (np.asarray(part)[0] for part in few.nodes.values)
    u = np.array([0.3, 1.2])
    own, x = (
        np.stack([chosen[index], u[0] + u[1] * chosen[index] + z[:, 0]]),
        np.stack([chosen, (0.5 + t + noise)[place]]),
    )

    def gram(a, b):
        apart = [(one[:, None] - other) / k.length_scale for one, other, k in zip(a, b, kernels[::-1])]
        return np.exp(-0.5 * sum(map(np.square, apart)))

    for found, w in zip(few.values(u), weights):
        v = w[index] / w[index].sum()
        np.testing.assert_allclose(found, v @ gram(own, own) @ v - 2.0 * v @ gram(own, x) @ w, rtol=1e-9)


@pytest.mark.x64
def test_corrections_of_covariates_are_averaged_under_the_weights_of_each_row(rng):
    """Also where all rows share their simulations."""
    t = rng.uniform(0.0, 3.0, 20)
    loss = MMD(Gaussian(1.2), covariate_kernel=Gaussian(0.8))
    generator = Generator(
        lambda u, noise, i: u[0] + u[1] * jnp.asarray(t)[i] + noise[0], NormalNoise(1), 2, covariates=t
    )
    bound = loss.objective((t, 0.5 + t), generator)
    local = LocalMMD.of(bound, (t[:6, None], 0.5 + t[:6, None]), np.zeros(2), 6)
    nodes = local.uncorrected(generator.draw_nodes(jax.random.key(0), 40, 2))
    nodes = nodes._replace(correction=rng.normal(size=nodes.correction.shape))
    rows = newton.Reweightings(rng.dirichlet(np.ones(20), 3), None, np.ones(3, int))
    problems, points = newton.Problems(local, nodes, rows), rng.normal(size=(4, 2))
    own = jax.tree.map(lambda leaf: leaf[1], nodes)
    for i, w in enumerate(rows.weights):
        mean = np.einsum("n,nrc->rc", w, nodes.correction[1])
        exact = [float(local.value(local.reduce(w), u, own._replace(correction=mean))) for u in points]
        np.testing.assert_allclose(problems.values_together(points)[i], exact, rtol=1e-9)
        np.testing.assert_allclose([problems.values(u)[i] for u in points], exact, rtol=1e-9)


def bent(u, noise):
    """Normal vector around a point of a parabola: the other branch is nearly as good."""
    return jnp.stack([u[0] ** 2, 0.3 * u[0]]) + 0.5 * noise


def test_a_minimum_that_the_first_fit_overlooked_is_found_by_the_replicates(rng, monkeypatch):
    """They end elsewhere, the full data are fitted again, and the replicates are minimised near that: not by sums over
    thousands of nodes."""
    x = np.array([1.0, 0.3]) + 0.5 * rng.normal(size=(100, 2))
    loss = MMD(Gaussian(1.0)).objective(x, Generator(bent, NormalNoise(2), 1))
    settings, prepare, anchors = Settings(num_samples=32, num_nodes=512), replicates.prepare, []

    def overlooked(*args):
        ready = prepare(*args)
        worse = fit(ready.objective, ready.nodes, -np.ones((1, 1)), ready.fit.scale)
        assert worse.value > ready.fit.value and worse.u[0] < 0.0
        return replace(ready, fit=worse, pool=np.array([[0.8], [-0.8]]))

    def localised(ready, *args):
        anchors.append(ready.fit.u[0])
        return localise(ready, *args)

    starts = np.linspace(-2.0, 2.0, 16)[:, None]
    expected = posterior_bootstrap(jax.random.key(0), loss, starts, None, settings)
    localise = replicates.localise
    monkeypatch.setattr(replicates, "prepare", overlooked)
    monkeypatch.setattr(replicates, "localise", localised)
    found = posterior_bootstrap(jax.random.key(0), loss, starts, None, settings)
    np.testing.assert_allclose(np.sign(anchors), [-1.0, 1.0])
    np.testing.assert_allclose(found.u, expected.u, atol=0.02 * expected.u.std())


@pytest.mark.parametrize("seed", [4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 8))])
def test_starts_that_ran_away_over_the_smoother_loss_are_brought_back(seed):
    """Over it, outliers along the diagonal pull the correlation to 1, where the loss is flat."""
    rng = np.random.default_rng(seed)
    x = rng.multivariate_normal([1.0, -1.0], [[1.0, 0.6], [0.6, 1.0]], size=200)
    x[:20] += 15.0
    loss = MMD().objective(x, Generator(correlated, NormalNoise(2), 3))
    starts = rng.normal(0.0, [3.0, 3.0, 1.8], (200, 3))
    found = posterior_bootstrap(jax.random.key(seed), loss, starts, None, Settings(num_samples=16, num_nodes=512)).fit
    assert found.converged
    np.testing.assert_allclose(found.u, [1.0, -1.0, np.log(1.6 / 0.4)], atol=0.7)


def test_nodes_are_doubled_until_others_move_the_draws_by_little(plane, monkeypatch):
    def number():
        return posterior_bootstrap(jax.random.key(1), plane[1], STARTS, settings=Settings(num_samples=16)).nodes.weights

    enough = number().shape[1]
    monkeypatch.setattr(replicates, "NOISY", 0.0)
    assert enough < number().shape[1] == preparation.FIRST_NODES * preparation.MOST


def with_a_gap(u, noise):
    return u[0] + noise[0] + 2.0 * (noise[0] > 0.3)


@pytest.mark.parametrize("simulate", [lambda u, z: u[0] + z[0], with_a_gap])
@pytest.mark.parametrize("first", [8, preparation.OF_A_RULE])
def test_a_quadrature_rule_has_as_many_nodes_as_its_precision_takes(simulate, first, rng, monkeypatch):
    monkeypatch.setattr(replicates, "OF_A_RULE", first)
    x = simulate(np.array([0.5]), rng.normal(size=(1, 400)))
    generator = Generator(simulate, NormalNoise(1), 1)
    loss = MMD(Gaussian(1.0)).objective(x, generator)
    found = posterior_bootstrap(jax.random.key(3), loss, STARTS[:, :1], None, Settings(num_samples=16))
    num = found.nodes.weights.shape[1]
    assert num == first if first > 8 else num > first
    z = 0.3 + 0.01 * (np.arange(-800, 800) + 0.5)  # the gap is between two of them
    v = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    y = simulate(np.zeros(1), z[None])

    def slope(u, w):  # of the only part of the loss that a location changes
        apart = x[:, None] - u - y
        return -2.0 * w @ (np.exp(-0.5 * apart**2) * apart) @ v

    exact = [
        scipy.optimize.brentq(slope, u - 0.5, u + 0.5, (w,)) for (u,), w in zip(found.u, found.reweightings.weights)
    ]
    error = np.sqrt(np.mean(np.square(found.u[:, 0] - exact))) / np.std(exact)
    assert error < preparation.EXACT


def test_starting_points_that_all_fail_are_named():
    bound = MMD(Gaussian(1.0)).objective(
        np.arange(5.0), Generator(lambda u, z: jnp.log(u[0]) + z[0], NormalNoise(1), 1)
    )
    with pytest.raises(ValueError, match="not finite at any of the 3 starting points"):
        posterior_bootstrap(jax.random.key(0), bound, -np.ones((3, 1)))


SCRIPT = """
from unittest import mock
import jax, numpy as np
from numpyro_kme.bootstrap import Settings, posterior_bootstrap
from numpyro_kme.losses import Generator, Loss, NormalNoise
class Means(Loss):
    def value(self, x, w, y, v):
        return jax.numpy.log(jax.numpy.cosh(w @ x - v @ y))
def simulate(u, z):
    return u[0] + z[0]
bound = Means().objective(np.linspace(-2.0, 3.0, 50), Generator(simulate, NormalNoise(1), 1))
starts = np.linspace(-3.0, 3.0, 8)[:, None]
devices = jax.local_devices()
for used in (devices, devices[:1]):
    with mock.patch("jax.local_devices", lambda: used):
        draws = posterior_bootstrap(jax.random.key(0), bound, starts, settings=Settings(num_samples=20, num_nodes=64))
    print(len(used), draws.u.dtype, *(f"{u:.13e}" for u in draws.u[:, 0]))
"""


@pytest.mark.slow  # starts a process with two devices
def test_several_devices_and_float32_sessions_give_the_same_numbers():
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    two, one = (line.split() for line in done.stdout.splitlines())
    assert two[:2] == ["2", "float64"] and one[0] == "1"
    assert one[2:] == two[2:] and len(one) == 22


def jumping(u, noise):
    """A simulation of the mixture `p N(3, 1) + (1 - p) N(-1, 1)`, `p = Phi(u)`: as a function of `u` it jumps."""
    return jnp.where(noise[0] < u[0], 3.0, -1.0) + noise[1]


@pytest.mark.slow  # a switch in test_surface, against its exact minimisers
def test_derivatives_of_a_simulator_that_jumps_are_not_trusted():
    rng = np.random.default_rng(6)
    x = np.where(rng.random(400) < 0.3, 3.0, -1.0) + rng.normal(size=400)
    bound = MMD(Gaussian(1.0)).objective(x, Generator(jumping, NormalNoise(2), 1))
    settings = Settings(num_samples=48, num_nodes=1024)
    draws = posterior_bootstrap(jax.random.key(0), bound, np.linspace(-2.0, 2.0, 16)[:, None], settings=settings)
    assert not draws.derivatives.automatic and "differences" in str(draws.derivatives)
    p = jax.scipy.stats.norm.cdf(draws.u[:, 0])
    binomial = np.sqrt(0.3 * 0.7 / 400)
    assert abs(float(p.mean()) - 0.3) < 5 * binomial
    assert 0.7 < float(p.std()) / binomial < 1.6


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Curve(ExactValley):
    """`(1 + u^2)^power`, a parabola for 1; for 1/2 a Newton step leads from `u` to `-u^3`."""

    power: float = 1.0

    def value(self, reduced, u, nodes):
        return (1.0 + jnp.sum(jnp.square(u))) ** self.power


@pytest.mark.x64
@pytest.mark.parametrize(("power", "start", "change"), [(1.0, 3.0, -1), (0.5, 0.7, 0), (0.5, 0.99, 1)])
def test_damping_falls_where_a_step_gains_what_was_predicted_and_rises_where_it_gains_little(power, start, change):
    """Predicted by `g s + h s^2 / 2`; along one parameter a step is Newton's, divided by one plus the damping."""
    settings = dict(scale=np.ones(1), largest_remaining=1e-9, damping=0.5, stride=10.0)
    objective, hessian = Curve(SCALAR, power=power), np.eye(1)
    run = lambda most: minimum(objective, [start], hessian, max_steps=most, **settings)  # noqa: E731
    before, middle, after = (run(most) for most in (1, 2, 3))
    g, h = (derivative(lambda u: objective.value(None, u, None))(before.u) for derivative in (jax.grad, jax.hessian))
    np.testing.assert_allclose(before.remaining, -g / h[0], rtol=1e-12)
    step = float((middle.u - before.u)[0])
    gain = (before.value - middle.value) / -(g[0] * step + 0.5 * h[0, 0] * step**2)
    assert [gain < 0.25, 0.25 < gain < 0.75, gain > 0.75] == [change == 1, change == 0, change == -1]
    first, second = (float((a.remaining / (b.u - a.u))[0]) - 1.0 for a, b in ((before, middle), (middle, after)))
    assert first > 0.01 and np.sign(np.round(second - first, 9)) == change


class Saddle(ExactValley):
    """A saddle at the origin between minima at `u[1] = -1` and 1."""

    def value(self, reduced, u, nodes):
        return u[0] ** 2 - 0.5 * u[1] ** 2 + 0.25 * u[1] ** 4


def test_a_saddle_is_no_minimum_and_repels():
    settings = dict(scale=np.ones(2), largest_remaining=1e-4, max_steps=40, damping=0.0, stride=10.0)
    run = lambda start: minimum(Saddle(SCALAR), start, np.eye(2), **settings)  # noqa: E731
    stays = run([0.0, 0.0])
    assert not stays.convex and int(stays.steps) > 10
    leaves = run([0.5, 0.1])
    assert leaves.convex
    np.testing.assert_allclose(leaves.u, [0.0, 1.0], atol=1e-3)


@pytest.mark.x64
def test_rank_one_updates_know_the_step_that_was_taken(rng):
    """After as many independent steps as parameters the Hessian of a quadratic is exact; a step it foresaw changes
    nothing."""
    root = rng.normal(size=(3, 3))
    exact, found = root + root.T, np.eye(3)
    for step in rng.normal(size=(3, 3)):
        found = newton.rank_one(found[None], step[None], (exact @ step)[None])[0]
        np.testing.assert_allclose(found @ step, exact @ step, rtol=1e-8)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-9)
    exact, step = np.array([[2.0, 1.0], [1.0, 4.0]]), np.array([0.5, -2.0])
    np.testing.assert_array_equal(newton.rank_one(exact[None], step[None], (exact @ step)[None])[0], exact)


class Cliff(Valley):
    """A parabola in `u[0]` whose gradient is not a number to the right of 2."""

    def value(self, reduced, u, nodes):
        return u[0] ** 2 + 0.0 * jnp.sqrt(2.0 - u[0]) + u[1] ** 2


def test_a_trial_without_a_gradient_does_not_spoil_the_hessian():
    settings = dict(scale=np.ones(2), largest_remaining=1e-6, max_steps=60, damping=0.0, stride=10.0)
    found = minimum(Cliff(SCALAR), [-1.0, 1.0], 0.3 * np.eye(2), **settings)
    assert np.isfinite(found.hessian).all() and bool(found.convex)
    np.testing.assert_allclose(found.u, 0.0, atol=1e-5)


CALLS = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp, numpy as np
from numpyro_kme._core import solves

def twice(a, b):
    assert a.dtype == np.float64 and b.dtype == np.int64, (a.dtype, b.dtype)
    return 2.0 * a + b
def call(a, b):
    return solves.call_back(twice, a.shape, a.dtype, a, b, vmap_method=how)
for calls, how in enumerate(("sequential", "broadcast_all"), 1):
    with jax.enable_x64(True):
        a, b = jnp.arange(6.0).reshape(2, 3) + 1e-12, jnp.arange(6).reshape(2, 3)
        got = np.asarray(jax.jit(jax.vmap(call))(a, b))
        assert got.dtype == np.float64 and (got == 2.0 * np.asarray(a) + np.asarray(b)).all(), got
single = solves.call_back(lambda a: a + 1, (), np.float32, jnp.float32(1.0), vmap_method="sequential")
assert single.dtype == np.float32 and single == 2.0
print(calls, "methods and", single.dtype, flush=True)
def step(c, _):
    return solves.call_back(lambda c: c + 1.0, c.shape, c.dtype, c, vmap_method="broadcast_all"), jnp.sum(c)
start = np.arange(60_000.0, dtype=np.float32).reshape(2, 30_000)
for batched in (False, True):
    run = lambda c: jax.lax.scan(step, c, None, length=10)[0]
    run = jax.jit(jax.vmap(run) if batched else run)
    for i, end in enumerate([run(start + i) for i in range(12)]):
        np.testing.assert_array_equal(end, start + i + 10.0)
print("done")
"""


def test_called_back_functions_keep_float64_in_a_float32_session_and_large_arguments_do_not_wait_for_themselves():
    """The pool of threads of one CPU is full with the thread that calls back."""
    command, env = [sys.executable, "-W", "error", "-c", CALLS], {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 methods and float32", "done"]
