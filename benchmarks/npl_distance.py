"""Posterior of a location against the distance of the outliers: NPL-MMD, MMD-Bayes and the standard posterior.

    python benchmarks/npl_distance.py                     # 10 data sets, about 5 minutes
    python benchmarks/npl_distance.py --datasets 2        # a look

A tenth of 100 points from N(0, 1) is moved by the distance. MMD-Bayes is `handlers.generalized_bayes` with the weight
calibrated by the bootstrap, on a grid of the one parameter. Writes `results/npl_distance.md`,
`results/npl_distance.json` and the picture `docs/_static/npl_distance.png`.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import report
from npl_models import LINE, bootstrap
from numpyro.infer.util import log_density

import numpyro_kme as kme

SIZE, SHARE = 100, 0.1
DISTANCES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0)
GRID = np.linspace(-2.0, 4.0, 601)
KERNEL = kme.kernels.Gaussian(1.0)
NAMES = ("NPL-MMD", "NPL-MMD, free mass", "MMD-Bayes", "standard posterior")


def shift(noise, mean):
    return mean + noise


LOCATION = kme.FromNoise(shift, dist.Normal(0.0, 1.0))


def model(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(LOCATION, mean), obs=x)


GENERALIZED = partial(kme.handlers.generalized_bayes, model, kme.MMD(KERNEL), noise=kme.CommonNoise(128))


def scores(x):
    """Log densities of MMD-Bayes with weight 1 on the grid."""
    score = lambda mean: log_density(GENERALIZED(weight=1.0), (x,), {}, {"mean": mean})[0]  # noqa: E731
    return np.asarray(jax.jit(jax.vmap(score))(jnp.asarray(GRID)))


def on_grid(log_p):
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ GRID
    return mean, np.sqrt(p @ (GRID - mean) ** 2)


def one(seed, distance):
    """Mean and standard deviation of each posterior."""
    rng = np.random.default_rng([seed, 3])
    x, starts = rng.normal(size=SIZE), rng.normal(0.0, 2.0, (64, 1))
    x[: int(SHARE * SIZE)] += distance
    found = []
    for free in (False, True):
        bound = kme.MMD(KERNEL, fit_proportion=free).objective(x[:, None], LINE)
        u = bootstrap(seed, bound, starts, 200, num_nodes=128).u[:, 0]
        found.append((u.mean(), u.std()))
    weight = kme.diagnostics.calibrate_weight(
        jax.random.key(seed), model, kme.MMD(KERNEL), x, num_replicates=100, num_nodes=128
    ).by_bootstrap
    prior = np.asarray(dist.Normal(0.0, 5.0).log_prob(GRID))
    found.append(on_grid(prior + weight * (scores(x) - prior)))
    found.append(on_grid(prior - 0.5 * np.sum(np.square(GRID[:, None] - x[None]), axis=1)))
    return found


def picture(table):
    """Mean of the posteriors, and one standard deviation to each side, against the distance."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for k, (name, style) in enumerate(zip(NAMES, ("o-", "s--", "^:", "v-"), strict=True)):
        mean, sd = table[:, k, 0], table[:, k, 1]
        axes.plot(DISTANCES, mean, style, ms=6 - 1.2 * k, lw=2.4 - 0.4 * k, label=name)
        axes.fill_between(DISTANCES, mean - sd, mean + sd, alpha=0.15)
    axes.axhline(0.0, color="k", lw=0.8)
    axes.set(xlabel="distance of one point in ten", ylabel="location", ylim=(-0.5, 1.5))
    axes.legend(frameon=False)
    figure.savefig(report.RESULTS.parents[1] / "docs" / "_static" / "npl_distance.png", dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=10)
    report.add_runs(parser)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    runs = []
    for seed in range(arguments.datasets):
        runs.append([arguments.runs.get((seed, distance), partial(one, seed, distance)) for distance in DISTANCES])
        table = np.mean(runs, axis=0)
        rows = [
            (distance, *(f"{m:.2f} ({s:.2f})" for m, s in row)) for distance, row in zip(DISTANCES, table, strict=True)
        ]
        text = report.table(("distance", *NAMES), rows)
        heading = f"Posterior mean (sd), {len(runs)} data sets of {SIZE}; a tenth is moved; the truth is 0"
        print(
            report.write("npl_distance", "Location against the outliers' distance", [(heading, text)], {"runs": runs})
        )
    picture(table)


if __name__ == "__main__":
    main()
