"""Simulators inside MCMC, and embeddings."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

import numpyro_kme as kme

noise = dist.Normal(0.0, 1.0).expand([1]).to_event(1)
simulator = kme.FromNoise(lambda z, theta: theta + z, noise)


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


def iid(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", 30):
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


x = np.array([0.8])
data = np.random.default_rng(0).normal(1.0, 1.0, (30, 1))

# %% mcmc.handlers.surrogate


def normal(theta):  # in its place: what fit_likelihood returns
    return dist.Normal(theta, 1.0).expand([1]).to_event(1)


learnt = kme.handlers.surrogate(model, {"x": normal})
mcmc = MCMC(NUTS(learnt), num_warmup=200, num_samples=500, progress_bar=False)
mcmc.run(jax.random.key(0), x=x)
print(f"{mcmc.get_samples()['theta'].mean():.1f}")

# %% mcmc.handlers.adjustable
with numpyro.handlers.seed(rng_seed=0):
    trace = numpyro.handlers.trace(kme.handlers.adjustable(model)).get_trace(x=x)
print([name for name in trace])

# %% mcmc.handlers.generalized_bayes
noise = kme.CommonNoise(64)
robust = kme.handlers.generalized_bayes(iid, kme.MMD(), weight=1.0, noise=noise)
mcmc = MCMC(NUTS(robust), num_warmup=200, num_samples=500, progress_bar=False)
mcmc.run(jax.random.key(0), x=data)
print(f"{mcmc.get_samples()['theta'].mean():.1f}")

# %% mcmc.handlers.soft_abc
soft = kme.handlers.soft_abc(model, kme.kernels.Gaussian(0.3))
mcmc = MCMC(NUTS(soft), num_warmup=200, num_samples=500, progress_bar=False)
mcmc.run(jax.random.key(0), x=x)
print(f"{mcmc.get_samples()['theta'].mean():.1f}")

# %% mcmc.handlers.uncondition_simulators
simulating = kme.handlers.uncondition_simulators(iid)
predictive = numpyro.infer.Predictive(simulating, {"theta": np.zeros(5)})
print(predictive(jax.random.key(0), x=data)["x"].shape)

# %% CommonNoise
noise = kme.CommonNoise(64)
smooth = kme.handlers.generalized_bayes(iid, kme.MMD(), weight=1.0, noise=noise)
print(log_density(smooth, (), {"x": data}, {"theta": 0.5})[0])

# %% LatentNoise
noise = kme.LatentNoise(64)
smooth = kme.handlers.generalized_bayes(iid, kme.MMD(), weight=1.0, noise=noise)
seeded = numpyro.handlers.seed(smooth, 0)
print(sorted(numpyro.handlers.trace(seeded).get_trace(x=data)))

# %% FreshNoise
noise = kme.FreshNoise(16)
noisy = kme.handlers.generalized_bayes(iid, kme.MMD(), weight=1.0, noise=noise)
kernel = kme.PseudoMarginal(noisy)
print(kernel)

# %% PseudoMarginal
noise = kme.FreshNoise(16)
noisy = kme.handlers.generalized_bayes(iid, kme.MMD(), weight=1.0, noise=noise)
kernel = kme.PseudoMarginal(noisy)
mcmc = MCMC(kernel, num_warmup=100, num_samples=200, progress_bar=False)
mcmc.run(jax.random.key(0), x=data)
print(mcmc.get_samples()["theta"].shape)

# %% SyntheticLikelihood
key = jax.random.key(0)
likelihood = kme.SyntheticLikelihood(simulator, 0.5, num_simulations=100, rng_key=key)
print(likelihood.log_prob(x))

# %% squared_mmd
kernel = kme.kernels.Gaussian(1.0)
print(kme.squared_mmd(kernel, data[:15], data[15:] + 2.0))

# %% mmd_test
kernel = kme.kernels.Gaussian(1.0)
one, other = data[:15], data[15:] + 2.0
print(kme.mmd_test(jax.random.key(0), kernel, one, other, num_permutations=99))

# %% herd
kernel = kme.kernels.Gaussian(1.0)
candidates = np.linspace(-3.0, 3.0, 50)[:, None]
target = kme.embeddings.MeanEmbedding(kernel, data - 1.0)
print(kme.herd(kernel, target(candidates), candidates, 4))
