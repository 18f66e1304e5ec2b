"""Nicholson's blowflies with 280 simulations: the score of each method with the settings of its paper.

    python -m benchmarks blowfly_rivals [--repeats 10]

Appendix D of Hsu and Ramos (2019): kernel ABC and kernel Bayes' rule have median length scales and lambda = 1e-4 for
each regularisation, and kernel Bayes is scored at its mode; the paper scales the median of kernel ABC too, and does not
print by how much. MCMC-ABC has epsilon = 5, synthetic likelihood epsilon = 0.5 and 10 simulations a step, on raw
statistics; chains propose a tenth of the prior's standard deviations, and spend all simulations; where they begin is
not printed, here at a prior draw. Kernels see standardised statistics. All methods but the chains have the same
simulations, and scores are at the posterior mean unless said. GPS-ABC and adaptive synthetic likelihood are not run.
Takes ten minutes.
"""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import multivariate_normal, sem

import numpyro_kme as kme
from benchmarks.helpers import nmse, report
from numpyro_kme.embeddings import KernelBayesRule, MeanEmbedding
from numpyro_kme.kernels import Gaussian, median_heuristic
from numpyro_kme.likelihoods import KernelMeans, Learner, MarginalLikelihood, ResidualKernelMeans, Tied
from numpyro_kme.likelihoods.statistics import StatisticsTransform
from numpyro_kme.simulators.blowfly import OBSERVED, PRIOR_MEAN, PRIOR_SD, model, vector

SIZE, LAM, STEP = 280, 1e-4, 0.1
SCALES = (0.1, 0.2, 0.5)


class Task(NamedTuple):
    """One repeat: simulations, their coordinates and standardised statistics, the observation's, and a key."""

    made: object
    z: np.ndarray
    x: np.ndarray
    y: np.ndarray
    key: object

    @classmethod
    def draw(cls, seed):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(67), seed))
        made = kme.simulate(keys[0], kme.Problem.read(model, x=OBSERVED), SIZE, progress_bar=False)
        z, raw = (np.asarray(vector(made.latents)) - PRIOR_MEAN) / PRIOR_SD, np.asarray(made.x["x"], np.float64)
        transform = StatisticsTransform.fit(raw)
        return cls(made, z, transform.forward(raw), transform.forward(OBSERVED[None]), keys[1])


def by_form(form, task):
    """The posterior mean of `KELFI`."""
    kelfi = kme.KELFI(model, form=form, simulations=task.made, progress_bar=False)
    kelfi.run(task.key, x=OBSERVED)
    return (np.mean(vector(kelfi.get_samples()), axis=0) - PRIOR_MEAN) / PRIOR_SD


def kernel_abc(scale, task):
    """The mean by the weights of the conditional mean embedding, which are made to sum to one."""
    kernel = Gaussian(scale * median_heuristic(task.x))
    gram = np.asarray(kernel.gram(task.x)) + SIZE * LAM * np.eye(SIZE)
    weights = np.linalg.solve(gram, np.asarray(kernel.gram(task.x, task.y))[:, 0])
    return weights @ task.z / weights.sum()


def kernel_bayes(mode, task):
    """The mode or the mean of the posterior embedding."""
    prior = MeanEmbedding(Gaussian(median_heuristic(task.z)), task.z)
    rule = KernelBayesRule.fit(Gaussian(median_heuristic(task.x)), task.z, task.x, prior, LAM, delta=LAM)
    weights = rule.weights(task.y)[0]
    return rule.posterior(task.y).mode() if mode else weights @ task.z / weights.sum()


def chain(each, epsilon, task):
    """Mean of a Metropolis chain whose likelihood is the normal density of simulations made at each proposal."""
    rng, keys = np.random.default_rng(0), iter(jax.random.split(task.key, SIZE // each + 1))

    def scored(z):
        x = nmse.simulate(next(keys), np.tile(PRIOR_MEAN + PRIOR_SD * z, (each, 1)))
        covariance = epsilon**2 * np.eye(len(OBSERVED)) + (np.cov(x.T) if each > 1 else 0.0)
        return z, multivariate_normal(x.mean(axis=0), covariance).logpdf(OBSERVED) - 0.5 * z @ z

    states = [scored(task.z[0])]
    while len(states) < SIZE // each:
        new = scored(states[-1][0] + STEP * rng.standard_normal(len(PRIOR_MEAN)))
        states.append(new if np.log(rng.uniform()) < new[1] - states[-1][1] else states[-1])
    return np.mean([z for z, _ in states], axis=0)


SCALED = {f"kernel ABC, {scale} of the median": partial(kernel_abc, scale) for scale in SCALES}
METHODS = {
    "KELFI, residual form": partial(by_form, ResidualKernelMeans()),
    "KELFI, published form, leave-one-out": partial(by_form, KernelMeans()),
    "KELFI as published: tied": partial(by_form, KernelMeans(MarginalLikelihood(), learner=Learner(tied=Tied()))),
    "kernel ABC": partial(kernel_abc, 1.0),
    **SCALED,
    "kernel Bayes, mode": partial(kernel_bayes, True),
    "kernel Bayes, mean": partial(kernel_bayes, False),
    "MCMC-ABC": partial(chain, 1, 5.0),
    "synthetic likelihood": partial(chain, 10, 0.5),
}


def measured(seed, method):
    task = Task.draw(seed)
    point = PRIOR_MEAN + PRIOR_SD * METHODS[method](task)
    return {"nmse": 100 * nmse.nmse_at(task.key, point, nmse.stored_denominators())}


def main(rows, repeats=10):
    rows.fill(measured, seed=range(repeats), method=METHODS)
    lines = []
    for name in METHODS:
        scores = rows.column("nmse", method=name)
        lines.append([name, len(scores), scores.mean(), sem(scores), scores.min(), np.median(scores), scores.max()])
    header = ["method", "repeats", "NMSE, %", "s.e.", "least", "median", "most"]
    return "Blowflies with 280 simulations", [("Normalised squared errors", report.table(header, lines))], rows
