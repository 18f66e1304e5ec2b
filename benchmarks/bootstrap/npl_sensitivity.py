"""g-and-k with outliers: sensitivity of the posterior bootstrap to length scale, concentration and truncation.

    python -m benchmarks npl_sensitivity                     # 5 data sets
    python -m benchmarks npl_sensitivity --datasets 1        # a look

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


def figure(groups):
    """Posterior means and standard deviations about the truth, one panel for each setting."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn, panels = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
    for axes, (name, found) in zip(panels, groups.items(), strict=True):
        values = list(found)
        table = np.array([np.mean(found[value], axis=0) for value in values])
        for k, parameter in enumerate(NAMES):
            at = np.arange(len(values)) + 0.1 * (k - 1.5)
            axes.errorbar(at, table[:, k] - GK_TRUTH[k], table[:, 4 + k], fmt="o", ms=3, label=parameter)
        axes.axhline(0.0, color="k", lw=0.8)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set(xlabel=name, ylim=(-0.5, 1.4))
    panels[0].set_ylabel("posterior mean - truth, sd")
    panels[0].legend(frameon=False, ncols=2)
    drawn.savefig(report.FIGURES / "npl_sensitivity.png", dpi=100)


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--datasets", type=int, default=5)
    parser.add_argument("--size", type=int, default=1024)
    arguments = parser.parse_args()
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
    figure(groups)
