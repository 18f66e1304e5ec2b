"""Impossible values stop: negative squared distances; the errors that say what is impossible are right."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme import kernels
from numpyro_kme._core import checks
from numpyro_kme.bootstrap.fit import require_possible
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.losses import MMD, DrawnNoise, Generator, NormalNoise, Wasserstein
from numpyro_kme.losses.grid_mmd import GridMMD
from numpyro_kme.losses.mmd import DirectMMD
from numpyro_kme.simulators.g_and_k import from_normal


def by_rejection(rng_key):
    """A normal number, after nobody knows how many uniform ones: no noise that can be lifted."""

    def again(state):
        rng_key, now = jax.random.split(state[0])
        return rng_key, jax.random.uniform(now, (2,), minval=-1.0)

    def outside(state):
        return jnp.sum(jnp.square(state[1])) >= 1.0

    _, place = jax.lax.while_loop(outside, again, (rng_key, jnp.ones(2)))
    square = jnp.sum(jnp.square(place))
    return place[0] * jnp.sqrt(-2.0 * jnp.log(square) / square)


def g_and_k(rng_key, theta, normal=jax.random.normal):
    a, b, g, log_k = theta
    return from_normal(normal(rng_key), a, b, g, jnp.exp(log_k))


def g_and_k_by_rejection(rng_key, theta):
    return g_and_k(rng_key, theta, by_rejection)


def heavy(x, simulator=g_and_k_by_rejection):
    theta = numpyro.sample("theta", dist.Uniform(np.array([0, 0, 0, -5.0]), np.array([10, 10, 10, 3.0])).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


def contaminated(rng, n=1024):
    x = np.array(
        jax.vmap(g_and_k, (0, None))(jax.random.split(jax.random.key(rng.integers(2**31)), n), [3, 1, 1, -0.7])
    )
    x[: n // 20] += 50.0
    x[-n // 20 :] -= 50.0
    return x


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:\d+ of \d+ replicates did not converge")
def test_few_simulations_of_heavy_tails_find_no_diffuse_model(rng):
    """Without a bound at one the minimum was where 512 points see nothing, with a mixing proportion of 9."""
    loss = MMD(kernels.Gaussian(0.15), fit_proportion=True)
    engine = kme.PosteriorBootstrap(heavy, loss, num_samples=16, num_nodes=256, num_starts=256)
    with pytest.warns(UserWarning, match="doubling the noise nodes moves the draws"):
        engine.run(jax.random.key(0), contaminated(rng))
    assert engine.replicates.numbers["mixing_proportion"].max() <= 1.0
    np.testing.assert_allclose(engine.get_samples()["theta"].mean(axis=0)[:2], [3.0, 1.0], atol=0.4)


@pytest.mark.slow
def test_lifted_noise_of_the_same_simulator_gives_one_below_one(rng):
    loss = MMD(kernels.Gaussian(0.15), fit_proportion=True)
    engine = kme.PosteriorBootstrap(heavy, loss, num_samples=8, num_starts=256)
    engine.run(jax.random.key(0), contaminated(rng), simulator=g_and_k)
    found = engine.replicates
    assert found.converged.all() and found.quadrature.noise < 0.05
    assert abs(found.numbers["mixing_proportion"].mean() - 0.9) < 0.05
    np.testing.assert_allclose(engine.get_samples()["theta"].mean(axis=0)[:2], [3.0, 1.0], atol=0.2)


def wide(noise, mean):
    return mean + noise


WIDE = kme.FromNoise(wide, dist.Normal(0.0, 1.0))


def one_mean(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(WIDE, mean), obs=x)


@pytest.mark.slow
def test_data_narrower_than_any_model_are_all_of_it(rng):
    loss = MMD(kernels.Gaussian(0.5), fit_proportion=True)
    engine = kme.PosteriorBootstrap(one_mean, loss, num_samples=2, num_starts=8)
    engine.run(jax.random.key(0), 0.3 * rng.normal(size=400))
    np.testing.assert_array_equal(engine.replicates.numbers["mixing_proportion"], 1.0)


@register
class Distance(Kernel):
    """What a user may take for a kernel: large where points differ."""

    def pair(self, a, b):
        d = jnp.sqrt(jnp.sum(jnp.square(a - b)) + 1e-12)
        return d / (1.0 + d)


def test_a_distance_in_place_of_a_kernel_raises_an_error(rng):
    x, y = rng.normal(size=(20, 1)), rng.normal(2.0, 1.0, (30, 1))
    with pytest.raises(RuntimeError, match=r"squared MMD must be at least 0; got -.*another kernel"):
        kme.squared_mmd(Distance(), x, y, unbiased=False)
    assert kme.squared_mmd(Distance(), x, y) < 0  # an unbiased estimate may be anything
    with pytest.raises(RuntimeError, match="squared distance must be at least 0; got -"):
        kme.embeddings.MeanEmbedding(Distance(), x).squared_distance(kme.embeddings.MeanEmbedding(Distance(), y))
    with pytest.raises(RuntimeError, match="HSIC must be at least 0; got -"):
        kme.embeddings.hsic(Distance(), kernels.Gaussian(1.0), x, x)


@pytest.mark.slow
def test_a_bootstrap_by_a_distance_in_place_of_a_kernel_raises_an_error(rng):
    engine = kme.PosteriorBootstrap(one_mean, MMD(Distance()), num_samples=2, num_nodes=32, num_starts=8)
    with pytest.raises(RuntimeError, match="minimum of the squared distance must be at least 0; got -"):
        engine.run(jax.random.key(0), rng.normal(size=20))


@pytest.mark.parametrize(
    "noise, advice", [(DrawnNoise(), "raise `num_nodes`.*FromNoise"), (NormalNoise(2), "use a kernel that is")]
)
def test_impossible_minima_raise_an_error_whose_advice_fits_the_noise(noise, advice):
    require_possible(-0.04, {"loss_error": 0.01}, noise)
    with pytest.raises(RuntimeError, match=r"squared distance must be at least 0; got -0\.06 .*" + advice) as raised:
        require_possible(-0.06, {"loss_error": 0.01}, noise)
    assert ("FromNoise" in str(raised.value)) == noise.independent


@pytest.mark.parametrize(
    "kernel", [kernels.Gaussian(1e-2), kernels.Gaussian(30.0), kernels.Matern32(1.0), kernels.Energy()]
)
def test_rounding_is_no_impossible_square(kernel, rng):
    """Equal samples far from zero: what is left is rounding, of either sign."""
    x = np.float32(1e3 + rng.normal(size=(200, 2)))
    order = rng.permutation(200)
    none = [
        kme.squared_mmd(kernel, x, x[order], unbiased=False),
        kme.embeddings.MeanEmbedding(kernel, x).squared_distance(kme.embeddings.MeanEmbedding(kernel, x[order])),
        kme.embeddings.hsic(kernels.Gaussian(1.0), kernels.Gaussian(1.0), x, np.ones((200, 1), np.float32)),
    ]
    assert np.abs(none).max() < 1e-3


def test_rounding_is_relative_to_the_size_of_what_is_subtracted(rng):
    """Norms of two million."""
    x = np.float32(1e3 + rng.normal(size=(200, 2)))
    one, *same = (kme.embeddings.MeanEmbedding(kernels.Linear(), rng.permutation(x)) for _ in range(10))
    assert np.abs([one.squared_distance(other) for other in same]).max() < 200.0


def test_possible_values_pass_and_others_are_counted():
    checks.possible("It", np.array([1.039, 0.2]), 0.01, "", most=1.0)
    checks.possible("It", -1e-9, 1e-9, "", least=0.0)
    with pytest.raises(
        RuntimeError, match=r"^It must be at most 1; got 1.3 with a standard error of 0.01, and 2 of 3 are"
    ):
        checks.possible("It", np.array([1.041, 1.3, 0.2]), 0.01, "Do.", most=1.0)
    with pytest.raises(RuntimeError, match=r"^It must be at most 1; got 1.3 "):
        checks.possible("It", np.array([-0.001, 1.3]), 0.01, "Do.", least=0.0, most=1.0)
    assert jax.jit(lambda x: (checks.possible("It", x, 0.1, "", least=0.0), x)[1])(-9.0) == -9.0


def drawn(u, rng_key):
    return u[0] + jnp.exp(u[1]) * jax.random.normal(rng_key, (1,))


KEYED = Generator(drawn, DrawnNoise(), 2)


def bind(route, generator, x, fit_proportion):
    if route is DirectMMD:
        return DirectMMD(generator, kernels.Gaussian(0.5), x, fit_proportion)
    return MMD(kernels.Gaussian(0.5), fit_proportion=fit_proportion).objective(x, generator)


@jax.jit
def found(objective, nodes, weights, u):
    """Loss and report for every set of nodes and row of weights."""

    def one(own):
        reduced = objective.reduce(own[1])
        return objective.value(reduced, u, own[0]), objective.report(reduced, u, own[0])

    return jax.lax.map(one, (nodes, weights))


@pytest.mark.x64
@pytest.mark.parametrize(
    ("route", "fit_proportion"),
    [
        (DirectMMD, True),
        pytest.param(GridMMD, False, marks=pytest.mark.slow),
        pytest.param(GridMMD, True, marks=pytest.mark.slow),
        pytest.param(DirectMMD, False, marks=pytest.mark.slow),
    ],
)
def test_the_error_of_a_loss_is_its_deviation_over_samples_of_the_nodes(route, fit_proportion, rng):
    x, sets = rng.normal(0.5, 1.0, 60), 320
    objective = bind(route, KEYED, x[:, None], fit_proportion)
    assert isinstance(objective, route)
    nodes, weights = KEYED.draw_nodes(jax.random.key(1), 64, sets), np.full((sets, 60), 1 / 60)
    values, numbers = found(objective, nodes, weights, np.array([0.9, 0.4]))
    ratio = np.sqrt(np.mean(np.square(numbers["loss_error"]))) / values.std()
    assert 1.0 - 5 / np.sqrt(2 * sets) < ratio < 1.3  # an upper bound, by E k^2 <= k(y, y) q
    # far from each other, the energy of points without pairs of a node with itself is rounding, of either sign
    assert np.isfinite(found(objective, nodes, weights, np.array([0.0, 9.0]))[1]["loss_error"]).all()


@pytest.mark.parametrize("dim", [1, 2])
def test_transport_costs_nothing_at_least(dim, rng):
    if dim == 2:
        pytest.importorskip("ot")
    y, w, value = np.float32(rng.normal(size=(30, dim))), np.full(30, 1 / 30, np.float32), jax.jit(Wasserstein().value)
    for x in (y, y[::-1], y + np.float32(1e-6)):
        assert value(x, w, y, w) >= 0.0
