"""g-and-k with outliers: sensitivity of the posterior bootstrap to length scale, concentration and truncation.

    python -m benchmarks npl_sensitivity                     # 5 data sets
    python -m benchmarks npl_sensitivity --datasets 1        # a look
    python -m benchmarks npl_sensitivity --figure            # the figure alone, of the kept table

The mixing proportion is free. The prior guess of the data's distribution is N(5, 5^2). Writes the figure
`docs/_static/npl_sensitivity.png`. Takes five minutes of CPU time, mostly compilation.
"""

from functools import partial

import jax
import numpy as np

from benchmarks.helpers import report
from benchmarks.helpers.npl_models import GK, GK_TRUTH, gk_data, gk_nmse, gk_starts, upright
from numpyro_kme.bootstrap import DirichletProcess, Settings, posterior_bootstrap
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD
from numpyro_kme.plots._style import COLOURS, DARK, legend, panels

LENGTH_SCALES = (0.05, 0.1, 0.15, 0.3, 0.6, 1.2, 2.4)
WORTH = (0.0, 20.0, 100.0, 400.0)
TRUNCATION = (25, 100, 400)
NAMES = ("a", "b", "g", "log k")


def guess(rng_key, num):
    return 5.0 + 5.0 * jax.random.normal(rng_key, (num,))


def one(seed, size, scale=0.15, worth=0.0, truncation=100):
    """Posterior mean and sd of (a, b, g, log k), and the mixing proportion."""
    rng = np.random.default_rng([seed, 17])
    x, starts = gk_data(rng, 0.1, size), gk_starts(rng)
    process = DirichletProcess(worth, guess if worth else None, truncation)
    extra = process.points(jax.random.key(seed), np.arange(16), x)
    bound = MMD(Gaussian(scale), fit_proportion=True).objective(x, GK, extra)
    found = posterior_bootstrap(jax.random.key(seed), bound, starts, process, Settings(num_samples=100))
    u = upright(found.u)
    return (*u.mean(axis=0), *u.std(axis=0), found.numbers["mixing_proportion"].mean(), found.converged.mean())


def figure():
    """Posterior means and standard deviations about the truth, one panel for each setting, from the kept table."""
    table = report.rows_of("npl_sensitivity", "Posterior mean (sd)")
    drawn, axes = panels(3, (9.0, 3.2), sharey=True)
    for axis, setting in zip(axes, ("length scale", "concentration", "truncation"), strict=True):
        rows = [row for row in table if row["setting"] == setting]
        for k, parameter in enumerate(NAMES):
            mean, sd = np.array([report.mean_and_sd(row[parameter]) for row in rows]).T
            at = np.arange(len(rows)) + 0.1 * (k - 1.5)
            axis.errorbar(at, mean - GK_TRUTH[k], sd, fmt="o", ms=3, color=COLOURS[k], label=parameter)
        axis.axhline(0.0, color=DARK, linewidth=0.8)
        axis.set_xticks(range(len(rows)), [row["value"] for row in rows])
        axis.set(xlabel=setting, ylim=(-0.5, 1.4))
    axes[0].set_ylabel("posterior mean less truth, and sd")
    legend(axes, None)
    report.save_figure(drawn, "npl_sensitivity")


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--datasets", type=int, default=5)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--figure", action="store_true")
    arguments = parser.parse_args()
    if arguments.figure:
        return figure()
    settings = [("length scale", value, dict(scale=value)) for value in LENGTH_SCALES]
    settings += [("concentration", value, dict(worth=value)) for value in WORTH]
    settings += [("truncation", value, dict(worth=100.0, truncation=value)) for value in TRUNCATION]
    groups = {"length scale": {}, "concentration": {}, "truncation": {}}
    for name, value, given in settings:
        groups[name][value] = [
            arguments.rows.get(
                partial(one, seed, arguments.size, **given), setting=name, value=value, size=arguments.size, seed=seed
            )
            for seed in range(arguments.datasets)
        ]
        rows = []
        for setting, found in groups.items():
            for at, runs in found.items():
                means = np.mean(runs, axis=0)
                nmse = np.mean([gk_nmse(np.array(run[:4])) for run in runs])
                shown = [f"{means[k]:.2f} ({means[4 + k]:.2f})" for k in range(4)]
                rows.append((setting, at, len(runs), *shown, nmse, means[8], means[9]))
        header = ("setting", "value", "data sets", *NAMES, "NMSE", "mixing proportion", "converged")
        heading = f"Posterior mean (sd), {arguments.size} points, 10 % outliers; the truth is (3, 1, 1, -0.69)"
        text = report.table(header, rows)
        report.save("npl_sensitivity", "g-and-k, free mixing proportion: sensitivity", [(heading, text)])
    figure()
