"""Two simulator sites, a Poisson likelihood and a positive latent in one model: NUTS against brute force on a grid.

    python benchmarks/mcmc_two_sites.py                       # 300 and 1,000 simulations, 5 seeds
    python benchmarks/mcmc_two_sites.py --runs runs.jsonl     # keeps each run, and resumes from them

Writes `results/mcmc_two_sites.md` and `results/mcmc_two_sites.json`.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import report
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from scipy import stats

import numpyro_kme as kme

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
    """Observations from the prior predictive law."""
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
    return moments(log_p)


def moments(log_p):
    """Mean and sd of each latent from log weights on the grid."""
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    found = {}
    for name, value in (("level", LEVEL[:, None]), ("rate", np.exp(LOG_RATE)[None])):
        mean = np.sum(p * value)
        found[name] = mean, np.sqrt(np.sum(p * (value - mean) ** 2))
    return found


def learn(rng_key, size, form, observed):
    """A likelihood for each site, from prior draws of the model."""
    bank = kme.simulate(rng_key, kme.Problem.read(model, *observed), size, progress_bar=False)
    return {site: kme.fit_likelihood(bank.arguments[site], bank.x[site], form=form) for site in ("x", "w")}


def run(seed, size, form):
    observed = data(seed)
    smodel = kme.handlers.surrogate(model, learn(jax.random.key(seed), size, FORMS[form], observed))
    mcmc = MCMC(
        NUTS(smodel), num_warmup=500, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(jax.random.key(seed), *observed)
    chains = mcmc.get_samples(group_by_chain=True)
    row = {"divergent": float(np.mean(mcmc.get_extra_fields()["diverging"]))}
    for name, (mean, sd) in exact_moments(*observed).items():
        found = np.asarray(chains[name])
        row[name] = {
            "error": abs(float(found.mean()) - mean) / sd,
            "sd error": abs(float(found.std()) / sd - 1.0),
            "rhat": float(split_gelman_rubin(found)),
            "ess": float(effective_sample_size(found)),
        }
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--runs")
    arguments = parser.parse_args()
    cases = [(form, size) for form in FORMS for size in arguments.sizes]
    kept, rows = report.Kept(arguments.runs), {case: [] for case in cases}
    for seed in range(arguments.seeds):
        for form, size in cases:
            rows[form, size].append(kept.get((form, size, seed), lambda: run(seed, size, form)))  # noqa: B023
            text = save(rows)
    print(text)


def save(rows):
    table = []
    for (form, size), mine in rows.items():
        for name in ("level", "rate") if mine else ():
            error, sd_error, rhat, ess = (
                np.array([row[name][k] for row in mine]) for k in ("error", "sd error", "rhat", "ess")
            )
            divergent = np.mean([row["divergent"] for row in mine])
            table.append(
                (
                    form,
                    size,
                    name,
                    len(mine),
                    error.mean(),
                    error.max(),
                    sd_error.mean(),
                    sd_error.max(),
                    f"{rhat.max():.4f}",
                    ess.min(),
                    divergent,
                )
            )
    header = (
        "form",
        "simulations",
        "latent",
        "seeds",
        "mean: error / sd",
        "worst",
        "sd: relative error",
        "worst",
        "worst R-hat",
        "least ESS",
        "divergent",
    )
    return report.write(
        "mcmc_two_sites",
        "Two simulator sites, a Poisson likelihood and a positive latent",
        [("Four chains of 500 + 1,000 draws against brute force on a grid", report.table(header, table))],
        {"rows": [[*case, mine] for case, mine in rows.items()]},
    )


if __name__ == "__main__":
    main()
