"""The learning rate against its closed form in a normal location model, and its coverage."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_kme.diagnostics.weight_calibration import WeightCalibration, calibrate_weight
from numpyro_kme.engines.posterior_bootstrap import PosteriorBootstrap
from numpyro_kme.losses import NegativeLogLikelihood

X = np.random.default_rng(0).normal(1.0, 2.0, (60, 1))


def narrow(x):
    """A normal model whose sd, 1, is not that of the data."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1.0).expand([1]).to_event(1), obs=x)


def test_the_weight_of_a_normal_location_is_the_ratio_of_variances():
    found = calibrate_weight(jax.random.key(0), narrow, NegativeLogLikelihood(), X, num_replicates=600, num_nodes=8)
    # Dirichlet weights: Var(replicate) = s^2 / (n + 1); the loss has Hessian 1, so the posterior has variance 1 / (w n)
    expected = (len(X) + 1) / (len(X) * X.var())
    np.testing.assert_allclose(found.by_bootstrap, expected, rtol=5 * np.sqrt(2 / 600))
    np.testing.assert_allclose(found.by_coverage, expected, rtol=5 * np.sqrt(0.09 / 600) / 0.17)
    assert found.coverage.shape == (241, 1) and found.num_replicates == 600
    assert (np.diff(found.coverage[:, 0]) <= 0).all() and found.coverage[0, 0] > 0.999


def test_a_bootstrap_must_have_been_run():
    with pytest.raises(RuntimeError, match="should be called first"):
        WeightCalibration.from_bootstrap(PosteriorBootstrap(narrow, NegativeLogLikelihood()))
    with pytest.raises(TypeError, match="`engine` must be a PosteriorBootstrap that has been run"):
        WeightCalibration.from_bootstrap(narrow)
    with pytest.raises(ValueError, match=r"`level` must be between 0 and 1; got 1\.5"):
        WeightCalibration.from_bootstrap(narrow, level=1.5)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="`level` must be between 0 and 1; got 1"):
        calibrate_weight(jax.random.key(0), narrow, NegativeLogLikelihood(), X, level=1.0)
