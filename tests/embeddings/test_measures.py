from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from numpyro_kme.embeddings.measures import Normal, NormalMixture, Points, standard_normal
from numpyro_kme.kernels import Gaussian, Laplace
from numpyro_kme.samplers.importance import signed_moments

MEAN = np.array([0.4, -1.1])
A = np.array([[0.3, 0.2], [-1.0, 1.5], [2.0, -0.7]])
B = np.array([[0.0, 0.5], [1.0, -2.0]])
WIDE, NARROW = Gaussian(np.array([0.6, 0.9])), Gaussian(np.array([0.35, 0.5]))

MEASURES = {
    "normal": Normal(MEAN, np.array([[0.9, 0.35], [0.35, 1.2]])),
    "standard": standard_normal(2),
    "mixture": NormalMixture(
        np.array([0.3, 0.7]),
        np.array([[0.0, 1.0], [-1.0, 0.5]]),
        np.array([np.diag([0.5, 1.0]), [[1.0, -0.4], [-0.4, 0.8]]]),
    ),
    "points": Points(A, np.array([0.2, 0.5, 0.3])),
    "equal points": Points(A),
}
NORMALS = [name for name in MEASURES if "points" not in name]


def quadrature(measure, nodes=100):
    """Points and weights that integrate smooth functions against a measure to about machine precision."""
    if isinstance(measure, Points):
        weights = np.full(3, 1 / 3) if measure.weights is None else measure.weights
        return measure.points, weights
    t, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid, weight = np.stack(np.meshgrid(t, t), -1).reshape(-1, 2), np.outer(w, w).ravel() / w.sum() ** 2
    points = [np.asarray(m) + grid @ np.linalg.cholesky(c).T for m, c in zip(measure.means, measure.covariances)]
    return np.concatenate(points), np.concatenate([w * weight for w in np.asarray(measure.weights)])


def gram(kernel, a, b):
    return np.exp(-0.5 * np.sum(((a[:, None] - b[None]) / kernel.length_scale) ** 2, -1))


@pytest.mark.parametrize("name", MEASURES)
def test_embeddings_by_quadrature(name):
    measure = MEASURES[name]
    t, w = quadrature(measure)
    np.testing.assert_allclose(measure.mean_embedding(WIDE, A), gram(WIDE, A, t) @ w, atol=1e-8)
    for first, second in ((WIDE, WIDE), (WIDE, NARROW), (NARROW, WIDE)):
        found = measure.product_embedding(first, A, second, B)
        np.testing.assert_allclose(found, (gram(first, A, t) * w) @ gram(second, t, B), atol=1e-8)


@pytest.mark.parametrize("name", NORMALS)
def test_tilted_measures_by_quadrature(name):
    measure = MEASURES[name]
    tilted = measure.tilt(WIDE, A)
    t, w = quadrature(measure)
    masses = np.exp(tilted.log_masses)
    for i, values in enumerate(gram(WIDE, A, t) * w):
        np.testing.assert_allclose(masses[i].sum(), values.sum(), atol=1e-8)
        np.testing.assert_allclose(masses[i] @ tilted.means[i], values @ t, atol=1e-8)
        second = np.einsum("k,kde->de", masses[i], tilted.covariances + np.einsum("kd,ke->kde", *[tilted.means[i]] * 2))
        np.testing.assert_allclose(second, t.T @ (t * values[:, None]), atol=1e-8)


LAPLACE = Laplace(0.8)


@pytest.mark.parametrize("name", ["normal", "mixture"])
def test_points_stand_in_for_other_kernels(name):
    """A quasi-random set converges to the closed form, and serves kernels that have none."""
    measure = MEASURES[name]
    points = [replace(measure, num_points=n).as_points() for n in (64, 8192)]
    exact = measure.mean_embedding(WIDE, A)
    coarse, fine = (np.max(np.abs(stand_in.mean_embedding(WIDE, A) - exact)) for stand_in in points)
    assert fine < 2e-3 and fine < coarse
    t, w = quadrature(measure)
    expected = np.exp(-np.linalg.norm(A[:, None] - t, axis=-1) / 0.8) @ w
    np.testing.assert_allclose(measure.mean_embedding(LAPLACE, A), expected, atol=1e-2)
    product = measure.product_embedding(LAPLACE, A, WIDE, B)
    np.testing.assert_allclose(product, measure.as_points().product_embedding(LAPLACE, A, WIDE, B))


def test_each_component_has_a_point_however_few_are_asked_for():
    mixture = MEASURES["mixture"]
    points = NormalMixture(*jax.tree.leaves(mixture), num_points=1).as_points()
    assert points.points.shape == np.shape(mixture.means)
    np.testing.assert_allclose(points.weights, mixture.weights, rtol=1e-6)


@pytest.mark.parametrize("name", MEASURES)
def test_draws_have_the_moments(name):
    measure, n = MEASURES[name], 4000
    draws, (t, w) = np.asarray(measure.sample(jax.random.key(1), n)), quadrature(measure)
    mean, covariance = signed_moments(t, w)
    assert draws.shape == (n, 2)
    assert np.all(np.abs(draws.mean(0) - mean) < 5 * np.sqrt(np.diag(covariance) / n))
    centred = draws - mean
    products = centred[:, :, None] * centred[:, None, :]
    assert np.all(np.abs(products.mean(0) - covariance) < 5 * products.std(0) / np.sqrt(n) + 1e-12)


@pytest.mark.smoke
@pytest.mark.parametrize("name", NORMALS)
def test_log_density(name):
    measure = MEASURES[name]
    components = zip(measure.weights, measure.means, measure.covariances)
    expected = sum(w * multivariate_normal(m, c).pdf(A) for w, m, c in components)
    np.testing.assert_allclose(measure.log_densities(A), np.log(expected), rtol=1e-12)


def test_traced_and_differentiated():
    """In JAX, in the precision of the session."""
    total = jax.jit(jax.value_and_grad(lambda m: Normal(m, jnp.eye(2)).mean_embedding(WIDE, A).sum()))
    ahead, behind = (Normal(np.array([d, 0.0]), np.eye(2)).mean_embedding(WIDE, A).sum() for d in (1e-5, -1e-5))
    np.testing.assert_allclose(total(np.zeros(2))[1][0], (ahead - behind) / 2e-5, rtol=1e-4)
    for measure in (MEASURES[name] for name in ("normal", "mixture", "points")):
        everything = lambda m: (m.mean_embedding(WIDE, A), m.product_embedding(WIDE, A, NARROW, B))  # noqa: E731
        for single, double in zip(*(jax.tree.leaves(f(measure)) for f in (jax.jit(everything), everything))):
            assert single.dtype == np.float32 and double.dtype == np.float64
            np.testing.assert_allclose(single, double, atol=2e-6)


def test_a_covariance_may_be_asymmetric_by_rounding_alone():
    def measure(error):
        return Normal(np.zeros(2), np.array([[100.0, 30.0], [30.0 + error, 200.0]]))

    assert measure(1e-5).dim == 2
    with pytest.raises(ValueError, match="must be symmetric and positive definite"):
        measure(0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normal(np.zeros(2), np.ones(2)), r"`covariance` must .* \(D, D\)"),
        (lambda: Normal(np.zeros(2), np.eye(3)), r"`covariance` must .* \(D, D\); got \(2,\) and \(3, 3\)"),
        (lambda: NormalMixture(np.ones(2), np.zeros((2, 1)), np.ones((2, 1, 1))), "sum of 2"),
        (lambda: NormalMixture(np.ones(1), np.zeros((2, 1)), np.ones((2, 1, 1))), "must have shapes"),
        (lambda: Points(np.zeros(3)), "must have shape"),
        (lambda: Points(A, np.array([0.5, 0.6, -0.1])), "not negative"),
        (lambda: Points(A).log_densities(np.zeros((1, 2))), "no density"),
        (lambda: standard_normal(2).tilt(Laplace(1.0), A), "must be Gaussian"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def tilted_and_near(measure, kernel, a):
    return measure.tilt(kernel, a), measure.product_embedding(kernel, a, kernel, a)


@pytest.mark.parametrize("length_scale", [1e-30, 1e30])
def test_closed_forms_where_the_square_of_a_length_scale_cannot_be_held(length_scale):
    """Far from the size of the measure the kernel is a point mass times its integral, or one everywhere."""
    measure, kernel = MEASURES["normal"], Gaussian(length_scale)
    density = multivariate_normal(measure.means[0], measure.covariances[0]).logpdf(A)
    narrow = density + np.log(2 * np.pi) + 2 * np.log(length_scale)
    means = A if length_scale < 1 else np.broadcast_to(MEAN, A.shape)
    for tilted, near in (tilted_and_near(measure, kernel, A), jax.jit(tilted_and_near)(measure, kernel, A)):
        np.testing.assert_allclose(tilted.log_masses[:, 0], narrow if length_scale < 1 else 0.0, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(tilted.means[:, 0], means, rtol=1e-5)
        assert np.isfinite(near).all() and (length_scale < 1 or np.allclose(near, 1.0))
