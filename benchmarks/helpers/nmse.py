"""The score of the blowfly experiment: squared errors at a point, relative to those under the prior.

For each statistic, the mean over single runs of (simulated - observed)^2, its variance included, is divided by the same
mean over 10,000 draws from the prior. The average over the ten statistics is the normalised mean squared error: 1 is
what the prior reaches. The denominators of the changes (statistics 5 to 8) have heavy tails and differ several times
from one set of 10,000 draws to the next, so one set was made once, and is kept beside this file.
"""

import csv
import json
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme.simulators import blowfly

STORED = Path(__file__).with_name("blowfly_prior_mse.json")
PRIOR_DRAWS, RUNS, BLOCK = 10_000, 1_000, 500


@jax.jit
def runs(keys, log_theta):
    return jax.lax.map(lambda one: blowfly.blowfly_statistics(*one), (keys, log_theta), batch_size=BLOCK)


def simulate(rng_key, log_theta):
    """Statistics, `(n, 10)`, of one run at each row of `log_theta` `(n, 6)`."""
    keys = jax.random.split(rng_key, len(log_theta))
    return np.asarray(runs(keys, jnp.asarray(log_theta, jnp.float32)), np.float64)


def squared_errors(statistics, observed=blowfly.OBSERVED):
    """Mean over runs of the squared error of each statistic: `(n, 10)` against `(10,)` gives `(10,)`."""
    return np.mean((np.asarray(statistics) - observed) ** 2, axis=0)


def nmse(statistics, denominators):
    """Average over statistics of the squared error relative to the prior's; 1 is the prior, 0 is exact."""
    return float(np.mean(squared_errors(statistics) / denominators))


def nmse_at(rng_key, log_theta, denominators):
    """The score of one point `(6,)`, by 1,000 runs."""
    return nmse(simulate(rng_key, np.tile(np.asarray(log_theta, float), (RUNS, 1))), denominators)


def make_denominators(seed=0):
    """Simulate 10,000 draws from the prior and store their squared errors with what they were made by."""
    draws, noise = jax.random.split(jax.random.key(seed))
    z = np.asarray(jax.random.normal(draws, (PRIOR_DRAWS, len(blowfly.PRIOR_MEAN))), np.float64)
    mse = squared_errors(simulate(noise, blowfly.PRIOR_MEAN + blowfly.PRIOR_SD * z)).tolist()
    made = {"made_by": "python -m benchmarks blowfly --make-denominators", "jax": version("jax"), "seed": seed}
    STORED.write_text(json.dumps(made | {"draws": PRIOR_DRAWS, "mse": mse}, indent=1) + "\n")


def series(path):
    """The published counts, in thousands, of a CSV file with a column `count`; it is not part of this project."""
    with open(path) as file:
        lines = [line for line in file if not line.startswith("#")]
    return np.array([float(row["count"]) for row in csv.DictReader(lines)]) / 1000.0


def in_thousands(rng_key, log_theta):
    """A simulated series in thousands."""
    return blowfly.blowfly(rng_key, log_theta) / 1000.0


def stored_denominators():
    """The ten denominators that every score uses, `(10,)`."""
    return np.array(json.loads(STORED.read_text())["mse"])
