"""The engines that weight simulations, on outputs of any length: normal trials, whose posterior is known."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme import Simulator, simulate
from numpyro_kme.kernels import EmpiricalMeasureRule, Gaussian, pad
from numpyro_kme.losses import Wasserstein

LONGEST = 20
PRIOR = 0.7


def trials(rng, mu):
    return rng.normal(mu, 1.0, size=rng.integers(4, LONGEST + 1))


def model(x=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, PRIOR))
    numpyro.sample("x", Simulator(trials, mu, shape=LONGEST, dtype=float, ragged=True), obs=x)


OBSERVED = np.random.default_rng(0).normal(0.3, 1.0, size=12)
NUMBER = 1200


@pytest.fixture(scope="module")
def made():
    return simulate(jax.random.key(0), model, NUMBER, progress_bar=False)


def exact(y):
    precision = len(y) + PRIOR**-2
    return y.sum() / precision, precision**-0.5


def difference_of_means(a, b):
    """A discrepancy of a user's: it gets rows of NaN behind the ends."""
    return abs(np.nanmean(a) - np.nanmean(b)) + 0.2 * abs(np.isnan(a).sum() - np.isnan(b).sum()) / LONGEST


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        (kme.KernelABC, {"kernel": EmpiricalMeasureRule()}),
        pytest.param(kme.KernelBayes, {"kernel": EmpiricalMeasureRule()}, marks=pytest.mark.slow),
        (kme.DistributionRegressionABC, {"kernel": EmpiricalMeasureRule(multiple=4.0)}),
        (kme.RejectionABC, {"discrepancy": difference_of_means, "quantile": 0.1}),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
@pytest.mark.filterwarnings("ignore:.*(coarse|too narrow)")
def test_posteriors_of_two_lengths(made, engine, settings):
    run = engine(model, NUMBER, simulations=made, progress_bar=False, **settings)
    run.run(jax.random.key(0), x=OBSERVED)
    for y in (OBSERVED, np.random.default_rng(1).normal(-0.3, 1.0, size=18)):
        posterior = run.condition(jax.random.key(1), x=y)
        mean, deviation = exact(y)
        found = posterior.expectation(lambda draws: draws["mu"])
        assert abs(found - mean) < 1.2 * deviation
        assert 0.4 < posterior.get_samples()["mu"].std() / deviation < 2.2


def test_recursive_abc_closes_in_on_the_mean():
    run = kme.KernelRecursiveABC(model, 80, num_iterations=4, kernel=EmpiricalMeasureRule(), progress_bar=False)
    run.run(jax.random.key(0), x=OBSERVED)
    assert abs(run.posterior.mode()["mu"] - OBSERVED.mean()) < 0.4


@pytest.mark.parametrize(
    ("engine", "settings", "sentence"),
    [
        (kme.KernelABC, {}, "which the kernel that is chosen here does not compare. Use KELFI"),
        (kme.KernelABC, {"kernel": Gaussian(1.0)}, "Gaussian compares arrays of one length"),
        (kme.K2ABC, {}, "which a discrepancy between data sets here does not compare"),
        (kme.RejectionABC, {}, "which the Euclidean distance here does not compare"),
        (kme.RejectionABC, {"discrepancy": Wasserstein()}, "which a discrepancy between data sets here does not"),
    ],
)
def test_what_is_refused_says_what_to_use(made, engine, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        engine(model, NUMBER, simulations=made, progress_bar=False, **settings).run(jax.random.key(0), x=OBSERVED)


def plate_model(x=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, PRIOR))
    with numpyro.plate("sets", 3):
        numpyro.sample("x", Simulator(trials, mu, shape=LONGEST, dtype=float, ragged=True), obs=x)


def test_sets_along_a_plate_are_refused():
    x = np.stack([pad(OBSERVED, LONGEST)] * 3)
    with pytest.raises(ValueError, match=r"at 'x' has draws along plates that are of any length .* Use KELFI"):
        kme.KernelABC(plate_model, 20, kernel=EmpiricalMeasureRule(), progress_bar=False).run(jax.random.key(0), x=x)
    with pytest.raises(ValueError, match=r"draws at 'x' are of any length .* compare draws of one"):
        kme.PosteriorBootstrap(plate_model, num_samples=10, progress_bar=False).run(jax.random.key(0), x=x)
