"""What each part of the default form is worth: the change of its held-out log score where a part is taken away.

    python -m benchmarks elimination --rows FILE [--label TEXT] [--form EXPRESSION] [--set MODULE.NAME=EXPRESSION ...]
        [--tasks NAME ...] [--sizes 300 1000] [--data FILE]

A score is the mean of `log q(x | z)` over 1,000 fresh simulations from the prior; the table shows how much of it, in
nats, each label of the rows loses against the first one with the same keys. `--set` replaces a name of a module of
`numpyro_kme.likelihoods.residual` for this run; a label without it measures the code as it is. Missing: the linear task
without other three of ten entries; censored: five normal draws, those below 0 known to be below. `--data` keeps the
simulations of all tasks from run to run. Takes two minutes a label.
"""

import argparse
import importlib
import pickle
import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.stats import norm

import numpyro_kme as kme
from benchmarks.helpers import problems, raw_problems, report
from benchmarks.helpers.sbi_models import PRIORS, SIMULATORS
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulators import g_and_k

FRESH, KEYS = 1000, {300: 2, 1000: 1, 3000: 1}
"""Simulations that are scored, and keys of each number of simulations that is learnt from."""


def quantiles(rng_key, z):
    """Octile statistics of 200 draws of g-and-k, with parameters uniform between 0 and 10 (g, k: 5 and 1)."""
    a, b, g, k = norm.cdf(z) * jnp.array([10.0, 10.0, 5.0, 1.0])
    return g_and_k.octile_statistics(g_and_k.from_normal(jax.random.normal(rng_key, (200,)), a, b + 0.1, g, k))


def exponential_mean(rng_key, z):
    """The logarithm of the mean of 15 exponential draws, of a rate with a log-normal prior."""
    return jnp.log(jnp.mean(jax.random.exponential(rng_key, (15,))))[None] - 1.0 - 0.6 * z


def few_counts(rng_key, z):
    """Six counts, many of them 0."""
    return jax.random.poisson(rng_key, jnp.exp(-0.5 + z[0] + z[1] * jnp.linspace(-1.0, 1.0, 6))).astype(float)


def draws(rng_key, z):
    """Five normal draws."""
    return z + jax.random.normal(rng_key, (5,))


def of_normal(dim, simulator):
    """A function `(rng_key, number) -> (z, x)` of a simulator of standard normal parameters."""

    def draw(rng_key, number):
        z = jax.random.normal(jax.random.fold_in(rng_key, 1), (number, dim))
        return z, jax.jit(jax.vmap(simulator))(jax.random.split(rng_key, number), z)

    return draw


def of_prior(prior, simulator):
    """The same of parameters from a prior, in the coordinates that an engine uses."""

    def draw(rng_key, number):
        theta = prior.sample(jax.random.fold_in(rng_key, 1), (number,))
        x = jax.jit(jax.vmap(simulator))(jax.random.split(rng_key, number), theta)
        problem = Problem.read(problems.Problem(prior, simulator, None).model, x=np.asarray(x[0]))
        return Coordinates.from_prior(jax.random.key(0), problem, "x").table(np.asarray(theta)), x

    return draw


def of_raw(name):
    """The same of hand-made statistics."""

    def draw(rng_key, number):
        z, _, x = raw_problems.PROBLEMS[name].draw(rng_key, number)
        return z, x

    return draw


def lacking(surrogate, z, x):
    """Scores without three entries, of ten patterns."""
    found = np.empty(len(x))
    for number in range(10):
        rows = np.arange(number, len(x), 10)
        seen = np.random.default_rng(number).permutation(x.shape[1]) >= 3
        found[rows] = surrogate.marginal(seen).at_rows(np.where(seen, x[rows], np.nan)).log_density(z[rows])
    return found


def below(surrogate, z, x):
    """Scores of draws of which those below 0 are known to be below."""
    found, low = np.empty(len(x)), np.full(x.shape[1], -np.inf)
    patterns, of_row = np.unique(x > 0.0, axis=0, return_inverse=True)
    for number, seen in enumerate(patterns):
        rows, ends = np.flatnonzero(of_row.ravel() == number), (low, np.where(seen, np.inf, 0.0))
        data, (low_ends, high_ends) = np.where(seen, x[rows], np.nan), (np.tile(end, (len(rows), 1)) for end in ends)
        at = surrogate.at_rows(data) if seen.all() else surrogate.within(data, low_ends, high_ends)
        found[rows] = at.log_density(z[rows])
    return found


def whole(surrogate, z, x):
    """Scores of complete data."""
    return surrogate.at_rows(x).log_density(z)


TASKS = {
    **{name: (of_prior(problem.prior, problem.simulator), whole) for name, problem in problems.PROBLEMS.items()},
    **{
        name: (of_prior(PRIORS[name], SIMULATORS[name]), whole)
        for name in ("gaussian_mixture", "sir", "gaussian_linear_uniform", "lotka_volterra", "bernoulli_glm")
    },
    "blowflies": (of_raw("blowflies, 180 counts"), whole),
    "Lotka-Volterra, statistics": (of_raw("Lotka-Volterra, 151 x 2 counts"), whole),
    "g-and-k": (of_normal(4, quantiles), whole),
    "exponential-gamma": (of_normal(1, exponential_mean), whole),
    "few counts": (of_normal(2, few_counts), whole),
    "missing": (of_prior(dist.Normal(jnp.zeros(10), 1.0).to_event(1), SIMULATORS["gaussian_linear"]), lacking),
    "censored": (of_normal(1, draws), below),
}


def data(options):
    """Simulations `(z, x)` to learn from, by task and key, and fresh ones."""
    path = Path(options.data) if options.data else None
    kept = pickle.loads(path.read_bytes()) if path and path.exists() else {}
    most, keys = max(KEYS), max(KEYS.values())
    for name in options.tasks:
        if name not in kept:
            draw = TASKS[name][0]
            made = [draw(jax.random.key(key), most if key == 0 else 300) for key in range(keys)]
            made = [*made, draw(jax.random.key(1000), FRESH)]
            kept[name] = [tuple(np.asarray(part, np.float64) for part in pair) for pair in made]
            if path:
                path.write_bytes(pickle.dumps(kept))
    return kept


def score(form, task, simulations, size, key):
    """Mean held-out log density of the fresh simulations, and seconds to learn and to evaluate."""
    (z, x), fresh = simulations[key], simulations[-1]
    begun = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        surrogate = form.fit(z[:size], x[:size])
        learnt = time.process_time()
        values = np.asarray(TASKS[task][1](surrogate, *fresh))
    seconds = learnt - begun, time.process_time() - learnt
    return {"score": float(values.mean()), "learning": seconds[0], "evaluating": seconds[1]}


def replaced(setting):
    """Replace a name of a module of the default form, wherever it was imported."""
    name, _, expression = setting.partition("=")
    module, attribute = name.rsplit(".", 1)
    home = owner = importlib.import_module(f"numpyro_kme.likelihoods.residual.{module.split('.')[0]}")
    for inner in module.split(".")[1:]:
        owner = getattr(owner, inner)
    old, new = getattr(owner, attribute), eval(expression, {"np": np, "old": owner, **vars(home)})
    setattr(owner, attribute, new)
    for other in [m for n, m in sys.modules.items() if n.startswith("numpyro_kme.likelihoods")]:
        if vars(other).get(attribute) is old:
            setattr(other, attribute, new)


def write(rows):
    """Losses in nats of every label against the first, at each number of simulations."""
    labels, sections = list(dict.fromkeys(row["label"] for row in rows)), []
    for size in sorted({row["size"] for row in rows}):
        lines = []
        for label in labels:
            tasks = [name for name in TASKS if rows.has(label=label, size=size, task=name)]
            losses, seconds = (
                np.array([changes(rows, what, label, labels[0], size, name) for name in tasks]).reshape(-1, 2)
                for what in ("score", "learning")
            )
            if len(tasks):
                shown = [f"{name} {-change:+.2f}" for name, (change, _) in zip(tasks, losses) if abs(change) >= 0.01]
                time_of_fits = float(np.sum(seconds[:, 0] + seconds[:, 1]) / np.sum(seconds[:, 1]))
                lines.append([label, len(tasks), f"{-np.mean(losses[:, 0]):+.3f}", time_of_fits, ", ".join(shown)])
        header = ["label", "tasks", "mean loss", "time of fits, ratio", "losses of 0.01 and more"]
        sections.append((f"{size} simulations", report.table(header, lines)))
    return report.write("elimination", "Parts of the default form", sections)


def changes(rows, what, label, first, size, task):
    """The mean change of a number against the first label, over the keys of both, and its mean under the first."""
    own, before = ({row["key"]: row[what] for row in rows.of(label=of, size=size, task=task)} for of in (label, first))
    keys = own.keys() & before.keys()
    return np.mean([own[key] - before[key] for key in keys]), np.mean([before[key] for key in keys])


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--label", default="as it is")
    parser.add_argument("--form", default="ResidualKernelMeans()")
    parser.add_argument("--set", nargs="+", default=[], metavar="MODULE.NAME=EXPRESSION")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--data", help=argparse.SUPPRESS)
    options = parser.parse_args()
    simulations, form = data(options), eval(options.form, vars(kme))
    for setting in options.set:
        replaced(setting)
    for size in options.sizes:
        for task in options.tasks:
            for key in range(KEYS[size]):
                at = {"label": options.label, "size": size, "task": task, "key": key}
                if not options.rows.has(**at):
                    options.rows.add(**at, **score(form, task, simulations[task], size, key))
    print(write(options.rows))
