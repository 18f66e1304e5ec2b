"""Correlation that changes with the parameters: four points of a normal whose mean, scales and correlation are unknown
(slcp).

    python -m benchmarks slcp --metrics path/to/posterior_metrics.py [--simulations 300 1000] [--seeds 3]

Five parameters, uniform on [-3, 3]: means `theta_1`, `theta_2`, standard deviations `theta_3^2`, `theta_4^2`,
correlation `tanh theta_5`. Eight numbers a simulation, as one vector, or as four draws under a plate, which share one
density. The likelihood is known: the loss is the mean of `log p(x | theta) - log q(x | theta)` over 2,000 fresh
simulations, in nats a data set (half of them have less than the median, which is not led by the tails), and C2ST
compares with exact posterior draws by importance resampling. Takes five minutes.
"""

import itertools
import time
import warnings

import jax
import numpy as np
from scipy import stats

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme.simulators import slcp

DIM, FRESH, DRAWS = len(slcp.PARAMETERS), 2000, 1000


def log_density(theta, x):
    """Exact log density of data sets `(..., 4, 2)` at parameters `(..., 5)`."""
    sd, r = np.square(theta[..., None, 2:4]), np.tanh(theta[..., None, 4])
    u = (x - theta[..., None, :2]) / sd
    rest = (u[..., 1] - r * u[..., 0]) / np.sqrt(1.0 - r**2)
    logs = stats.norm.logpdf(u[..., 0]) + stats.norm.logpdf(rest) - np.log(sd).sum(-1) - 0.5 * np.log1p(-(r**2))
    return logs.sum(-1)


def exact_posterior(rng, y):
    """1,000 draws, and the effective size of the weights they come from.

    Importance resampling of a million: logarithms of standard deviations and `theta_5` uniform, signs at random, means
    from their conditional posterior, a normal around the mean of the points; weights where these are in the box.
    """
    size, (points, _), centre = 1_000_000, y.shape, y.mean(axis=0)
    (first, cross), (_, second) = (y - centre).T @ (y - centre)
    low = 0.5 * np.log([first, second]) - 3.0
    log_sd = rng.uniform(low, np.log(9.0), size=(size, 2))
    last, sd = rng.uniform(-3.0, 3.0, size=size), np.exp(log_sd)
    r, signs = np.tanh(last), rng.choice([-1.0, 1.0], size=(size, 2))
    rest = 1.0 - r**2
    squares = (first / sd[:, 0] ** 2 + second / sd[:, 1] ** 2 - 2.0 * r * cross / sd.prod(axis=1)) / rest
    logs = 0.5 * log_sd.sum(axis=1) - (points - 1.0) * (log_sd.sum(axis=1) + 0.5 * np.log(rest)) - 0.5 * squares
    noise = rng.normal(size=(size, 2))
    noise[:, 1] = r * noise[:, 0] + np.sqrt(rest) * noise[:, 1]
    means = centre + sd * noise / np.sqrt(points)
    weights = np.exp(logs - logs.max()) * np.all(np.abs(means) < 3.0, axis=1)
    weights /= weights.sum()
    theta = np.concatenate([means, signs * np.sqrt(sd), last[:, None]], axis=1)
    return theta[rng.choice(size, DRAWS, p=weights)], 1.0 / np.sum(weights**2)


FORMS = {
    "published form": (slcp.model, kme.KernelMeans),
    "residual form, no decorrelation": (slcp.model, lambda: kme.ResidualKernelMeans(decorrelate=False)),
    "residual form": (slcp.model, kme.ResidualKernelMeans),
    "residual form, four draws under a plate": (slcp.plated_model, kme.ResidualKernelMeans),
}


def fresh(rng):
    """Parameters from the prior and a data set of each."""
    theta = rng.uniform(-3.0, 3.0, size=(FRESH, DIM))
    keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), FRESH)
    return theta, np.asarray(jax.vmap(slcp.points)(keys, theta), np.float64).reshape(FRESH, slcp.POINTS, 2)


def losses(fitted, plate, theta, x):
    """`log p - log q` of fresh data sets."""
    if plate:
        own = jax.jit(jax.vmap(lambda t, sets: jax.vmap(lambda row: fitted(t).log_prob(row))(sets).sum()))(theta, x)
    else:
        own = jax.jit(jax.vmap(lambda t, row: fitted(t).log_prob(row)))(theta, x.reshape(len(x), -1))
    return log_density(theta, x) - np.asarray(own, np.float64)


def one(name, size, seed, metrics):
    """Losses and scores of one fit."""
    model, form = FORMS[name]
    rng = np.random.default_rng([seed, size])
    theta, x = fresh(rng)
    y = x[0]
    kelfi = kme.KELFI(model, size, form=form(), num_rounds=1, num_samples=DRAWS, progress_bar=False)
    begun = time.process_time()
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        kelfi.run(jax.random.key(seed), x=y if model is slcp.plated_model else y.ravel())
    seconds = time.process_time() - begun
    gaps = losses(kelfi.likelihoods["x"], model is slcp.plated_model, theta, x)
    draws, effective = exact_posterior(rng, y)
    return {
        "form": name,
        "simulations": size,
        "seed": seed,
        "loss, mean": float(np.mean(gaps)),
        "loss, median": float(np.median(gaps)),
        "C2ST": float(metrics.c2st(draws, np.asarray(kelfi.get_samples()["theta"]), n=DRAWS, seed=1)),
        "effective size of the exact draws": float(effective),
        "CPU seconds": seconds,
    }


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--metrics", required=True)
    parser.add_argument("--simulations", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    metrics, rows, text = report.imported(options.metrics), [], ""
    for seed, size, name in itertools.product(range(options.seeds), options.simulations, options.forms):
        rows.append(one(name, size, seed, metrics))
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
        sections = [("Means over seeds", means(rows))]
        text = report.write("slcp", "Correlation that changes with the parameters", sections)
    print(text)


def means(rows):
    """The table of means over seeds."""
    names, lines = ["loss, mean", "loss, median", "C2ST", "CPU seconds"], []
    for key in sorted({(row["simulations"], row["form"]) for row in rows}):
        own = [row for row in rows if (row["simulations"], row["form"]) == key]
        lines.append([*key, len(own), *(float(np.mean([row[name] for row in own])) for name in names)])
    return report.table(["simulations", "form", "seeds", *names], lines)
