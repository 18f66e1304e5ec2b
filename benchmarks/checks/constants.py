"""What the numbers that tune methods are worth: each halved and doubled, scored against what is known.

    python -m benchmarks constants [--of residual] [--size 300] [--problems NAME ...] [--only MODULE.NAME ...]
        [--rows FILE]

Every number at the top of a module of a part of the package is halved and doubled alone; entries of dictionaries one by
one, those of a tuple together. The change of a score is told in the mean over problems, and where it is largest: a
positive one is worse. What modules compute of a number when they are read stays as it was. The parts:

- `residual`, the default form: the mean of `log p(x | theta) - log q(x | theta)` over 2,000 fresh simulations, in nats,
  as in `budgets`, on its ten problems.
- `published`, the published form: Wasserstein-1 to the exact posterior, in its standard deviations, on the data sets of
  `exponential_gamma`.
- `samplers`, of the learnt likelihoods of these ten problems: Wasserstein-1 of 1,000 draws of a coordinate to 50,000,
  in standard deviations, in the mean over coordinates, four observations and two keys.

Each part has a table of its own, and so has another number of simulations than 300. Takes an hour and a half, the
other parts half an hour each.
"""

import functools
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import wasserstein_distance

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.module_numbers import changed, numbers
from benchmarks.helpers.problems import PROBLEMS
from benchmarks.kelfi import exponential_gamma
from benchmarks.kelfi.budgets import one
from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.engines import learnt_model
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem

FACTORS = {"halved": 0.5, "doubled": 2.0}
OBSERVATIONS, KEYS, REFERENCE = 4, 2, 50
"""Of the samplers: observations, runs of each, and runs that a reference consists of."""


class Part(NamedTuple):
    """Of the package: a title, what its score is, modules, and problems with a function `(problem, size) -> score`."""

    title: str
    score: str
    modules: tuple
    problems: list
    one: Callable


def gap(name, size):
    return one(name, size, 0)["mean"]


def distance_of_published(name, size):
    task = exponential_gamma.Task.draw(int(name.split()[1]), size)
    posterior = exponential_gamma.learnt(task, np.log, exponential_gamma.FORMS["published form"])
    return task.error(exponential_gamma.on_grid(posterior))


def draws(name, size, observation, key):
    """1,000 draws `(1000, D)` of the posterior of one observation, in coordinates."""
    fitted, y = learnt(name, size)
    measure = standard_normal(fitted.coordinates.dim)
    return learnt_model.in_coordinates(jax.random.key(key), "x", fitted, y[observation], measure, 1000).coordinates["x"]


@functools.cache
def learnt(name, size):
    """A learnt likelihood, and observations."""
    problem = PROBLEMS[name]
    theta, x, _ = problem.draw(jax.random.key(0), size)
    y = problem.draw(jax.random.key(1), OBSERVATIONS)[1]
    coordinates = Coordinates.from_prior(jax.random.key(0), Problem.read(problem.model, x=y[0]), "x")
    return kme.fit_likelihood(theta, x, coordinates=coordinates), y


@functools.cache
def reference(name, size, observation):
    return np.concatenate([draws(name, size, observation, KEYS + key) for key in range(REFERENCE)])


def distance_of_draws(name, size):
    found = []
    for observation in range(OBSERVATIONS):
        known = reference(name, size, observation)
        for key in range(KEYS):
            columns = zip(draws(name, size, observation, key).T, known.T)
            found.append(np.mean([wasserstein_distance(own, exact) / exact.std() for own, exact in columns]))
    return np.mean(found)


PARTS = {
    "residual": Part(
        "Numbers of the default form",
        "gap in nats at {} simulations",
        ("likelihoods.descent", "likelihoods.residual"),
        list(PROBLEMS),
        gap,
    ),
    "published": Part(
        "Numbers of the published form",
        "Wasserstein-1 to the exact posterior, in sd, at {} simulations",
        ("likelihoods.published",),
        [f"seed {seed}" for seed in range(10)],
        distance_of_published,
    ),
    "samplers": Part(
        "Numbers of samplers",
        "Wasserstein-1 to many draws, in sd, at {} simulations",
        ("samplers", "engines.learnt_model"),
        list(PROBLEMS),
        distance_of_draws,
    ),
}


def scores(part, size, rows, label, problems):
    """Score and CPU seconds of each problem, or the error that it ends with; finished ones are kept under a label."""
    for name in problems:
        if not rows.has(label=label, size=size, problem=name):
            begun = time.process_time()
            try:
                found = {"score": part.one(name, size)}
            except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
                found = {"fails": f"{type(error).__name__}: {error}"}
            rows.add(label=label, size=size, problem=name, **found, seconds=time.process_time() - begun)
    return {name: rows.of(label=label, size=size, problem=name)[0] for name in problems}


def line(name, value, usual, by_factor):
    """A row of the table: what halving and doubling change in the mean, and where most."""
    cells = [name, ", ".join(f"{own:.4g}" for own in np.atleast_1d(value))]
    for found in by_factor.values():
        failed = [problem for problem, row in found.items() if "fails" in row]
        if failed:
            cells += [f"fails: {', '.join(failed)}", "", ""]
            continue
        change = {problem: row["score"] - usual[problem]["score"] for problem, row in found.items()}
        most = max(change, key=lambda problem: abs(change[problem]))
        mean = np.mean(list(change.values()))
        seconds = [sum(row["seconds"] for row in some.values()) for some in (found, usual)]
        where = f"{change[most]:+.3f}, {most}" if change[most] else ""
        cells += [f"{mean:+.4f}" if where else "0", where, f"{seconds[0] / seconds[1]:.2f}"]
    return cells


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--of", choices=PARTS, default="residual")
    parser.add_argument("--size", type=int, default=300)
    parser.add_argument("--only", nargs="+", metavar="MODULE.NAME")
    parser.add_argument("--problems", nargs="+", metavar="NAME")
    options = parser.parse_args()
    part = PARTS[options.of]
    places, problems = numbers(*part.modules), options.problems or part.problems
    warnings.simplefilter("ignore")
    for name in problems:  # what is known is computed once
        if not options.rows.has(label="as it is", size=options.size, problem=name):
            part.one(name, options.size)
    jax.clear_caches()
    usual = scores(part, options.size, options.rows, "as it is", problems)
    lines = []
    for name in options.only or places:
        found = {}
        for word, factor in FACTORS.items():
            undo = changed(places[name], factor)
            jax.clear_caches()  # programs have numbers as they were when they were traced
            found[word] = scores(part, options.size, options.rows, f"{name} {word}", problems)
            undo()
        namespace, key = places[name][0]
        lines.append(line(name, namespace[key], usual, found))
    columns = [f"{word}{what}" for word in FACTORS for what in (", mean change", ", most", ", CPU seconds")]
    total = np.mean([row["score"] for row in usual.values()])
    heading = f"Change of the {part.score.format(options.size)}; as it is it is {total:.3f} in the mean"
    words = ["constants", *[options.of] * (options.of != "residual"), *[str(options.size)] * (options.size != 300)]
    idle = [
        cells for cells in lines if cells[2] == cells[5] == "0" and all(0.8 < float(cells[k]) < 1.25 for k in (4, 7))
    ]
    moving = report.table(["number", "is", *columns], [cells for cells in lines if cells not in idle])
    sections = [
        (heading, moving),
        (
            "Numbers that change no score, nor seconds beyond noise",
            ", ".join(f"`{cells[0]}` ({cells[1]})" for cells in idle),
        ),
    ]
    report.save("_".join(words), part.title, sections)
