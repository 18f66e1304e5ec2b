"""The published objective over (epsilon, beta_0), and the error of the posterior mean at each point.

    python -m benchmarks surface [--seeds 3]

Figure 2 of Hsu and Ramos (2019): lambda = 1e-3 beta_0, 280 simulations of the blowflies and 2,500 completed ones of
Lotka-Volterra; epsilon is in standard deviations of the statistics. The posterior mean under q, its negative parts
included, has a closed form. The paper marks six points of the blowflies' surface in a plot alone, and prints their
errors, with the coordinates (10, 10) of a seventh: so the errors at all points of a grid are shown, with their rank
correlation with the objective, which would be -1 if a higher one always meant a smaller error, as the paper
says. Takes five minutes.
"""

from dataclasses import replace

import jax
import numpy as np
from scipy.special import ndtri
from scipy.stats import norm, spearmanr

import numpyro_kme as kme
from benchmarks.helpers import nmse, report
from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods import DenseSolve, KernelMeans, Learner, MarginalLikelihood, Tied
from numpyro_kme.simulators import blowfly, lotka_volterra

GRID = (0.1, 0.3, 1.0, 3.0, 10.0)
ERRORS = {"blowflies": "NMSE, %", "Lotka-Volterra": "error of log theta_1"}


def simulated(problem, seed):
    """Coordinates, statistics, the observation, and what scores a point of the coordinates."""
    key, score_key = jax.random.split(jax.random.key(seed))
    module, size = (blowfly, 280) if problem == "blowflies" else (lotka_volterra, 2500)
    read = kme.Problem.read(module.model, x=module.OBSERVED)
    made = kme.simulate(key, read, int(1.25 * size), on_failure="skip", progress_bar=False)
    x = np.asarray(made.x["x"], np.float64)[:size]
    if problem == "blowflies":
        theta, denominators = np.asarray(blowfly.vector(made.latents), np.float64)[:size], nmse.stored_denominators()
        back = lambda z: blowfly.PRIOR_MEAN + blowfly.PRIOR_SD * z  # noqa: E731
        score = lambda z: 100 * nmse.nmse_at(score_key, back(z), denominators)  # noqa: E731
        return (theta - blowfly.PRIOR_MEAN) / blowfly.PRIOR_SD, x, blowfly.OBSERVED, score
    theta = np.asarray(made.latents["log_theta"], np.float64)[:size]
    score = lambda z: abs(-5.0 + 7.0 * norm.cdf(z[0]) - lotka_volterra.TRUTH[0])  # noqa: E731
    return ndtri((theta + 5.0) / 7.0), x, lotka_volterra.OBSERVED, score


def measured(problem, seed):
    """The objective and the error on the grid, and where the tied search ends."""
    z, x, y, score = simulated(problem, seed)
    prior, form = standard_normal(z.shape[1]), KernelMeans(MarginalLikelihood(), learner=Learner(tied=Tied()))
    learnt = form.fit(z, x, measure=prior, y=y)
    squares, size = np.sum(np.square(learnt.data - learnt.transform.forward(y)), axis=1), len(learnt.data[0])

    def at(beta, *epsilons):
        """Log of the objective, a density of standardised statistics, and the error of the posterior mean."""
        kernel = Gaussian(np.full(z.shape[1], beta))
        hyper = replace(learnt.hyper, parameter_kernel=kernel, regularisation=np.array(1e-3 * beta))
        logs = np.array([norm.logpdf(0.0, 0.0, e) * size - squares / (2.0 * e * e) for e in epsilons])
        largest = logs.max(axis=1, keepdims=True)
        _, weights, _ = DenseSolve().fit(hyper, z).solve(hyper, z, np.exp(logs - largest))
        mass = weights * np.asarray(prior.mean_embedding(kernel, z))
        total = mass.sum(axis=1)
        means = mass @ z / total[:, None] / (1.0 + beta**2)
        return [(log + np.log(max(q, 1e-12)), score(mean)) for log, q, mean in zip(largest[:, 0], total, means)]

    logs, errors = np.moveaxis(np.array([at(beta, *GRID) for beta in GRID]), -1, 0)
    found = float(learnt.hyper.data_kernel.length_scale[0]), float(learnt.hyper.parameter_kernel.length_scale[0])
    return {"log q": logs.T, "error": errors.T, "found": found, "at found": at(found[1], found[0])[0]}


def sections(rows, problem):
    runs = rows.of(problem=problem)
    logs, errors = (np.array([run[name] for run in runs]) for name in ("log q", "error"))
    lines = []
    for run, log_q, error in zip(runs, logs, errors):
        best, least = (np.unravel_index(index, log_q.shape) for index in (log_q.argmax(), error.argmin()))
        named = [f"({GRID[i]:g}, {GRID[j]:g})" for i, j in (best, least)]
        ranks = spearmanr(log_q.ravel(), error.ravel())[0]
        tied = f"({run['found'][0]:.2g}, {run['found'][1]:.2g})"
        shown = [named[0], log_q.max(), error[best], tied, *run["at found"], named[1], error.min(), log_q[least]]
        lines.append([run["seed"], *shown, f"{ranks:.2f}"])
    header = [
        "seed",
        "grid: largest log q at",
        "its log q",
        "its error",
        "tied search ends at",
        "its log q",
        "its error",
    ]
    header += ["grid: least error at", "its error", "its log q", "rank correlation"]
    yield f"{problem}: where the objective is largest", report.table(header, lines)
    for name, values in (("log q(y)", logs), (ERRORS[problem], errors)):
        body = [[f"{epsilon:g}", *row] for epsilon, row in zip(GRID, values.mean(axis=0))]
        yield f"{problem}: {name}, mean over seeds", report.table(["epsilon, beta_0 =", *map(str, GRID)], body)


def main(rows, seeds=3):
    rows.fill(measured, problem=ERRORS, seed=range(seeds))
    return "Surface of the published objective", [part for problem in ERRORS for part in sections(rows, problem)], rows
