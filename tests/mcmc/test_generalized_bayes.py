"""Losses in place of likelihoods: against sums by hand, the floor of an exact posterior, and sentences."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import AIES, MCMC, NUTS, Predictive, log_likelihood
from numpyro.infer.util import log_density
from scipy.stats import norm

from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD
from numpyro_kme.mcmc.chain_checks import noise_sensitivity
from numpyro_kme.mcmc.handlers import generalized_bayes
from numpyro_kme.mcmc.noise import CommonNoise, FreshNoise, LatentNoise, simulation_keys
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import FromNoise

RNG = np.random.default_rng(0)
X = RNG.normal(1.0, 1.0, 30)
LOSS = MMD(Gaussian(1.0))


def shift(noise, mean):
    return mean + noise


def until_positive(key, mean):
    """Normal noise above zero, by rejection: nobody knows how many numbers it takes."""

    def again(state):
        key, now = random.split(state[0])
        return key, random.normal(now)

    return mean + jax.lax.while_loop(lambda state: state[1] <= 0, again, (key, -1.0))[1]


def on_host(rng, mean):
    return mean + rng.normal()


def counting(key, mean):
    return random.poisson(key, jnp.exp(mean))


DECLARED = FromNoise(shift, dist.Normal(0.0, 1.0))


def model(x=None, y=None, simulator=DECLARED, **declared):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mean, 3.0), obs=y)
    with numpyro.plate("data", 30):
        numpyro.sample("x", Simulator(simulator, mean, **declared), obs=x)


def squared_mmd(x, y, v, *, unbiased=False):
    """Double loops over kernel values, length scale 1."""

    def k(a, b):
        return np.exp(-0.5 * (a[:, None] - b[None]) ** 2)

    own = v @ k(y, y) @ v
    if unbiased:
        own = (own - v @ v) / (1.0 - v @ v)
    return k(x, x).mean() - 2 * (v @ k(y, x)).mean() + own


def likelihood(gb, *args, at, **kwargs):
    """Log density of a model without that of its prior and of `y`, at one mean or several."""
    value = jax.jit(lambda mean: log_density(gb, args, kwargs, {"mean": mean})[0])
    return np.array([float(value(mean)) for mean in at]) - norm.logpdf(at, 0.0, 2.0) - norm.logpdf(0.5, at, 3.0)


def test_the_density_is_the_prior_times_the_loss_counted_once():
    gb = generalized_bayes(model, LOSS, weight=0.7, noise=CommonNoise(200))
    keys = handlers.trace(handlers.seed(gb, 0)).get_trace(X, 0.5)["x"]["fn"].nodes.noise[0]
    z, v = np.asarray(jax.vmap(dist.Normal(0.0, 1.0).sample)(keys)), np.full(256, 1 / 256)
    assert np.abs(np.sort(norm.cdf(z)) - (np.arange(256) + 0.5) / 256).max() < 1 / 256  # a power of two, spread evenly
    expected = [-0.7 * 30 * squared_mmd(X, at + z, v) for at in (0.4, -1.5)]
    np.testing.assert_allclose(likelihood(gb, X, 0.5, at=[0.4, -1.5]), expected, atol=30 * 1e-4)
    shares = jax.jit(lambda at: log_likelihood(gb, at, X, 0.5))({"mean": np.float32([0.4, -1.5])})["x"]
    assert shares.shape == (2, 30)
    np.testing.assert_allclose(np.asarray(shares).sum(1), expected, atol=30 * 1e-4)


def test_fresh_and_latent_noise_use_the_draws_they_are_given():
    z = RNG.normal(size=16)
    latent = generalized_bayes(model, LOSS, weight=1.0, noise=LatentNoise(16))
    trace = handlers.trace(handlers.seed(latent, 0)).get_trace(X, 0.5)
    assert trace["x_noise"]["value"].shape == (16,) and trace["x_noise"]["fn"].batch_shape == ()
    params = {"mean": jnp.array(0.4), "x_noise": jnp.asarray(z)}
    found = jax.jit(lambda at: log_density(latent, (X, 0.5), {}, at)[0])(params) - norm.logpdf(z).sum()
    rest = norm.logpdf(0.4, 0.0, 2.0) + norm.logpdf(0.5, 0.4, 3.0)
    expected = -30 * squared_mmd(X, 0.4 + z, np.full(16, 1 / 16), unbiased=True)
    np.testing.assert_allclose(found - rest, expected, atol=30 * 1e-4)
    fresh = generalized_bayes(model, LOSS, weight=1.0, noise=FreshNoise(16, repeats=3))
    at = (X, 0.5), {}, {"mean": jnp.array(0.4)}
    density = jax.jit(lambda key: log_density(simulation_keys(fresh, rng_key=key), *at)[0])
    values = [float(density(random.key(k))) for k in (1, 1, 2)]
    assert values[0] == values[1] != values[2]


def regression(c, y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    fn = FromNoise(sloped, dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", 12):
        numpyro.sample("y", Simulator(fn, a, c, event_dims=0), obs=y)


def sloped(noise, a, c):
    return jnp.array([a, 0.5]) * c + noise


@pytest.mark.slow
@pytest.mark.x64
def test_vectors_covariates_and_single_precision():
    covariate, y = np.linspace(-1.0, 1.0, 12), RNG.normal(size=(12, 2))
    loss = MMD(Gaussian(1.0), covariate_kernel=Gaussian(0.5))

    def scored(at=0.3):
        gb = generalized_bayes(regression, loss, weight=1.0, noise=CommonNoise(48), covariates={"y": covariate})
        density = jax.jit(jax.value_and_grad(lambda a: log_density(gb, (covariate, y), {}, {"a": a})[0]))
        return gb, *density(at)

    gb, value, gradient = scored()
    trace_at = handlers.trace(handlers.substitute(gb, {"a": 0.3})).get_trace
    nodes = trace_at(covariate, y)["y"]["fn"].nodes
    index, weights = np.asarray(nodes.rows[0]), np.full(48, 1 / 48)
    noise = np.asarray(jax.vmap(dist.Normal(0.0, 1.0).expand([2]).to_event(1).sample)(nodes.noise[0]))
    assert np.bincount(index).tolist() == [4] * 12
    c, points = covariate[index], np.array([0.3, 0.5]) * covariate[index][:, None] + noise

    def k(c, y, d, x):
        squared = ((c[:, None] - d[None]) / 0.5) ** 2 + ((y[:, None] - x[None]) ** 2).sum(-1)
        return np.exp(-0.5 * squared)

    expected = weights @ k(c, points, c, points) @ weights - 2 * (weights @ k(c, points, covariate, y)).mean()
    expected += k(covariate, y, covariate, y).mean()
    np.testing.assert_allclose(value, norm.logpdf(0.3) - 12 * expected, rtol=1e-9)
    np.testing.assert_allclose(gradient, (scored(0.3 + 1e-4)[1] - scored(0.3 - 1e-4)[1]) / 2e-4, rtol=1e-5)


def posterior_on_a_grid(gb, *args, grid, **kwargs):
    log_p = jax.jit(jax.vmap(lambda m: log_density(gb, args, kwargs, {"mean": m})[0]))(grid)
    p = np.exp(log_p - np.max(log_p))
    mean = (p @ grid) / p.sum()
    return mean, np.sqrt(p @ (grid - mean) ** 2 / p.sum())


@pytest.fixture(scope="module")
def polluted():
    """Data with outliers, and the mean and sd of their posterior on a grid."""
    x = np.append(np.random.default_rng(1).normal(1.0, 1.0, 27), np.full(3, 20.0))
    gb = generalized_bayes(without_y, LOSS, weight=1.0, noise=CommonNoise(256))
    return x, *posterior_on_a_grid(gb, x, grid=np.linspace(-2.0, 6.0, 400))


def test_outliers_do_not_move_the_posterior(polluted):
    """They leave the closed form of the others: of a normal model, `s(u) = sum k * N(x - u)` by the Gaussian of
    variance 2."""
    (x, mean, sd), grid = polluted, np.linspace(-2.0, 6.0, 400)
    log_p = 2.0 * np.sqrt(0.5) * np.exp(-((x[:27, None] - grid) ** 2) / 4.0).sum(0) - grid**2 / 8.0
    p = np.exp(log_p - log_p.max())
    exact = p @ grid / p.sum()
    np.testing.assert_allclose([mean, sd], [exact, np.sqrt(p @ (grid - exact) ** 2 / p.sum())], atol=2e-3)


def without_y(x, simulator=DECLARED):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", 30):
        numpyro.sample("x", Simulator(simulator, mean), obs=x)


def test_predictive_simulates():
    gb = generalized_bayes(model, LOSS, weight=1.0, noise=CommonNoise(64))
    drawn = Predictive(gb, {"mean": jnp.zeros(4)})(random.key(0), y=0.5)
    direct = Predictive(model, {"mean": jnp.zeros(4)})(random.key(0), y=0.5)
    np.testing.assert_array_equal(drawn["x"], direct["x"])


@pytest.mark.slow
def test_ensembles_sample_simulators_on_the_host():
    declared = dict(simulator=on_host, shape=(), dtype=float)
    gb = generalized_bayes(model, LOSS, weight=1.0, noise=CommonNoise(40, random.key(3)))
    mcmc = MCMC(AIES(gb), num_warmup=60, num_samples=100, num_chains=6, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(0), X, 0.5, **declared)
    mean, sd = posterior_on_a_grid(gb, X, 0.5, grid=np.linspace(-2.0, 4.0, 60), **declared)
    np.testing.assert_allclose(mcmc.get_samples()["mean"].mean(), mean, atol=5 * sd / np.sqrt(40))


@pytest.mark.slow
def test_noise_sensitivity_tells_quadrature_from_few_draws():
    draws = {"mean": 1.0 + 0.25 * RNG.normal(size=100)}
    settled = generalized_bayes(model, LOSS, weight=1.0, noise=CommonNoise(64))
    found = noise_sensitivity(random.key(0), settled, draws, X, 0.5, num_keys=1)
    assert found.largest_shift < 0.05 and found.effective_proportion[0] > 0.99
    few = generalized_bayes(model, LOSS, weight=1.0, noise=CommonNoise(10))
    found = noise_sensitivity(random.key(0), few, draws, X, 0.5, num_keys=5, simulator=on_host, shape=(), dtype=float)
    assert found.largest_shift > 0.5 and found.sd.min() > 0.1 and found.shift["mean"].shape == (5,)


@pytest.mark.parametrize(
    ("noise", "declared", "sentence"),
    [
        (CommonNoise(8), dict(simulator=on_host, shape=(), dtype=float), "runs on the host.*PseudoMarginal.*AIES"),
        (CommonNoise(8), dict(simulator=counting), "`counting` returns whole numbers"),
        (FreshNoise(8), {}, "only `numpyro_kme.PseudoMarginal` samples correctly"),
    ],
)
def test_kernels_that_do_not_fit_are_explained(noise, declared, sentence):
    gb = generalized_bayes(model, LOSS, weight=1.0, noise=noise)
    with pytest.raises(NotImplementedError, match=sentence):
        MCMC(NUTS(gb), num_warmup=1, num_samples=1, progress_bar=False).run(random.key(0), X, 0.5, **declared)


def outside(x):
    numpyro.sample("x", Simulator(DECLARED, numpyro.sample("mean", dist.Normal(0.0, 2.0))), obs=x)


def varying(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0).expand([30]).to_event(1))
    with numpyro.plate("data", 30):
        numpyro.sample("x", Simulator(DECLARED, mean, event_dims=0), obs=x)


@pytest.mark.parametrize(
    ("wrong", "args", "noise", "sentence"),
    [
        (outside, (0.3,), CommonNoise(8), "must stand in one plate, the data plate"),
        (varying, (X,), CommonNoise(8), "batch shape .30,. and covariates are missing"),
        (handlers.mask(without_y, mask=False), (X,), CommonNoise(8), "masked or scaled"),
        (handlers.scale(without_y, scale=0.5), (X,), CommonNoise(8), "masked or scaled"),
        (lambda x: model(x, simulator=until_positive), (X,), LatentNoise(8), "`until_positive` is needed as numbers"),
    ],
)
def test_models_that_do_not_fit_are_explained(wrong, args, noise, sentence):
    with pytest.raises(ValueError, match=sentence):
        handlers.seed(generalized_bayes(wrong, LOSS, weight=1.0, noise=noise), 0)(*args)


def test_data_must_be_known():
    gb = generalized_bayes(without_y, LOSS, weight=1.0, noise=CommonNoise(8))
    with pytest.raises(ValueError, match="is traced by JAX"):
        jax.jit(lambda x: log_density(gb, (x,), {}, {"mean": jnp.zeros(())})[0])(X)


@pytest.mark.parametrize(
    ("weight", "noise", "sentence"),
    [
        (0.0, lambda: CommonNoise(8), "`weight` must be positive"),
        ("1", lambda: CommonNoise(8), "`weight` must be one positive number; got '1'.*by_bootstrap"),
        ([1.0, 2.0], lambda: CommonNoise(8), "`weight` must be one positive number"),
        (1.0, lambda: 8, "`noise` must be CommonNoise"),
        (1.0, lambda: FreshNoise(8), "`covariates` need noise=CommonNoise"),
        (1.0, lambda: LatentNoise(1), "`num_simulations` must be at least 2; got 1"),
        (1.0, lambda: FreshNoise(8, 0), "`repeats` must be at least 1; got 0"),
    ],
)
def test_settings_are_checked(weight, noise, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        generalized_bayes(model, LOSS, weight=weight, noise=noise(), covariates={"x": X})
