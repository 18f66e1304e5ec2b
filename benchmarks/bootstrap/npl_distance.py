"""Posterior of a location against the distance of the outliers: NPL-MMD, MMD-Bayes and the standard posterior.

    python -m benchmarks npl_distance                  # 10 data sets
    python -m benchmarks npl_distance --datasets 2     # a look
    python -m benchmarks npl_distance --figure         # the figure alone, of the kept table

A tenth of 100 points from N(0, 1) is moved by the distance. MMD-Bayes is `handlers.generalized_bayes` with the weight
calibrated by the bootstrap, on a grid of the one parameter. Writes the figure `docs/_static/npl_distance.png`. Takes
five minutes.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.util import log_density

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.location import PRIOR, log_standard, model
from benchmarks.helpers.npl_models import LINE, bootstrap
from benchmarks.helpers.posteriors import moments, normalised
from numpyro_kme.plots._style import COLOURS, DARK, FILL, legend, panels

SIZE, OUTLIERS = 100, 0.1
DISTANCES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0)
GRID = np.linspace(-2.0, 4.0, 601)
KERNEL = kme.kernels.Gaussian(1.0)
NAMES = ("NPL-MMD", "NPL-MMD, free mixing proportion", "MMD-Bayes", "standard posterior")


GENERALIZED = partial(kme.handlers.generalized_bayes, model, kme.MMD(KERNEL), noise=kme.CommonNoise(128))


def scores(x):
    """Log densities of MMD-Bayes with weight 1 on the grid."""
    score = lambda mean: log_density(GENERALIZED(weight=1.0), (x,), {}, {"mean": mean})[0]  # noqa: E731
    return np.asarray(jax.jit(jax.vmap(score))(jnp.asarray(GRID)))


def one(seed, distance):
    """Mean and standard deviation of each posterior."""
    rng = np.random.default_rng([seed, 3])
    x, starts = rng.normal(size=SIZE), rng.normal(0.0, 2.0, (64, 1))
    x[: int(OUTLIERS * SIZE)] += distance
    found = []
    for free in (False, True):
        bound = kme.MMD(KERNEL, fit_proportion=free).objective(x[:, None], LINE)
        u = bootstrap(seed, bound, starts, 200, num_nodes=128).u[:, 0]
        found.append((u.mean(), u.std()))
    npl = kme.PosteriorBootstrap(model, kme.MMD(KERNEL), num_samples=100, num_nodes=128)
    npl.run(jax.random.key(seed), x)
    weight = kme.diagnostics.calibrate_weight(npl).by_bootstrap
    prior = np.asarray(PRIOR.log_prob(GRID))
    generalized = prior + weight * (scores(x) - prior)
    return found + [moments(normalised(log_p), GRID) for log_p in (generalized, log_standard(x, GRID))]


def figure():
    """Mean of the posteriors, and one standard deviation to each side, against the distance, from the kept table."""
    rows = report.rows_of("npl_distance", "Posterior mean (sd)")
    distances = [float(row["distance"]) for row in rows]
    drawn, (axes,) = panels(1, (6.0, 3.4))
    for k, (name, style) in enumerate(zip(NAMES, ("o-", "s--", "^:", "v-"), strict=True)):
        mean, sd = np.array([report.mean_and_sd(row[name]) for row in rows]).T
        axes.plot(distances, mean, style, color=COLOURS[k], ms=4 - 0.7 * k, lw=2.4 - 0.4 * k, label=name)
        axes.fill_between(distances, mean - sd, mean + sd, color=COLOURS[k], alpha=FILL / 2, linewidth=0)
    axes.axhline(0.0, color=DARK, linewidth=0.8)
    axes.set(xlabel="distance of one point in ten", ylabel="location", ylim=(-0.5, 1.5))
    legend([axes], None)
    report.save_figure(drawn, "npl_distance")


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--datasets", type=int, default=10)
    parser.add_argument("--figure", action="store_true")
    arguments = parser.parse_args()
    if arguments.figure:
        return figure()
    jax.config.update("jax_enable_x64", True)
    rows, runs = arguments.rows, []
    for seed in range(arguments.datasets):
        runs.append([rows.get(partial(one, seed, at), seed=seed, distance=at) for at in DISTANCES])
        table = np.mean(runs, axis=0)
        lines = [(at, *(f"{m:.2f} ({s:.2f})" for m, s in line)) for at, line in zip(DISTANCES, table, strict=True)]
        text = report.table(("distance", *NAMES), lines)
        heading = f"Posterior mean (sd), {len(runs)} data sets of {SIZE}; a tenth is moved; the truth is 0"
        report.save("npl_distance", "Location against the outliers' distance", [(heading, text)])
    figure()
