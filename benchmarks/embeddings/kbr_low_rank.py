"""Kernel Bayes' rule with low-rank factors: rank, time and error against dense matrices, by tolerance.

    python -m benchmarks kbr_low_rank [--size 1000] [--repeats 5]

Normals of experiment 5.1 of Fukumizu, Song & Gretton (2013), median length scales, the paper's regularisation. `R` is
compared where it acts: weights of the posterior at 200 observations, relative to the norm of the dense ones, and
posterior means in posterior standard deviations. Takes two minutes.
"""

import time

import jax
import numpy as np

from benchmarks.embeddings.kbr_gaussian import Normals
from benchmarks.helpers import report
from numpyro_kme.embeddings.kernel_bayes import KernelBayesRule
from numpyro_kme.embeddings.means import MeanEmbedding
from numpyro_kme.kernels import Gaussian, median_heuristic

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-12)


def dense_weights(x, y, prior, seen, kernels, eps, delta):
    """`R_{x|y} k_Y(y)` by dense matrices: `Lambda G_Y ((Lambda G_Y)^2 + delta I)^-1 Lambda k_Y(y)`."""
    kernel_x, kernel_y = kernels
    n = len(x)
    within = np.asarray(kernel_x.gram(x, x)) + n * eps * np.eye(n)
    mu = np.linalg.solve(within, np.asarray(kernel_x.gram(x, prior)).mean(1))
    product = mu[:, None] * np.asarray(kernel_y.gram(y, y))
    right = mu[:, None] * np.asarray(kernel_y.gram(y, seen))
    return (product @ np.linalg.solve(product @ product + delta * np.eye(n), right)).T


def one(dim, size, seed):
    """Errors, ranks and times of all tolerances on one data set."""
    rng = np.random.default_rng(seed)
    normals = Normals(rng, dim)
    joint = rng.multivariate_normal(np.zeros(2 * dim), normals.joint, size=size)
    x, y = joint[:, :dim], joint[:, dim:]
    u = rng.multivariate_normal(np.zeros(dim), normals.prior, size=size)
    slope, noise = normals.slope, normals.noise
    seen = u[:200] @ slope.T + rng.multivariate_normal(np.zeros(dim), noise, size=min(size, 200))
    precision = np.linalg.inv(normals.prior) + slope.T @ np.linalg.solve(noise, slope)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    kernels = Gaussian(float(median_heuristic(x))), Gaussian(float(median_heuristic(y)))
    eps = 0.01 / size
    delta = 2.0 * eps
    begun = time.perf_counter()
    dense = dense_weights(x, y, u, seen, kernels, eps, delta)
    rows = [("dense", size, time.perf_counter() - begun, 0.0, 0.0)]
    means = dense @ x / dense.sum(axis=1, keepdims=True)
    for tolerance in TOLERANCES:
        begun = time.perf_counter()
        prior = MeanEmbedding(kernels[0], u)
        rule = KernelBayesRule.fit(kernels[1], x, y, prior, eps, delta=delta, tolerance=tolerance)
        weights = rule.weights(seen)
        seconds = time.perf_counter() - begun
        error = np.linalg.norm(weights - dense) / np.linalg.norm(dense)
        moved = (weights @ x / weights.sum(axis=1, keepdims=True) - means) / sd
        rows.append((f"{tolerance:g}", rule.right.rank, seconds, error, float(np.sqrt(np.mean(moved**2)))))
    return rows


def summary(runs):
    """Medians over data sets."""
    rank, *rest = np.median([run[1:] for run in runs], axis=0)
    return (runs[0][0], int(rank), *rest)


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    header = ["tolerance", "rank", "seconds", "relative error of R", "error of means, posterior sd"]
    sections = []
    for dim in (2, 6):
        with jax.enable_x64(True):
            one(dim, options.size, 10_000)  # compiles
            runs = [one(dim, options.size, seed) for seed in range(options.repeats)]
        lines = [summary(row) for row in zip(*runs)]
        sections.append((f"{dim} dimensions, {options.size} pairs", report.table(header, lines)))
    note = f"Medians over {options.repeats} data sets; seconds are wall time without compilation."
    sections.append(("How to read it", note))
    report.save("kbr_low_rank", "Kernel Bayes' rule with low-rank factors", sections)
