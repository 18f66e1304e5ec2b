"""Contaminated location, 10 % at 20: MMD-Bayes with a calibrated weight beside the standard posterior; coverage.

    python benchmarks/mcmc_location.py                     # 100 data sets
    python benchmarks/mcmc_location.py --datasets 10       # a look

One parameter, so posteriors are computed on a grid. Writes `results/mcmc_location.md` and `results/mcmc_location.json`.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import report
from numpyro.infer.util import log_density

import numpyro_kme as kme

SIZE, TRUTH, SHARE, LEVEL = 100, 1.0, 0.1, 0.9
GRID = np.linspace(-1.0, 5.0, 1201)


def shift(noise, mean):
    return mean + noise


LOCATION = kme.FromNoise(shift, dist.Normal(0.0, 1.0))


def model(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(LOCATION, mean), obs=x)


def summary(log_p):
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    total = np.cumsum(p)
    low, high = (np.interp(q, total, GRID) for q in (0.5 - LEVEL / 2, 0.5 + LEVEL / 2))
    return p @ GRID, low <= TRUTH <= high


def scores(gb, x):
    return np.asarray(jax.jit(jax.vmap(lambda m: log_density(gb, (x,), {}, {"mean": m})[0]))(jnp.asarray(GRID)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=100)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = []
    for seed in range(arguments.datasets):
        x = np.random.default_rng(seed).normal(TRUTH, 1.0, SIZE)
        x[: int(SHARE * SIZE)] += 19.0
        weights = kme.calibrate_weight(jax.random.key(seed), model, kme.MMD(), x, num_replicates=200, num_nodes=128)
        gb = partial(kme.handlers.generalized_bayes, model, kme.MMD(), noise=kme.CommonNoise(128))
        unit = scores(gb(weight=1.0), x)
        prior = np.asarray(dist.Normal(0.0, 5.0).log_prob(GRID))
        found = {
            "by bootstrap": summary(prior + weights.by_bootstrap * (unit - prior)),
            "by coverage": summary(prior + weights.by_coverage * (unit - prior)),
            "standard posterior": summary(prior - 0.5 * np.sum(np.square(GRID[:, None] - x[None]), axis=1)),
        }
        rows += [(seed, name, *value, weights.by_bootstrap, weights.by_coverage) for name, value in found.items()]
        print(rows[-3:], flush=True)
    header = (
        "posterior",
        "data sets",
        "mean error",
        "largest error",
        f"coverage of {LEVEL:.0%} intervals",
        "mean weight",
    )
    table = []
    for k, name in enumerate(found):
        mine = [row for row in rows if row[1] == name]
        errors = np.array([abs(row[2] - TRUTH) for row in mine])
        weight = np.mean([row[4 + k] for row in mine]) if k < 2 else 1.0
        table.append(
            (
                name,
                len(mine),
                errors.mean(),
                errors.max(),
                float(np.mean([row[3] for row in mine])),
                float(weight),
            )
        )
    report.save("mcmc_location", "Contaminated location: generalised Bayes",
                [(f"n = {SIZE}, {SHARE:.0%} of the data at 20, truth {TRUTH}", report.table(header, table))],
                {"rows": rows})  # fmt: skip


if __name__ == "__main__":
    main()
