"""The posterior bootstrap against exact minimisers, and its promise not to depend on batching or devices."""

import os
import subprocess
import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_kme.bootstrap import DirichletProcess, Settings, fit, minimise, posterior_bootstrap
from numpyro_kme.bootstrap.fit import by_basin
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD, DrawnNoise, Generator, NormalNoise, Objective
from numpyro_kme.losses.base import Expansion

L = 1.5


def location(u, noise):
    """Normal vector with mean `u` and unit variance."""
    return u + noise


def location_keyed(u, rng_key):
    """The same from a key."""
    return u + jax.random.normal(rng_key, u.shape)


def folded(u, noise):
    """Normal scalar with mean `|u|`: two equally good parameters."""
    return jnp.abs(u[0]) + noise[0]


SCALAR = Generator(lambda u, noise: u[0] + noise[0], NormalNoise(1), 1)
PLANE = Generator(location, NormalNoise(2), 2)
STARTS = np.random.default_rng(9).normal(0.0, 3.0, (40, 2))


def exact_location(x, w):
    """Minimum-MMD mean of N(u, I) under the Gaussian kernel: the mean shift with squared bandwidth `L^2 +
    1`."""
    u = np.average(x, axis=0, weights=w)
    for _ in range(500):
        pull = w * np.exp(-np.sum((x - u) ** 2, axis=1) / (2 * (L**2 + 1)))
        u = pull @ x / pull.sum()
    return u


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Valley(Objective):
    """Rosenbrock's function, with or without its exact Hessian."""

    generator: Generator
    exact: bool = True

    def reduce(self, weights, extra=None):
        return weights

    def value(self, facts, u, nodes):
        return (1.0 - u[0]) ** 2 + 30.0 * (u[1] - u[0] ** 2) ** 2


class ExactValley(Valley):
    """Rosenbrock's function with a cheap Hessian."""

    has_cheap_hessian = True

    def expand(self, facts, u, nodes):
        value = lambda t: self.value(facts, t, nodes)  # noqa: E731
        return Expansion(value(u), jax.grad(value)(u), jax.hessian(value)(u))


@pytest.mark.parametrize("objective", [Valley(SCALAR), ExactValley(SCALAR)], ids=["updated", "exact"])
def test_newton_walks_down_a_curved_valley(objective):
    start = jnp.array([-1.2, 1.0])
    hessian = jax.hessian(lambda u: objective.value(None, u, None))(start)
    settings = dict(scale=jnp.ones(2), tolerance=1e-9, max_steps=200, damping=0.1, stride=1.0)
    found = minimise(objective, None, None, start, hessian, **settings)
    np.testing.assert_allclose(found.u, [1.0, 1.0], atol=1e-7)
    assert bool(found.convex) and int(found.steps) < 150
    stopped = minimise(objective, None, None, start, hessian, **{**settings, "max_steps": 3})
    assert int(stopped.steps) == 3
    assert float(stopped.value) <= float(objective.value(None, start, None))
    assert np.abs(stopped.remaining).max() > 1e-3


@pytest.mark.x64
def test_weights_are_dirichlet_and_belong_to_their_replicate():
    data, key = jnp.zeros((20, 1)), jax.random.key(0)
    w = np.asarray(DirichletProcess().weights(key, np.arange(4000), 20))
    np.testing.assert_allclose(w.sum(axis=1), 1.0, rtol=1e-12)
    variance = (1 / 20) * (1 - 1 / 20) / 21
    assert np.abs(w.mean(axis=0) - 0.05).max() < 5 * np.sqrt(variance / 4000)
    np.testing.assert_allclose(w.var(axis=0).mean(), variance, rtol=0.05)
    np.testing.assert_array_equal(w[[7, 2]], DirichletProcess().weights(key, np.array([7, 2]), 20))
    prior = DirichletProcess(5.0, lambda key, num: jax.random.normal(key, (num, 1)), 10)
    share = np.asarray(prior.weights(key, np.arange(4000), 20))[:, 20:].sum(axis=1)
    assert abs(share.mean() - 5 / 25) < 5 * np.sqrt(0.2 * 0.8 / 26 / 4000)
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
def test_a_process_that_makes_no_sense_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        DirichletProcess(*arguments).points(jax.random.key(0), np.arange(2), np.zeros((5, 2)))


@pytest.fixture(scope="module")
def plane():
    """Normal data in the plane with far outliers, bound to the squared MMD, and a bootstrap of 40
    replicates."""
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(1.0, 1.0, (90, 2)), rng.normal(20.0, 1.0, (10, 2))])
    bound = MMD(Gaussian(L)).objective(x, PLANE)
    return (
        x,
        bound,
        posterior_bootstrap(jax.random.key(1), bound, STARTS, settings=Settings(40, num_nodes=128)),
    )


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


def test_results_do_not_depend_on_how_many_replicates_there_are(plane):
    _, bound, draws = plane
    fewer = posterior_bootstrap(jax.random.key(1), bound, STARTS, settings=Settings(33, num_nodes=128))
    np.testing.assert_array_equal(fewer.u, draws.u[:33])
    assert np.abs(fewer.u[:5] - draws.u[5:10]).max() > 0.1 * draws.u.std()


def test_one_step_is_close_and_says_how_far(plane):
    _, bound, draws = plane
    linear = posterior_bootstrap(jax.random.key(1), bound, STARTS, settings=Settings(40, 128, method="linear"))
    sd = draws.u.std(axis=0)
    np.testing.assert_array_equal(linear.u, linear.linear)
    error = np.abs((linear.u - draws.u) / sd[None]).max(axis=1)
    assert 0.001 < error.mean() < 0.3
    large = error > 0.05
    assert large.any() and np.abs(linear.remaining[large] / error[large] - 1.0).max() < 0.5


def test_noise_is_drawn_anew_for_each_block_of_replicates():
    x = np.random.default_rng(2).normal(0.0, 1.0, (60, 2))
    keyed = Generator(location_keyed, DrawnNoise(), 2)
    bound = MMD(Gaussian(L)).objective(x, keyed)
    draws = posterior_bootstrap(jax.random.key(0), bound, STARTS, settings=Settings(64, num_nodes=60))
    exact = exact_location(x, np.full(60, 1 / 60))
    blocks = draws.u.reshape(4, 16, 2).mean(axis=1)
    assert np.ptp(blocks, axis=0).max() > 0.05  # as many nodes as data: the noise moves a block by about a posterior sd
    assert draws.quadrature.noise > 0.3
    assert np.abs(draws.u.mean(axis=0) - exact).max() < 5 * np.sqrt(1.5 / 60 / 4 + 1.5 / 60 / 64)


def test_a_prior_pulls_towards_the_centering_measure(plane):
    _, bound, _ = plane
    at = np.array([3.0, -1.0])
    process = DirichletProcess(100.0, lambda key, num: at[None] + jax.random.normal(key, (num, 2)), 50)
    draws = posterior_bootstrap(jax.random.key(1), bound, STARTS, process, Settings(16, num_nodes=128))
    assert draws.converged.all()
    centre = draws.u.mean(axis=0)
    assert np.linalg.norm(centre - at) < np.linalg.norm(np.ones(2) - at) - 0.3


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ridge(Objective):
    """A well at 0 with its minimum -1, and a ridge that sinks towards -1/2 on the right."""

    generator: Generator
    data: np.ndarray

    def reduce(self, weights, extra=None):
        return weights

    def value(self, facts, u, nodes):
        return -jnp.exp(-jnp.square(u[0])) - 0.5 * jax.nn.sigmoid(u[0] - 4.0)


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
    found = fit(bound, nodes, 0, np.linspace(-4.0, 4.0, 16)[:, None], np.ones(1))
    np.testing.assert_allclose(np.abs(found.u), np.abs(found.others[0]), atol=1e-4)
    assert found.converged and found.u[0] * found.others[0, 0] < 0


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
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD, Generator, NormalNoise
def simulate(u, z):
    return u[0] + z[0]
bound = MMD(Gaussian(1.0)).objective(np.linspace(-2.0, 3.0, 50), Generator(simulate, NormalNoise(1), 1))
starts = np.linspace(-3.0, 3.0, 8)[:, None]
devices = jax.local_devices()
for used in (devices, devices[:1]):
    with mock.patch("jax.local_devices", lambda: used):
        draws = posterior_bootstrap(jax.random.key(0), bound, starts, settings=Settings(20, 64))
    print(len(used), draws.u.dtype, *(f"{u:.13e}" for u in draws.u[:, 0]))
"""


def test_several_devices_and_float32_sessions_give_the_same_numbers():
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    two, one = (line.split() for line in done.stdout.splitlines())
    assert two[:2] == ["2", "float64"] and one[0] == "1"
    assert one[2:] == two[2:] and len(one) == 22


def jumping(u, noise):
    """A draw of the mixture `p N(3, 1) + (1 - p) N(-1, 1)`, `p = Phi(u)`: as a function of `u` it jumps."""
    return jnp.where(noise[0] < u[0], 3.0, -1.0) + noise[1]


def test_derivatives_of_a_simulator_that_jumps_are_not_trusted():
    rng = np.random.default_rng(6)
    x = np.where(rng.random(400) < 0.3, 3.0, -1.0) + rng.normal(size=400)
    bound = MMD(Gaussian(1.0)).objective(x, Generator(jumping, NormalNoise(2), 1))
    settings = Settings(48, num_nodes=1024)
    draws = posterior_bootstrap(jax.random.key(0), bound, np.linspace(-2.0, 2.0, 16)[:, None], settings=settings)
    assert not draws.derivatives.automatic and "differences" in str(draws.derivatives)
    share = jax.scipy.stats.norm.cdf(draws.u[:, 0])
    binomial = np.sqrt(0.3 * 0.7 / 400)
    assert abs(float(share.mean()) - 0.3) < 5 * binomial
    assert 0.7 < float(share.std()) / binomial < 1.6


class Cliff(Valley):
    """A parabola in `u[0]` whose gradient is not a number to the right of 2."""

    def value(self, facts, u, nodes):
        return u[0] ** 2 + 0.0 * jnp.sqrt(2.0 - u[0]) + u[1] ** 2


def test_a_trial_without_a_gradient_does_not_spoil_the_hessian():
    start = jnp.array([-1.0, 1.0])
    settings = dict(scale=jnp.ones(2), tolerance=1e-6, max_steps=60, damping=0.0, stride=10.0)
    found = minimise(Cliff(SCALAR), None, None, start, 0.3 * jnp.eye(2), **settings)
    assert np.isfinite(found.hessian).all() and bool(found.convex)
    np.testing.assert_allclose(found.u, 0.0, atol=1e-5)


CALLS = """
import jax, jax.numpy as jnp, numpy as np
from numpyro_kme import _linalg
def twice(a, b):
    assert a.dtype == np.float64 and b.dtype == np.int64, (a.dtype, b.dtype)
    return 2.0 * a + b
def call(a, b):
    return _linalg.call_back(twice, a.shape, a.dtype, a, b, vmap_method=how)
for calls, how in enumerate(("sequential", "broadcast_all"), 1):
    with jax.enable_x64(True):
        a, b = jnp.arange(6.0).reshape(2, 3) + 1e-12, jnp.arange(6).reshape(2, 3)
        got = np.asarray(jax.jit(jax.vmap(call))(a, b))
        assert got.dtype == np.float64 and (got == 2.0 * np.asarray(a) + np.asarray(b)).all(), got
single = _linalg.call_back(lambda a: a + 1, (), np.float32, jnp.float32(1.0), vmap_method="sequential")
assert single.dtype == np.float32 and single == 2.0
print(calls, "methods and", single.dtype)
"""


def test_numbers_of_called_back_functions_stay_in_float64_in_a_float32_session():
    command, env = [sys.executable, "-W", "error", "-c", CALLS], {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "methods", "and", "float32"]


LARGE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp, numpy as np
from numpyro_kme import _linalg
def step(c, _):
    return _linalg.call_back(lambda c: c + 1.0, c.shape, c.dtype, c, vmap_method="broadcast_all"), jnp.sum(c)
start = jnp.arange(60_000.0).reshape(2, 30_000)
for batched in (False, True):
    run = lambda c: jax.lax.scan(step, c, None, length=10)[0]
    runs = [jax.jit(jax.vmap(run) if batched else run)(start + i) for i in range(12)]
    for i, end in enumerate(runs):
        np.testing.assert_array_equal(end, start + i + 10.0)
print("done")
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="needs a system where a process can be kept to one CPU"
)
def test_large_arguments_of_called_back_functions_do_not_wait_for_themselves():
    """The pool of threads of one CPU is full with the thread that calls back."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", LARGE], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr
