"""Learnt likelihoods, length scales and losses."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import numpyro_kme as kme


def simulator(rng_key, theta):
    return theta + jax.random.normal(rng_key, (1,))


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


def gaussian(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", 30):
        numpyro.sample("x", dist.Normal(theta, 1.0).expand([1]).to_event(1), obs=x)


def iid(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", 30):
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


x = np.array([0.8])
data = np.random.default_rng(0).normal(1.0, 1.0, (30, 1))
theta = np.random.default_rng(1).normal(0.0, 1.0, (200, 1))
outputs = theta + np.random.default_rng(2).normal(0.0, 1.0, (200, 1))

# %% fit_likelihood
fitted = kme.fit_likelihood(theta, outputs, form=kme.KernelMeans())
print(fitted(np.array([0.5])).log_prob(x))

# %% KernelMeansLikelihood
fitted = kme.fit_likelihood(theta, outputs)


def learnt(x):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.KernelMeansLikelihood(fitted, theta[None]), obs=x)


mcmc = MCMC(NUTS(learnt), num_warmup=200, num_samples=300, progress_bar=False)
mcmc.run(jax.random.key(0), x)
print(mcmc.get_samples()["theta"].mean())  # exactly 0.4
three = np.array([[0.0], [0.5], [1.0]])  # parameters
print(kme.KernelMeansLikelihood(fitted, three).log_prob(x))

# %% KernelMeans
fitted = kme.fit_likelihood(theta, outputs, form=kme.KernelMeans())
print(fitted)

# %% ResidualKernelMeans
form = kme.ResidualKernelMeans(decorrelate=False)
fitted = kme.fit_likelihood(theta, outputs, form=form)
print(fitted)

# %% BayesianKernelLearning
rule = kme.BayesianKernelLearning(jax.random.key(0))
points = np.random.default_rng(0).normal(0.0, 10.0, (100, 5))
print(rule(points))

# %% CrossValidation
rule = kme.CrossValidation(jax.random.key(0))
print(kme.KernelABC(model, 400, length_scale=rule))

# %% MedianHeuristic
rule = kme.MedianHeuristic()
print(rule(outputs))

# %% MMD
spoilt = data.copy()
spoilt[:3] = 50.0  # outliers
engine = kme.PosteriorBootstrap(iid, kme.MMD(), num_samples=64, progress_bar=False)
engine.run(jax.random.key(0), x=spoilt)
print(engine.posterior)

# %% NegativeLogLikelihood
loss = kme.NegativeLogLikelihood()
engine = kme.PosteriorBootstrap(gaussian, loss, num_samples=64, progress_bar=False)
engine.run(jax.random.key(0), x=data)  # the weighted likelihood bootstrap
print(engine.posterior)

# %% Wasserstein
sets = np.stack([data, data + 1.0])  # two simulated data sets
print(kme.abc.discrepancies_to(data, sets, kme.Wasserstein()))


# %% SemiAutomaticStatistics
def trend(rng_key, theta):
    return theta * np.linspace(0.0, 1.0, 40) + jax.random.normal(rng_key, (40,))


def series(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    numpyro.sample("x", kme.Simulator(trend, theta), obs=x)


learn = kme.SemiAutomaticStatistics()
kelfi = kme.KELFI(series, 400, statistics=learn, progress_bar=False)
kelfi.run(jax.random.key(0), x=np.asarray(trend(jax.random.key(1), 1.5)))
print(f"{kelfi.posterior.expectation(lambda draws: draws['theta']):.2f}")

# %% SelectedStatistics
noise = np.random.default_rng(3).normal(size=(200, 20))  # 20 that say nothing
outputs = np.concatenate([outputs, noise], axis=1)
form = kme.likelihoods.OfStatistics(kme.SelectedStatistics(), kme.ResidualKernelMeans())
print(kme.fit_likelihood(theta, outputs, form=form).surrogate.describe()["statistics"])
