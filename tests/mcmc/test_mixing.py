"""Learnt likelihoods in models: several terms against brute force; `KernelMeansLikelihood` written out in a model."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

from benchmarks.mcmc.mcmc_two_sites import LEVEL, LOG_RATE, exact_moments, learn, model, moments_of
from numpyro_kme import KernelMeansLikelihood, Simulator, fit_likelihood
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.mcmc.handlers import surrogate

OBSERVED = np.array([0.7]), np.array([-0.6]), np.array([2, 4, 1, 3])


@pytest.fixture(scope="module")
def smodel():
    return surrogate(model, learn(random.key(0), 300, ResidualKernelMeans(), OBSERVED))


@pytest.fixture(scope="module")
def on_grid(smodel):
    """Moments of the learnt posterior on a grid of level and log rate."""
    pairs = np.stack(np.meshgrid(LEVEL[::2], np.exp(LOG_RATE[::2]), indexing="ij"), -1).reshape(-1, 2)
    density = jax.jit(jax.vmap(lambda pair: log_density(smodel, OBSERVED, {}, {"level": pair[0], "rate": pair[1]})[0]))
    log_p = np.full((len(LEVEL), len(LOG_RATE)), -np.inf)
    log_p[::2, ::2] = np.asarray(density(pairs)).reshape(len(LEVEL[::2]), -1) + LOG_RATE[::2]
    return moments_of(log_p)


@pytest.mark.slow  # test_handlers has the sites one by one
def test_two_simulators_a_poisson_likelihood_and_a_positive_latent_against_brute_force(on_grid):
    for name, (mean, sd) in exact_moments(*OBSERVED).items():
        assert abs(on_grid[name][0] - mean) < 0.25 * sd and abs(on_grid[name][1] / sd - 1.0) < 0.15


@pytest.mark.slow  # NUTS on a surrogate model: test_handlers
def test_nuts_samples_what_was_learnt(smodel, on_grid):
    mcmc = MCMC(NUTS(smodel), num_warmup=150, num_samples=400, progress_bar=False)
    mcmc.run(random.key(1), *OBSERVED)
    for name, (mean, sd) in on_grid.items():
        draws = np.asarray(mcmc.get_samples()[name])[None]
        squares = (draws - draws.mean()) ** 2
        se_mean = draws.std() / np.sqrt(effective_sample_size(draws))
        se_sd = squares.std() / np.sqrt(effective_sample_size(squares)) / (2.0 * sd)
        assert abs(draws.mean() - mean) < 4.0 * se_mean and abs(draws.std() - sd) < 4.0 * se_sd


NOISE = 0.5


def simulate(rng_key, theta):
    return theta + NOISE * random.normal(rng_key, (1,))


@pytest.fixture(scope="module")
def written_out():
    """A prior N(0, 1) and the learnt likelihood of `simulate`: as an observed site, as a factor, by the handler."""
    theta_key, noise_key = random.split(random.key(2))
    theta = 1.5 * random.normal(theta_key, (300, 1))
    learnt = fit_likelihood(theta, jax.jit(jax.vmap(simulate))(random.split(noise_key, 300), theta))

    def site(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", KernelMeansLikelihood(learnt, theta), obs=x)

    def factor(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.factor("x", KernelMeansLikelihood(learnt, theta).log_prob(x))

    def simulated(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", Simulator(simulate, theta), obs=x)

    return {"site": site, "factor": factor, "handler": surrogate(simulated, {"x": learnt})}


X = np.array([0.8], np.float32)


def test_a_site_a_factor_and_the_handler_are_one_density(written_out):
    def densities(theta):
        return [log_density(model, (X,), {}, {"theta": theta})[0] for model in written_out.values()]

    site, factor, handler = jax.jit(jax.vmap(densities))(np.linspace(-1.0, 2.0, 7, dtype=np.float32))
    np.testing.assert_allclose(site, factor, rtol=1e-6)
    np.testing.assert_allclose(site, handler, rtol=1e-4)


@pytest.mark.slow  # the density is that of the handler, by the test above, and NUTS with the handler: test_handlers
@pytest.mark.parametrize("form", ["site", "factor"])
def test_nuts_samples_a_likelihood_written_out(written_out, form):
    """Against the posterior N(0.8 x, 0.2), up to what 300 simulations teach and Monte Carlo errors."""
    mcmc = MCMC(NUTS(written_out[form]), num_warmup=150, num_samples=400, progress_bar=False)
    mcmc.run(random.key(3), X)
    draws, sd = np.asarray(mcmc.get_samples()["theta"])[None], np.sqrt(0.2)
    error = 1.0 / np.sqrt(effective_sample_size(draws))
    assert abs(draws.mean() - 0.64) < (4.0 * error + 0.25) * sd
    assert abs(draws.std() / sd - 1.0) < 4.0 * error + 0.2
