"""The residual form: densities in y, known likelihoods, bad input, both precisions.

Not collected yet: 14 of 17 pass; the integral at z = -2, the known normal likelihood and the outlier fail, causes unknown.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from numpyro_kme.kernel_means.residual import ResidualKernelMeans

QUICK = ResidualKernelMeans(steps=8)


@pytest.fixture(scope="module")
def counts_and_rates():
    """A positive statistic whose scale changes, a count, and a constant, of one parameter: 60 simulations."""
    rng = np.random.default_rng(3)
    z = rng.normal(size=(60, 1))
    positive = np.exp(z[:, 0] + 0.2 * np.exp(0.5 * z[:, 0]) * rng.normal(size=60))
    x = np.stack([positive, rng.poisson(np.exp(1.0 + z[:, 0])), np.full(60, 7.0)], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return z, x, QUICK.fit(z, x)


@pytest.fixture(scope="module")
def linear():
    """x = z_0 + 0.5 e_0, with z in two dimensions: the likelihood is normal."""
    rng = np.random.default_rng(4)
    z = rng.normal(size=(150, 2))
    return z, QUICK.fit(z, z[:, :1] + 0.5 * rng.normal(size=(150, 1)))


def log_density(surrogate, y, points):
    return np.asarray(jax.jit(jax.vmap(surrogate.at(y).log_density))(jnp.asarray(points)))


@pytest.mark.parametrize("z", [-2.0, 0.0, 2.0])
def test_density_integrates_to_one_in_each_statistic_and_jointly(counts_and_rates, z):
    surrogate = counts_and_rates[2]
    v = jnp.linspace(-30.0, 12.0, 1501)
    raw = jnp.stack(jnp.meshgrid(jnp.sinh(v), jnp.linspace(-40.0, 60.0, 301), indexing="ij"), -1).reshape(-1, 2)
    full = jnp.concatenate([raw, jnp.full((len(raw), 1), 7.0)], axis=1)

    @jax.jit
    def density(y):
        return jnp.exp(jax.vmap(lambda row: surrogate.at(row).log_density(jnp.array([z])))(y))

    grid = np.asarray(density(full)).reshape(1501, 301) * np.cosh(np.asarray(v))[:, None]
    total = integrate.trapezoid(integrate.trapezoid(grid, np.linspace(-40.0, 60.0, 301), axis=1), np.asarray(v))
    assert abs(total - 1.0) < 0.02


def test_a_normal_likelihood_is_recovered(linear):
    _, surrogate = linear
    rng = np.random.default_rng(0)
    points = rng.normal(size=(200, 2))
    y = np.array([0.3])
    error = log_density(surrogate, y, points) - stats.norm.logpdf(0.3, points[:, 0], 0.5)
    near = np.abs(points[:, 0] - 0.3) < 1.0
    assert np.abs(error[near]).max() < 0.4


def test_error_falls_with_the_number_of_simulations():
    def error(m, seed):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(m, 1))
        surrogate = QUICK.fit(z, z + 0.5 * rng.normal(size=(m, 1)))
        grid = np.linspace(-1.5, 1.5, 31)[:, None]
        exact = stats.norm.logpdf(0.0, grid[:, 0], 0.5)
        return np.mean(np.exp(exact) * (log_density(surrogate, np.zeros(1), grid) - exact) ** 2)

    assert np.mean([error(400, s) for s in range(3)]) < np.mean([error(40, s) for s in range(3)])


def test_positive_smooth_and_leading_back_far_away(linear):
    _, surrogate = linear
    likelihood = surrogate.at(np.array([0.3]))
    slope = jax.jit(jax.grad(likelihood.log_density))
    for z in ([0.3, 0.0], [4.0, 0.0], [-5.0, 2.0]):
        assert np.isfinite(slope(jnp.array(z))).all()
    assert slope(jnp.array([4.0, 0.0]))[0] < 0 < slope(jnp.array([-4.0, 0.0]))[0]
    sign, value = likelihood.signed_log(jnp.zeros(2))
    assert sign == 1 and value == likelihood.log_density(jnp.zeros(2))


def test_gradient_agrees_with_finite_differences(counts_and_rates):
    likelihood = counts_and_rates[2].at(np.array([1.2, 3.0, 7.0]))
    f, g = jax.jit(likelihood.log_density), jax.jit(jax.grad(likelihood.log_density))
    for z in (-1.0, 0.2, 1.5):
        difference = (f(jnp.array([z + 1e-5])) - f(jnp.array([z - 1e-5]))) / 2e-5
        np.testing.assert_allclose(g(jnp.array([z]))[0], difference, rtol=1e-5, atol=1e-6)


def test_units_of_statistics_enter_only_by_the_jacobian(linear):
    z, surrogate = linear
    rng = np.random.default_rng(4)
    rng.normal(size=(150, 2))
    x = z[:, :1] + 0.5 * rng.normal(size=(150, 1))
    other = QUICK.fit(z, 1000.0 * x)
    points = rng.normal(size=(20, 2))
    difference = log_density(surrogate, np.array([0.3]), points) - log_density(other, np.array([300.0]), points)
    np.testing.assert_allclose(difference, np.log(1000.0), atol=0.02)


def test_one_enormous_outlier_changes_little():
    rng = np.random.default_rng(5)
    z = rng.normal(size=(120, 1))
    x = z + 0.3 * rng.normal(size=(120, 1))
    spoilt = np.where(np.arange(120)[:, None] == 7, 1e30, x)
    grid = np.linspace(-0.5, 0.5, 11)[:, None]
    values = [log_density(QUICK.fit(z, data), np.zeros(1), grid) for data in (x, spoilt)]
    assert np.abs(values[0] - values[1]).max() < 0.5


@pytest.mark.parametrize("kind", ["collinear", "irrelevant", "few"])
def test_awkward_statistics_get_a_sensible_answer(kind):
    rng = np.random.default_rng(6)
    size = 14 if kind == "few" else 60
    z = rng.normal(size=(size, 1))
    x = z + 0.3 * rng.normal(size=(size, 1))
    more = {"collinear": 2.0 * x, "irrelevant": rng.normal(size=(size, 1)), "few": z + rng.normal(size=(size, 16))}[kind]
    x = np.concatenate([x, more], axis=1)
    grid = np.linspace(-3.0, 3.0, 61)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log_q = log_density(QUICK.fit(z, x), x[0], grid) - 0.5 * grid[:, 0] ** 2
    weights = np.exp(log_q - log_q.max())
    mean = (weights @ grid[:, 0]) / weights.sum()
    assert abs(mean - z[0, 0] / 1.09) < 1.6


def test_relevance_and_report(counts_and_rates):
    surrogate = counts_and_rates[2]
    relevance = surrogate.relevance()
    assert relevance.shape == (3,) and relevance[2] == 0.0 and (relevance[:2] > 0.3).all()
    assert "form" in surrogate.describe()
    assert (surrogate.dim, surrogate.num_simulations) == (1, 60)


def test_information_of_a_linear_statistic(linear):
    information = linear[1].information()
    assert abs(np.log(information[0, 0] / 4.0)) < 0.5
    assert information[0, 1] < 0.2


def test_precision_of_the_caller(linear):
    likelihood = linear[1].at(np.array([0.3]))
    value = likelihood.log_density(jnp.array([0.1, 0.2]))
    with jax.enable_x64(False):
        single = jax.jit(lambda likelihood, z: likelihood.log_density(z))(likelihood, jnp.array([0.1, 0.2]))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, value, rtol=1e-4)


def test_fit_refuses_what_it_cannot_learn_from(rng):
    z = rng.normal(size=(20, 1))
    with pytest.raises(ValueError, match="one row for each simulation"):
        QUICK.fit(z, np.zeros((19, 1)))
    with pytest.raises(ValueError, match="at least 10 simulations"):
        QUICK.fit(z[:5], z[:5])
    with pytest.raises(ValueError, match="constant over the 20 simulations"):
        QUICK.fit(z, np.ones((20, 2)))
    with pytest.raises(ValueError, match="not finite"):
        QUICK.fit(z, np.full((20, 1), np.nan))


def test_observations_are_checked(linear):
    with pytest.raises(ValueError, match="shape"):
        linear[1].at(np.zeros(3))
    with pytest.warns(UserWarning, match="far outside all simulations"):
        linear[1].at(np.array([50.0]))
