"""Engines."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme


def simulator(rng_key, theta):
    return theta + jax.random.normal(rng_key, (1,))


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


def iid(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", 30):
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


x = np.array([0.8])
data = np.random.default_rng(0).normal(1.0, 1.0, (30, 1))
simulations = kme.simulate(jax.random.key(0), model, 400, progress_bar=False)

# %% Engine
engine = kme.RejectionABC(model, quantile=0.1, simulations=simulations)
engine.run(jax.random.key(0), x=x)
print(isinstance(engine, kme.Engine), engine.get_samples()["theta"].shape)

# %% KELFI
kelfi = kme.KELFI(model, simulations=simulations)
kelfi.run(jax.random.key(0), x=x)
kelfi.print_summary()


# %% compare
def wider(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 3.0))
    numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


other = kme.KELFI(wider, 400, num_rounds=1, progress_bar=False)
other.run(jax.random.key(0), x=x)
print(kme.compare({"sd 1": kelfi, "sd 3": other}))

# %% PosteriorBootstrap
npl = kme.PosteriorBootstrap(iid, kme.MMD(), num_samples=64, progress_bar=False)
npl.run(jax.random.key(0), x=data)
print(npl.posterior)

# %% KernelABC
engine = kme.KernelABC(model, simulations=simulations)
engine.run(jax.random.key(0), x=x)
print(engine.posterior)

# %% K2ABC
engine = kme.K2ABC(iid, 400, regression_adjustment=True, progress_bar=False)
engine.run(jax.random.key(0), x=data)
print(engine.posterior)

# %% RejectionABC
engine = kme.RejectionABC(model, quantile=0.1, simulations=simulations)
engine.run(jax.random.key(0), x=x)
print(engine.posterior)

# %% DistributionRegressionABC
engine = kme.DistributionRegressionABC(model, simulations=simulations)
engine.run(jax.random.key(0), x=x)
print(engine.posterior)

# %% KernelBayes
engine = kme.KernelBayes(model, simulations=simulations)
engine.run(jax.random.key(0), x=x)
print(engine.posterior)

# %% KernelRecursiveABC
engine = kme.KernelRecursiveABC(model, num_iterations=5, progress_bar=False)
engine.run(jax.random.key(0), x=x)
print(engine.posterior.mode())

# %% FromPosterior
kelfi = kme.KELFI(model, 300, num_rounds=3, proposal=kme.FromPosterior())
print(kelfi)

# %% FromVariance
form, proposal = kme.KernelMeans(), kme.FromVariance()
kelfi = kme.KELFI(model, 300, num_rounds=3, form=form, proposal=proposal)
print(kelfi)

# %% cite
print(kme.cite())  # this package
print(kme.cite(kme.KELFI))
