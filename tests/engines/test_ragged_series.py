"""Series of any length by their signatures, from the model to the posterior."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme import KELFI, Simulator
from numpyro_kme.kernels import SignatureRule
from numpyro_kme.likelihoods import KernelStatistics

LONGEST, NOISE = 12, 0.5


def path(rng, drift, n):
    return np.cumsum(drift + NOISE * rng.normal(size=n))


def growth(rng, drift):
    return path(rng, drift, rng.integers(4, LONGEST + 1))


def model(x=None):
    drift = numpyro.sample("drift", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(growth, drift, shape=LONGEST, dtype=float, ragged=True), obs=x)


def test_drift_of_paths_of_two_lengths():
    """The increments are normal, so that the posterior is known: precision `1 + n / NOISE^2`."""
    kelfi = KELFI(model, 150, form=KernelStatistics(SignatureRule(level=2)), progress_bar=False)
    kelfi.run(jax.random.key(0), x=path(np.random.default_rng(0), 0.5, 10))
    for n in (5, 10):
        x = path(np.random.default_rng(n), 0.5, n)
        precision = 1.0 + n / NOISE**2
        mean, deviation = x[-1] / NOISE**2 / precision, precision**-0.5
        draws = kelfi.trained.condition(jax.random.key(1), x=x).get_samples()["drift"]
        assert abs(draws.mean() - mean) < 1.5 * deviation
        assert 0.6 < draws.std() / deviation < 3.0
