"""A third of the entries missing: KELFI's posterior against the exact one, and against simulations that never had them.

    python -m benchmarks missing --metrics path/to/posterior_metrics.py

Three tasks of `sbi_tasks` whose likelihoods are known, with five observations from their priors, each without other
entries: three of ten, or one of two. `marginalised` is one fit of complete simulations, conditioned on NaN; `never
there` a fit of the same simulations without these columns. C2ST is against draws of the exact posterior given the
observed entries (0.5: a classifier cannot tell; 1: it always can), by `c2st` of `posterior_metrics.py`. Cost is CPU
seconds of learning and drawing, warm, over those of a complete observation. Takes half an hour.
"""

import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.sbi_models import PRIORS, SIMULATORS, TASKS, model_of
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations, simulate
from numpyro_kme.simulators.sir import infected_fractions

DRAWS = 1000


def gaussian_linear_uniform(rng, y, size):
    """Truncated normals where something was observed, the prior elsewhere."""
    sd, seen = np.sqrt(0.1), ~np.isnan(y)
    ends = stats.norm.cdf((np.array([[-1.0], [1.0]]) - np.where(seen, y, 0.0)) / sd)
    u = rng.uniform(size=(size, len(y)))
    found = np.where(seen, y, 0.0) + sd * stats.norm.ppf(ends[0] + u * (ends[1] - ends[0]))
    return np.where(seen, found, 2.0 * u - 1.0)


def gaussian_mixture(rng, y, size):
    """As above, with two standard deviations of equal odds."""
    seen, centre = ~np.isnan(y), np.where(np.isnan(y), 0.0, y)
    sds = np.array([1.0, 0.1])
    ends = stats.norm.cdf((np.array([-10.0, 10.0])[:, None, None] - centre) / sds[:, None])  # (end, component, entry)
    odds = np.prod(np.where(seen, ends[1] - ends[0], 1.0), axis=1)
    chosen = rng.choice(2, size, p=odds / odds.sum())
    low, high, sd = ends[0][chosen], ends[1][chosen], sds[chosen][:, None]
    u = rng.uniform(size=(size, len(y)))
    return np.where(seen, centre + sd * stats.norm.ppf(low + u * (high - low)), 20.0 * u - 10.0)


def sir(rng, y, size):
    """On a grid of the two rates."""
    centre, sd = np.log([0.4, 0.125]), np.array([0.5, 0.2])
    axes = [m + s * np.linspace(-4.0, 4.0, 401) for m, s in zip(centre, sd)]
    for _ in range(2):  # the second is on where the first has its mass
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        log_p = stats.norm.logpdf(grid, centre, sd).sum(axis=1)
        fractions, seen = np.asarray(jax.vmap(infected_fractions)(jnp.exp(jnp.asarray(grid)))), ~np.isnan(y)
        with np.errstate(divide="ignore"):
            log_p += stats.binom.logpmf(y[seen], 1000, fractions[:, seen]).sum(axis=1)
        p = np.exp(log_p - log_p.max())
        near = grid[p > 1e-8]
        axes = [
            np.linspace(low - step, high + step, 401)
            for low, high, step in zip(near.min(axis=0), near.max(axis=0), [a[1] - a[0] for a in axes])
        ]
    cells = rng.choice(len(grid), size, p=p / p.sum())
    width = np.array([np.ptp(np.unique(grid[:, i])) / 400 for i in range(2)])
    return np.exp(grid[cells] + width * (rng.uniform(size=(size, 2)) - 0.5))


def lacking(task, number):
    """Observation `number` of a task, from its own prior, without a third of its entries, and its key."""
    key = jax.random.key(number)
    y = np.array(simulate(key, Problem.read(TASKS[task]), 1, progress_bar=False).x["x"][0], np.float64)
    left_out = np.random.default_rng(number).permutation(len(y))[: max(1, len(y) // 3)]
    y[left_out] = np.nan
    return key, y


def scores(task, number, size, c2st):
    """Both ways, of one observation."""
    key, y = lacking(task, number)
    seen, reference = ~np.isnan(y), EXACT[task](np.random.default_rng(number), y, DRAWS)
    made = simulate(jax.random.key(100 + number), Problem.read(TASKS[task]), size, progress_bar=False)
    fewer = Simulations(
        arguments=made.arguments, x={"x": np.asarray(made.x["x"])[:, seen]}, latents=made.latents, attempted=size
    )
    some = model_of(PRIORS[task], Observed(SIMULATORS[task], np.flatnonzero(seen)))
    draws, found = {}, {"simulations": size, "task": task, "observation": number}
    whole = np.where(seen, y, np.asarray(made.x["x"])[0])
    for name, model, simulations, data in (
        ("complete", TASKS[task], made, whole),
        ("marginalised", TASKS[task], made, y),
        ("never there", some, fewer, y[seen]),
    ):
        for _ in range(2):  # the second is warm
            engine, begun = kme.KELFI(model, simulations=simulations, num_samples=DRAWS), time.process_time()
            engine.run(key, x=data)
            found[f"seconds, {name}"] = time.process_time() - begun
        draws[name] = np.asarray(engine.get_samples()["theta"])
    found["C2ST, marginalised"] = c2st(reference, draws["marginalised"], n=DRAWS, seed=1)
    same = np.array_equal(draws["marginalised"], draws["never there"])
    again = c2st(reference, draws["never there"], n=DRAWS, seed=1) if not same else found["C2ST, marginalised"]
    found["C2ST, never there"] = again
    return found


class Observed:
    """A simulator of some of its entries.

    Args:
        simulator: Of all entries.
        chosen: Numbers of those that it gives.
    """

    def __init__(self, simulator, chosen):
        self.simulator, self.chosen = simulator, chosen

    def __call__(self, rng_key, theta):
        return self.simulator(rng_key, theta)[self.chosen]


EXACT = {"gaussian_linear_uniform": gaussian_linear_uniform, "gaussian_mixture": gaussian_mixture, "sir": sir}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--metrics", required=True)
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--observations", type=int, default=5)
    options = parser.parse_args()
    c2st, lines = report.imported(options.metrics).c2st, []
    for task in EXACT:
        for number in range(options.observations):
            key = {"simulations": options.simulations, "task": task, "observation": number}
            if not options.rows.has(**key):
                with warnings.catch_warnings(action="ignore", category=UserWarning):
                    options.rows.add(**scores(task, number, options.simulations, c2st))
        of = lambda name, task=task: np.array(options.rows.values(name, task=task))  # noqa: E731
        gap = of("C2ST, marginalised") - of("C2ST, never there")
        cost = of("seconds, marginalised") / of("seconds, complete")
        means = [of(name).mean() for name in ("C2ST, marginalised", "C2ST, never there")]
        lines.append([task, *map(float, (*means, gap.mean(), np.abs(gap).max(), cost.mean(), cost.max()))])
    header = [
        "task",
        "C2ST, marginalised",
        "C2ST, never there",
        "difference",
        "largest",
        "cost over complete data",
        "most",
    ]
    title = f"{options.simulations} simulations, means over {options.observations} observations"
    print(report.write("missing", "A third of the entries missing", [(title, report.table(header, lines))]))
