"""Two simulator sites, a Poisson likelihood and a positive latent in one model: NUTS against brute force on a grid.

    python -m benchmarks mcmc_two_sites [--sizes 300 1000] [--seeds 5]

Takes half an hour.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.posteriors import AGREEMENT, agreement, four_chains, moments, normalised, summary

NOISE, WAITS = 0.6, 8
LEVEL, LOG_RATE = np.linspace(-4.0, 4.0, 81), np.linspace(-2.5, 2.5, 81)
FORMS = {"residual": kme.ResidualKernelMeans(), "published": kme.KernelMeans()}


def shifted(rng_key, level):
    """One number around the level."""
    return level + NOISE * jax.random.normal(rng_key, (1,))


def waiting(rng, rate):
    """Log of the mean of eight waiting times; NumPy."""
    return np.log(rng.exponential(size=WAITS).mean(keepdims=True) / rate)


def model(x=None, w=None, counts=None):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    numpyro.sample("x", kme.Simulator(shifted, level), obs=x)
    numpyro.sample("w", kme.Simulator(waiting, rate, shape=(1,), dtype=float), obs=w)
    with numpyro.plate("visits", 4):
        numpyro.sample("counts", dist.Poisson(rate * jnp.exp(0.5 * level)), obs=counts)


def data(seed):
    """Observations from the prior predictive distribution."""
    rng = np.random.default_rng(seed)
    level, rate = rng.normal(), rng.gamma(3.0, 0.5)
    x, w = level + NOISE * rng.normal(size=1), waiting(rng, rate)
    return x, w, rng.poisson(rate * np.exp(0.5 * level), size=4)


def exact_moments(x, w, counts):
    """Mean and sd of each latent, by brute force: every density written out, on a grid of level and log rate."""
    level, log_rate = np.meshgrid(LEVEL, LOG_RATE, indexing="ij")
    rate = np.exp(log_rate)
    log_p = stats.norm.logpdf(level) + stats.gamma.logpdf(rate, 3.0, scale=0.5) + log_rate
    log_p += stats.norm.logpdf(x[0], level, NOISE) + stats.gamma.logpdf(np.exp(w[0]), WAITS, scale=1.0 / (WAITS * rate))
    log_p += sum(stats.poisson.logpmf(count, rate * np.exp(0.5 * level)) for count in counts)
    return moments_of(log_p)


def moments_of(log_p):
    """Mean and sd of each latent from log weights on the grid."""
    p, values = normalised(log_p), {"level": LEVEL[:, None], "rate": np.exp(LOG_RATE)}
    return {name: moments(p, value) for name, value in values.items()}


def learn(rng_key, size, form, observed):
    """A likelihood for each site, from prior draws of the model."""
    simulated = kme.simulate(rng_key, kme.Problem.read(model, *observed), size, progress_bar=False)
    return {site: kme.fit_likelihood(simulated.arguments[site], simulated.x[site], form=form) for site in ("x", "w")}


def run(seed, size, form):
    observed = data(seed)
    smodel = kme.handlers.surrogate(model, learn(jax.random.key(seed), size, FORMS[form], observed))
    mcmc = four_chains(smodel, 500, 1000)
    mcmc.run(jax.random.key(seed), *observed)
    chains = mcmc.get_samples(group_by_chain=True)
    row = {"divergent": float(np.mean(mcmc.get_extra_fields()["diverging"]))}
    return row | {name: agreement(chains[name], *exact) for name, exact in exact_moments(*observed).items()}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000])
    arguments = parser.parse_args()
    cases = [(form, size) for form in FORMS for size in arguments.sizes]
    rows = {case: [] for case in cases}
    for seed in range(arguments.seeds):
        for form, size in cases:
            key = {"form": form, "size": size, "seed": seed}
            rows[form, size].append(arguments.rows.get(partial(run, **key), **key))
            text = save(rows)
    print(text)


def save(rows):
    table = [
        (
            form,
            size,
            name,
            len(mine),
            *summary([row[name] for row in mine]),
            np.mean([row["divergent"] for row in mine]),
        )
        for (form, size), mine in rows.items()
        for name in ("level", "rate")
        if mine
    ]
    header = ("form", "simulations", "latent", "seeds", *AGREEMENT, "divergent")
    sections = [("Four chains of 500 + 1,000 draws against brute force on a grid", report.table(header, table))]
    title = "Two simulator sites, a Poisson likelihood and a positive latent"
    return report.write("mcmc_two_sites", title, sections)
