"""Soft ABC over parameters and noise, by NUTS and by correlated pseudo-marginal moves, against ten million weighted
simulations at the same epsilon.

    python -m benchmarks soft_abc [--simulations 10000000] [--samples 1000]

Three problems: the mean of ten exponentials with a gamma prior on their rate; seven quantiles of fifty g-and-k numbers,
two parameters; the mean and the standard deviation of twenty years of a Ricker map with process noise, observed with
log-normal noise. NUTS as the docs advise: a warmup of 200, an acceptance of 0.7, and a mass matrix that is dense in the
parameters, and in up to some twenty numbers of noise; a gradient counts as four simulations. `PseudoMarginal` spends a
hundredth of the weighted simulations, two a step, with a warmup of 3,000. Takes five minutes.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme.mcmc import handlers

GRADIENT, FEW = 4, 20
"""Simulations that a gradient counts as; numbers of noise for which a warmup of 200 learns a dense mass matrix."""

MOVES, WARMUP = 2, 3000
"""Simulations of a pseudo-marginal step, with noise alone and with parameters; steps of its warmup."""


def of_normals(*shape):
    """Declare that the noise of a simulator is standard normals of this shape."""
    return lambda fn: kme.FromNoise(fn, dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))


@of_normals(10)
def exponentials(z, rate):
    """Logarithm of the mean of ten exponentials."""
    return jnp.log(jnp.mean(-jax.scipy.stats.norm.logcdf(z) / rate))[None]


@of_normals(50)
def octiles(z, location, log_scale):
    """Seven quantiles of fifty g-and-k numbers."""
    x = location + jnp.exp(log_scale) * (1 + 0.8 * jnp.tanh(z)) * (1 + z**2) ** 0.3 * z
    return jnp.quantile(x, jnp.arange(1, 8) / 8)


@of_normals(20, 2)
def ricker(z, growth, noise):
    """Mean and standard deviation of the logarithms of twenty observed sizes."""

    def year(size, z):
        size = size * jnp.exp(growth - size + noise * z[0])
        return size, jnp.log(size) + 0.2 * z[1]

    logs = jax.lax.scan(year, 1.0, z)[1]
    return jnp.stack([logs.mean(), logs.std()])


PROBLEMS = {
    "exponential-gamma": (exponentials, {"rate": dist.Gamma(2.0, 1.0)}, np.array([0.3]), 0.1, 10),
    "g-and-k, octiles": (
        octiles,
        {"location": dist.Normal(0.0, 2.0), "log_scale": dist.Normal(0.0, 1.0)},
        np.array([-0.4, 0.1, 0.5, 0.9, 1.5, 2.4, 4.1]),
        0.5,
        50,
    ),
    "Ricker map": (
        ricker,
        {"growth": dist.Uniform(0.2, 1.8), "noise": dist.Uniform(0.05, 0.6)},
        np.array([-0.1, 0.45]),
        0.05,
        40,
    ),
}


def model_of(fn, priors):
    """The model of a problem."""

    def model(x=None):
        params = [numpyro.sample(name, prior) for name, prior in priors.items()]
        numpyro.sample("x", kme.Simulator(fn, *params), obs=x)

    return model


def brute_force(fn, priors, y, epsilon, number, block=100_000):
    """Posterior means and standard deviations by weighting simulations from the prior, and their effective size."""

    @jax.jit
    def sums(rng_key):
        def one(rng_key):
            *keys, last = jax.random.split(rng_key, len(priors) + 1)
            theta = [prior.sample(key) for prior, key in zip(priors.values(), keys)]
            return jnp.stack(theta), fn(last, *theta)

        theta, x = jax.vmap(one)(jax.random.split(rng_key, block))
        w = jnp.exp(-0.5 * jnp.sum(jnp.square((x - y) / epsilon), axis=1))
        w = jnp.where(jnp.isfinite(w), w, 0.0)
        return w.sum(), w @ theta, w @ jnp.square(theta), jnp.sum(w**2)

    totals = [np.asarray(s, float) for s in zip(*(sums(jax.random.key(i)) for i in range(number // block)))]
    mass, first, second, square = (part.sum(axis=0) for part in totals)
    mean = first / mass
    return mean, np.sqrt(second / mass - mean**2), mass**2 / square


def by_nuts(soft, y, samples, dense):
    """Posterior draws `{site: (samples,)}`, simulations that they cost, and divergences."""
    kernel = NUTS(soft, dense_mass=dense, target_accept_prob=0.7)
    mcmc = MCMC(kernel, num_warmup=200, num_samples=samples, progress_bar=False)
    mcmc.warmup(jax.random.key(0), y, collect_warmup=True, extra_fields=("num_steps",))
    steps = int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    mcmc.run(jax.random.key(1), y, extra_fields=("num_steps", "diverging"))
    extra = mcmc.get_extra_fields()
    simulated = GRADIENT * (steps + int(np.sum(extra["num_steps"])))
    return mcmc.get_samples(), simulated, int(np.sum(extra["diverging"]))


def by_moves(soft, y, simulations):
    """The same of a pseudo-marginal chain with so many simulations."""
    steps = simulations // MOVES
    mcmc = MCMC(kme.PseudoMarginal(soft), num_warmup=WARMUP, num_samples=steps - WARMUP, progress_bar=False)
    mcmc.run(jax.random.key(0), y)
    return mcmc.get_samples(), MOVES * steps, 0


def main():
    options = report.parser(__doc__)
    options.add_argument("--simulations", type=int, default=10_000_000)
    options.add_argument("--samples", type=int, default=1000)
    options = options.parse_args()
    rows = []
    for problem, (fn, priors, y, epsilon, noise) in PROBLEMS.items():
        began = time.perf_counter()
        mean, sd, size = brute_force(fn, priors, y, epsilon, options.simulations)
        weighting = time.perf_counter() - began
        soft = handlers.soft_abc(model_of(fn, priors), kme.kernels.Gaussian(epsilon))
        samplers = {
            "NUTS": partial(by_nuts, samples=options.samples, dense=noise <= FEW or [tuple(priors)]),
            "PseudoMarginal": partial(by_moves, simulations=options.simulations // 100),
        }
        for sampler, run in samplers.items():
            began = time.perf_counter()
            found, simulated, diverging = run(soft, y)
            draws = np.stack([found[name] for name in priors], axis=1)
            rows.append(
                {
                    "problem": problem,
                    "epsilon": epsilon,
                    "sampler": sampler,
                    "mean apart, sd": float(np.abs((draws.mean(axis=0) - mean) / sd).max()),
                    "sd, factor": float(np.exp(np.abs(np.log(draws.std(axis=0) / sd)).max())),
                    "effective draws": min(effective_sample_size(row[None]) for row in draws.T),
                    "diverging": diverging,
                    "simulations": simulated,
                    "simulations by weighting": options.simulations,
                    "effective, by weighting": float(size),
                    "times fewer": options.simulations / simulated,
                    "s": time.perf_counter() - began,
                    "s by weighting": weighting,
                }
            )
            print(rows[-1], flush=True)
    report.save("soft_abc", "ABC without rejection", [("At the same epsilon", report.table_of(rows))], rows)


if __name__ == "__main__":
    main()
