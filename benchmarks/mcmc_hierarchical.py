"""Linear-Gaussian hierarchical model: 20 groups, a likelihood learnt once from 2,000 single-group simulations, NUTS.

    python benchmarks/mcmc_hierarchical.py                       # 5 seeds, both forms
    python benchmarks/mcmc_hierarchical.py --runs runs.jsonl     # keeps each run, and resumes from them

The simulator is a NumPy function of one group. Writes `results/mcmc_hierarchical.md` and
`results/mcmc_hierarchical.json`.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import report
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

import numpyro_kme as kme

GROUPS, NOISE = 20, 0.5
LOADING = np.array([1.0, 0.5])
LIKELIHOODS = {
    "exact": None,
    "learnt, residual form": kme.ResidualKernelMeans(),
    "learnt, published form": kme.KernelMeans(),
}


def group(rng, theta):
    """Two statistics of one group; nothing but NumPy."""
    return LOADING * theta + NOISE * rng.normal(size=2)


def hierarchical(x=None, exact=False):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", GROUPS):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mean + spread * z)
        if exact:
            numpyro.sample("x", dist.Normal(jnp.asarray(LOADING) * theta[:, None], NOISE).to_event(1), obs=x)
        else:
            numpyro.sample("x", kme.Simulator(group, theta, event_dims=0, shape=(2,), dtype=float), obs=x)


def one_group():
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    numpyro.sample("x", kme.Simulator(group, theta, shape=(2,), dtype=float))


def exact_moments(x):
    """Means and sds of the population parameters, the groups integrated out, on a grid."""
    size = LOADING @ LOADING
    estimate, variance = x @ LOADING / size, NOISE**2 / size
    mean, spread = np.meshgrid(np.linspace(-3, 3, 601), np.linspace(1e-3, 4, 600), indexing="ij")
    total = spread**2 + variance
    log_p = -0.5 * mean**2 - 0.5 * spread**2 - 0.5 * GROUPS * np.log(total)
    log_p -= 0.5 * sum((e - mean) ** 2 for e in estimate) / total
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    moments = {}
    for name, value in (("mean", mean), ("spread", spread)):
        first = np.sum(p * value)
        moments[name] = first, np.sqrt(np.sum(p * (value - first) ** 2))
    return moments


def data(seed):
    rng = np.random.default_rng(seed)
    theta = 0.4 + 0.8 * rng.normal(size=GROUPS)
    return theta[:, None] * LOADING + NOISE * rng.normal(size=(GROUPS, 2))


def run(seed, name, simulations, draws):
    """Errors of one run, against the exact moments."""
    x, form, began = data(seed), LIKELIHOODS[name], time.perf_counter()
    check = {"negative": 0.0, "outside": 0.0}
    if form is None:
        model, kwargs = hierarchical, {"exact": True}
    else:
        bank = kme.simulate(jax.random.key(seed), one_group, simulations, progress_bar=False)
        fitted = kme.fit_likelihood(bank.arguments["x"], bank.x["x"], form=form)
        model, kwargs = kme.handlers.surrogate(hierarchical, {"x": fitted}), {}
    learnt = time.perf_counter()
    mcmc = MCMC(
        NUTS(model), num_warmup=300, num_samples=draws, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(jax.random.key(seed), x, **kwargs)
    chains = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    ended = time.perf_counter()
    if form is not None:
        flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in chains.items() if name != "theta"}
        found = kme.mcmc.check_surrogate(model, flat, x)["x"]
        check = {"negative": found.negative, "outside": found.beyond}
    row = {
        "divergent": float(np.mean(mcmc.get_extra_fields()["diverging"])),
        **check,
        "learning": learnt - began,
        "sampling": ended - learnt,
    }
    for site, (mean, sd) in exact_moments(x).items():
        row[site] = {
            "error": float(chains[site].mean() - mean) / sd,
            "sd error": float(chains[site].std()) / sd - 1.0,
            "rhat": float(split_gelman_rubin(chains[site])),
            "ess": float(effective_sample_size(chains[site])),
        }
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=700)
    parser.add_argument("--runs")
    arguments = parser.parse_args()
    settings = arguments.simulations, arguments.draws
    kept, rows = report.Kept(arguments.runs), {}
    exact, *learnt = LIKELIHOODS
    order = [(name, seed) for seed in range(arguments.seeds) for name in (exact, learnt[0])]
    for name, seed in order + [(name, seed) for name in learnt[1:] for seed in range(arguments.seeds)]:
        rows[name, seed] = kept.get((name, seed, *settings), lambda: run(seed, name, *settings))  # noqa: B023
        text = save(rows, arguments)
    print(text)


def save(rows, arguments):
    header = (
        "likelihood",
        "parameter",
        "seeds",
        "mean: error / sd",
        "worst",
        "sd: relative error",
        "worst",
        "worst R-hat",
        "least ESS",
        "divergent",
        "negative",
        "outside",
        "seconds to learn",
        "to sample",
    )
    table = []
    for name in dict.fromkeys(name for name, _ in rows):
        for site in ("mean", "spread"):
            mine = [row for (other, _), row in rows.items() if other == name]
            error, sd_error, rhat, ess = (
                np.array([row[site][k] for row in mine]) for k in ("error", "sd error", "rhat", "ess")
            )
            rest = [
                np.mean([row[k] for row in mine]) for k in ("divergent", "negative", "outside", "learning", "sampling")
            ]
            error, sd_error = np.abs(error), np.abs(sd_error)
            table.append(
                (
                    name,
                    site,
                    len(mine),
                    error.mean(),
                    error.max(),
                    sd_error.mean(),
                    sd_error.max(),
                    f"{rhat.max():.4f}",
                    ess.min(),
                    *rest,
                )
            )
    return report.write(
        "mcmc_hierarchical",
        "A learnt single-group likelihood in a hierarchical model",
        [
            (f"{GROUPS} groups, {arguments.simulations} single-group simulations in all", report.table(header, table)),
            (
                "How",
                f"NUTS, four vectorised chains, 300 + {arguments.draws} draws, float32. Errors are against the "
                "exact posterior "
                "on a grid, absolute values averaged over seeds (new data, simulations and chains each).",
            ),
        ],
        {"rows": [[name, seed, row] for (name, seed), row in rows.items()]},
    )


if __name__ == "__main__":
    main()
