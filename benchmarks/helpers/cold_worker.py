"""One row of `cold_start.py`, in a process that has done nothing before: prints seconds by name as JSON.

The clock starts before the first import.
"""

import contextlib
import importlib
import io
import json
import resource
import sys
import time
import warnings
from pathlib import Path

BEGUN = time.perf_counter()
import numpyro  # noqa: E402

NUMPYRO = time.perf_counter()
import numpyro_kme as kme  # noqa: E402

OURS = time.perf_counter()
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
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


def end_middle_and_range(rng_key, drift, scale):
    """Another simulator, with one more statistic."""
    path = jnp.cumsum(drift + scale * jax.random.t(rng_key, 4.0, (100,)))
    return jnp.stack([path[-1], path[50], jnp.max(path) - jnp.min(path)])


def other(x=None):
    """Another model."""
    drift = numpyro.sample("drift", dist.Normal(0.0, 0.5))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(end_middle_and_range, drift, scale), obs=x)


def shifted(rng_key, theta):
    """A normal around `theta`."""
    return theta + jax.random.normal(rng_key, (1,))


def one_parameter(x=None):
    """A normal location."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(shifted, theta), obs=x)


def with_density(x):
    """The same by its exact density."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", dist.Normal(theta, 1.0).expand([1]).to_event(1), obs=x)


def normal(x=None):
    """Location and scale of a plate of 400."""
    loc = numpyro.sample("loc", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", 400):
        numpyro.sample("x", kme.Simulator(kme.FromNoise(stretched, dist.Normal(0.0, 1.0)), loc, scale), obs=x)


def stretched(noise, loc, scale):
    """A normal by its noise."""
    return loc + scale * noise


def seconds(function, *args, **kwargs):
    """Wall seconds of one call that shows nothing."""
    begun = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
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


def run_and_print(engine, seed, x):
    """The README's block from `run` on."""
    engine.run(jax.random.key(seed), x=jnp.asarray(x))
    engine.print_summary()


def kelfi():
    """The README's first block, then further fits of the process."""

    def fit(which, number, seed, x):
        run_and_print(kme.KELFI(which, number, num_rounds=1, progress_bar=False), seed, x)

    own, found = compiled(end_and_range), {}
    found["README's simulator, compiled alone"] = own
    found["README's first block, less that"] = seconds(fit, model, 300, 0, [21.0, 28.0]) - own
    found["further fit: another key and data"] = seconds(fit, model, 300, 1, [10.0, 18.0])
    found["further fit: 500 simulations"] = seconds(fit, model, 500, 2, [21.0, 28.0])
    found["further fit: 1,000 simulations"] = seconds(fit, model, 1000, 3, [21.0, 28.0])
    own = compiled(end_middle_and_range)
    found["further fit: another model, less its simulator"] = seconds(fit, other, 300, 4, [21.0, 9.0, 28.0]) - own
    engine = kme.KELFI(model, num_rounds=1, progress_bar=False)
    engine.run(jax.random.key(5), x=jnp.array([21.0, 28.0]))
    found["`condition`"] = seconds(engine.condition, jax.random.key(6), x=jnp.array([15.0, 20.0]))
    return found


def weighting(name):
    """A weighting engine on the README's model, first and later."""

    def row():
        own, engine = compiled(end_and_range), getattr(kme, name)
        fit = lambda seed, x: run_and_print(engine(model, progress_bar=False), seed, x)  # noqa: E731
        first = seconds(fit, 0, [21.0, 28.0]) - own
        return {f"{name}, first": first, f"{name}, later": seconds(fit, 1, [10.0, 18.0])}

    return row


def bootstrap():
    """Normal location and scale, n = 400, 100 draws; the data are there before."""
    data = 2.0 + np.random.default_rng(0).normal(size=(2, 400))
    fit = lambda seed: run_and_print(  # noqa: E731
        kme.PosteriorBootstrap(normal, num_samples=100, progress_bar=False), seed, data[seed]
    )
    return {"PosteriorBootstrap, first": seconds(fit, 0), "PosteriorBootstrap, later": seconds(fit, 1)}


def nuts():
    """800 iterations on a learnt likelihood beside the exact density, other data the second time."""
    simulated = kme.simulate(jax.random.key(0), one_parameter, 300, progress_bar=False)
    fitted = kme.fit_likelihood(simulated.arguments["x"], simulated.x["x"])
    found = {}
    for name, target in (
        ("exact density", with_density),
        ("learnt likelihood", kme.handlers.surrogate(one_parameter, {"x": fitted})),
    ):
        for when, x in (("first", 0.7), ("later", -0.4)):
            chain = MCMC(NUTS(target), num_warmup=400, num_samples=400, progress_bar=False)
            found[f"NUTS, {name}, {when}"] = seconds(chain.run, jax.random.key(1), x=jnp.array([x]))
    return found


def rounds():
    """CPU seconds of 1,000 simulations in five rounds."""
    from numpyro_kme.simulators import two_moons

    begun = time.process_time()
    engine = kme.KELFI(two_moons.model, 1000, num_rounds=5, progress_bar=False)
    engine.run(jax.random.key(0), x=jnp.array([-0.2, 0.3]))
    return {"two_moons, 1,000 simulations in five rounds (CPU)": time.process_time() - begun}


def predators():
    """The same for Lotka-Volterra, whose 1,000 simulations are a part of it."""
    from numpyro_kme.simulators import lotka_volterra

    begun = time.process_time()
    engine = kme.KELFI(lotka_volterra.model, 1000, num_rounds=5, on_failure="skip", progress_bar=False)
    engine.run(jax.random.key(0), x=lotka_volterra.OBSERVED)
    return {"lotka_volterra, 1,000 simulations in five rounds (CPU)": time.process_time() - begun}


def check():
    """Every diagnostic with 200 data sets."""
    engine = kme.KELFI(model, 300, num_rounds=1, progress_bar=False)
    engine.run(jax.random.key(0), x=jnp.array([21.0, 28.0]))
    return {"`check`, 200 data sets": seconds(lambda: kme.diagnostics.check(jax.random.key(1), engine) and None)}


def many():
    """A thousand observations, after one."""
    engine = kme.KELFI(model, 500, num_rounds=1, progress_bar=False)
    engine.run(jax.random.key(0), x=jnp.array([21.0, 28.0]))
    x = jax.vmap(lambda key: end_and_range(key, 0.2, 1.2))(jax.random.split(jax.random.key(1), 1000))
    return {
        "`condition_many`, 1,000 observations": seconds(
            lambda: engine.condition_many(jax.random.key(2), {"x": x}) and None
        )
    }


def memory(task, x):
    """Most memory that a process held to which 10,000 simulations were given to learn from."""

    def row():
        simulator = importlib.import_module(f"numpyro_kme.simulators.{task}")
        engine = kme.KELFI(simulator.model, 10_000, num_rounds=1, progress_bar=False)
        engine.run(jax.random.key(0), x=jnp.asarray(x))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        return {f"{task}, 10,000 simulations: peak memory (GB)": peak}

    return row


def given(path):
    """1,000 posterior draws from simulations in a file, as `npe_worker` makes them."""
    from benchmarks.kelfi.residual_time import SIMULATORS, model_of

    stored = np.load(path)
    simulations = kme.Simulations.from_table(stored["theta"], stored["x"])
    engine = kme.KELFI(model_of(SIMULATORS["linear"]), simulations=simulations, num_samples=1000, progress_bar=False)
    engine.run(jax.random.key(0), x=stored["y"])
    return {"mean": engine.get_samples()["theta"].mean(axis=0).tolist()}


def maps():
    """Memory maps of the process after 200 fits, of which no two have the same number of simulations."""
    for number in range(200):
        which, x = ((model, [21.0, 28.0]), (other, [21.0, 9.0, 28.0]))[number % 2]
        engine = kme.KELFI(which, 100 + number, num_rounds=1, num_samples=100, progress_bar=False)
        engine.run(jax.random.key(number), x=jnp.asarray(x))
    return {"memory maps after 200 fits of different shapes": len(Path("/proc/self/maps").read_text().splitlines())}


ENGINES = ("RejectionABC", "K2ABC", "KernelABC", "KernelBayes", "DistributionRegressionABC")
ROWS = {row.__name__: row for row in (imports, kelfi, bootstrap, nuts, rounds, predators, check, many, maps)}
ROWS |= {e: weighting(e) for e in ENGINES}
ROWS |= {"memory": memory("two_moons", [-0.2, 0.3]), "memory10": memory("gaussian_linear", [0.1] * 10)}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(given(sys.argv[2]) if sys.argv[1] == "given" else ROWS[sys.argv[1]]()))
