"""Kernel Bayes' rule on normals, experiment 5.1 of Fukumizu, Song & Gretton (2013): error of the posterior mean by
dimension.

    python -m benchmarks kbr_gaussian [--repeats 10]

(X, Y) ~ N((0, 1), V), V = A'A + 2I with standard normal entries of A; prior N(0, V_XX / 2); 200 pairs, 200 prior draws,
1,000 observations from the prior predictive. Errors are against the exact posterior mean, in squared units, averaged
over data sets. Length scales: medians, or multiples of them by the paper's 10-fold criterion (first that of X, then
that of Y, norms in each candidate's space as printed, or in that of the medians), or by 10-fold prediction. Bandwidths
of the densities: h_X = h_Y of 2, 4, ..., 20 as in the paper, the best in the mean over data sets or by least squares
cross-validation, or multiples of the medians by conditional likelihood. Takes an hour for 20 repeats.
"""

import jax
import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax

from benchmarks.helpers import report
from numpyro_kme._core.solves import ridge
from numpyro_kme.embeddings.kernel_bayes import posterior_weights
from numpyro_kme.embeddings.means import MeanEmbedding
from numpyro_kme.embeddings.parameter_choice import choose_by_folds, choose_by_prediction, kernel_bayes_candidates
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.kernels.low_rank import LowRank

DIMENSIONS = (2, 4, 8, 16, 32, 64)
N, SEEN = 200, 1000
MULTIPLES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
FACTORS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
WIDTHS = tuple(range(2, 21, 2))
RIVAL = "density estimation, importance weights"
PRINTED = {"h by cross-validation": f"{RIVAL}, h by cross-validation", "best h": f"{RIVAL}, best h"}


class Normals:
    """X and Y with a random joint covariance, another prior of X, and the gain of the posterior mean."""

    def __init__(self, rng, dim):
        a = rng.normal(size=(2 * dim, 2 * dim))
        self.joint = a.T @ a + 2 * np.eye(2 * dim)
        xx, xy, yy = self.joint[:dim, :dim], self.joint[:dim, dim:], self.joint[dim:, dim:]
        self.slope = np.linalg.solve(xx, xy).T
        self.noise = yy - self.slope @ xy
        self.prior = xx / 2
        self.gain = np.linalg.solve(self.slope @ self.prior @ self.slope.T + self.noise, self.slope @ self.prior).T


def problem(rng, dim):
    """Joint sample, prior draws, observations and exact posterior means."""
    normals = Normals(rng, dim)
    joint = rng.multivariate_normal(np.repeat([0.0, 1.0], dim), normals.joint, size=N)
    u, x = (rng.multivariate_normal(np.zeros(dim), normals.prior, size=size) for size in (N, SEEN))
    y = 1 + x @ normals.slope.T + rng.multivariate_normal(np.zeros(dim), normals.noise, size=SEEN)
    return joint[:, :dim], joint[:, dim:], u, y, (y - 1) @ normals.gain.T


def rules(x, y, u, seen):
    """Posterior means by kernel Bayes' rule with both normalisations, and two choices of delta."""
    kernel_x, kernel_y = Gaussian(median_heuristic(x)), Gaussian(median_heuristic(y))
    eps = 0.01 / N
    of_x, of_y = LowRank.fit(kernel_x, x), LowRank.fit(kernel_y, y)
    mu = ridge(of_x.values, N * eps, np.asarray(MeanEmbedding(kernel_x, u)(x)))
    phi = of_y.features(seen)
    for name, weights, delta in (
        ("KBR, delta = 2 eps (default)", mu, 2 * eps),
        ("KBR, mu n times larger (eq. 11)", N * mu, 2 * eps),
        ("KBR, delta = 1e-4 / n", mu, 1e-4 / N),
    ):
        rho = posterior_weights(weights, np.asarray(of_y.values), delta, phi.T).T
        yield name, rho @ x
        yield f"{name}, weights normalised", rho @ x / rho.sum(axis=1, keepdims=True)


def validated(x, y, u, seen):
    """Posterior means by kernel Bayes' rule with cross-validated length scales."""
    kernel_x, kernel_y = Gaussian(median_heuristic(x)), Gaussian(median_heuristic(y))
    eps, key = 0.01 / N, jax.random.key(0)
    ways = {
        "10 folds as printed": lambda tried: choose_by_folds(key, x, y, tried, tolerance=1e-6),
        "10 folds, one norm": lambda tried: choose_by_folds(key, x, y, tried, compare_in=kernel_x, tolerance=1e-6),
        "10-fold prediction": lambda tried: choose_by_prediction(key, x, y, tried, tolerance=1e-6),
    }
    for name, choose in ways.items():
        one = dict(scales_x=MULTIPLES, scales_y=(1.0,)), dict(scales_x=(1.0,), scales_y=MULTIPLES)
        best = choose(kernel_bayes_candidates(kernel_x, kernel_y, [eps], **one[0])).settings
        best = choose(kernel_bayes_candidates(best.kernel_x, kernel_y, [eps], **one[1])).settings
        yield f"KBR, length scales by {name}", best.rule(x, y, u).weights(seen) @ x


def log_kernels(a, b, scale):
    return -0.5 * cdist(a, b, "sqeuclidean") / scale**2


def density_estimation(x, y, u, seen):
    """Importance weights p(y | u) from a kernel density estimate, by each bandwidth."""

    def mean(hx, hy):
        weights = softmax(log_kernels(seen, y, hy), axis=1) @ softmax(log_kernels(u, x, hx), axis=1).T
        return weights @ u / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)

    def least_squares(h):
        """Cross-validated integral of the squared density less twice its product with the true one."""
        squares, dim, apart = cdist(both, both, "sqeuclidean"), both.shape[1], ~np.eye(N, dtype=bool)
        whole = np.mean(np.exp(-squares / (4 * h * h))) / (4 * np.pi * h * h) ** (dim / 2)
        return whole - 2 * np.mean(np.exp(-squares / (2 * h * h))[apart]) / (2 * np.pi * h * h) ** (dim / 2)

    both = np.concatenate([x, y], axis=1)
    found = {h: mean(h, h) for h in WIDTHS}
    yield PRINTED["h by cross-validation"], found[min(WIDTHS, key=least_squares)]
    yield from ((f"h = {h}", means) for h, means in found.items())
    hx, hy = median_heuristic(x), median_heuristic(y)

    def score(c):
        to_x, to_y = log_kernels(x, x, c * hx), log_kernels(y, y, c * hy)
        np.fill_diagonal(to_x, -np.inf)
        return np.mean(logsumexp(to_x + to_y, axis=1) - logsumexp(to_x, axis=1)) - y.shape[1] * np.log(c * hy)

    c = max(FACTORS, key=score)
    yield RIVAL, mean(c * hx, c * hy)


def measured(dim, seed):
    x, y, u, seen, exact = problem(np.random.default_rng([dim, seed]), dim)
    found = dict(rules(x, y, u, seen)) | dict(validated(x, y, u, seen))
    found |= dict(density_estimation(x, y, u, seen)) | {"no update (the prior mean)": np.zeros_like(exact)}
    errors = {name: np.mean(np.sum(np.square(means - exact), axis=1)) for name, means in found.items()}
    return {"errors": errors}


def main(rows, repeats=10):
    with jax.enable_x64(True):
        rows.fill(measured, dim=DIMENSIONS, seed=range(repeats))
    names = [name for name in rows.rows[0]["errors"] if not name.startswith("h = ")] + [PRINTED["best h"]]

    def of(name, d):
        if name == PRINTED["best h"]:
            return min((rows.column("errors", f"h = {h}", dim=d) for h in WIDTHS), key=np.mean)
        return rows.column("errors", name, dim=d)

    def against(name, d):
        logs = np.log(of(name, d) / of(RIVAL, d))
        return f"{np.exp(logs.mean()):.2g} ({np.sum(logs < 0)} of {len(logs)})"

    errors = [[name, *(of(name, d).mean() for d in DIMENSIONS)] for name in names]
    beside = [[name, *(against(name, d) for d in DIMENSIONS)] for name in names if name != RIVAL]
    note = f"Means over {repeats} data sets, eps = 0.01 / n, median length scales unless said.\n\n"
    below = "Geometric mean over data sets; how many of them are below 1.\n\n"
    sections = [
        ("Error", note + report.table(["mean squared error, d =", *DIMENSIONS], errors)),
        (f"Error over that of {RIVAL}", below + report.table(["d =", *DIMENSIONS], beside)),
    ]
    return "Kernel Bayes' rule on normals (experiment 5.1)", sections, rows
