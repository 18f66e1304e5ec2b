"""A linear-Gaussian hierarchical model: a likelihood learnt once from simulations of one group, and NUTS."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import numpyro_kme as kme
from benchmarks.helpers.posteriors import moments, normalised

GROUPS, NOISE = 20, 0.5
LOADING = np.array([1.0, 0.5])


def group(rng, theta):
    """Two statistics of one group; nothing but NumPy."""
    return LOADING * theta + NOISE * rng.normal(size=2)


def model(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", GROUPS):
        theta = mean + scale * numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(group, theta, event_dims=0, shape=(2,), dtype=float), obs=x)


def one_group():
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    numpyro.sample("x", kme.Simulator(group, theta, shape=(2,), dtype=float))


def exact_mean(x):
    """Mean and sd of the population mean, the groups integrated out, on a grid."""
    size = LOADING @ LOADING
    estimate, variance = x @ LOADING / size, NOISE**2 / size
    mean, scale = np.meshgrid(np.linspace(-3, 3, 601), np.linspace(1e-3, 4, 600), indexing="ij")
    total = scale**2 + variance
    log_p = -0.5 * mean**2 - 0.5 * scale**2 - 0.5 * GROUPS * np.log(total)
    return moments(normalised(log_p - 0.5 * sum((e - mean) ** 2 for e in estimate) / total), mean)


def error(seed, simulations, draws):
    """Error of the population mean in exact posterior standard deviations, four vectorised chains."""
    rng = np.random.default_rng(seed)
    theta = 0.4 + 0.8 * rng.normal(size=GROUPS)
    x = theta[:, None] * LOADING + NOISE * rng.normal(size=(GROUPS, 2))
    simulated = kme.simulate(jax.random.key(seed), one_group, simulations, progress_bar=False)
    fitted = kme.fit_likelihood(simulated.arguments["x"], simulated.x["x"])
    lengths = dict(num_warmup=300, num_samples=draws, num_chains=4, chain_method="vectorized", progress_bar=False)
    mcmc = MCMC(NUTS(kme.handlers.surrogate(model, {"x": fitted})), **lengths)
    mcmc.run(jax.random.key(seed), x)
    mean, sd = exact_mean(x)
    return float(np.mean(mcmc.get_samples()["mean"]) - mean) / sd
