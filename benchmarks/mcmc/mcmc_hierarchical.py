"""Linear-Gaussian hierarchical model: 20 groups, a likelihood learnt once from 2,000 single-group simulations, NUTS.

    python -m benchmarks mcmc_hierarchical [--seeds 5]

The simulator is a NumPy function of one group. Takes an hour, half of it for the published form.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.posteriors import AGREEMENT, agreement, four_chains, moments, normalised, summary

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
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", GROUPS):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mean + scale * z)
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
    mean, scale = np.meshgrid(np.linspace(-3, 3, 601), np.linspace(1e-3, 4, 600), indexing="ij")
    total = scale**2 + variance
    log_p = -0.5 * mean**2 - 0.5 * scale**2 - 0.5 * GROUPS * np.log(total)
    log_p -= 0.5 * sum((e - mean) ** 2 for e in estimate) / total
    p = normalised(log_p)
    return {name: moments(p, value) for name, value in (("mean", mean), ("scale", scale))}


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
        simulated = kme.simulate(jax.random.key(seed), one_group, simulations, progress_bar=False)
        fitted = kme.fit_likelihood(simulated.arguments["x"], simulated.x["x"], form=form)
        model, kwargs = kme.handlers.surrogate(hierarchical, {"x": fitted}), {}
    learnt = time.perf_counter()
    mcmc = four_chains(model, 300, draws)
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
    return row | {site: agreement(chains[site], *exact) for site, exact in exact_moments(x).items()}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=700)
    arguments = parser.parse_args()
    settings, rows = {"simulations": arguments.simulations, "draws": arguments.draws}, {}
    exact, *learnt = LIKELIHOODS
    order = [(name, seed) for seed in range(arguments.seeds) for name in (exact, learnt[0])]
    for name, seed in order + [(name, seed) for name in learnt[1:] for seed in range(arguments.seeds)]:
        key = {"name": name, "seed": seed, **settings}
        rows[name, seed] = arguments.rows.get(partial(run, **key), **key)
        text = save(rows, arguments)
    print(text)


def save(rows, arguments):
    header = ("likelihood", "parameter", "seeds", *AGREEMENT, "divergent", "negative", "outside")
    header += ("seconds to learn", "to sample")
    table = []
    for name in dict.fromkeys(name for name, _ in rows):
        mine = [row for (other, _), row in rows.items() if other == name]
        columns = ("divergent", "negative", "outside", "learning", "sampling")
        rest = [np.mean([row[column] for row in mine]) for column in columns]
        table += [(name, site, len(mine), *summary([row[site] for row in mine]), *rest) for site in ("mean", "scale")]
    how = (
        f"NUTS, four vectorised chains, 300 + {arguments.draws} draws, float32. Errors are against the exact posterior "
        "on a grid, absolute values averaged over seeds (new data, simulations and chains each)."
    )
    heading = f"{GROUPS} groups, {arguments.simulations} single-group simulations in all"
    sections = [(heading, report.table(header, table)), ("How", how)]
    return report.write("mcmc_hierarchical", "A learnt single-group likelihood in a hierarchical model", sections)
