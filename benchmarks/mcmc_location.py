"""Contaminated location, 10 % at 20: MMD-Bayes with a calibrated weight beside the standard posterior; coverage.

    python benchmarks/mcmc_location.py                       # 100 data sets
    python benchmarks/mcmc_location.py --datasets 10         # a look
    python benchmarks/mcmc_location.py --runs runs.jsonl     # keeps each data set's numbers, and resumes from them

One parameter, so posteriors are computed on a grid. Writes `results/mcmc_location.md` and `results/mcmc_location.json`.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import report

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


BOOTSTRAP = kme.PosteriorBootstrap(model, kme.MMD(), num_samples=200, num_nodes=128)


def summary(log_p):
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    total = np.cumsum(p)
    low, high = (np.interp(q, total, GRID) for q in (0.5 - LEVEL / 2, 0.5 + LEVEL / 2))
    mean = p @ GRID
    return {"mean": mean, "sd": np.sqrt(p @ (GRID - mean) ** 2), "covers": bool(low <= TRUTH <= high)}


@jax.jit
def losses(density):
    """`-n loss` on the grid."""

    def at(mean):
        density.arguments = mean[None]
        return density.log_prob(0.0).sum()

    return jax.vmap(at)(jnp.asarray(GRID))


def scores(x):
    """`-n loss` on the grid: the density that `generalized_bayes` puts in place, as one program for all data sets."""
    gb = kme.handlers.generalized_bayes(model, kme.MMD(), weight=1.0, noise=kme.CommonNoise(128))
    trace = numpyro.handlers.trace(numpyro.handlers.substitute(gb, {"mean": jnp.zeros(())})).get_trace(x)
    return np.asarray(losses(trace["x"]["fn"]))


def one(seed):
    """Posterior mean, interval that covers or not, and weight, of each posterior for one data set."""
    x = np.random.default_rng(seed).normal(TRUTH, 1.0, SIZE)
    x[: int(SHARE * SIZE)] += 19.0
    BOOTSTRAP.run(jax.random.key(seed), x)
    weights = kme.diagnostics.WeightCalibration.from_bootstrap(BOOTSTRAP, level=LEVEL)
    prior = np.asarray(dist.Normal(0.0, 5.0).log_prob(GRID))
    unit = scores(x)
    return {
        "by bootstrap": summary(prior + weights.by_bootstrap * unit) | {"weight": weights.by_bootstrap},
        "by coverage": summary(prior + weights.by_coverage * unit) | {"weight": weights.by_coverage},
        "standard posterior": summary(prior - 0.5 * np.sum(np.square(GRID[:, None] - x[None]), axis=1))
        | {"weight": 1.0},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--runs")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    kept = report.Kept(arguments.runs)
    rows = [kept.get((seed,), lambda: one(seed)) for seed in range(arguments.datasets)]  # noqa: B023
    header = ("posterior", "data sets", "mean error", "largest error", f"coverage of {LEVEL:.0%} intervals", "mean sd",
              "sd of the means", "mean weight")  # fmt: skip
    table = []
    for name in rows[0]:
        mean, sd, covers, weight = (
            np.array([row[name][k] for row in rows], float) for k in ("mean", "sd", "covers", "weight")
        )
        errors = np.abs(mean - TRUTH)
        table.append(
            (name, len(rows), errors.mean(), errors.max(), covers.mean(), sd.mean(), mean.std(), weight.mean())
        )
    report.save("mcmc_location", "Contaminated location: generalised Bayes",
                [(f"n = {SIZE}, {SHARE:.0%} of the data at 20, truth {TRUTH}", report.table(header, table))],
                {"rows": rows})  # fmt: skip


if __name__ == "__main__":
    main()
