"""Gaussian location with outliers, and Cauchy data under a Gaussian model: error of the posterior mean by loss.

    python -m benchmarks npl_location                                # 100 data sets (10 for Wasserstein)
    python -m benchmarks npl_location --datasets 10 --transport 2    # a look

Takes a few hours, nearly all of them for Wasserstein.
"""

from functools import partial

import jax.numpy as jnp
import numpy as np

from benchmarks.helpers import report
from benchmarks.helpers.npl_models import LINE, LOCATION, bootstrap, location, location_data
from numpyro_kme.losses import MMD, Generator, NegativeLogLikelihood, NormalNoise, Wasserstein

PUBLISHED = {
    "MMD": (0.0107, 0.00889, 0.0113),
    "NegativeLogLikelihood": (0.0051, 0.945, 3.57),
    "Wasserstein": (0.00689, 0.0189, 0.0397),
}
OUTLIERS = (0.0, 0.05, 0.1)


def log_density(u, x):
    return -0.5 * jnp.sum(jnp.square(x - u[None]), axis=1)


DENSITY = {dim: Generator(location, NormalNoise(dim), dim, log_density=log_density) for dim in (1, 4)}


def error(loss, x, truth, seed, draws):
    dim = x.shape[1]
    likelihood = isinstance(loss, NegativeLogLikelihood)
    generator = DENSITY[dim] if likelihood else (LOCATION if dim == 4 else LINE)
    starts = np.median(x, axis=0) + np.random.default_rng(seed).normal(0.0, 1.0, (16, dim))
    found = bootstrap(seed, loss.objective(x, generator), starts, draws, num_nodes=256)
    return float(np.mean((found.u.mean(axis=0) - truth) ** 2)), float(found.converged.mean())


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--transport", type=int, default=10)
    parser.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    rows = arguments.rows
    losses = ((MMD(), arguments.datasets), (NegativeLogLikelihood(), arguments.datasets))
    losses += ((Wasserstein(1.0), arguments.transport),) if arguments.transport else ()
    cases = [(loss, outliers, count) for loss, count in losses for outliers in OUTLIERS]
    scores = {(type(loss).__name__, outliers): [] for loss, outliers, _ in cases}
    cauchy = {name: [] for name in ("MMD", "NegativeLogLikelihood")}
    for seed in range(arguments.datasets):
        for loss, outliers, count in cases:
            if seed < count:
                name = type(loss).__name__
                x = location_data(np.random.default_rng([seed, round(1000 * outliers)]), outliers)
                draws = 16 if name == "Wasserstein" else arguments.draws
                run = partial(error, loss, x, 1.0, seed, draws)
                key = dict(loss=name, outliers=outliers, seed=seed, draws=draws)
                scores[name, outliers].append(rows.get(run, **key))
        x = np.random.default_rng([seed, 5]).standard_cauchy((200, 1))
        for loss in (MMD(), NegativeLogLikelihood()):
            name, run = type(loss).__name__, partial(error, loss, x, 0.0, seed, arguments.draws)
            cauchy[name].append(rows.get(run, loss=name, data="Cauchy", seed=seed, draws=arguments.draws))
        text = save(scores, cauchy, arguments)
    print(text)


def summary(found):
    """Number, mean, its standard error, and the least fraction of replicates that converged."""
    errors, converged = np.array(found).T
    return len(errors), errors.mean(), errors.std() / np.sqrt(len(errors)), converged.min()


def save(scores, cauchy, arguments):
    """Write what there is so far."""
    rows = [
        (name, outliers, *summary(found), dict(zip(OUTLIERS, PUBLISHED[name], strict=True))[outliers])
        for (name, outliers), found in scores.items()
        if found
    ]
    second = [(name, *summary(found), {"MMD": 0.0289}.get(name, 48.2)) for name, found in cauchy.items()]
    header = ("loss", "outliers", "data sets", "NMSE", "se", "least converged", "published (10 sets)")
    heads = ("loss", "data sets", "MSE", "se", "least converged", "published (20 sets)")
    note = f"{arguments.draws} draws (Wasserstein: 16). Floor for MMD: 0.0062 at each fraction of outliers.\n\n"
    sections = [
        ("Gaussian data, outliers at 20, d = 4, n = 200", note + report.table(header, rows)),
        ("Cauchy data, Gaussian model, n = 200", "Floor for MMD: 0.03.\n\n" + report.table(heads, second)),
    ]
    data = {"location": rows, "cauchy": second}
    return report.write("npl_location", "Location by the posterior bootstrap", sections, data)
