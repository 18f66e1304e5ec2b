"""Rows of `cold_start.py`, seconds by name, for processes that have done nothing before.

The clock starts before the first import.
"""

import time

BEGUN = time.perf_counter()
import numpyro  # noqa: E402

NUMPYRO = time.perf_counter()
import numpyro_kme as kme  # noqa: E402

OURS = time.perf_counter()
from functools import partial  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
from numpyro.infer import MCMC, NUTS  # noqa: E402


def end_and_range(rng_key, drift, scale):
    """The simulator of the README."""
    path = jnp.cumsum(drift + scale * jax.random.t(rng_key, 4.0, (100,)))
    return jnp.stack([path[-1], jnp.max(path) - jnp.min(path)])


def model(x=None):
    """The model of the README."""
    drift = numpyro.sample("drift", dist.Normal(0.0, 0.5))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(end_and_range, drift, scale), obs=x)


def seconds(function, *args, **kwargs):
    """Wall seconds of one call."""
    begun = time.perf_counter()
    jax.block_until_ready(function(*args, **kwargs))
    return time.perf_counter() - begun


def compiled(simulator):
    """Seconds that the simulator's own program takes to compile, in a block as `simulate` runs it."""
    theta = jnp.ones(64)
    return seconds(jax.jit(jax.vmap(simulator)), jax.random.split(jax.random.key(5), 64), theta, theta)


def imports():
    """Ours beside NumPyro's."""
    first, both = NUMPYRO - BEGUN, OURS - BEGUN
    return {"import numpyro": first, "import numpyro_kme": both, "the second over the first (ratio)": both / first}


one_round = partial(kme.KELFI, num_rounds=1)


def fit(seed, x, *settings, kind=one_round):
    """The README's block."""
    engine = kind(model, *settings, progress_bar=False)
    engine.run(jax.random.key(seed), x=jnp.asarray(x))
    engine.print_summary()


def kelfi():
    """The README's first block, then further fits of the process."""
    own, found = compiled(end_and_range), {}
    found["README's simulator, compiled alone"] = own
    found["README's first block, less that"] = seconds(fit, 0, [21.0, 28.0], 300) - own
    found["further fit: another key and data"] = seconds(fit, 1, [10.0, 18.0], 300)
    found["further fit: 1,000 simulations"] = seconds(fit, 3, [21.0, 28.0], 1000)
    engine = kme.KELFI(model, num_rounds=1, progress_bar=False)
    engine.run(jax.random.key(5), x=jnp.array([21.0, 28.0]))
    found["`condition`"] = seconds(engine.condition, jax.random.key(6), x=jnp.array([15.0, 20.0]))
    return found


def weighting(name):
    """A weighting engine on the README's model, first and later."""
    own, kind = compiled(end_and_range), getattr(kme, name)
    first = seconds(fit, 0, [21.0, 28.0], kind=kind) - own
    return {f"{name}, first": first, f"{name}, later": seconds(fit, 1, [10.0, 18.0], kind=kind)}


def nuts():
    """800 iterations on a learnt likelihood of a normal beside the exact density, other data the second time."""
    from benchmarks.helpers.problems import normals, of_law

    def law(theta):
        return dist.Normal(theta, 1.0).to_event(1)

    def with_density(x):
        numpyro.sample("x", law(numpyro.sample("theta", normals(1))), obs=x)

    one_parameter = of_law(normals(1), law).model
    simulated = kme.simulate(jax.random.key(0), one_parameter, 300, progress_bar=False)
    fitted = kme.fit_likelihood(simulated.arguments["x"], simulated.x["x"])
    targets = {"exact density": with_density, "learnt likelihood": kme.handlers.surrogate(one_parameter, {"x": fitted})}
    found = {}
    for name, target in targets.items():
        for when, x in (("first", 0.7), ("later", -0.4)):
            chain = MCMC(NUTS(target), num_warmup=400, num_samples=400, progress_bar=False)
            found[f"NUTS, {name}, {when}"] = seconds(chain.run, jax.random.key(1), x=jnp.array([x]))
    return found


ENGINES = ("RejectionABC", "K2ABC", "KernelABC", "KernelBayes", "DistributionRegressionABC")
ROWS = {row.__name__: (row,) for row in (imports, kelfi, nuts)}
ROWS |= {engine: (weighting, engine) for engine in ENGINES}
