"""Several learnt terms in one model against brute force."""

import jax
import numpy as np
import pytest
from jax import random
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

from benchmarks.mcmc.mcmc_two_sites import LEVEL, LOG_RATE, exact_moments, learn, model, moments_of
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
