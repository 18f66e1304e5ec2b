"""Values at irregular times, of any number, by `GaussianProcessPath` in the published form."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_kme import KELFI, KernelABC, KernelMeans, Simulator
from numpyro_kme.kernels import Gaussian, GaussianProcessPath, WithLength
from numpyro_kme.likelihoods import KernelStatistics
from numpyro_kme.likelihoods.published.learning import Hyperparameters

LONGEST, NOISE = 10, 0.3
KERNEL = GaussianProcessPath(1.0 * Gaussian(2.0), 0.25)
LENGTHS = WithLength(KERNEL, 0.5)
BETA, RIDGE = np.array([0.3]), 0.05


def path(rng, amplitude, n):
    times = np.sort(rng.uniform(0.0, 6.0, n))
    return np.column_stack([times, amplitude * np.sin(times) + NOISE * rng.normal(size=n)])


def simulator(rng, amplitude):
    return path(rng, amplitude, rng.integers(4, LONGEST + 1))


def model(x=None):
    amplitude = numpyro.sample("amplitude", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(simulator, amplitude, shape=(LONGEST, 2), dtype=float, ragged=True), obs=x)


def exact(x):
    waves = np.sin(x[:, 0])
    precision = 1.0 + waves @ waves / NOISE**2
    return waves @ x[:, 1] / NOISE**2 / precision, precision**-0.5


OBSERVED = path(np.random.default_rng(1), 0.7, 8)


@pytest.fixture(scope="module")
def kelfi():
    """Hyperparameters about as they are learnt; learning takes a minute."""
    known = Hyperparameters(Gaussian(BETA), LENGTHS, np.array(RIDGE))
    engine = KELFI(model, 500, form=KernelMeans(data_kernel=LENGTHS, hyperparameters=known), progress_bar=False)
    engine.run(jax.random.key(0), x=OBSERVED)
    return engine


def test_posteriors_of_paths_of_several_lengths(kelfi):
    for n, amplitude in ((8, 0.7), (5, -0.6), (10, 0.1)):
        x = path(np.random.default_rng(n), amplitude, n)
        draws = kelfi.condition(jax.random.key(1), x=x).get_samples()["amplitude"]
        mean, deviation = exact(x)
        assert abs(draws.mean() - mean) < 1.2 * deviation
        assert 0.7 < draws.std() / deviation < 2.5


def test_a_kernel_that_does_not_see_lengths_is_refused():
    with pytest.raises(ValueError, match="does not compare how long outputs are"):
        KELFI(model, 60, form=KernelMeans(data_kernel=KERNEL), progress_bar=False).run(jax.random.key(0), x=OBSERVED)


@pytest.mark.parametrize("kernel", [KERNEL, 2.0 * KERNEL], ids=["path", "scaled"])
def test_what_needs_a_symmetric_kernel_refuses_it(kernel):
    refused = (
        KELFI(model, 60, form=KernelStatistics(kernel), progress_bar=False),
        KernelABC(model, 60, kernel=kernel, progress_bar=False),
    )
    for engine in refused:
        with pytest.raises(ValueError, match="a density of one point given the other and not symmetric"):
            engine.run(jax.random.key(0), x=OBSERVED)
