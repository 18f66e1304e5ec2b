"""Gradients of the residual form against finite differences, and what it learns where the exact density is known."""

import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import numpyro_kme as kme
from numpyro_kme.likelihoods.residual import bandwidths
from numpyro_kme.likelihoods.residual import location_scale as ls
from numpyro_kme.likelihoods.residual.location_scale import Location
from numpyro_kme.likelihoods.residual.smoothness import Inputs, Smoothness


@pytest.fixture
def smoothness(rng):
    return Smoothness(rng.normal(size=4) - 1.0, -0.3, rng.normal(size=2) * 0.2 + 0.5, -1.0)


@pytest.mark.x64
@pytest.mark.parametrize("points", [4, 15])
def test_gradients_by_hand_agree_with_finite_differences(rng, smoothness, points):
    z, e, noise, size = (rng.normal(size=shape) for shape in ((15, 2), 15, 15, 15))
    x = np.where(np.arange(15) == 3, 40.0, np.exp(z[:, 0] + 0.3 * e))
    inputs, at = Inputs(z, z[:points]), Location(smoothness, -0.2, -1.0)
    loss = lambda location: ls.location_loss(location, inputs, x, noise**2, size**2)  # noqa: E731
    flat, unpack = ravel_pytree(at)
    flat = np.asarray(flat)

    def differences(step):
        steps = step * np.eye(len(flat))
        return np.array([loss(unpack(flat + e))[0] - loss(unpack(flat - e))[0] for e in steps]) / (2.0 * step)

    extrapolated = (4.0 * differences(3e-4) - differences(6e-4)) / 3.0  # nearly singular matrices round smaller steps
    np.testing.assert_allclose(ravel_pytree(loss(at)[1])[0], extrapolated, rtol=1e-5, atol=1e-5)


def test_a_statistic_without_noise_is_known_to_a_thousandth():
    """Held-out simulations say a millionth, which rounding of the fitted function may exceed."""
    for seed in range(6):
        z = np.random.default_rng(seed).normal(size=(300, 2))
        x = 2.0 * z[:, :1] + 1.0
        surrogate = kme.ResidualKernelMeans().fit(z, x)
        log_densities = surrogate.at_rows(x[:20]).log_density(z[:20])
        assert np.median(log_densities) > -np.log(2.0 * 1e-3 * np.sqrt(2.0 * np.pi))


def test_a_correlation_that_follows_the_parameters_is_learnt(rng):
    """Mean gap to the exact density in nats; of one correlation for all parameters it is 0.19."""
    z, e = rng.normal(size=(900, 1)), rng.normal(size=(900, 2))
    x = np.stack([e[:, 0], (0.3 + 0.6 * z[:, 0]) * e[:, 0] + 0.3 * e[:, 1]], axis=1)
    found = kme.ResidualKernelMeans().fit(z[:400], x[:400]).at_rows(x[400:]).log_density(z[400:])
    exact = stats.norm.logpdf(e[400:]).sum(axis=1) - np.log(0.3)
    assert np.mean(exact - found) < 0.14


def test_weights_follow_steps_among_simulations_that_lie_close(rng, monkeypatch):
    """As those of a last round do: residuals of N(1, .1^2) right of 0 and of N(-1, .1^2) left of it, exactly .88."""
    z = rng.normal(size=(400, 1)) * 0.15
    residuals = np.sign(z) + 0.1 * rng.normal(size=z.shape)
    fine = bandwidths.learn(z, [residuals])
    assert fine.bandwidths.beta < 0.2 and fine.log_densities.mean() < 1.1
    monkeypatch.setitem(bandwidths.CANDIDATES, "beta", (0.25, 0.5, 1.0, 2.0))
    assert fine.log_densities.mean() > bandwidths.learn(z, [residuals]).log_densities.mean() + 0.05
