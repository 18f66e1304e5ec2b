"""The form that is chosen for repeated draws of a few numbers, and what it learns, beside exact densities."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats

import numpyro_kme as kme
from numpyro_kme.likelihoods.best_form import BestForm
from numpyro_kme.likelihoods.distribution import default_form
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.residual.surrogate import ResidualSurrogate
from numpyro_kme.likelihoods.trials.form import TrialsSurrogate

SETS, DRAWS = 150, 20


def moved(rng, t):
    """Two normal numbers, which the parameters move and stretch."""
    return np.stack([t[0], t[1]]) + np.exp(0.3 * t[0]) * rng.normal(size=2)


def mixed(rng, t):
    """Two numbers from one of two distributions: the log odds of these, and how far one of them is moved."""
    first = rng.random() < 1.0 / (1.0 + np.exp(-t[0]))
    centre = np.array([2.0 + 0.7 * t[1], 0.0]) if first else np.zeros(2)
    return centre + np.array([0.5, 0.4 if first else 1.5]) * rng.normal(size=2)


def log_mixed(x, t):
    norm = scipy.stats.norm.logpdf
    one = norm(x[:, 0], 2.0 + 0.7 * t[:, 1], 0.5) + norm(x[:, 1], 0.0, 0.4) - np.log1p(np.exp(-t[:, 0]))
    other = norm(x[:, 0], 0.0, 0.5) + norm(x[:, 1], 0.0, 1.5) - np.log1p(np.exp(t[:, 0]))
    return np.logaddexp(one, other)


def simulated(draw, seed=0):
    rng = np.random.default_rng(seed)
    z = np.tile(rng.normal(size=(SETS, 2)), (DRAWS, 1))
    return z, np.stack([draw(rng, t) for t in z])


@cache
def learnt_from(draw):
    return BestForm().fit(*simulated(draw))


@pytest.mark.parametrize(("draw", "kind"), [(moved, ResidualSurrogate), (mixed, TrialsSurrogate)])
def test_the_form_that_suits_the_draws_is_chosen(draw, kind):
    """And halves of the simulations, for standard errors, have the same one."""
    z, x = simulated(draw)
    learnt = learnt_from(draw)
    assert isinstance(learnt, kind)
    assert isinstance(BestForm().again(learnt, z, x, np.flatnonzero(np.arange(len(z)) % SETS < SETS // 2)), kind)


def test_few_parameters_have_the_residual_form():
    """Of many draws of four parameters none can be held out."""
    z, x = simulated(moved)
    few = np.flatnonzero(np.arange(len(z)) % SETS < 4)
    assert isinstance(BestForm().fit(z[few], x[few]), ResidualSurrogate)


def test_what_it_learns_is_the_density():
    """The mean log density of other draws is within .15 nats of the exact one."""
    learnt = learnt_from(mixed)
    z, x = simulated(mixed, seed=1)
    lost = np.mean(log_mixed(x, z) - np.asarray(learnt.at_rows(x, 1).log_density(z)))
    assert 0.0 < lost < 0.15


def test_repeated_draws_of_a_few_numbers_have_it_by_default():
    x = simulated(moved)[1]
    assert isinstance(default_form(x, repeated=True), BestForm)
    assert isinstance(default_form(x), ResidualKernelMeans)
    assert isinstance(default_form(np.concatenate([x, x], axis=1), repeated=True), ResidualKernelMeans)


def steps(rng_key, log_odds, place):
    keys = jax.random.split(rng_key)
    first = jax.random.bernoulli(keys[0], jax.nn.sigmoid(log_odds))
    centre = jnp.stack([jnp.where(first, 2.0 + 0.7 * place, 0.0), jnp.zeros(())])
    return centre + jnp.stack([jnp.array(0.5), jnp.where(first, 0.4, 1.5)]) * jax.random.normal(keys[1], (2,))


def model(count, x=None):
    t = [numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("log_odds", "place")]
    with numpyro.plate("draws", count):
        numpyro.sample("x", kme.Simulator(steps, *t), obs=x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The posterior mean of")
def test_the_posterior_is_that_of_quadrature_within_its_errors():
    """Of forty draws along a plate."""
    rng = np.random.default_rng(3)
    x = np.stack([mixed(rng, np.array([-0.4, 0.5])) for _ in range(40)])
    engine = kme.KELFI(model, 200, num_rounds=1, progress_bar=False)
    engine.run(jax.random.key(0), len(x), x=x)
    grid = np.stack(np.meshgrid(np.linspace(-3, 3, 61), np.linspace(-3, 3, 61), indexing="ij"), axis=-1).reshape(-1, 2)
    log_p = np.sum([log_mixed(one[None], grid) for one in x], axis=0) - 0.5 * np.sum(grid**2, axis=1)
    p = np.exp(log_p - log_p.max())
    for i, name in enumerate(("log_odds", "place")):
        mean = np.average(grid[:, i], weights=p)
        sd = np.sqrt(np.average(np.square(grid[:, i] - mean), weights=p))
        draws, posterior = engine.get_samples()[name], engine.posterior
        assert abs(draws.mean() - mean) < 3.0 * posterior.error_of_mean[name] + 0.1 * sd
        assert abs(1.0 - sd / draws.std()) < 3.0 * posterior.error_of_sd[name] + 0.1
