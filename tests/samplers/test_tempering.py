"""Tempered sequential Monte Carlo against posteriors and evidences known in closed form."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

from numpyro_kme.engines import learnt_model
from numpyro_kme.models.unconstrained import Unconstrained
from numpyro_kme.samplers import tempering
from numpyro_kme.samplers.tempering import MOVES, temper

N = 4000
M = N // MOVES


@partial(jax.jit, static_argnums=(0, 1))
def both(log_prior, log_likelihood, data, u):
    return jax.vmap(partial(log_prior, data))(u), jax.vmap(partial(log_likelihood, data))(u)


def tempered(rng_key, log_prior, log_likelihood, data, particles):
    return temper(rng_key, partial(both, log_prior, log_likelihood, data), particles)


def standard_normal(_, u):
    return -0.5 * jnp.sum(u**2) - 0.5 * u.shape[0] * jnp.log(2 * jnp.pi)


def normal_likelihood(data, u):
    precision, at = data
    return -0.5 * (u - at) @ precision @ (u - at)


@pytest.mark.parametrize("seed", [0, 1])
def test_correlated_normal_in_six_dimensions(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(6, 6))
    precision, at = 5 * root @ root.T, 2 * rng.normal(size=6)
    particles = jax.random.normal(jax.random.key(seed), (N, 6))
    data = jnp.array(precision), jnp.array(at)
    found = tempered(jax.random.key(seed + 10), standard_normal, normal_likelihood, data, particles)
    covariance = np.linalg.inv(precision + np.eye(6))
    mean = covariance @ precision @ at
    marginal = np.eye(6) + np.linalg.inv(precision)
    log_evidence = -0.5 * (np.linalg.slogdet(marginal @ precision)[1] + at @ np.linalg.solve(marginal, at))
    white = (np.asarray(found.particles) - mean) @ np.linalg.cholesky(np.linalg.inv(covariance))
    error = 5 / np.sqrt(float(found.effective_size))
    assert found.effective_size > M / 2 and found.num_evaluations < 60 * N
    np.testing.assert_allclose(white.mean(0), 0.0, atol=error)
    np.testing.assert_allclose(np.cov(white.T), np.eye(6), atol=1.5 * error)
    np.testing.assert_allclose(found.log_evidence, log_evidence, atol=1.0)


def test_draws_in_a_model_come_with_their_density_in_its_own_units():
    """Of a log-normal latent whose logarithm is seen: a conjugate normal posterior, without the Jacobian."""

    def model(y):
        theta = numpyro.sample("theta", dist.LogNormal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.log(theta), 0.5), obs=y)

    prior = {"theta": np.exp(np.random.default_rng(0).normal(size=N)).astype(np.float32)}
    target = Unconstrained(model, (0.8,), {}, {"theta": ()})
    latents = {"theta": SimpleNamespace(value=prior["theta"][0], fn=dist.LogNormal(0.0, 1.0))}
    nothing = dict(
        kwargs={}, observations={}, simulators={}, discrete=(), draw=lambda *_: SimpleNamespace(latents=prior)
    )
    problem = SimpleNamespace(model=model, args=(0.8,), latents=latents, likelihoods=("y",), **nothing)
    learnt = learnt_model.LearntModel(problem, {})
    drawn = learnt_model.draw_in_model(jax.random.key(0), learnt, 300)
    theta = drawn.latents["theta"]
    density = stats.lognorm(1.0).logpdf(theta) + stats.norm(np.log(theta), 0.5).logpdf(0.8)
    np.testing.assert_allclose(drawn.log_posterior, density, rtol=1e-4, atol=1e-4)
    assert abs(drawn.log_evidence - stats.norm(0.0, np.sqrt(1.25)).logpdf(0.8)) < 0.2
    sd = np.sqrt(0.2)
    assert abs(np.log(theta).mean() - 0.8 * 0.8) < 5 * sd / np.sqrt(drawn.info["effective sample size"])
    best = learnt_model.mode(target, drawn.latents, drawn.log_posterior)
    np.testing.assert_allclose(np.log(best["theta"]), 0.8 * 0.8 - 0.2, atol=1e-3)  # the mode of the density of theta


def two_modes(weight, u):
    near, far = jnp.sum((u - 1.5) ** 2), jnp.sum((u + 1.5) ** 2)
    return jnp.logaddexp(jnp.log(weight) - 50 * near, jnp.log1p(-weight) - 50 * far)


def test_modes_keep_their_masses_and_another_observation_does_not_compile_again():
    particles = jax.random.normal(jax.random.key(0), (N, 2))
    found = tempered(jax.random.key(1), standard_normal, two_modes, jnp.array(0.8), particles)
    right = found.particles[:, 0] > 0
    np.testing.assert_allclose(np.mean(right), 0.8, atol=0.08)
    sd = 1 / np.sqrt(101)
    np.testing.assert_allclose(np.std(found.particles[right], axis=0), sd, rtol=0.12)
    np.testing.assert_allclose(np.mean(found.particles[right], axis=0), 150 / 101, atol=5 * sd / np.sqrt(M / 2))
    programs = both._cache_size()
    other = tempered(jax.random.key(1), standard_normal, two_modes, jnp.array(0.3), particles)
    assert np.mean(other.particles[:, 0] > 0) < 0.5 and both._cache_size() == programs


def test_one_coordinate_of_ten_has_a_narrow_mode_and_a_broad_one(rng):
    """As a shift that is 0 or not: a normal number, or with probability 2/3 one within .01 of 2. The mass of the narrow
    mode is right, and the other coordinates are as before. Without moves of one coordinate a third as many draws are
    independent."""

    def log_densities(u):
        narrow = stats.norm.logpdf(u[:, 0], 2.0, 0.01) - stats.norm.logpdf(u[:, 0]) + np.log(2.0)
        return -0.5 * np.sum(u**2, axis=1), np.logaddexp(0.0, narrow)

    found = temper(jax.random.key(0), log_densities, rng.normal(size=(N, 10)))
    assert found.effective_size > 0.5 * M
    error = 5 / np.sqrt(found.effective_size)
    assert abs(np.mean(np.abs(found.particles[:, 0] - 2.0) < 0.1) - 2 / 3) < 0.5 * error
    np.testing.assert_allclose(np.mean(found.particles[:, 1:], axis=0), 0.0, atol=error)
    np.testing.assert_allclose(np.std(found.particles[:, 1:], axis=0), 1.0, atol=error)


@pytest.mark.parametrize("precision", [0.5, 2.0, 5.0])
def test_means_vary_as_much_as_the_effective_size_says(rng, precision):
    """Over 300 runs from 400 draws of N(0, 1), with a likelihood N(1 | z, 1 / precision): few moves are enough."""

    def log_densities(u):
        return -0.5 * u[:, 0] ** 2, -0.5 * precision * (u[:, 0] - 1) ** 2

    runs = [temper(jax.random.key(i), log_densities, rng.normal(size=(400, 1))) for i in range(300)]
    errors = (np.array([np.mean(run.particles) for run in runs]) - precision / (1 + precision)) * np.sqrt(1 + precision)
    claimed = np.mean([1 / run.effective_size for run in runs])
    assert abs(np.mean(errors)) < 5 * np.std(errors) / np.sqrt(300)
    assert 0.6 * claimed < np.mean(errors**2) < 1.4 * claimed  # the ratio has a standard error of 0.08


def test_a_likelihood_that_is_nearly_a_point():
    """As of a deterministic simulator: the first of its temperatures is below 1e-9."""
    at = np.array([0.3, -0.8, 0.5, 1.1, -0.2, 0.0])
    particles = jax.random.normal(jax.random.key(0), (N, 6))
    data = jnp.array(1e10 * np.eye(6)), jnp.array(at)
    found = tempered(jax.random.key(1), standard_normal, normal_likelihood, data, particles)
    error = 5 / np.sqrt(float(found.effective_size))
    assert found.effective_size > M / 2
    np.testing.assert_allclose((np.mean(found.particles, axis=0) - at) * 1e5, 0.0, atol=error)
    np.testing.assert_allclose(np.std(found.particles, axis=0) * 1e5, 1.0, atol=error)
    log_evidence = stats.norm.logpdf(at).sum() + 3 * np.log(2 * np.pi * 1e-10)
    np.testing.assert_allclose(found.log_evidence, log_evidence, atol=1.0)


def infinite(_, u):
    return jnp.where(u[0] > 0.0, jnp.inf, 0.0)


def test_temperatures_are_bounded(monkeypatch):
    """A likelihood so steep that the smallest step of the temperature leaves one particle, again and again."""
    monkeypatch.setattr(tempering, "MOST_TEMPERATURES", 5)
    particles = np.random.default_rng(0).normal(size=(400, 2))
    squares = lambda u: np.sum(u**2, axis=1)  # noqa: E731
    found = temper(jax.random.key(0), lambda u: (-0.5 * squares(u), -1e60 * squares(u)), particles)
    assert found.num_temperatures == 5 and np.isfinite(found.particles).all()


def half_space(edge, u):
    return jnp.where(u[0] > edge, 0.0, jnp.where(u[1] > 0, -jnp.inf, jnp.nan))


@pytest.mark.parametrize("edge", [-1.0, 1.5])
def test_a_likelihood_that_vanishes_at_most_particles(edge):
    particles = jax.random.normal(jax.random.key(0), (N, 2))
    found = tempered(jax.random.key(1), standard_normal, half_space, jnp.array(edge), particles)
    inside = stats.truncnorm(edge, np.inf)
    assert np.min(found.particles[:, 0]) > edge
    np.testing.assert_allclose(np.mean(found.particles[:, 0]), inside.mean(), atol=0.2 * inside.std())
    np.testing.assert_allclose(np.std(found.particles[:, 0]), inside.std(), rtol=0.2)
    np.testing.assert_allclose(found.log_evidence, stats.norm.logsf(edge), atol=0.4)


@pytest.mark.parametrize("log_likelihood", [half_space, infinite])
def test_a_likelihood_that_vanishes_everywhere_or_is_infinite_ends(log_likelihood):
    particles = jax.random.normal(jax.random.key(0), (N, 2))
    found = tempered(jax.random.key(1), standard_normal, log_likelihood, jnp.array(50.0), particles)
    assert not np.isfinite(found.log_evidence)
    with pytest.raises(ValueError, match=f"no mass at any of {N} draws from the prior"):
        learnt_model.as_drawn({}, {}, np.zeros(N), np.zeros(N), found)
