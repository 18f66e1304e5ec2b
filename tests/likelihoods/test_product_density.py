"""The product of densities of single residuals: against loops, and where it is mixed in."""

import jax.numpy as jnp
import numpy as np
from scipy import stats

from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans


def fitted(rng, noise, size=200):
    return ResidualKernelMeans().dependence(rng.normal(size=(size, 1)), noise(size)).density


def test_single_densities_against_loops_and_their_integral(rng):
    density = fitted(rng, lambda m: np.clip(rng.standard_t(1.0, size=(m, 4)) / 2.0, -20.0, 20.0))
    product, at = density.product, np.array([[0.3]])
    assert 0.5 < product.proportion < 1.0
    shared = type(density)(*(getattr(product, n) for n in ("points", "residuals", "eps")), product.factors[:, 0],
        product.beta, product.basis, product.intercept, product.ridge, 0.0)  # fmt: skip
    weights = np.asarray(shared.weights(at, np))[0]
    weights /= weights.sum()

    def single(i, v):
        centres, scales = (
            np.sqrt(1.0 - product.eps[i] ** 2) * product.residuals[:, i],
            product.eps[i] * product.factors[:, i],
        )
        kernels = weights @ stats.norm.pdf(v, centres, scales)
        w = product.heavy_tailed_weights[i]
        return (1.0 - w) * kernels + w * stats.t.pdf(v / 2.0, 3.0) / 2.0

    v = rng.normal(size=(3, 4))
    expected = [np.sum([np.log(single(i, value)) for i, value in enumerate(row)]) for row in v]
    np.testing.assert_allclose(product.log_density(v, at, 1.0, np), expected, rtol=1e-6)
    grid = np.sinh(np.linspace(-9.0, 9.0, 4001))
    total = np.trapezoid([single(0, value) for value in grid], grid)
    assert abs(total - 1.0) < 0.01
    by_jax = density.log_density(jnp.asarray(v[0]), jnp.asarray(at[0]))
    np.testing.assert_allclose(by_jax, density.log_density(v, at, 1.0, np)[0], atol=2e-3)


def test_normal_residuals_have_none(rng):
    assert fitted(rng, lambda m: rng.normal(size=(m, 4))).product is None
