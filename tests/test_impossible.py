"""Impossible values stop: negative squared distances, shares above one; the errors that say what is impossible are right."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme import _checks, kernels
from numpyro_kme.bootstrap import lanes
from numpyro_kme.bootstrap.fit import full_data
from numpyro_kme.bootstrap.lanes import Tasks
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.losses import MMD, DrawnNoise, Generator, NormalNoise, Wasserstein
from numpyro_kme.losses.direct_mmd import DirectMMD
from numpyro_kme.losses.grid_mmd import GridMMD


def g_and_k(rng_key, theta):
    a, b, g, log_k = theta
    z = jax.random.normal(rng_key)
    return a + b * (1.0 + 0.8 * jnp.tanh(0.5 * g * z)) * (1.0 + z**2) ** jnp.exp(log_k) * z


def heavy(x):
    theta = numpyro.sample("theta", dist.Uniform(np.array([0, 0, 0, -5.0]), np.array([10, 10, 10, 3.0])).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(g_and_k, theta), obs=x)


def contaminated(rng, n=1024):
    x = np.array(
        jax.vmap(g_and_k, (0, None))(jax.random.split(jax.random.key(rng.integers(2**31)), n), [3, 1, 1, -0.7])
    )
    x[: n // 20] += 50.0
    x[-n // 20 :] -= 50.0
    return x


def test_too_few_draws_of_a_heavy_tailed_simulator_give_no_share_of_nine(rng):
    """With the mass free the minimum is where 512 draws see nothing: a squared distance of -.03, a share of 9."""
    loss = MMD(kernels.Gaussian(0.15), free_mass=True)
    engine = kme.PosteriorBootstrap(heavy, loss, num_samples=2, num_nodes=256, num_starts=256)
    with pytest.raises(RuntimeError, match=r"share of the data explained must be at most 1; got \d.*FromNoise"):
        engine.run(jax.random.key(0), contaminated(rng))


def wide(noise, mean):
    return mean + noise


WIDE = kme.FromNoise(wide, dist.Normal(0.0, 1.0))


def one_mean(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(WIDE, mean), obs=x)


def test_data_narrower_than_any_model_have_no_share(rng):
    engine = kme.PosteriorBootstrap(one_mean, MMD(kernels.Gaussian(0.5), free_mass=True), num_samples=2, num_starts=8)
    with pytest.raises(RuntimeError, match=r"at most 1; got 1\..*fix the mass"):
        engine.run(jax.random.key(0), 0.3 * rng.normal(size=400))


@register
class Distance(Kernel):
    """What a user may take for a kernel: large where points differ."""

    def pair(self, a, b):
        d = jnp.sqrt(jnp.sum(jnp.square(a - b)) + 1e-12)
        return d / (1.0 + d)


def test_a_distance_in_place_of_a_kernel_is_found_out(rng):
    x, y = rng.normal(size=(20, 1)), rng.normal(2.0, 1.0, (30, 1))
    engine = kme.PosteriorBootstrap(one_mean, MMD(Distance()), num_samples=2, num_nodes=32, num_starts=8)
    with pytest.raises(RuntimeError, match="minimum of the squared distance must be at least 0; got -"):
        engine.run(jax.random.key(0), x[:, 0])
    with pytest.raises(RuntimeError, match=r"squared MMD must be at least 0; got -.*another kernel"):
        kme.squared_mmd(Distance(), x, y, unbiased=False)
    assert kme.squared_mmd(Distance(), x, y) < 0  # an unbiased estimate may be anything
    with pytest.raises(RuntimeError, match="squared distance must be at least 0; got -"):
        kme.MeanEmbedding(Distance(), x).squared_distance(kme.MeanEmbedding(Distance(), y))
    with pytest.raises(RuntimeError, match="HSIC must be at least 0; got -"):
        kme.hsic(Distance(), x, kernels.Gaussian(1.0), x)


@pytest.mark.parametrize(
    "kernel", [kernels.Gaussian(1e-2), kernels.Gaussian(30.0), kernels.Matern32(1.0), kernels.Energy()]
)
def test_rounding_is_no_impossible_square(kernel, rng):
    """Equal samples far from zero: what is left is rounding, of either sign."""
    x = np.float32(1e3 + rng.normal(size=(200, 2)))
    order = rng.permutation(200)
    none = [
        kme.squared_mmd(kernel, x, x[order], unbiased=False),
        kme.MeanEmbedding(kernel, x).squared_distance(kme.MeanEmbedding(kernel, x[order])),
        kme.hsic(kernels.Gaussian(1.0), x, kernels.Gaussian(1.0), np.ones((200, 1), np.float32)),
    ]
    assert np.abs(none).max() < 1e-3


def test_possible_values_pass_and_others_are_counted():
    _checks.possible("It", np.array([1.04, 0.2]), 0.01, "", most=1.0)
    _checks.possible("It", -1e-9, 1e-9, "", least=0.0)
    with pytest.raises(
        RuntimeError, match=r"^It must be at most 1; got 1.3 with a standard error of 0.01, and 2 of 3 are"
    ):
        _checks.possible("It", np.array([1.1, 1.3, 0.2]), 0.01, "Do.", most=1.0)
    with pytest.raises(RuntimeError, match=r"^It must be at most 1; got 1.3 "):
        _checks.possible("It", np.array([-0.001, 1.3]), 0.01, "Do.", least=0.0, most=1.0)
    assert jax.jit(lambda x: (_checks.possible("It", x, 0.1, "", least=0.0), x)[1])(-9.0) == -9.0


def drawn(u, rng_key):
    return u[0] + jnp.exp(u[1]) * jax.random.normal(rng_key, (1,))


def pushed(u, z):
    return u[0] + jnp.exp(u[1]) * z


KEYED, DECLARED = Generator(drawn, DrawnNoise(), 2), Generator(pushed, NormalNoise(1), 2)
ROUTES = [GridMMD, DirectMMD]


def bind(route, generator, x, free):
    if route is DirectMMD:
        return DirectMMD(generator, kernels.Gaussian(0.5), x, free)
    return MMD(kernels.Gaussian(0.5), free_mass=free).objective(x, generator)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_the_losss_error_is_its_deviation_over_draws_of_the_nodes(route, free, rng):
    x, u, sets = rng.normal(0.5, 1.0, 60), np.array([0.9, 0.4]), 320
    objective = bind(route, KEYED, x[:, None], free)
    assert isinstance(objective, route)
    nodes = KEYED.draw_nodes(jax.random.key(1), 64, sets)
    tasks = Tasks(np.full((sets, 60), 1 / 60), None, np.arange(sets))
    found = lanes.values(objective, nodes, tasks, u)
    errors = reports(objective, nodes, tasks, u)["loss_error"]
    ratio = np.sqrt(np.mean(errors**2)) / found.std()
    assert 1.0 - 5 / np.sqrt(2 * sets) < ratio < 1.3  # an upper bound, by E k^2 <= k(y, y) q


@pytest.mark.parametrize("route", ROUTES)
def test_draws_that_are_far_from_each_other_have_an_error_too(route, rng):
    """Their energy without pairs of a node with itself is rounding, on either side of zero."""
    objective = bind(route, KEYED, rng.normal(size=(60, 1)), False)
    nodes = KEYED.draw_nodes(jax.random.key(1), 8, 20)
    tasks = Tasks(np.full((20, 60), 1 / 60), None, np.arange(20))
    assert np.isfinite(reports(objective, nodes, tasks, np.array([0.0, 9.0]))["loss_error"]).all()


def reports(objective, nodes, tasks, u):
    """`report` for every task, as the minimiser calls it."""
    control = lanes.Control(np.ones(2), max_steps=1)
    return lanes.solve(objective, nodes, tasks, u, np.eye(2), control, exact=False).numbers


@pytest.mark.parametrize("route", ROUTES)
def test_the_shares_error_is_its_deviation_over_data_weights_and_nodes(route, rng):
    shares, errors = [], []
    for i in range(12):
        objective = bind(route, KEYED, rng.normal(size=(100, 1)), True)
        nodes = KEYED.draw_nodes(jax.random.key(i), 400, 32)
        tasks = Tasks(rng.dirichlet(np.ones(100), 32), None, np.arange(32))
        found = reports(objective, nodes, tasks, np.zeros(2))
        shares.append(found["share"])
        errors.append(found["share_error"])
    ratio = np.sqrt(np.mean(np.square(errors)) / np.mean(np.square(np.array(shares) - 1.0)))
    assert 0.5 < ratio < 1.8  # twelve data sets know their own deviation to a fifth


@pytest.mark.parametrize(("route", "generator"), [(GridMMD, KEYED), (DirectMMD, DECLARED)], ids=["grid", "direct"])
def test_the_reported_loss_is_the_whole_squared_mmd(route, generator, rng):
    x = rng.normal(0.5, 1.0, 40)
    objective = bind(route, generator, x[:, None], False)
    starts = rng.normal(size=(8, 2))
    found = kme.bootstrap.posterior_bootstrap(
        jax.random.key(0), objective, starts, settings=kme.bootstrap.Settings(2, num_nodes=128)
    )
    nodes = jax.tree.map(lambda leaf: leaf[0], found.nodes)
    with jax.enable_x64(True):
        y, v = np.asarray(generator.points(jnp.asarray(found.fit.u), nodes)), np.asarray(nodes.weights)

    def gram(a, b):
        return np.exp(-2.0 * (a[:, None] - b) ** 2)

    own = gram(y[:, 0], y[:, 0])
    if generator is KEYED:
        own = (own - np.eye(len(y))) / (1.0 - v @ v)
    expected = np.mean(gram(x, x)) + v @ own @ v - 2.0 * v @ gram(y[:, 0], x).mean(axis=1)
    np.testing.assert_allclose(found.fit.value, expected, atol=2e-4 if route is GridMMD else 1e-9)
    assert found.fit.value > -5 * found.fit.numbers["loss_error"]
    same = lanes.values(objective, found.nodes, full_data(objective, 0), found.fit.u)
    np.testing.assert_allclose(same + lanes.offsets(objective, full_data(objective, 0)), found.fit.value, rtol=1e-6)


@pytest.mark.parametrize("dim", [1, 2])
def test_transport_costs_nothing_at_least(dim, rng):
    if dim == 2:
        pytest.importorskip("ot")
    y = jnp.asarray(rng.normal(size=(30, dim)))
    for x in (y, y[::-1], y + 1e-6):
        w = jnp.full(30, 1 / 30)
        assert Wasserstein().value(x, w, y, w) >= 0.0
