"""Simulators in models, and simulations."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme


def simulator(rng_key, theta):
    return theta + jax.random.normal(rng_key, (1,))


def fails(rng_key, theta):
    return jnp.where(theta > 1.0, jnp.nan, simulator(rng_key, theta))


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)


def failing(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(fails, theta), obs=x)


# %% Simulator
theta = jnp.array([0.0, 10.0])
x = kme.Simulator(simulator, theta, event_dims=0)  # two calls, with a number each
print(x.batch_shape, x.event_shape)
print(x.sample(jax.random.key(0)))

# %% Problem
problem = kme.Problem.read(model, x=np.array([0.8]))
print(problem)

# %% FromNoise
noise = dist.Normal(0.0, 1.0).expand([1]).to_event(1)
fn = kme.FromNoise(lambda z, theta: theta + z, noise)
print(kme.Simulator(fn, 0.5).sample(jax.random.key(0)))

# %% simulate
simulations = kme.simulate(jax.random.key(0), model, 400, progress_bar=False)
print(simulations)

# %% Simulations
theta = np.linspace(-1.0, 1.0, 20)[:, None]
table = kme.Simulations.from_table(theta, theta + 0.1)  # made elsewhere
print(table)

# %% Command
copies = "open('output.txt', 'w').write(open('params.txt').read())"
program = kme.Command(("python", "-c", copies))
print(kme.Simulator(program, 2.0, shape=(1,), dtype=float).sample(jax.random.key(0)))

# %% Penalise
how = dict(on_failure=kme.Penalise(-50.0), progress_bar=False)
found = kme.simulate(jax.random.key(0), failing, 64, **how)
print(found.describe_failures())

# %% Retry
how = dict(on_failure=kme.Retry(times=3, then="skip"), progress_bar=False)
found = kme.simulate(jax.random.key(0), failing, 64, **how)
print(found.describe_failures())

# %% SimulatedMissing
engine = kme.KELFI(model, 300, missing=kme.SimulatedMissing())
print(engine)
