"""Rows of the guard: posteriors of KELFI by its default call."""

from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import numpyro_kme as kme
from benchmarks.helpers import nmse
from benchmarks.helpers.metrics import c2st, wasserstein
from benchmarks.helpers.problems import TASKS
from numpyro_kme.simulators import blowfly, exponential_gamma, two_moons

DRAWS = 2000
FLOORS = {
    "gaussian_mixture": (0.60, 0.55),
    "gaussian_linear_uniform": (0.56, 0.53),
    "sir": (0.60, 0.55),
    "lotka_volterra": (0.74, 0.66),
    "bernoulli_glm": (0.70, 0.63),
    "two_moons": (0.60, 0.56),
}
"""Of C2ST at 300 and 1,000 simulations."""


def draws(model, size, seed, x, num_samples=DRAWS, **settings):
    """Draws of the default call."""
    kelfi = kme.KELFI(model, size, num_samples=num_samples, progress_bar=False, **settings)
    kelfi.run(jax.random.key(seed), x=x)
    return kelfi.get_samples()


def crescents(i):
    """An observation of two moons, and exact posterior draws: the noise is drawn, and the parameters follow from it."""
    rng = np.random.default_rng(i)
    noise = np.asarray(two_moons.two_moons(jax.random.key(i), jnp.zeros(2)), np.float64)
    x = noise + np.asarray(two_moons.shift(rng.uniform(-1.0, 1.0, 2)))
    angle, radius = rng.uniform(-np.pi / 2, np.pi / 2, 40_000), 0.1 + 0.01 * rng.normal(size=40_000)
    total, difference = np.sqrt(2.0) * (x[:, None] - [radius * np.cos(angle) + 0.25, radius * np.sin(angle)])
    total *= rng.choice([-1.0, 1.0], len(total)) * np.where(total <= 0, 1.0, np.nan)
    theta = np.stack([total - difference, total + difference], axis=1) / 2
    return x, theta[np.abs(theta).max(axis=1) <= 1.0][:DRAWS]


def reference(task, i, folder):
    """Observation `i` of a task, and posterior draws."""
    if task == "two_moons":
        return crescents(i)
    if folder is None:
        raise ValueError("reference posteriors are needed: --references path/to/posteriors")
    with np.load(Path(folder) / f"{task}.npz") as stored:
        return np.asarray(stored["observation"][i], np.float64), stored["reference"][i]


@cache
def judged(task, size, seed, i, folder):
    """C2ST, and ratios of standard deviations."""
    x, exact = reference(task, i, folder)
    own = draws(TASKS[task], size, 1000 * seed + i, x)["theta"]
    return c2st(exact, own), own.std(axis=0) / exact.std(axis=0)


def all_judged(task, size, options):
    """Scores of three observations and one seed, or of five and three."""
    seeds, observations = (3, 5) if options.full else (1, 3)
    found = [judged(task, size, seed, i, options.references) for seed in range(seeds) for i in range(observations)]
    jax.clear_caches()
    return found


def classified(task, size, floor, options):
    scores = [score for score, _ in all_judged(task, size, options)]
    return f"{np.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})", f"{floor}", np.mean(scores) <= floor


def widths(options):
    """Standard deviations over those of the references, all fits of the rows above."""
    found = [ratios for task in FLOORS for size in (300, 1000) for _, ratios in all_judged(task, size, options)]
    low, high = np.quantile(np.concatenate(found), [0.1, 0.9])
    return f"{low:.2f} to {high:.2f}", "0.8 to 1.35", low >= 0.8 and high <= 1.35


def blowflies(options):
    """The score of the posterior mean, over keys."""
    keys = range(10 if options.full else 3)
    found = [blowfly.vector(draws(blowfly.model, 300, key, blowfly.OBSERVED)) for key in keys]
    means = [np.mean(one, axis=0) for one in found]
    scores = [100 * nmse.nmse_at(jax.random.key(key), m, nmse.stored_denominators()) for key, m in zip(keys, means)]
    return f"{np.mean(scores):.2f} % ({min(scores):.2f} to {max(scores):.2f})", "0.35 %", np.mean(scores) <= 0.35


def gamma(size, floor, options):
    """Wasserstein-1 to the exact posterior of the rate of exponential draws, in its standard deviations; one round."""
    errors = []
    for seed in range(20 if options.full else 10):
        x = exponential_gamma.sample_mean(jax.random.key(100 + seed), exponential_gamma.TRUTH)
        own = draws(exponential_gamma.model, size, seed, x, 4000, num_rounds=1)["theta"]
        errors.append(wasserstein(own, exponential_gamma.exact_posterior(float(x))))
    return f"{np.mean(errors):.3f} sd", f"{floor} sd", np.mean(errors) <= floor


ROWS = {
    "blowflies at 300, error of the mean": blowflies,
    "exponential-gamma at 100, W1": partial(gamma, 100, 0.15),
    "exponential-gamma at 300, W1": partial(gamma, 300, 0.11),
    **{
        f"{task} at {size}, C2ST": partial(classified, task, size, floors[k])
        for k, size in enumerate((300, 1000))
        for task, floors in FLOORS.items()
    },
    "sd ratios of these, 10 to 90 %": widths,
}
