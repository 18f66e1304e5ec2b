"""What the losses are, beside their values: embeddings, independent simulations, mixing proportions, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist

from numpyro_kme.kernels import CrossValidation, Gaussian, Matern52, Polynomial
from numpyro_kme.losses import MMD, Family, Loss, Nodes, Wasserstein, mixing

L = 0.8


def gram(a, b):
    return np.exp(-0.5 * cdist(a, b, "sqeuclidean") / L**2)


def data(rng):
    return rng.normal(size=(40, 2)), rng.normal(0.3, 1.2, size=(3, 64, 2)), rng.dirichlet(np.ones(40), 5)


def test_embeddings_are_as_far_apart_as_the_loss_says(rng):
    """Against double sums; further points count with the data."""
    x, y, w = data(rng)
    embedding = MMD(Gaussian(L)).embedding(x, y.reshape(-1, 2), 500)
    model = embedding.model(y)
    assert model.shape[:2] == (3, 1)
    extra = rng.normal(size=(5, 6, 2))
    more = np.concatenate([0.7 * w, np.full((5, 6), 0.05)], axis=1)
    for weights, points in ((w, None), (more, extra)):
        found = embedding.data(weights, points)
        for r in range(5):
            z = x if points is None else np.concatenate([x, points[r]])
            for d in range(3):
                expected = weights[r] @ gram(z, z) @ weights[r] - 2.0 * weights[r] @ gram(z, y[d]).mean(axis=1)
                expected += gram(y[d], y[d]).mean()
                np.testing.assert_allclose(np.square(found[r] - model[d, 0]).sum(), expected, atol=2e-4)


def test_embeddings_with_covariates_weigh_the_model_as_the_data(rng):
    c, x, w = rng.normal(size=(12, 1)), rng.normal(size=(12, 2)), rng.dirichlet(np.ones(12), 3)
    y = rng.normal(size=(2, 12, 8, 2))  # two parameters, twelve data points, eight nodes
    loss = MMD(Gaussian(L), covariate_kernel=Gaussian(L))
    simulated = np.repeat(c, 16, axis=0), np.moveaxis(y, 0, 2).reshape(-1, 2)
    embedding = loss.embedding((c, x), simulated, 500)
    model, found = embedding.model(y, w), embedding.data(w)
    assert model.shape[:2] == (2, 3)
    for d in range(2):
        for r in range(3):
            points, v = y[d].reshape(-1, 2), np.repeat(w[r] / 8, 8)
            near = gram(c, c)
            own = v @ (np.kron(near, np.ones((8, 8))) * gram(points, points)) @ v
            cross = w[r] @ (np.repeat(near, 8, axis=1) * gram(x, points)) @ v
            expected = w[r] @ (near * gram(x, x)) @ w[r] - 2.0 * cross + own
            np.testing.assert_allclose(np.square(found[r] - model[d, r]).sum(), expected, atol=5e-4)


def test_quantiles_are_as_far_apart_as_the_wasserstein_distance(rng):
    """Against the distance of quantile functions on a fine grid of levels."""
    x, y, w = rng.normal(size=50), rng.gamma(2.0, size=(1, 400)), rng.dirichlet(np.ones(50), 2)
    embedding = Wasserstein().embedding(x, y.ravel(), 400)
    levels = (np.arange(200_000) + 0.5) / 200_000
    order = np.argsort(x)
    for weights, found in zip(w, embedding.data(w)):
        of_data = x[order][np.minimum(np.searchsorted(np.cumsum(weights[order]), levels), 49)]
        exact = np.mean(np.square(of_data - np.quantile(y, levels, method="inverted_cdf")))
        np.testing.assert_allclose(np.square(found - embedding.model(y)[0, 0]).sum(), exact, rtol=0.02)


def test_independent_simulations_leave_out_pairs_with_themselves(rng):
    """The mean over many small samples is the squared distance of the distributions, in closed form of normals."""
    family = Family(lambda u, z: u + z, 1)
    x, w = np.float32(rng.normal(size=(30, 1))), np.full(30, np.float32(1 / 30))
    loss = MMD(Gaussian(1.0)).for_independent()

    def estimate(key):
        return loss.of_model(x, w, family, jnp.zeros(1), Nodes(jax.random.normal(key, (4, 1))))

    found = np.asarray(jax.lax.map(estimate, jax.random.split(jax.random.key(0), 20_000))) + loss.offset(x, w)
    exact = 1 / np.sqrt(3) - 2 * np.mean(np.exp(-0.25 * x**2)) / np.sqrt(2)
    exact += np.mean(np.exp(-0.5 * np.square(x - x.T)))
    assert abs(found.mean() - exact) < 5.0 * found.std() / np.sqrt(20_000)


def test_derivatives_of_the_discrepancy_are_those_of_its_formula():
    """`c^2 q - 2 c s`, `c` between 0 and 1 as the least value asks for."""
    q, s = np.ones(3), np.array([0.4, 1.5, -0.2])
    c = np.linspace(0.0, 1.0, 100_001)
    least = [(c * c * a - 2 * c * b).min() for a, b in zip(q, s)]
    value, gradient, hessian = mixing.derivatives(q, s, True)
    np.testing.assert_allclose(value, least, atol=1e-6)
    for kind in (np, jnp):
        np.testing.assert_allclose(mixing.discrepancy(kind.asarray(q), kind.asarray(s), True), least, atol=1e-6)
    np.testing.assert_allclose(mixing.proportion(q, s), [0.4, 1.0, 0.0], atol=1e-6)
    h = 1e-2
    by_q = (mixing.derivatives(q + h, s, True)[1] - mixing.derivatives(q - h, s, True)[1]) / (2 * h)
    np.testing.assert_allclose(hessian[0], by_q, atol=1e-3)
    np.testing.assert_allclose(gradient[1], [-0.8, -2.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(mixing.discrepancy(q, s, False), q - 2 * s)


class Energy(Loss):
    """Energy distance of scalars."""

    def value(self, x, w, y, v):
        def mean(a, p, b, q):
            return p @ jnp.abs(a[:, None] - b[None]) @ q

        return 2 * mean(x, w, y, v) - mean(x, w, x, w) - mean(y, v, y, v)


def test_a_loss_between_samples_is_one_method(rng):
    x, w = np.float32(rng.normal(size=9)), np.full(9, np.float32(1 / 9))
    family, nodes = Family(lambda u, z: u[0] + z, 1), Nodes(np.float32(rng.normal(size=16)))
    found = Energy().of_model(x, w, family, jnp.ones(1), nodes)
    np.testing.assert_allclose(
        found, Energy().value(x, w, 1.0 + nodes.noise, np.full(16, np.float32(1 / 16))), rtol=1e-6
    )
    with pytest.raises(NotImplementedError, match=r"Loss must implement `value\(x, w, y, v\)`"):
        Loss().value(x, w, x, w)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (MMD(Polynomial(2)), "`kernel` must be bounded for a robust loss; Polynomial has"),
        (MMD(Gaussian(1.0), length_scale=CrossValidation(jax.random.key(0))), "Give `kernel` or `length_scale`"),
        (MMD(length_scale=CrossValidation(jax.random.key(0))), "asks what predicts the parameters best"),
    ],
)
def test_bad_kernels_are_named(loss, sentence):
    with pytest.raises(ValueError, match=sentence):
        loss.for_data(np.arange(5.0))


def test_data_that_are_no_vectors_need_a_kernel():
    with pytest.raises(ValueError, match="`kernel` must be given for data that are not vectors"):
        MMD().for_data(np.zeros((4, 3, 2)))
    assert MMD(Matern52(1.0)).for_data(np.arange(4.0)).kernel == Matern52(1.0)


def test_length_scales_are_medians_of_the_data():
    x = np.array([0.0, 1.0, 3.0])
    assert float(MMD().for_data(x).kernel.length_scale) == 2.0
    pair = MMD().for_data((10.0 * x, x))
    assert float(pair.covariate_kernel.length_scale) == 20.0 and float(pair.kernel.length_scale) == 2.0
