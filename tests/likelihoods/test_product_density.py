"""The product of densities of single residuals: against loops, and where it is mixed in."""

import jax
import numpy as np
import pytest
from scipy import stats

from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.likelihoods.distribution import FittedLikelihood
from numpyro_kme.likelihoods.fit import fit_likelihood
from numpyro_kme.likelihoods.residual.density import ResidualDensity
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans


def fitted(rng, noise, size=200):
    return ResidualKernelMeans().dependence(rng.normal(size=(size, 1)), noise(size)).density


def single(product, weights, i, v):
    """Density of residual `i` at numbers, from the weights of the simulations."""
    centres, scales = (
        np.sqrt(1.0 - product.eps[i] ** 2) * product.residuals[:, i],
        product.eps[i] * product.factors[:, i],
    )
    w = product.heavy_tailed_weights[i]
    peaks = stats.norm.pdf(np.expand_dims(v, -1), centres, scales)
    return (1.0 - w) * peaks @ weights + w * stats.t.pdf(v / 2.0, 3.0) / 2.0


def test_single_densities_against_loops_and_their_integral(rng):
    density = fitted(rng, lambda m: np.clip(rng.standard_t(1.0, size=(m, 4)) / 2.0, -20.0, 20.0))
    product, at, v = density.product, np.array([[0.3]]), rng.normal(size=(3, 4))
    weights = product.weights(at, np)[0]
    weights /= weights.sum()
    alone = np.sum([[np.log(single(product, weights, i, value)) for i, value in enumerate(row)] for row in v], axis=1)
    np.testing.assert_allclose(product.log_density(v, at, np), alone, rtol=1e-6)
    grid = np.sinh(np.linspace(-9.0, 9.0, 4001))
    assert abs(np.trapezoid(single(product, weights, 0, grid), grid) - 1.0) < 0.01
    together, share = density.log_density(v, at, np), float(product.proportion)
    joint = ResidualDensity(**{**vars(density), "product": None}).log_density(v, at, np)
    assert 0.5 < share < 1.0
    np.testing.assert_allclose(np.exp(together), (1.0 - share) * np.exp(joint) + share * np.exp(alone), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(density.log_density)(v[0], at[0]), together[0], atol=2e-3)


def test_normal_residuals_have_none(rng):
    assert fitted(rng, lambda m: rng.normal(size=(m, 4))).product is None


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
    assert "a product of their densities" in whole.describe()["residuals"] and whole.density.product.eps.shape == (6,)
    part = learnt.marginal(seen).surrogate.density
    points, residuals = np.asarray(whole.density.weights.points), np.asarray(whole.residuals)[:, seen]
    again = ResidualKernelMeans().dependence(points, residuals).density
    v, z = np.random.default_rng(1).normal(size=(5, 4)), np.linspace(-1.0, 1.0, 5)[:, None]
    np.testing.assert_allclose(part.log_density(v, z, np), again.log_density(v, z, np), rtol=1e-5)
    assert part.product is not None and part.product.eps.shape == (4,)


def test_a_saved_likelihood_has_the_same_densities(learnt, tmp_path):
    learnt.save(tmp_path / "cauchy.kme")
    again, z, y = (
        FittedLikelihood.load(tmp_path / "cauchy.kme"),
        np.linspace(-1.0, 1.0, 5)[:, None],
        np.arange(6.0),
    )
    assert again.surrogate.density.product is not None
    np.testing.assert_array_equal(*(fitted.surrogate.at(y).log_densities(z) for fitted in (learnt, again)))


@pytest.mark.parametrize("bounds", [True, False])
def test_the_posterior_of_heavy_tailed_draws_is_as_wide_as_the_exact_one(bounds):
    """Of sixteen observations of six Cauchy draws; a joint kernel alone leaves it half too wide."""
    learnt = of_cauchy_draws(ResidualKernelMeans(bounds=bounds))
    rng, grid, ratios = np.random.default_rng(1), np.linspace(-4.0, 4.0, 801), []
    for truth in rng.normal(size=16):
        y = truth + np.clip(0.3 * rng.standard_cauchy(size=6), -3.0, 3.0)
        exact = stats.norm.logpdf(grid) + stats.cauchy.logpdf(y[:, None], grid, 0.3).sum(axis=0)
        found = stats.norm.logpdf(grid) + np.asarray(learnt.surrogate.at(y).log_densities(grid[:, None]))
        sds = []
        for logs in (found, exact):
            p = np.exp(logs - logs.max())
            p /= p.sum()
            sds.append(np.sqrt(p @ np.square(grid) - (p @ grid) ** 2))
        ratios.append(sds[0] / sds[1])
    assert 0.8 < np.exp(np.mean(np.log(ratios))) < 1.3
