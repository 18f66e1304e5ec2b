"""Rates of convergence that the papers prove, on normals where every limit has a closed form.

    python -m benchmarks rates [--repeats 10]

z ~ N(0, 1), x | z ~ N(z, 1/4). Theorems 3.1 to 3.4 of Hsu and Ramos (2019): Gaussian kernels, epsilon = 1/2, beta = 1,
lambda = 0.01 m^(-1/2). Errors of likelihood and marginal likelihood are the largest over grids of y in [-2, 2] and z in
[-3, 3]; those of the posterior, and of its embedding in the kernel's space, are at y = 1. Theorems 6 and 7 of Fukumizu,
Song & Gretton (2013): the prior N(1/2, 1/2) by as many draws, the expectation of f = k(., 1) at y = 1, and its root
mean square over 200 y, by the theorems' regularisation and by that of their experiments. Takes five minutes.
"""

import numpy as np
from scipy.stats import norm

from benchmarks.helpers import report
from numpyro_kme.embeddings import KernelBayesRule, MeanEmbedding
from numpyro_kme.kernels import Gaussian
from numpyro_kme.likelihoods import Hyperparameters, KernelMeans

SIZES = (100, 200, 400, 800, 1600, 3200)
NOISE, EPSILON, Y = 0.5, 0.5, 1.0
Z = np.linspace(-6.0, 6.0, 481)
STEP = Z[1] - Z[0]
PRIOR_MEAN, PRIOR_VARIANCE = 0.5, 0.5
KELFI = {
    "likelihood (theorem 3.1)": -1 / 4,
    "marginal likelihood (3.2)": -1 / 4,
    "posterior density (3.3)": -1 / 4,
    "posterior embedding (3.4)": -1 / 4,
}
RULES = {
    "at y = 1 (theorem 6)": (-4 / 27, lambda n: (n ** (-1 / 3), n ** (-4 / 27))),
    "root mean square over y (theorem 7)": (-1 / 6, lambda n: (n ** (-1 / 3), n ** (-1 / 6))),
    "the same, eps = 0.01 / n, delta = 2 eps": (None, lambda n: (0.01 / n, 0.02 / n)),
    "the same, eps = 0.01 n^(-1/2), delta = 2 eps": (None, lambda n: (0.01 / n**0.5, 0.02 / n**0.5)),
}
"""Promised rates, and regularisations by the number of pairs."""


def simulated(rng, size):
    z = rng.standard_normal(size)
    return z[:, None], (z + NOISE * rng.standard_normal(size))[:, None]


def kelfi(part, size, seed):
    """Errors of what theorems 3.1 to 3.4 are about."""
    z, x = simulated(np.random.default_rng([size, seed]), size)
    hyper = Hyperparameters(Gaussian(np.ones(1)), Gaussian(np.full(1, EPSILON)), np.array(0.01 * size**-0.5))
    learnt = KernelMeans(hyperparameters=hyper, standardise=False).fit(z, x)
    near, prior, likelihood, marginal = np.abs(Z) <= 3.0, norm.pdf(Z), [], []
    for y in (Y, *np.linspace(-2.0, 2.0, 21)):
        sign, log_size = learnt.at(np.array([y])).signed_log(Z[:, None])
        q, exact = sign * np.exp(log_size), norm.pdf(y, Z, np.hypot(NOISE, EPSILON))
        mass, total = np.sum(q * prior) * STEP, norm.pdf(y, 0.0, np.sqrt(1.0 + NOISE**2 + EPSILON**2))
        likelihood.append(np.max(np.abs(q - exact)[near]))
        marginal.append(abs(mass - total))
        if len(marginal) == 1:
            apart = (q / mass - exact / total) * prior
    embedding = np.sqrt(apart @ Gaussian(1.0).gram(Z[:, None]) @ apart) * STEP
    found = max(likelihood), max(marginal), np.max(np.abs(apart)), embedding
    return dict(zip(KELFI, map(float, found)))


def kernel_bayes(part, size, seed):
    """Errors of the posterior expectation of `k(., 1)` by each regularisation."""
    rng, kernel = np.random.default_rng([size, seed, 1]), Gaussian(1.0)
    z, x = simulated(rng, size)
    u, new = (PRIOR_MEAN + PRIOR_VARIANCE**0.5 * rng.standard_normal((n, 1)) for n in (size, 200))
    y = np.concatenate([[[Y]], new + NOISE * rng.standard_normal(new.shape)])
    gain = PRIOR_VARIANCE / (PRIOR_VARIANCE + NOISE**2)
    mean, variance = PRIOR_MEAN + gain * (y[:, 0] - PRIOR_MEAN), NOISE**2 * gain
    exact = np.exp(-0.5 * (mean - 1.0) ** 2 / (1.0 + variance)) / np.sqrt(1.0 + variance)
    f, found = np.asarray(kernel.gram(z, np.ones((1, 1))))[:, 0], {}
    for name, (_, settings) in RULES.items():
        eps, delta = settings(size)
        rule = KernelBayesRule.fit(kernel, z, x, MeanEmbedding(kernel, u), eps, delta=delta, tolerance=1e-8)
        errors = rule.weights(y) @ f - exact
        found[name] = abs(errors[0]) if "y = 1" in name else np.sqrt(np.mean(errors[1:] ** 2))
    return found


def table(rows, compute, promised, repeats):
    """Mean errors by size, and the slope of their logarithms with its standard error over repeats."""
    runs = rows.fill(compute, part=[compute.__name__], size=SIZES, seed=range(repeats))
    lines = []
    for name, rate in promised.items():
        errors = np.array([[run[name] for run in runs if run["size"] == size] for size in SIZES])
        slope = np.polyfit(np.log(SIZES), np.log(errors.mean(axis=1)), 1)[0]
        each = np.polyfit(np.log(SIZES), np.log(errors), 1)[0]
        spread = each.std(ddof=1) / np.sqrt(repeats)
        lines.append([name, *errors.mean(axis=1), f"{slope:.2f} ({spread:.2f})", "" if rate is None else f"{rate:.2f}"])
    return report.table(["mean error of", *map(str, SIZES), "slope (s.e.)", "slope promised, at most"], lines)


def main(rows, repeats=10):
    sections = [
        ("KELFI, by number of simulations", table(rows, kelfi, KELFI, repeats)),
        (
            "Kernel Bayes' rule, by number of pairs",
            table(rows, kernel_bayes, {name: rate for name, (rate, _) in RULES.items()}, repeats),
        ),
    ]
    return "Rates", sections, rows
