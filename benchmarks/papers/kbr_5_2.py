"""Error against time of kernel Bayes' rule, kernel ABC and rejection ABC: experiment 5.2 of Fukumizu, Song & Gretton
(2013).

    python -m benchmarks kbr_5_2 [--repeats 10]

The normals of `kbr_gaussian.py` in 2 and 6 dimensions, simulated from the prior; posterior means at 10 observations.
Rejection ABC is vectorised, in blocks of 100,000, and takes the number of accepted points with the least error, which
no user knows. Kernel methods: median length scales, tolerance 1e-3, 1e-4 or 1e-5 of the largest diagonal entry (the
paper's is 1e-3, and not of what), eps = 0.01 / n and delta = 2 eps (KBR), eps = 0.01 / sqrt(n) (conditional mean).
"Cross-validated": both length scales the same multiple, 1 to 8, of the medians, and for KBR delta = 2 eps or 0.01 eps
at tolerance 1e-6, by the prediction of 400 of the pairs from each other; this choice is in the time. Seconds are CPU
time, simulations included, compilation apart. Takes a few minutes.
"""

from functools import partial

import jax
import numpy as np
from scipy.stats import sem

from benchmarks.helpers import report
from benchmarks.papers.kbr_gaussian import Normals
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding
from numpyro_kme.embeddings.parameter_choice import KernelBayesSettings, choose_by_prediction, kernel_bayes_candidates
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.kernels.length_scales import CrossValidation

DIMENSIONS, SEEN = (2, 6), 10
MULTIPLES, CHOSEN_FROM = (1.0, 2.0, 4.0, 8.0), 400
BLOCK, KEPT = 100_000, 2000
ACCEPTED = (10, 20, 50, 100, 200, 500, 1000, 2000)


class Task:
    """One model: draws of (x, y) from the prior, ten observations and their exact posterior means."""

    def __init__(self, rng, dim):
        normals = Normals(rng, dim)
        self.of_x, self.of_noise = np.linalg.cholesky(normals.prior), np.linalg.cholesky(normals.noise)
        self.dim, self.slope = dim, normals.slope
        self.seen = self.draw(rng, SEEN)[1]
        self.exact = (self.seen - 1) @ normals.gain.T

    def draw(self, rng, n):
        x = rng.standard_normal((n, self.dim)) @ self.of_x.T
        return x, 1 + x @ self.slope.T + rng.standard_normal((n, self.dim)) @ self.of_noise.T

    def error(self, means):
        return float(np.mean(np.sum(np.square(means - self.exact), axis=1)))


def rejection(task, rng, n):
    """The errors for each number of accepted points."""
    nearest = [(np.zeros(0), np.zeros((0, task.dim)))] * SEEN
    for first in range(0, n, BLOCK):
        x, y = task.draw(rng, min(BLOCK, n - first))
        squares = np.sum(y**2, axis=1)
        for i, one in enumerate(task.seen):
            distance = squares - 2.0 * (y @ one)
            best = np.argpartition(distance, KEPT)[:KEPT] if len(x) > KEPT else np.arange(len(x))
            both = np.concatenate([nearest[i][0], distance[best]]), np.concatenate([nearest[i][1], x[best]])
            order = np.argsort(both[0])[:KEPT]
            nearest[i] = both[0][order], both[1][order]
    return {"errors": {k: task.error(np.stack([x[:k].mean(axis=0) for _, x in nearest])) for k in ACCEPTED}}


def scored(task, weights, x, rank):
    return {"error": task.error(weights @ x / weights.sum(axis=1, keepdims=True)), "rank": rank}


def kernel_bayes(task, rng, n, tolerance=1e-3, validated=False):
    (x, y), (u, _) = task.draw(rng, n), task.draw(rng, n)
    kernels = Gaussian(median_heuristic(x)), Gaussian(median_heuristic(y))
    settings = KernelBayesSettings(*kernels, 0.01 / n)
    if validated:
        tolerance, few = 1e-6, slice(min(n, CHOSEN_FROM))
        tried = kernel_bayes_candidates(*kernels, [0.01 / n], scales_x=MULTIPLES, delta_ratios=(2.0, 0.01))
        key = jax.random.key(0)
        settings = choose_by_prediction(key, x[few], y[few], tried, num_folds=5, tolerance=tolerance).settings
    rule = settings.rule(x, y, u, tolerance=tolerance)
    return scored(task, rule.weights(task.seen), x, rule.right.rank)


def conditional_mean(task, rng, n, tolerance=1e-3, validated=False):
    x, y = task.draw(rng, n)
    few = slice(min(n, CHOSEN_FROM))
    rule = CrossValidation(jax.random.key(0), MULTIPLES, most=CHOSEN_FROM)
    scale = rule(y[few], x[few]) if validated else median_heuristic(y)
    fitted = ConditionalMeanEmbedding.fit(Gaussian(scale), y, 0.01 / np.sqrt(n), tolerance=tolerance)
    return scored(task, fitted.weights(task.seen), x, fitted.right.rank)


METHODS = {
    name + ending: (function, settings, (200, 500, 1000, 2000, 6000))
    for ending, settings in (
        ("", {}),
        (", tolerance 1e-4", {"tolerance": 1e-4}),
        (", tolerance 1e-5", {"tolerance": 1e-5}),
        (", cross-validated", {"validated": True}),
    )
    for name, function in (("KBR", kernel_bayes), ("conditional mean", conditional_mean))
}
REJECTION = "rejection ABC"
METHODS[REJECTION] = rejection, {}, (3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)


def measured(dim, seed, method, n):
    """Errors and CPU seconds; the first run of kernel methods compiles, and is made before."""
    function, settings, _ = METHODS[method]
    for _ in range(1 if method == REJECTION or seed > 0 else 2):
        task, rng = Task(np.random.default_rng([dim, seed]), dim), np.random.default_rng([dim, seed, n])
        found, _, seconds = report.timed(function, task, rng, n, **settings)
    return {"seconds": seconds, **found}


def curve(rows, dim, method):
    """Mean error and seconds for each size; for rejection at the number of accepted points that is best on average."""
    found = []
    for n in METHODS[method][2]:
        column = partial(rows.column, dim=dim, method=method, n=n)
        if method == REJECTION:
            best = min(ACCEPTED, key=lambda k, column=column: column("errors", str(k)).mean())
            errors, note = column("errors", str(best)), f"{best} accepted"
        else:
            errors, note = column("error"), f"rank {column('rank').mean():.0f}"
        ends = sem(errors, ddof=0), column("seconds").mean(), note
        found.append((method, n, len(errors), errors.mean(), *ends))
    return found


def time_to(points, error):
    """Seconds at which a curve reaches an error, by lines between logarithms, and whether it had to be carried on
    beyond its end."""
    seconds, errors = np.log([p[5] for p in points]), np.log(np.minimum.accumulate([p[3] for p in points]))
    if error < np.exp(errors[-1]):
        slope = (errors[-1] - errors[-3]) / (seconds[-1] - seconds[-3])
        return float(np.exp(seconds[-1] + (np.log(error) - errors[-1]) / slope)), " (extrapolated)"
    return float(np.exp(np.interp(-np.log(error), -errors, seconds))), ""


def main(rows, repeats=10):
    with jax.enable_x64(True):
        for method, (_, _, sizes) in METHODS.items():
            rows.fill(measured, dim=DIMENSIONS, seed=range(repeats), method=[method], n=sizes)
    sections = []
    for dim in DIMENSIONS:
        curves = {method: curve(rows, dim, method) for method in METHODS}
        points, against = [point for one in curves.values() for point in one], []
        for method, n, _, mean, _, seconds, _ in points:
            if method != REJECTION:
                needed, beyond = time_to(curves[REJECTION], mean)
                against.append([method, n, mean, seconds, f"{needed:.3g}{beyond}", needed / seconds])
        header = ["method", "simulations", "runs", "mean squared error", "s.e.", "CPU seconds", ""]
        sections.append((f"d = {dim}", report.table(header, points)))
        header = ["method", "simulations", "error", "CPU seconds", "rejection ABC to that error, s", "times ours"]
        sections.append((f"d = {dim}: time to equal error", report.table(header, against)))
    return "Kernel Bayes' rule and rejection ABC (experiment 5.2)", sections, rows
