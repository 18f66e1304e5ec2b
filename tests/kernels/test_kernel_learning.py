"""Bayesian kernel learning: quadrature, a dense covariance, and the grid of Gaussians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from numpyro_kme import BayesianKernelLearning, CrossValidation, MedianHeuristic
from numpyro_kme.kernels import median_heuristic, median_heuristic_per_dimension
from numpyro_kme.kernels.kernel_learning import (
    farthest_point_design,
    learn_length_scale,
    log_pseudo_likelihood,
    smoothed_kernel,
)
from numpyro_kme.kernels.low_rank import REGULARISATIONS
from numpyro_kme.mcmc import length_scale_model


def test_smoothed_kernel_by_quadrature(rng):
    x, y, s, eta = rng.normal(size=(3, 2)), rng.normal(size=(4, 2)), 0.7, 1.3
    axis = np.linspace(-8, 8, 321)
    u = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    k = lambda a: np.exp(-0.5 * np.sum((a[:, None] - u[None]) ** 2, -1) / s**2)  # noqa: E731
    weight = np.exp(-0.5 * np.sum(u**2, -1) / eta**2) * (axis[1] - axis[0]) ** 2
    np.testing.assert_allclose(smoothed_kernel(x, y, s, eta), (k(x) * weight) @ k(y).T, rtol=1e-8)


def test_pseudo_likelihood_by_a_dense_normal(rng):
    x, z, s, tau, eta = rng.normal(size=(30, 2)), rng.normal(size=(8, 2)), 0.8, 0.3, 1.5
    phi = np.exp(-0.5 * np.sum((x[:, None] - z) ** 2, axis=-1) / s**2)
    covariance = np.kron(np.ones((30, 30)), np.asarray(smoothed_kernel(z, z, s, eta))) + tau**2 * np.eye(240)
    expected = stats.multivariate_normal.logpdf(phi.ravel(), np.zeros(240), covariance)
    jacobians = phi[..., None] * (z - x[:, None]) / s**2
    expected += sum(0.5 * np.linalg.slogdet(j.T @ j)[1] for j in jacobians)
    np.testing.assert_allclose(log_pseudo_likelihood(x, z, s, tau, eta), expected, rtol=1e-9)


def test_farthest_point_design(rng):
    x = np.concatenate([rng.normal(size=(50, 2)), 30 + rng.normal(size=(50, 2))])
    found = farthest_point_design(jax.random.key(0), x, 4)
    assert found.shape == (4, 2) and 1 <= np.sum(found[:, 0] > 15) <= 3


def test_rules_are_one_interface(rng):
    x = rng.normal(size=(60, 2)) * [1.0, 5.0]
    assert MedianHeuristic()(x, x) == median_heuristic(x)
    np.testing.assert_array_equal(MedianHeuristic(per_dimension=True)(x), median_heuristic_per_dimension(x))
    key = jax.random.key(1)
    learnt = BayesianKernelLearning(key, num_landmarks=10)(x)
    np.testing.assert_allclose(
        learnt, learn_length_scale(jax.random.split(key)[1], x=x, num_landmarks=10).length_scale, rtol=1e-10
    )
    with pytest.raises(ValueError, match="needs `targets`"):
        CrossValidation(key)(x)
    with pytest.raises(ValueError, match="as many rows; got 60 and 3"):
        CrossValidation(key)(x, x[:3])


def test_cross_validation_by_leaving_out(rng):
    """Every multiple and regularisation, every point left out in turn; a wiggly target needs a short length scale."""
    x = np.sort(rng.uniform(-3, 3, size=(40, 1)), axis=0)
    targets = np.concatenate([np.sin(4 * x), 10 * np.cos(4 * x)], axis=1)
    multiples = (0.1, 0.3, 1.0)
    found = CrossValidation(jax.random.key(0), multiples)(x, targets)
    scaled = (targets - targets.mean(0)) / targets.std(0)
    errors = np.zeros((3, len(REGULARISATIONS)))
    for a, multiple in enumerate(multiples):
        gram = np.exp(-0.5 * ((x - x.T) / (multiple * median_heuristic(x))) ** 2)
        for b, lam in enumerate(REGULARISATIONS):
            for i in range(40):
                rest = np.arange(40) != i
                weights = np.linalg.solve(gram[np.ix_(rest, rest)] + 40 * lam * np.eye(39), gram[rest, i])
                errors[a, b] += np.sum((scaled[i] - weights @ scaled[rest]) ** 2)
    assert found == multiples[int(np.argmin(errors.min(axis=1)))] * median_heuristic(x)
    assert found < 0.5 * median_heuristic(x)
    x = np.linspace(0.0, 1.0, 200)[:, None]
    assert CrossValidation(jax.random.key(0))(x, np.sin(125.0 * x)) == 0.1 * median_heuristic(x)  # the least by default


@pytest.mark.x64
def test_kernel_learning_as_a_model(rng):
    """The density of the model is the pseudo-likelihood times its priors."""
    from numpyro import handlers
    from numpyro.infer.util import log_density

    x = rng.normal(size=(30, 2)) + 3.0
    z = farthest_point_design(jax.random.key(0), x, 8)
    median, reach = median_heuristic(x), np.sqrt(np.mean(np.sum((x - x.mean(0)) ** 2, 1)))
    at = {"log_length_scale": jnp.log(0.7), "log_noise": jnp.log(0.2)}

    @jax.jit
    def read(at):
        trace = handlers.trace(handlers.substitute(length_scale_model, at)).get_trace(x, z)
        high = trace["log_length_scale"]["fn"].high
        return log_density(length_scale_model, (x, z), {}, at)[0], trace["length_scale"]["value"], high

    found, length_scale, high = read(at)
    expected = log_pseudo_likelihood(x - x.mean(0), z - x.mean(0), 0.7, 0.2, reach)
    expected += stats.norm.logpdf(np.log(0.2), np.log(0.3), 1.0) - np.log(np.log(1e3))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(length_scale, 0.7, rtol=1e-12)
    np.testing.assert_allclose(high, np.log(median), rtol=1e-12)


def test_too_few_different_points_raise():
    two = np.repeat([[0.0, 0.0], [1.0, 1.0]], 30, axis=0)
    with pytest.raises(np.linalg.LinAlgError, match=r"not finite at length scales .*: are there enough different"):
        learn_length_scale(jax.random.key(0), two, num_landmarks=10)


@pytest.mark.parametrize(
    "x, message",
    [(np.ones((5, 2)), "constant column"), (np.full((5, 1), np.nan), "finite"), (np.ones((1, 2)), "at least 2")],
)
def test_bad_input_raises(x, message):
    with pytest.raises(ValueError, match=message):
        learn_length_scale(jax.random.key(0), x)


X = np.random.default_rng(0).normal(size=(20, 2))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: CrossValidation(jax.random.key(0))(X, np.full((20, 1), np.nan)), "`targets` has 20 entries"),
        (lambda: CrossValidation(jax.random.key(0))(X, np.ones((20, 1))), "`targets` are constant"),
        (lambda: CrossValidation(jax.random.key(0), ())(X, X), "`multiples` must hold at least one number"),
        (lambda: CrossValidation(jax.random.key(0), most=3)(X, X), "`most` must be at least 10; got 3"),
        (lambda: farthest_point_design(jax.random.key(0), X * np.nan, 3), "`x` has 40 entries that are not finite"),
        (lambda: farthest_point_design(jax.random.key(0), X[:, 0], 3), r"`x` must have shape .* got \(20,\)"),
        (lambda: farthest_point_design(jax.random.key(0), X, 0), "`number` must be at least 1; got 0"),
    ],
)
def test_what_is_not_identified_raises(call, message):
    """NaN and constant targets gave the first multiple, and a prior of no width an embedding of zero."""
    with pytest.raises((ValueError, np.linalg.LinAlgError), match=message):
        call()
