"""Gaussian location with outliers, and Cauchy data under a Gaussian model: error of the posterior mean by loss.

    python benchmarks/npl_location.py                                # 100 data sets (10 for Wasserstein)
    python benchmarks/npl_location.py --datasets 10 --transport 2    # a look

Writes `results/npl_location.md` and `results/npl_location.json`.
"""

import argparse
import time

import jax.numpy as jnp
import numpy as np
import report
from npl_models import LINE, LOCATION, bootstrap, location, location_data

from numpyro_kme.losses import MMD, Generator, NegativeLogLikelihood, NormalNoise, Wasserstein

PUBLISHED = {
    "MMD": (0.0107, 0.00889, 0.0113),
    "NegativeLogLikelihood": (0.0051, 0.945, 3.57),
    "Wasserstein": (0.00689, 0.0189, 0.0397),
}
SHARES = (0.0, 0.05, 0.1)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--transport", type=int, default=10)
    parser.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    losses = ((MMD(), arguments.datasets), (NegativeLogLikelihood(), arguments.datasets))
    losses += ((Wasserstein(), arguments.transport),) if arguments.transport else ()
    rows, cauchy = [], []
    for loss, count in losses:
        name = type(loss).__name__
        draws = 16 if name == "Wasserstein" else arguments.draws
        for share, published in zip(SHARES, PUBLISHED[name]):
            began = time.perf_counter()
            sets = [location_data(np.random.default_rng([seed, round(1000 * share)]), share) for seed in range(count)]
            scores = np.array([error(loss, x, 1.0, seed, draws) for seed, x in enumerate(sets)])
            standard_error = scores[:, 0].std() / np.sqrt(count)
            rows.append((name, share, count, draws, scores[:, 0].mean(), standard_error, scores[:, 1].min(), published))
            print(rows[-1], f"{time.perf_counter() - began:.0f} s", flush=True)
    for loss, published in ((MMD(), 0.0289), (NegativeLogLikelihood(), 48.2)):
        sets = [np.random.default_rng([seed, 5]).standard_cauchy((200, 1)) for seed in range(arguments.datasets)]
        scores = np.array([error(loss, x, 0.0, seed, arguments.draws) for seed, x in enumerate(sets)])
        spread = scores[:, 0].std() / np.sqrt(len(sets))
        cauchy.append((type(loss).__name__, len(sets), scores[:, 0].mean(), spread, scores[:, 1].min(), published))
        print(cauchy[-1], flush=True)
    header = ("loss", "outliers", "data sets", "draws", "NMSE", "se", "least converged", "published (10 sets)")
    second = ("loss", "data sets", "MSE", "se", "least converged", "published (20 sets)")
    report.save(
        "npl_location",
        "Location by the posterior bootstrap",
        [
            ("Gaussian data, outliers at 20, d = 4, n = 200", report.table(header, rows)),
            ("Cauchy data, Gaussian model, n = 200", report.table(second, cauchy)),
        ],
        {"location": rows, "cauchy": cauchy},
    )


if __name__ == "__main__":
    main()
