"""Exponential-gamma: Wasserstein-1 of learnt posteriors to the exact Gamma posterior, in posterior standard deviations.

    python -m benchmarks exponential_gamma [--seeds 20] [--sizes 100 300]

theta ~ Gamma(shape 2, rate 1/2), x the mean of 15 draws from Exponential(theta), observed at theta = 4; a new
observation and new simulations for each seed. The surrogate works in z = Phi^-1(CDF(theta)) under N(0, 1). A posterior
density is taken at its positive part, on a grid. Takes some minutes.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import gamma, norm

from benchmarks.helpers import report
from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.kernels import median_heuristic
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.leave_one_out import LeaveOneOut, MarginalLikelihood
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.simulators.exponential_gamma import CONCENTRATION, DRAWS, RATE, TRUTH, exact_posterior

PRIOR = gamma(CONCENTRATION, scale=1.0 / RATE)
Z = np.linspace(-4.5, 4.5, 1801)
THETA = PRIOR.ppf(norm.cdf(Z))
STATISTICS = {"log mean": np.log, "mean": lambda mean: mean}
FORMS = {
    "published form": KernelMeans(LeaveOneOut()),
    "published form and objective": KernelMeans(MarginalLikelihood()),
    "residual form": ResidualKernelMeans(),
}
KERNEL_ABC = "kernel ABC, median heuristic"


class Task(NamedTuple):
    """One seed: simulations, and the observation."""

    z: np.ndarray
    x: np.ndarray
    y: float

    @classmethod
    def draw(cls, seed, size):
        """Simulate; the mean of n draws from Exponential(theta) is Gamma(n, rate n theta)."""
        rng = np.random.default_rng(seed)
        mean = lambda theta: rng.gamma(DRAWS, 1.0 / (DRAWS * theta))  # noqa: E731
        y = mean(TRUTH)
        theta = PRIOR.rvs(size, random_state=rng)
        return cls(ndtri(PRIOR.cdf(theta)), mean(theta), y)

    def error(self, places, mass):
        """Wasserstein-1 of the positive part of weighted points to the exact posterior."""
        order, mass = np.argsort(places), np.maximum(mass, 0.0)
        total = np.concatenate([[0.0], np.cumsum(mass[order]) / mass.sum()])
        exact = exact_posterior(self.y)
        gaps = np.abs(total[np.searchsorted(places[order], Z, side="right")] - exact.cdf(THETA))
        return float(np.trapezoid(gaps, THETA) / exact.std())


def by_form(task, x, y, form):
    """The error of a learnt likelihood, and whether a hyperparameter ended at a bound."""
    prior, y = standard_normal(1), np.array([y])
    surrogate = form.fit(task.z[:, None], x[:, None], measure=prior, y=y)
    sign, log_size = surrogate.at(y).signed_log(Z[:, None])
    density = sign * np.exp(log_size - log_size.max())
    return task.error(Z, density * norm.pdf(Z)), surrogate.describe().get("at bounds", "none") != "none"


def kernel_abc(task, x, y):
    """Weights of the conditional mean embedding with the median heuristic, regularised by 0.01 / sqrt(m)."""
    scale = float(median_heuristic(x[:, None]))
    gram = np.exp(-0.5 * ((x[:, None] - x) / scale) ** 2)
    right = np.exp(-0.5 * ((x - y) / scale) ** 2)
    return task.error(task.z, np.linalg.solve(gram + 0.01 * np.sqrt(len(x)) * np.eye(len(x)), right)), False


def measured(statistic, size, learnt, seed):
    task, transform = Task.draw(seed, size), STATISTICS[statistic]
    data = task, transform(task.x), transform(task.y)
    error, bound = kernel_abc(*data) if learnt == KERNEL_ABC else by_form(*data, FORMS[learnt])
    return {"error": error, "bound": bool(bound)}


def main(rows, seeds=20, sizes=(100, 300)):
    names = *FORMS, KERNEL_ABC
    rows.fill(measured, statistic=STATISTICS, size=sizes, learnt=names, seed=range(seeds))
    lines = []
    for statistic, size, name in product(STATISTICS, sizes, names):
        key = dict(statistic=statistic, size=size, learnt=name)
        errors, bounds = rows.column("error", **key), rows.column("bound", **key).sum()
        lines.append([statistic, size, name, errors.mean(), np.median(errors), errors.max(), bounds])
    header = ["statistic", "m", "learnt by", "mean W1", "median", "largest", "fits at a bound"]
    note = f"\n\nOver {seeds} seeds; W1 in posterior standard deviations."
    return "Exponential-gamma", [("Wasserstein-1", report.table(header, lines) + note)], rows
