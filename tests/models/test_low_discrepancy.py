"""Keys of low discrepancy: exact marginals, pairs like those of independent permutations, means nearer than by plain
keys, and plain keys where a simulator cannot run on them."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random
from scipy import stats

from numpyro_kme.models.low_discrepancy import accepts, node_keys
from numpyro_kme.simulators.g_and_k import g_and_k


def uniforms(rng_key, num):
    """Five uniform numbers from keys of several kinds, at each node, `(num, 5)`."""

    def fn(key):
        first, second = random.split(key)
        third = random.fold_in(second, 7)
        return jnp.concatenate([random.uniform(first, (3,)), random.uniform(second, (1,)), random.uniform(third, (1,))])

    return jax.vmap(fn)(node_keys(fn, rng_key, num))


@pytest.mark.parametrize("num", [8, *(pytest.param(num, marks=pytest.mark.slow) for num in (1, 2, 64, 128))])
def test_every_word_has_one_node_in_each_stratum(num):
    x = np.asarray(jax.jit(uniforms, static_argnums=1)(random.key(1), num), np.float64)
    for column in x.T:
        assert np.array_equal(np.sort(np.floor(column * num)), np.arange(num))
    assert len(np.unique(x)) == x.size


@pytest.mark.slow
@pytest.mark.x64
def test_64_bits():
    x = uniforms(random.key(1), 64)
    assert x.dtype == np.float64
    assert np.array_equal(np.sort(np.floor(x * 64), axis=0), np.broadcast_to(np.arange(64)[:, None], x.shape))
    assert np.unique(np.asarray(x) * 2.0**32 % 1.0).size == x.size  # the lower 32 bits are random too


@pytest.mark.slow
def test_pairs_of_words_are_as_of_independent_permutations():
    num, repeats = 64, 400
    x = np.asarray(jax.jit(jax.vmap(lambda key: uniforms(key, num)))(random.split(random.key(0), repeats)), np.float64)
    # strata alone: the correlation of two independent permutations has mean 0 and variance 1 / (num - 1)
    ranks = (np.floor(x * num) - (num - 1) / 2) / np.sqrt((num**2 - 1) / 12)
    correlations = np.einsum("rni,rnj->rij", ranks, ranks)[:, *np.triu_indices(5, 1)] / num
    scaled = correlations * np.sqrt(num - 1)
    assert abs(scaled.mean()) < 5 / np.sqrt(scaled.size)
    assert abs((scaled**2).mean() - 1.0) < 0.1 + 5 * np.sqrt(2 / scaled.size)
    # each node alone is uniform, and so are the bits inside a stratum
    assert stats.kstest(x[:, 17].ravel(), "uniform").pvalue > 1e-6
    assert stats.kstest((x * num % 1.0).ravel()[::7], "uniform").pvalue > 1e-6
    # no two nodes are neighbours more often than others
    places = np.floor(x * num).transpose(0, 2, 1).reshape(-1, num)
    together = np.mean(places[:, 0] // 8 == places[:, 1] // 8)
    assert abs(together - 7 / 63) < 0.02 + 5 * np.sqrt(0.1 / len(places))


def jump(key, proportion):
    which, much = random.split(key)
    return jnp.where(random.bernoulli(which, proportion), 1.0, 3.0) * random.exponential(much)


ACCURACY = {
    "normal": (lambda key, mean: mean + random.normal(key), (1.0,), stats.norm(1.0).cdf, 8.0),
    "Student t, rejection": (random.t, (4.0,), stats.t(4.0).cdf, 1.4),
    "gamma, a while loop": (random.gamma, (2.0,), stats.gamma(2.0).cdf, 2.0),
    "mixture with a jump": (
        jump,
        (0.3,),
        lambda t: 0.3 * stats.expon.cdf(t) + 0.7 * stats.expon(scale=3.0).cdf(t),
        1.2,
    ),
}
"""Simulator, arguments, distribution function, and how many times nearer its means are at least."""


@pytest.mark.parametrize(
    "fn, at, cdf, times",
    [pytest.param(*row, id=name, marks=[pytest.mark.slow] * (name != "normal")) for name, row in ACCURACY.items()],
)
def test_means_are_nearer_than_by_independent_keys(fn, at, cdf, times):
    num, points = 256, np.linspace(-1.0, 4.0, 11)

    @partial(jax.jit, static_argnums=1)
    def means(rng_keys, make):
        def one(key):
            x = jax.vmap(lambda key: fn(key, *at))(make(fn, key, num, *at))
            return jnp.mean(x[:, None] < points[None], axis=0)

        return jax.vmap(one)(rng_keys)

    rng_keys = random.split(random.key(2), 60)
    low = np.asarray(means(rng_keys, node_keys)) - cdf(points)
    plain = np.asarray(means(rng_keys, lambda fn, key, num, *at: random.split(key, num))) - cdf(points)
    assert np.sqrt(np.mean(plain**2) / np.mean(low**2)) > times
    assert np.all(abs(low.mean(0)) < 5 * low.std(0) / np.sqrt(60) + 1e-4)  # unbiased


def test_derivatives_and_transformations():
    """The mean of g-and-k draws moves with its location by one, under jit, vmap and grad, in the parameters alone."""

    def mean(location, rng_key):
        params = location, 1.0, 0.5, 0.1
        keys = node_keys(g_and_k, rng_key, 64, *params)
        return jnp.mean(jax.vmap(lambda key: g_and_k(key, *params))(keys))

    value, slope = jax.jit(jax.vmap(jax.value_and_grad(mean), (0, None)))(jnp.array([0.0, 2.0]), random.key(3))
    assert np.allclose(slope, 1.0, atol=1e-5) and np.isclose(value[1] - value[0], 2.0, atol=1e-4)


def of_words(key):
    """Takes its key apart."""
    seed = random.key_data(key)[0]
    return seed.astype(jnp.float32) / 2.0**32


def called_back(key):
    """NumPy noise from a seed that JAX draws."""
    seed = random.bits(key)
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(lambda seed: np.float32(np.random.default_rng(seed).normal()), shape, seed)


PLAIN = {
    "poisson": lambda key: random.poisson(key, 3.0),
    "NumPyro's gamma-Poisson": dist.GammaPoisson(2.0, 1.0).sample,
    "takes its key apart": of_words,
    "takes it apart inside": lambda key: jax.lax.fori_loop(0, 2, lambda i, x: x + jax.jit(of_words)(key), 0.0),
    "calls NumPy": called_back,
    "wants the old keys": lambda key: random.normal(random.wrap_key_data(key)),
    "reads entries": lambda key: random.normal(jnp.stack([key[0], key[1]])),
}


@pytest.mark.parametrize("fn", PLAIN.values(), ids=PLAIN)
def test_plain_keys_where_others_do_not_serve(fn):
    assert not accepts(fn)
    keys = node_keys(fn, random.key(4), 8)
    assert np.array_equal(random.key_data(keys), random.key_data(random.split(random.key(4), 8)))


def test_other_errors_are_the_simulators_own():
    def broken(key):
        raise LookupError("no such table")

    with pytest.raises(LookupError, match="no such table"):
        node_keys(broken, random.key(0), 8)
    for num in (0, 12, 2**25):
        with pytest.raises(ValueError, match=f"power of two.*{num}|num_nodes.*{num}"):
            node_keys(random.normal, random.key(0), num)


def test_old_and_other_keys_to_start_from():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = jax.vmap(random.uniform)(node_keys(random.uniform, random.PRNGKey(0), 64))
        assert np.array_equal(np.sort(np.floor(x * 64)), np.arange(64))
        with pytest.raises(ValueError, match="`rng_key` is of the kind 'rbg', and keys of this session"):
            node_keys(random.uniform, random.key(0, impl="rbg"), 64)
