"""The learning rate against its closed form in a normal location model, and its coverage."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_kme.diagnostics.weight_calibration import calibrate_weight
from numpyro_kme.engines.posterior_bootstrap import PosteriorBootstrap
from numpyro_kme.losses import NegativeLogLikelihood

X = np.random.default_rng(0).normal(1.0, 2.0, (60, 1))


def narrow(x):
    """A normal model whose sd, 1, is not that of the data."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1.0).expand([1]).to_event(1), obs=x)


def test_the_weight_of_a_normal_location_is_the_ratio_of_variances():
    bootstrap = PosteriorBootstrap(narrow, NegativeLogLikelihood(), num_samples=300, progress_bar=False)
    bootstrap.run(jax.random.key(0), X)
    found = calibrate_weight(bootstrap)
    # Dirichlet weights: Var(replicate) = s^2 / (n + 1); the loss has Hessian 1, so the posterior has variance 1 / (w n)
    expected = (len(X) + 1) / (len(X) * X.var())
    np.testing.assert_allclose(found.by_bootstrap, expected, rtol=5 * np.sqrt(2 / 300))
    np.testing.assert_allclose(found.by_coverage, expected, rtol=5 * np.sqrt(0.09 / 300) / 0.17)
    assert found.num_replicates == 300


def test_a_bootstrap_must_have_been_run():
    with pytest.raises(RuntimeError, match="should be called first"):
        calibrate_weight(PosteriorBootstrap(narrow, NegativeLogLikelihood()))
    with pytest.raises(TypeError, match="`bootstrap` must be a PosteriorBootstrap that has been run"):
        calibrate_weight(narrow)
    with pytest.raises(ValueError, match=r"`level` must be between 0 and 1; got 1\.5"):
        calibrate_weight(narrow, level=1.5)
