"""The density of decorrelated residuals: held-out scores against refits, quadrature, where a product is mixed in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.likelihoods.fit import fit_likelihood
from numpyro_kme.likelihoods.residual import bandwidths as bw
from numpyro_kme.likelihoods.residual.bandwidths import Bandwidths, LearntBandwidths, learn, log_densities_alone
from numpyro_kme.likelihoods.residual.density import KernelMixture
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.residual.mixture import EmbeddingWeights


def mixture(z, blocks, eps=0.6, beta=1.3, lam=0.02, sensitivity=0.3, tails=0.02):
    bandwidths = Bandwidths(beta, lam, eps, sensitivity)
    return KernelMixture.fit(z, blocks, LearntBandwidths(bandwidths, None, np.full(len(blocks), tails)))


def heavy_tailed(size):
    return stats.multivariate_t(np.zeros(size), 4.0 * np.eye(size), df=3)


def bordered_system(z, at, beta, ridge):
    """Weights of ridge regression with an intercept at a point."""
    gram, m = np.exp(-0.5 * ((z[:, None] - z[None]) ** 2).sum(-1) / beta**2), len(z)
    bordered = np.ones((m + 1, m + 1))
    bordered[:m, :m] = gram + ridge * np.eye(m)
    bordered[m, m] = 0.0
    return np.linalg.solve(bordered, np.append(np.exp(-0.5 * ((z - at) ** 2).sum(-1) / beta**2), 1.0))[:m]


def positive(signed, m):
    found = 0.5 * (signed + np.sqrt(signed**2 + (0.1 / m) ** 2))
    return found / found.sum()


@pytest.mark.parametrize(("dim", "beta", "lam"), [(1, 8.0, 0.3), (2, 1.5, 0.05), (3, 0.3, 0.01), (6, 10.0, 0.2)])
def test_weights_are_those_of_ridge_regression_with_an_intercept(rng, dim, beta, lam):
    """From the pivots alone, outside the simulations too and for groups of points, by NumPy and by JAX."""
    z, at = rng.normal(size=(150, dim)), 1.5 * rng.normal(size=(5, 3, dim))
    fitted = EmbeddingWeights.fit(z, beta, lam)
    found = fitted(at, np)
    expected = [[positive(bordered_system(z, one, beta, 150 * lam), 150) for one in group] for group in at]
    np.testing.assert_allclose(found / found.sum(axis=-1, keepdims=True), expected, rtol=0.05, atol=0.02 / 150)
    np.testing.assert_allclose(jax.jit(lambda p: fitted(p))(jnp.asarray(at)), found, rtol=1e-3, atol=1e-5)


def test_held_out_weights_are_those_of_refits(rng):
    z = rng.normal(size=(8, 2))
    for j, found in enumerate(bw.held_out_weights(z, 0.9, 0.3 / 8)):
        rest = np.delete(np.arange(8), j)
        signed = bordered_system(z[rest], z[j], 0.9, 0.3)
        expected = 0.5 * (signed + np.sqrt(signed**2 + (0.1 / 8) ** 2))
        np.testing.assert_allclose(found[rest], expected / expected.sum(), atol=1e-10)
        assert found[j] == 0.0


def pilots(r, eps):
    size = r.shape[1]
    shrink = np.sqrt(1.0 - eps**2)
    near = np.array([[stats.norm.pdf(p, shrink * q, eps).prod() for q in r] for p in r])
    np.fill_diagonal(near, 0.0)
    log_pilot = np.log(near.sum(axis=1) / (len(r) - 1) + 0.02 * np.exp(heavy_tailed(size).logpdf(r)).ravel())
    return log_pilot - log_pilot.mean()


def test_held_out_densities_are_a_double_loop(rng):
    z, r = rng.normal(size=(9, 2)), rng.normal(size=(9, 1))
    found = log_densities_alone(z, r, Bandwidths(1.3, 0.02, 0.6, 0.3))[:, 0]
    weights, factors = bw.held_out_weights(z, 1.3, 0.02), np.exp(-0.3 * pilots(r, 0.6))
    for j in range(9):
        parts = [stats.norm.pdf(r[j], 0.8 * r[i], 0.6 * factors[i]).prod() for i in range(9)]
        np.testing.assert_allclose(
            found[j], np.log(0.98 * weights[j] @ parts + 0.02 * stats.t(3, scale=2.0).pdf(r[j, 0])), rtol=1e-9
        )


@pytest.mark.parametrize("size", [1, 20])
def test_bandwidths_are_no_worse_than_any_that_the_search_may_begin_with(rng, size):
    """With twenty heavy-tailed residuals a search from one half could stop where it began, nats away."""
    z, residuals = rng.normal(size=(200, 2)), rng.standard_t(3.0, size=(200, size))
    found = np.mean(learn(z, [residuals]).log_densities)
    weights = bw.held_out_weights(z, 2.0 * np.sqrt(2.0), 0.1)
    for eps in (0.25, 0.5, 0.8):
        assert found >= np.mean(bw._Kernels.of(residuals, eps, 0.25).log_density(weights)) - 1e-9


@pytest.mark.x64
def test_density_integrates_to_one(rng):
    density = mixture(rng.normal(size=(20, 2)), [rng.normal(size=(20, 1))], beta=0.5)
    for z in (np.zeros(2), np.array([3.0, -3.0])):
        pdf = jax.jit(lambda v, z=z: jnp.exp(density.log_density(v, z)))
        total, _ = integrate.quad(lambda v, pdf=pdf: float(pdf(jnp.array([v]))), -np.inf, np.inf, limit=400)
        assert abs(total - 1.0) < 1e-6


def test_a_product_is_the_sum_of_the_logarithms_of_single_densities(rng):
    z, r, at, v = *rng.normal(size=(2, 30, 2)), rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    columns = np.split(r, 2, axis=1)
    alone = sum(mixture(z, [column]).log_density(v[:, [i]], at, np) for i, column in enumerate(columns))
    product = mixture(z, columns)
    np.testing.assert_allclose(product.log_density(v, at, np), alone, rtol=1e-10)
    np.testing.assert_allclose(jax.jit(jax.vmap(product.log_density))(v, at), alone, rtol=1e-4)


def test_far_from_all_residuals_the_heavy_tailed_component_is_left_in_float32(rng):
    """Log kernels of -1e12 have rounding errors of 1e5, of which the exponential is infinite."""
    learnt = mixture(rng.normal(size=(50, 2)), [rng.normal(size=(50, 2))], eps=0.1)
    short = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), learnt)
    v = rng.normal(size=(400, 2)) * 10.0 ** rng.uniform(3.0, 12.0, size=(400, 1))
    z = rng.normal(size=(400, 2))
    found = jax.jit(jax.vmap(short.log_density))(v.astype(np.float32), z.astype(np.float32))
    np.testing.assert_allclose(found, np.log(0.02) + heavy_tailed(2).logpdf(v), rtol=1e-5)


def test_normal_residuals_have_no_product(rng):
    z, residuals = rng.normal(size=(200, 1)), rng.normal(size=(200, 4))
    assert ResidualKernelMeans().dependence(z, residuals, np.zeros(4, bool)).density.apart is None


def of_cauchy_draws(form):
    """The likelihood of six Cauchy draws around one location, learnt from 300 simulations."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(300, 1))
    x = theta + 0.3 * rng.standard_cauchy(size=(300, 6))
    return fit_likelihood(theta, x, form=form, measure=standard_normal(1))


@pytest.fixture(scope="module")
def learnt():
    """Without lines in the middle, which make a product superfluous."""
    return of_cauchy_draws(ResidualKernelMeans(bounds=False))


def test_entries_that_are_missing_leave_the_product_of_the_others(learnt):
    whole, seen = learnt.surrogate, np.array([True, False, True, True, False, True])
    assert "a product of their densities" in whole.describe()["residuals"]
    part = learnt.marginal(seen).surrogate.density
    again = ResidualKernelMeans().dependence(whole.simulated, whole.residuals[:, seen], whole.unmoved[seen]).density
    v, z = np.random.default_rng(1).normal(size=(5, 4)), np.linspace(-1.0, 1.0, 5)[:, None]
    np.testing.assert_allclose(part.log_density(v, z, np), again.log_density(v, z, np), rtol=1e-5)
    assert part.apart is not None and len(part.apart.residuals) == 4


@pytest.mark.parametrize("bounds", [True, False])
def test_the_posterior_of_heavy_tailed_draws_is_as_wide_as_the_exact_one(bounds):
    """Of sixteen observations of six Cauchy draws; a joint kernel alone leaves it half too wide."""
    learnt = of_cauchy_draws(ResidualKernelMeans(bounds=bounds))
    rng, grid, ratios = np.random.default_rng(1), np.linspace(-4.0, 4.0, 801), []
    for truth in rng.normal(size=16):
        y = truth + np.clip(0.3 * rng.standard_cauchy(size=6), -3.0, 3.0)
        exact = stats.norm.logpdf(grid) + stats.cauchy.logpdf(y[:, None], grid, 0.3).sum(axis=0)
        found = stats.norm.logpdf(grid) + np.asarray(learnt.surrogate.at(y).log_density(grid[:, None]))
        sds = []
        for logs in (found, exact):
            p = np.exp(logs - logs.max())
            p /= p.sum()
            sds.append(np.sqrt(p @ np.square(grid) - (p @ grid) ** 2))
        ratios.append(sds[0] / sds[1])
    assert 0.8 < np.exp(np.mean(np.log(ratios))) < 1.3
