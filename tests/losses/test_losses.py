"""What the losses are, beside their values: embeddings, independent simulations, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist

from numpyro_kme.kernels import CrossValidation, Gaussian, Matern52, Polynomial
from numpyro_kme.losses import MMD, Family, Loss, Nodes

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
