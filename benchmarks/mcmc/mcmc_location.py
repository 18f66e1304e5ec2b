"""Contaminated location, 10 % at 20: MMD-Bayes with a calibrated weight beside the standard posterior; coverage.

    python -m benchmarks mcmc_location                  # 100 data sets
    python -m benchmarks mcmc_location --datasets 10    # a look

One parameter, so posteriors are computed on a grid. Takes a quarter of an hour.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.location import PRIOR, log_standard, model
from benchmarks.helpers.posteriors import moments, normalised

SIZE, TRUTH, OUTLIERS, LEVEL = 100, 1.0, 0.1, 0.9
GRID = np.linspace(-1.0, 5.0, 1201)


BOOTSTRAP = kme.PosteriorBootstrap(model, kme.MMD(), num_samples=200)


def summary(log_p):
    p = normalised(log_p)
    total = np.cumsum(p)
    low, high = (np.interp(q, total, GRID) for q in (0.5 - LEVEL / 2, 0.5 + LEVEL / 2))
    return dict(zip(("mean", "sd"), moments(p, GRID))) | {"covers": bool(low <= TRUTH <= high)}


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
    x[: int(OUTLIERS * SIZE)] += 19.0
    BOOTSTRAP.run(jax.random.key(seed), x)
    weights = kme.diagnostics.calibrate_weight(BOOTSTRAP, level=LEVEL)
    prior = np.asarray(PRIOR.log_prob(jnp.asarray(GRID)))
    unit = scores(x)
    return {
        "by bootstrap": summary(prior + weights.by_bootstrap * unit) | {"weight": weights.by_bootstrap},
        "by coverage": summary(prior + weights.by_coverage * unit) | {"weight": weights.by_coverage},
        "standard posterior": summary(log_standard(x, GRID)) | {"weight": 1.0},
    }


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--datasets", type=int, default=100)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = [arguments.rows.get(partial(one, seed), seed=seed) for seed in range(arguments.datasets)]
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
    heading = f"n = {SIZE}, {OUTLIERS:.0%} of the data at 20, truth {TRUTH}"
    report.save("mcmc_location", "Contaminated location: generalised Bayes", [(heading, report.table(header, table))])
