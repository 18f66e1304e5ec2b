"""Exponential-gamma: Wasserstein-1 of learnt posteriors to the exact Gamma posterior, in posterior standard deviations.

    python -m benchmarks exponential_gamma [--seeds 20] [--sizes 100 300] [--samples]

theta ~ Gamma(shape 2, rate 1/2), x the mean of 15 draws from Exponential(theta), observed at theta = 4; a new
observation and new simulations for each seed. The surrogate works in z = Phi^-1(CDF(theta)) under N(0, 1). A posterior
density is taken at its positive part, on a grid. The oracle picks the best hyperparameters of a grid for each seed,
knowing the exact posterior.

With --samples: what 1,000 samples from the default surrogate's posterior lose, by three ways of drawing them. Takes
some minutes.
"""

from collections import defaultdict
from typing import NamedTuple

import jax
import numpy as np
from scipy.special import ndtri
from scipy.stats import gamma, norm

from benchmarks.helpers import report
from numpyro_kme.embeddings.herding import herd
from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.kernels import median_heuristic
from numpyro_kme.likelihoods.posterior import KernelMeansPosterior
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.leave_one_out import LeaveOneOut, MarginalLikelihood
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans

SHAPE, RATE, TRUTH, DRAWS = 2.0, 0.5, 4.0, 15
PRIOR = gamma(SHAPE, scale=1.0 / RATE)
Z = np.linspace(-4.5, 4.5, 1801)
THETA = PRIOR.ppf(norm.cdf(Z))
STATISTICS = {"log mean": np.log, "mean": lambda mean: mean}
FORMS = {
    "published form": KernelMeans(LeaveOneOut()),
    "published form and objective": KernelMeans(MarginalLikelihood()),
    "residual form": ResidualKernelMeans(),
}


class Task(NamedTuple):
    """One seed: simulations, observation, and the exact posterior."""

    z: np.ndarray
    x: np.ndarray
    y: float

    @classmethod
    def draw(cls, seed: int, size: int) -> "Task":
        """Simulate; the mean of n draws from Exponential(theta) is Gamma(n, rate n theta)."""
        rng = np.random.default_rng(seed)
        mean = lambda theta: rng.gamma(DRAWS, 1.0 / (DRAWS * theta))  # noqa: E731
        y = mean(TRUTH)
        theta = PRIOR.rvs(size, random_state=rng)
        return cls(ndtri(PRIOR.cdf(theta)), mean(theta), y)

    @property
    def exact(self):
        """Gamma(shape 2 + n, rate 1/2 + n y)."""
        return gamma(SHAPE + DRAWS, scale=1.0 / (RATE + DRAWS * self.y))

    def error(self, density: np.ndarray) -> float:
        """Wasserstein-1 of the positive part of a density relative to the prior, at `Z`."""
        mass = np.maximum(density, 0.0) * norm.pdf(Z)
        return self._distance(np.cumsum(mass) / mass.sum())

    def error_of_points(self, z: np.ndarray, weights: np.ndarray) -> float:
        """Wasserstein-1 of the positive part of weighted points."""
        order, weights = np.argsort(z), np.maximum(weights, 0.0)
        total = np.concatenate([[0.0], np.cumsum(weights[order]) / weights.sum()])
        return self._distance(total[np.searchsorted(z[order], Z, side="right")])

    def _distance(self, cdf):
        gaps = np.abs(cdf - self.exact.cdf(THETA))
        return float(np.sum(0.5 * (gaps[1:] + gaps[:-1]) * np.diff(THETA)) / self.exact.std())


def learnt(task, statistic, form):
    """A fitted surrogate's posterior."""
    prior, x, y = standard_normal(1), statistic(task.x)[:, None], np.array([statistic(task.y)])
    surrogate = form.fit(task.z[:, None], x, measure=prior, y=y)
    return KernelMeansPosterior(surrogate, y, prior)


def on_grid(posterior):
    """Its signed density relative to the prior at `Z`, up to a factor."""
    terms = posterior.likelihood.expansion()
    if terms is None:
        log_size = np.asarray(_log_sizes(posterior.likelihood, Z[:, None]))
        return np.exp(log_size - log_size.max())
    return np.exp(-0.5 * ((Z[:, None] - terms.points.T) / terms.kernel.length_scale) ** 2) @ terms.weights


@jax.jit
def _log_sizes(likelihood, points):
    return jax.vmap(likelihood.log_density)(points)


def kernel_abc(task, statistic):
    """Weights of the conditional mean embedding with the median heuristic, regularised by 0.01 / sqrt(m)."""
    x, y = statistic(task.x), statistic(task.y)
    scale = float(median_heuristic(x[:, None]))
    gram = np.exp(-0.5 * ((x[:, None] - x) / scale) ** 2)
    return np.linalg.solve(gram + 0.01 * np.sqrt(len(x)) * np.eye(len(x)), np.exp(-0.5 * ((x - y) / scale) ** 2))


def oracle(task, statistic):
    """Smallest error over a grid of (beta, lam, eps)."""
    x = np.append(statistic(task.x), statistic(task.y))
    s = np.arcsinh((x - np.median(x[:-1])) / (1.4826 * np.median(np.abs(x[:-1] - np.median(x[:-1])))))
    size, errors = len(task.z), []
    for beta in np.geomspace(0.15, 3.0, 9):
        values, vectors = np.linalg.eigh(np.exp(-0.5 * ((task.z[:, None] - task.z) / beta) ** 2))
        onto_grid = np.exp(-0.5 * ((Z[:, None] - task.z) / beta) ** 2) @ vectors
        for eps in np.geomspace(0.03, 0.8, 9):
            kappa = vectors.T @ np.exp(-0.5 * ((s[:-1] - s[-1]) / eps) ** 2)
            for lam in np.geomspace(1e-4, 0.3, 8):
                errors.append(task.error(onto_grid @ (kappa / (values + size * lam))))
    return min(errors)


def sampled(task, posterior, size=1000):
    """Errors of 1,000 samples: herded with `l`, herded with a narrower kernel, resampled."""
    key_particles, key_draws = jax.random.split(jax.random.key(0))
    particles = posterior.weighted_particles(key_particles, 4096)
    found = {"resampled": particles.resample(key_draws, size)}
    for name, kernel in {
        "herded, l": posterior.likelihood.terms.kernel,
        "herded, narrow": posterior.herding_kernel(),
    }.items():
        rows = herd(kernel, posterior.embedding(kernel, particles.particles), particles.particles, size)
        found[name] = particles.particles[np.asarray(rows)]
    return {name: task.error_of_points(z[:, 0], np.ones(size)) for name, z in found.items()}


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--samples", action="store_true")
    settings = parser.parse_args()
    rows, found = [], {}
    for label, statistic in STATISTICS.items():
        for size in settings.sizes:
            errors, bounds = run(statistic, size, settings.seeds, settings.samples)
            found[f"{label}, m = {size}"] = errors
            for name, values in errors.items():
                summary = np.mean(values), np.median(values), np.max(values)
                rows.append([label, size, name, *summary, bounds.get(name, "")])
                print(*rows[-1], flush=True)
    header = ["statistic", "m", "learnt by", "mean W1", "median", "largest", "fits at a bound"]
    note = f"\n\nOver {settings.seeds} seeds; W1 in posterior standard deviations."
    report.save("exponential_gamma", "Exponential-gamma", [("Wasserstein-1", report.table(header, rows) + note)], found)


def run(statistic, size, seeds, samples):
    """Errors of every way of learning, `{name: one for each seed}`, and how many fits ended at a bound."""
    errors, bounds = defaultdict(list), defaultdict(int)
    for seed in range(seeds):
        task = Task.draw(seed, size)
        for name, form in FORMS.items():
            posterior = learnt(task, statistic, form)
            errors[name].append(task.error(on_grid(posterior)))
            bounds[name] += posterior.surrogate.describe().get("at bounds", "none") != "none"
            if samples and name == "published form":
                for way, error in sampled(task, posterior).items():
                    errors[f"1,000 samples {way}"].append(error)
        errors["kernel ABC, median heuristic"].append(task.error_of_points(task.z, kernel_abc(task, statistic)))
        errors["oracle"].append(oracle(task, statistic))
    return errors, bounds
