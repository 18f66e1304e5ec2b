"""Weights that follow the coordinates: against ridge regression with an intercept, whole and from few pivots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_kme.likelihoods.residual import weights
from numpyro_kme.likelihoods.residual.weights import EmbeddingWeights, PivotWeights


def by_bordered_system(z, at, beta, ridge):
    """Positive parts of the weights, which sum to 1, at a point `(D,)`."""
    gram, m = np.exp(-0.5 * ((z[:, None] - z[None]) ** 2).sum(-1) / beta**2), len(z)
    bordered = np.ones((m + 1, m + 1))
    bordered[:m, :m] = gram + ridge * np.eye(m)
    bordered[m, m] = 0.0
    signed = np.linalg.solve(bordered, np.append(np.exp(-0.5 * ((z - at) ** 2).sum(-1) / beta**2), 1.0))[:m]
    found = 0.5 * (signed + np.sqrt(signed**2 + (0.1 / m) ** 2))
    return found / found.sum()


def test_those_of_ridge_regression_with_an_intercept(rng):
    z, new = rng.normal(size=(10, 2)), rng.normal(size=2)
    fitted = EmbeddingWeights.fit(z, 0.8, 10 * 1e-4)
    found = jax.jit(lambda at: fitted(at))(jnp.asarray(new))
    np.testing.assert_allclose(found / found.sum(), by_bordered_system(z, new, 0.8, 10 * 1e-4), atol=1e-3)


@pytest.mark.parametrize(("dim", "beta", "lam"), [(2, 20.0, 0.5), (2, 1.0, 0.05), (3, 0.2, 0.01)])
def test_the_leading_eigenvectors_suffice(rng, dim, beta, lam):
    """Where kernels are wide and where they are narrow; those whose eigenvalues are near the bound may be in or out."""
    z = rng.normal(size=(120, dim))
    gram, ridge = np.exp(-0.5 * ((z[:, None] - z[None]) ** 2).sum(-1) / beta**2), 120 * lam
    values, vectors = np.linalg.eigh(gram)
    found = EmbeddingWeights.fit(z, beta, ridge)
    for lowest in (1.01, 0.99):
        kept = values > lowest * weights.NEGLIGIBLE * ridge
        if kept.sum() == found.rank:
            break
    exact = vectors[:, kept] * np.sqrt(values[kept] / (values[kept] + ridge))
    np.testing.assert_allclose(found.basis @ found.basis.T, exact @ exact.T, atol=weights.NEGLIGIBLE)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("dim", "beta", "lam"), [(1, 8.0, 0.3), (2, 5.0, 0.1), (2, 1.5, 0.3), (6, 10.0, 0.2)])
def test_few_pivots_suffice_where_kernels_are_wide(rng, kind, dim, beta, lam):
    """To half a percent outside the simulations too, and for groups of points."""
    z, at = rng.normal(size=(400, dim)), 1.5 * rng.normal(size=(5, 3, dim))
    whole = EmbeddingWeights.fit(z, beta, 400 * lam)
    few = jax.tree.map(lambda leaf: np.asarray(leaf, kind), whole.trimmed())
    assert isinstance(few, PivotWeights) and 1 < len(few.points) <= weights.MOST
    found = few(at.astype(kind), np)
    assert found.dtype == kind and found.shape == (5, 3, 400)
    found = found / found.sum(axis=-1, keepdims=True)
    exact = whole(at, np)
    np.testing.assert_allclose(found, exact / exact.sum(axis=-1, keepdims=True), rtol=5e-3, atol=5e-3 / 400)
    # less exact by the eigenvalues below `NEGLIGIBLE`, which both leave out
    expected = np.array([[by_bordered_system(z, one, beta, 400 * lam) for one in group] for group in at])
    np.testing.assert_allclose(found, expected, rtol=0.1, atol=0.03 / 400)


def test_all_kernels_are_kept_where_pivots_would_be_many(rng):
    """Narrow kernels, and few simulations, of which all are pivots; without the columns of zeros."""
    for z, beta in ((rng.normal(size=(400, 3)), 0.3), (rng.normal(size=(12, 2)), 1.0)):
        whole, at = EmbeddingWeights.fit(z, beta, 0.1 * len(z)), rng.normal(size=(7, z.shape[1]))
        found = whole.trimmed()
        assert isinstance(found, EmbeddingWeights) and found.basis.shape == (len(z), whole.rank)
        np.testing.assert_allclose(found(at, np), whole(at, np), rtol=1e-10)


@pytest.mark.parametrize(("dim", "beta", "lam"), [(20, 5.0, 0.1), (20, 5.0, 0.02), (20, 2.0, 0.1), (3, 3.0, 0.1)])
def test_points_at_random_suffice_in_many_dimensions(rng, monkeypatch, dim, beta, lam):
    """Where pivots would be most of the points, and the first few of them are not enough: no matrix of all pairs is
    formed."""
    for name, value in (("AT_ONCE", 100), ("LANDMARKS", 8), ("TOLD", 500)):
        monkeypatch.setattr(weights, name, value)
    z, gram, ridge, exact = embedded(rng, 600, dim, beta, lam)
    factor = weights._factor(z, beta, weights.NEGLIGIBLE * ridge)
    assert factor.shape[1] < 600
    left = np.linalg.eigvalsh(gram - factor @ factor.T)
    assert left[-1] < 1.1 * weights.NEGLIGIBLE * ridge and left[0] > -1e-6
    assert largest(weights._basis(z, beta, ridge), exact) < 2.2 * weights.NEGLIGIBLE


@pytest.mark.parametrize(("dim", "beta", "lam"), [(10, 1.5, 0.04), (5, 0.8, 0.04)])
def test_a_product_sharpens_what_points_at_random_tell(rng, monkeypatch, dim, beta, lam):
    """Where eigenvalues fall slowly: points at random would have to be all, of which many do not count."""
    for name, value in (("AT_ONCE", 100), ("TOLD", 500)):
        monkeypatch.setattr(weights, name, value)
    z, _, ridge, exact = embedded(rng, 800, dim, beta, lam)
    assert weights._factor(z, beta, weights.NEGLIGIBLE * ridge).shape[1] < 600
    assert largest(weights._basis(z, beta, ridge), exact) < 2.2 * weights.NEGLIGIBLE


def embedded(rng, m, dim, beta, lam):
    """Points, their Gram matrix `K`, the ridge, and `K (K + ridge I)^-1`."""
    z, ridge = rng.normal(size=(m, dim)), m * lam
    gram = np.exp(-0.5 * ((z[:, None] - z[None]) ** 2).sum(-1) / beta**2)
    return z, gram, ridge, np.linalg.solve(gram + ridge * np.eye(m), gram)


def largest(basis, exact):
    """The largest eigenvalue of the error of `U U'`."""
    return np.abs(np.linalg.eigvalsh(basis @ basis.T - exact)).max()
