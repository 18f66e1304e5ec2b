"""What each part of the residual form is worth, and what it costs.

    python -m benchmarks residual_ablation [--seeds 20] [--only "+ location" "+ scale"]

Each row adds one part to the row above. Exponential-gamma: Wasserstein-1 to the exact posterior in posterior standard
deviations (`exponential_gamma.py`). Gaussian mixture of two widths in two dimensions, 300 simulations, five
observations a seed: half plus half the total variation distance to the exact posterior, by quadrature; it is the
accuracy that the best classifier could reach (0.5: none). Seconds are those of learning, compiled. Takes a quarter of
an hour.
"""

import time
import warnings

import jax
import numpy as np
from scipy.special import ndtri

from benchmarks.helpers import report
from benchmarks.kelfi.exponential_gamma import STATISTICS, Task, learnt, on_grid
from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.leave_one_out import LeaveOneOut, MarginalLikelihood
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans

FORMS = {
    "published form and objective": KernelMeans(MarginalLikelihood()),
    "+ leave-one-out": KernelMeans(LeaveOneOut()),
    "+ location": ResidualKernelMeans(transform_marginals=False, scale=False, decorrelate=False),
    "+ scale": ResidualKernelMeans(transform_marginals=False, decorrelate=False),
    "+ transforms": ResidualKernelMeans(decorrelate=False),
    "+ decorrelation (default)": ResidualKernelMeans(),
}
OFFSETS = 0.1 * np.sinh(np.linspace(-4.4, 4.4, 161))
CELLS = np.gradient(OFFSETS)


def exponential_gamma(form, statistic, size, seed):
    """Error of one fit, and seconds to learn."""
    task = Task.draw(seed, size)
    begun = time.perf_counter()
    posterior = learnt(task, statistic, form)
    return task.error(on_grid(posterior)), time.perf_counter() - begun


def mixture_draws(rng, theta):
    """Normals around `theta` of standard deviation 1 or 0.1, with equal odds."""
    return theta + np.where(rng.random((len(theta), 1)) < 0.5, 1.0, 0.1) * rng.normal(size=theta.shape)


def mixture(form, size, seed):
    """Mean accuracy of the best classifier over five observations, and seconds to learn for one."""
    rng = np.random.default_rng(seed)
    theta = rng.uniform(-10.0, 10.0, size=(size + 5, 2))
    x = mixture_draws(rng, theta)
    z, observed = ndtri((theta + 10.0) / 20.0), x[size:]
    scores, seconds = [], []
    for y in observed if isinstance(form, KernelMeans) and isinstance(form.objective, MarginalLikelihood) else [None]:
        begun = time.perf_counter()
        surrogate = form.fit(z[:size], x[:size], measure=standard_normal(2), y=y)
        seconds.append(time.perf_counter() - begun)
        scores += [best_accuracy(surrogate.at(one), one) for one in (observed if y is None else [y])]
    return np.mean(scores), np.mean(seconds)


def best_accuracy(likelihood, y):
    """Half plus half the total variation distance between the learnt posterior and the exact one."""
    offsets = np.stack(np.meshgrid(OFFSETS, OFFSETS, indexing="ij"), axis=-1).reshape(-1, 2)
    theta = y + offsets
    inside = np.all(np.abs(theta) < 10.0, axis=1)
    cells = np.outer(CELLS, CELLS).ravel() * inside
    z = ndtri((np.clip(theta, -9.999999, 9.999999) + 10.0) / 20.0)
    squares = np.sum(np.square(offsets), axis=1)
    exact = cells * (np.exp(-0.5 * squares) + 100.0 * np.exp(-50.0 * squares))
    sign, log_size = map(np.asarray, _signed_logs(likelihood, z))
    found = cells * np.where(sign > 0, np.exp(log_size - log_size[inside].max()), 0.0)
    return 0.5 + 0.25 * np.sum(np.abs(found / found.sum() - exact / exact.sum()))


@jax.jit
def _signed_logs(likelihood, points):
    return jax.lax.map(likelihood.signed_log, points, batch_size=4096)


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--mixture-seeds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--only", nargs="+", default=list(FORMS), choices=FORMS)
    options = parser.parse_args()
    columns = {
        f"{label}, {size}": (options.seeds, lambda form, seed, s=statistic, m=size: exponential_gamma(form, s, m, seed))
        for label, statistic in STATISTICS.items()
        for size in options.sizes
    }
    columns["mixture, 300"] = (options.mixture_seeds, lambda form, seed: mixture(form, 300, seed))
    found = {}
    for name in options.only:
        found[name] = {}
        for label, (seeds, measure) in columns.items():
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                found[name][label] = np.array([measure(FORMS[name], seed) for seed in range(seeds)])
            errors, seconds = found[name][label].T
            print(
                f"{name}; {label}: {errors.mean():.3f}, most {errors.max():.3f}; {np.median(seconds):.2f} s", flush=True
            )
            write(found, columns)
    print(write(found, columns))


def write(found, columns):
    """Mean errors, largest errors and median seconds, a row for each form."""
    tables = []
    for heading, summary in (
        ("Mean error", lambda runs: float(runs[:, 0].mean())),
        ("Largest error", lambda runs: float(runs[:, 0].max())),
        ("Median seconds to learn", lambda runs: float(np.median(runs[:, 1]))),
    ):
        rows = [
            [name, *(summary(runs[label]) if label in runs else "" for label in columns)]
            for name, runs in found.items()
        ]
        tables.append((heading, report.table(["form", *columns], rows)))
    seeds = "; ".join(f"{label}: {count} seeds" for label, (count, _) in columns.items())
    tables[0] = (
        tables[0][0],
        tables[0][1] + f"\n\n{seeds}. Exponential-gamma by its statistic and number of simulations.",
    )
    return report.write("residual_ablation", "Parts of the residual form", tables)
