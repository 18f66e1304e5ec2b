import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from numpyro_kme.embeddings.measures import Normal, NormalMixture, Points, standard_normal
from numpyro_kme.kernels import Gaussian, InverseMultiquadric, Laplace
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.posterior import KernelMeansPosterior
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.learning import Hyperparameters
from numpyro_kme.samplers.importance import WeightedParticles, adaptive_importance_sampling, effective_size

M = 40
RNG = np.random.default_rng(4)
Z = RNG.normal(size=(M, 1))
X = Z + 0.3 * RNG.normal(size=(M, 1))
Y = np.array([0.6])
HYPER = Hyperparameters(Gaussian(np.array([0.6])), Gaussian(0.25), 3e-3)
T = np.linspace(-9.0, 9.0, 3001)
W = np.exp(-0.5 * T**2) / np.sqrt(2.0 * np.pi) * (T[1] - T[0])
MEASURES = {
    "normal": Normal(np.array([0.3]), np.array([[1.4]])),
    "mixture": NormalMixture(np.array([0.4, 0.6]), np.array([[-1.0], [0.8]]), np.array([[[0.3]], [[1.2]]])),
}


@pytest.fixture(scope="module")
def surrogate():
    return KernelMeans(hyperparameters=HYPER).fit(Z, X)


@pytest.fixture(scope="module", params=[pytest.param("normal", marks=pytest.mark.slow), "mixture"])
def case(request, surrogate):
    """A posterior with quadrature points and weights of its prior."""
    measure = MEASURES[request.param]
    points = np.concatenate([m + T * np.sqrt(c[0, 0]) for m, c in zip(measure.means, measure.covariances)])
    weights = np.concatenate([w * W for w in np.asarray(measure.weights)])
    return KernelMeansPosterior(surrogate, Y, measure), points[:, None], weights


def density(posterior, points):
    sign, log_size = posterior.signed_log_density(points)
    return sign * np.exp(log_size)


@pytest.mark.x64
def test_closed_forms_by_quadrature(case):
    posterior, points, weights = case
    q = density(posterior, points) * weights
    np.testing.assert_allclose(q.sum(), 1.0, atol=1e-8)
    _, log_marginal = posterior.log_marginal()
    relative = signed_values(posterior.surrogate.at(Y), points) * np.exp(-log_marginal)
    np.testing.assert_allclose(relative * weights, q, rtol=1e-8, atol=1e-30)
    mean, covariance = posterior.moments
    np.testing.assert_allclose(mean, q @ points, atol=1e-8)
    np.testing.assert_allclose(covariance, (points - mean).T @ ((points - mean) * q[:, None]), atol=1e-8)
    t = np.linspace(-2, 2, 5)[:, None]
    for scale in (0.6, 0.3, 1.5):
        expected = np.exp(-0.5 * ((t - points.T) / scale) ** 2) @ q
        np.testing.assert_allclose(posterior.embedding(Gaussian(scale), t), expected, atol=1e-8)
    y_new = np.array([[0.2], [1.5]])
    sign, log_size = posterior.predictive_log_density(y_new)
    expected = [np.sum(q * signed_values(posterior.surrogate.at(y), points)) for y in y_new]
    np.testing.assert_allclose(sign * np.exp(log_size), expected, atol=1e-8)


def test_embeddings_keep_their_digits_in_a_float32_session(case):
    posterior, points, weights = case
    t = np.linspace(-2, 2, 5)[:, None]
    expected = np.exp(-0.5 * ((t - points.T) / 0.6) ** 2) @ (density(posterior, points) * weights)
    np.testing.assert_allclose(posterior.embedding(Gaussian(0.6), t), expected, atol=1e-8)


@jax.jit
def signed_values(likelihood, points):
    signs, log_sizes = jax.vmap(likelihood.signed_log)(points)
    return signs * jnp.exp(log_sizes)


def test_weighted_particles_agree_with_closed_forms(case):
    posterior, points, weights = case
    found = posterior.weighted_particles(jax.random.key(2), posterior.num_particles)
    w = np.asarray(found.weights)
    np.testing.assert_allclose(w.sum(), 1.0)
    error = np.sqrt(np.sum(w**2))
    mean, covariance = posterior.moments
    sd = np.sqrt(covariance[0, 0])
    assert abs(w @ found.particles[:, 0] - mean[0]) < 5 * sd * error * 2
    q = density(posterior, points) * weights
    share = np.maximum(-q, 0).sum() / np.abs(q).sum()
    assert abs(np.maximum(-w, 0).sum() / np.abs(w).sum() - share) < 0.03
    assert effective_size(found.positive_weights) > 1000
    positive = np.maximum(q, 0) / np.maximum(q, 0).sum()
    assert abs(found.positive_weights @ found.particles[:, 0] - positive @ points[:, 0]) < 10 * sd * error


@pytest.mark.slow
def test_prior_draws_converge_to_the_closed_forms(surrogate):
    measure = MEASURES["normal"]
    exact = KernelMeansPosterior(surrogate, Y, measure)
    draws = Points(np.asarray(measure.sample(jax.random.key(0), 20000)))
    sampled = KernelMeansPosterior(surrogate, Y, draws)
    assert abs(sampled.log_marginal()[1] - exact.log_marginal()[1]) < 0.05
    assert abs(sampled.moments[0][0] - exact.moments[0][0]) < 0.05
    t = np.array([[0.0], [1.0]])
    kernel = Gaussian(0.5)
    np.testing.assert_allclose(sampled.embedding(kernel, t), exact.embedding(kernel, t), atol=0.03)
    np.testing.assert_allclose(exact.embedding(Laplace(0.5), t), sampled.embedding(Laplace(0.5), t), atol=0.03)
    with pytest.raises(ValueError, match="no density"):
        sampled.mode()


def test_mode(case):
    posterior = case[0]
    grid = np.linspace(-3, 3, 2001)[:, None]
    measure = posterior.measure
    components = zip(measure.weights, measure.means, measure.covariances)
    prior = sum(w * norm.pdf(grid[:, 0], m[0], np.sqrt(c[0, 0])) for w, m, c in components)
    heights = density(posterior, grid) * prior
    found = posterior.mode()
    assert abs(found[0] - grid[np.argmax(heights), 0]) < 0.01
    with jax.enable_x64(True):
        np.testing.assert_array_equal(posterior.mode(), found)  # whatever the session's precision


def test_adaptive_importance_sampling_of_a_posterior_much_narrower_than_the_prior():
    """Four dimensions, posterior sd 0.05 of the prior's: one prior draw in a hundred thousand is inside."""

    @register
    class Likelihood:
        scale: float

        def signed_log(self, z):
            return np.ones(len(z)), -0.5 * np.sum(np.square((z - 0.7) / self.scale), axis=-1)

    found = adaptive_importance_sampling(jax.random.key(0), Likelihood(0.05), standard_normal(4), 3000)
    variance = 1 / (1 + 1 / 0.05**2)
    weights = found.positive_weights
    mean, size = weights @ found.particles, effective_size(weights)
    assert size > 300
    np.testing.assert_allclose(mean, 0.7 * variance / 0.05**2, atol=5 * np.sqrt(variance / size))
    error = 5 * np.sqrt(2 / size)
    np.testing.assert_allclose(weights @ (found.particles - mean) ** 2, variance, rtol=error)


def test_signed_weights():
    particles = WeightedParticles(np.arange(4.0)[:, None], np.array([0.5, -0.25, 0.75, 0.0]), np.zeros(()))
    np.testing.assert_allclose(particles.positive_weights, [0.4, 0, 0.6, 0])


def test_errors(surrogate):
    with pytest.raises(ValueError, match="2 dimensions and `surrogate` 1"):
        KernelMeansPosterior(surrogate, Y, standard_normal(2))
    hyper = Hyperparameters(Gaussian(np.array([0.6])), InverseMultiquadric(0.3), 3e-3)
    posterior = KernelMeansPosterior(KernelMeans(hyperparameters=hyper).fit(Z, X), X[0], standard_normal(1))
    assert np.isfinite(posterior.moments[0]).all()
    for act in (posterior.log_marginal, lambda: posterior.predictive_log_density(X[:1])):
        with pytest.raises(ValueError, match="not a density in the observation"):
            act()
