"""Likelihoods with a product of densities of single residuals: by JAX and NumPy, of intervals, and in a run."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.integrate import trapezoid

import numpyro_kme as kme
from numpyro_kme.likelihoods import FittedLikelihood
from numpyro_kme.likelihoods.prepared import prepare

FORM = kme.ResidualKernelMeans(bounds=False)
RNG = np.random.default_rng(3)
THETA = 3.0 * RNG.normal(size=(300, 1))
X = THETA + RNG.standard_t(1.0, size=(300, 5))
Y, Z = np.array([0.3, 1.2, -0.4, 9.0, 0.7]), np.array([[0.1], [-0.4], [0.5]])
GRID = np.sinh(np.linspace(-12.0, 12.0, 3001))
log_densities = jax.jit(lambda likelihood, z: jax.vmap(likelihood.log_density)(z))


@pytest.fixture(scope="module")
def fitted():
    """Five Cauchy draws around one location, as a vector; with a line in the middle of each, no product is needed."""
    assert kme.fit_likelihood(THETA, X).surrogate.density.apart is None
    return kme.fit_likelihood(THETA, X, form=FORM)


@pytest.fixture(scope="module")
def density(fitted):
    return fitted.surrogate.density


def test_by_numpy_by_jax_and_in_brief_over_a_plate_of_outputs(fitted, rng):
    rows, points = rng.standard_t(1.0, size=(4, 5)), rng.normal(size=(6, 4, 1))
    prepared = prepare(fitted, rows)
    found = prepared.log_densities(points)
    for i, row in enumerate(rows):
        by_jax = log_densities(fitted.at(row), jnp.asarray(points[:, i]))
        np.testing.assert_allclose(by_jax, found[:, i], atol=5e-3)
    np.testing.assert_allclose(prepared.brief().log_densities(points), found, atol=5e-3)


@pytest.mark.parametrize("end", [(-1.0, 0.5), (-np.inf, 0.0), (2.0, np.inf)])
def test_an_interval_is_the_integral_over_it(fitted, end):
    inside, y = np.arange(5) == 2, np.where(np.arange(5) == 2, np.nan, Y)
    ends = tuple(np.where(inside, bound, far) for bound, far in zip(end, (-np.inf, np.inf)))
    found = prepare(fitted, y, bounds=ends).log_densities(Z)
    learnt = fitted.surrogate.marginal(np.ones(5, bool), inside)
    assert learnt.density.apart is not None
    grid = np.unique(np.clip(np.append(GRID, np.linspace(-1.0, 2.0, 301)), *end))
    rows = np.where(inside, grid[:, None], Y)
    expected = trapezoid(np.exp(learnt.at_rows(rows).log_density(Z[:, None])), grid, axis=1)
    np.testing.assert_allclose(np.exp(found), expected, rtol=0.03)


def cauchys(rng_key, theta):
    return theta + dist.Cauchy(0.0, 1.0).sample(rng_key, (6,))


def exact_mean_and_sd(x):
    theta = np.linspace(-15.0, 15.0, 3001)
    logs = -0.5 * np.square(theta / 3.0) + stats.cauchy.logpdf(x[:, None] - theta).sum(axis=0)
    weights = np.exp(logs - logs.max())
    mean = np.average(theta, weights=weights)
    return mean, np.sqrt(np.average(np.square(theta - mean), weights=weights))


@pytest.mark.slow
def test_a_run_is_summarised_conditioned_and_saved(tmp_path, capsys):
    """Posteriors of a location are as narrow as exact ones, for two observations of one likelihood."""

    def model(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 3.0))
        numpyro.sample("x", kme.Simulator(cauchys, theta), obs=x)

    engine = kme.KELFI(model, 1000, form=FORM, num_rounds=1, num_samples=1000, progress_bar=False)
    first = np.array([0.2, 1.5, -0.3, 0.8, 7.0, -1.0])
    engine.run(jax.random.key(0), x=first)
    second = engine.condition(jax.random.key(1), x=first[::-1] - 1.0)
    for x, posterior in ((first, engine.posterior), (first[::-1] - 1.0, second)):
        mean, sd = exact_mean_and_sd(x)
        theta = np.asarray(posterior.get_samples()["theta"])
        # by the joint embedding alone sds are 1.4 times as wide on average
        assert abs(theta.mean() - mean) < 0.6 * sd and 0.75 * sd < theta.std() < 1.35 * sd
    engine.print_summary()
    assert "a product of their densities" in " ".join(capsys.readouterr().out.split())
    fitted = engine.posterior.likelihoods["x"]
    fitted.save(tmp_path / "likelihood.kme")
    found = FittedLikelihood.load(tmp_path / "likelihood.kme")
    np.testing.assert_array_equal(found.at(first).log_density(Z), fitted.at(first).log_density(Z))
