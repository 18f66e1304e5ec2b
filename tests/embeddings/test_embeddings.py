"""Mean embeddings against double loops, conditional ones against two independent regressions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_kme import kernels as K
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding, MeanEmbedding


def gram(x, y, l=0.8):
    return np.exp(-0.5 * np.sum(((x[:, None] - y[None]) / l) ** 2, axis=-1))


@pytest.mark.parametrize("size", [6, 400])
def test_inner_products_match_double_loops(size, rng):
    x, y, t = rng.normal(size=(size, 2)), rng.normal(size=(4, 2)), rng.normal(size=(900, 2))
    v, w = rng.normal(size=size), rng.normal(size=4)
    mu, nu = MeanEmbedding(K.Gaussian(0.8), x, v), MeanEmbedding(K.Gaussian(0.8), y, w)
    np.testing.assert_allclose(mu(t), gram(t, x) @ v, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mu.inner(nu), v @ gram(x, y) @ w, rtol=1e-9)
    np.testing.assert_allclose(mu.inner(mu), v @ gram(x, x) @ v, rtol=1e-9)


def test_inner_product_with_a_function_of_the_space_is_its_expectation(rng):
    """`f = sum_j c_j k(z_j, .)` has `<f, mu> = sum_i w_i f(x_i)`."""
    x, z, w, c = rng.normal(size=(6, 2)), rng.normal(size=(3, 2)), rng.normal(size=6), rng.normal(size=3)
    mu, f = MeanEmbedding(K.Matern32(0.8), x, w), MeanEmbedding(K.Matern32(0.8), z, c)
    np.testing.assert_allclose(f.inner(mu), mu.expectation(f(x)), rtol=1e-12)
    values = rng.normal(size=(6, 2, 3))
    np.testing.assert_allclose(mu.expectation(values), np.einsum("i,iab->ab", w, values), rtol=1e-12)


@pytest.mark.smoke
@pytest.mark.x64
def test_embeddings_are_pytrees(rng):
    x, t = rng.normal(size=(6, 2)), rng.normal(size=(3, 2))
    evaluate = jax.jit(lambda mu, t: mu(t))
    for l in (0.5, 0.8):
        np.testing.assert_allclose(evaluate(MeanEmbedding(K.Gaussian(l), x), t), gram(t, x, l).mean(1), rtol=1e-10)
    slope = jax.grad(lambda w: (mu := MeanEmbedding(K.Gaussian(0.8), x, w)).inner(mu))(np.ones(6))
    np.testing.assert_allclose(slope, 2 * gram(x, x).sum(1), rtol=1e-10)


def test_bad_embeddings():
    with pytest.raises(ValueError, match=r"`weights` must have shape \(3,\), one per point; got \(2,\)"):
        MeanEmbedding(K.Gaussian(1.0), np.zeros((3, 1)), np.ones(2))
    mu = MeanEmbedding(K.Gaussian(1.0), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="`values` must have 3 rows"):
        mu.expectation(np.zeros(2))
    with pytest.raises(ValueError, match="need one kernel for both embeddings"):
        mu.inner(MeanEmbedding(K.Laplace(1.0), np.zeros((3, 1))))


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(5)
    inputs, theta = rng.normal(size=(40, 2)), rng.normal(size=(7, 2))
    values = np.stack([np.sin(inputs[:, 0]), inputs[:, 1] ** 2], axis=1)
    lam = 1e-2
    return inputs, theta, values, lam, ConditionalMeanEmbedding.fit(K.Gaussian(0.8), inputs, lam)


def test_conditional_embedding_is_kernel_ridge_regression(fitted):
    ridge = pytest.importorskip("sklearn.kernel_ridge")
    inputs, theta, values, lam, embedding = fitted
    model = ridge.KernelRidge(alpha=40 * lam, kernel="rbf", gamma=0.5 / 0.8**2).fit(inputs, values)
    np.testing.assert_allclose(embedding.expectation(values, theta), model.predict(theta), rtol=1e-8)
    np.testing.assert_allclose(embedding.weights(theta) @ values, model.predict(theta), rtol=1e-8)
    np.testing.assert_allclose(embedding.expectation(values[:, 0], theta), model.predict(theta)[:, 0], rtol=1e-8)


def test_conditional_embedding_in_a_float32_session(fitted):
    """From arrays of JAX, too, the factor is float64, and what arrays of NumPy give; what JAX traces is float32."""
    inputs, theta, values, lam, embedding = fitted
    low = ConditionalMeanEmbedding.fit(K.Gaussian(jnp.asarray(0.8)), jnp.asarray(inputs), lam)
    assert {type(leaf) for leaf in jax.tree.leaves(low)} <= {np.ndarray, np.float64}
    assert low.left.dtype == np.float64
    expected = embedding.expectation(values, theta)
    np.testing.assert_allclose(low.expectation(values, theta), expected, atol=1e-5)
    for single in (jax.jit(low.expectation)(values, theta), jax.jit(low.weights)(theta) @ values.astype(np.float32)):
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, expected, atol=1e-4)


def test_a_kernel_of_the_users_in_single_precision(rng):
    """Rounding of its values makes the matrix indefinite at a small regularisation, which the diagonal makes up for."""

    @K.register
    class Own(K.Kernel):
        def pair(self, a, b):
            return jnp.exp(-0.5 * jnp.sum(jnp.square(a - b)))

    inputs, theta = rng.normal(size=(150, 1)), np.linspace(-1.5, 1.5, 7)[:, None]
    with jax.enable_x64(False):
        fitted = ConditionalMeanEmbedding.fit(Own(), inputs, 1e-10)
        found = fitted.expectation(np.sin(inputs), theta)
    np.testing.assert_allclose(found, np.sin(theta), atol=1e-3)


def test_bad_conditional_embeddings(fitted):
    inputs, theta, _, _, embedding = fitted
    with pytest.raises(ValueError, match="`regularisation` must be positive"):
        ConditionalMeanEmbedding.fit(K.Gaussian(1.0), inputs, 0.0)
    with pytest.raises(np.linalg.LinAlgError, match="cannot be solved: with c = 5e-30"):
        ConditionalMeanEmbedding.fit(K.Gaussian(1.0), np.zeros((5, 1)), 1e-30)
    with pytest.raises(TypeError, match="must be concrete"):
        jax.jit(lambda l: ConditionalMeanEmbedding.fit(K.Gaussian(l), inputs, 0.1).left)(1.0)
    with pytest.raises(ValueError, match="`values` must have 40 rows"):
        embedding.expectation(np.zeros(3), theta)
