"""KELFI from a model to ArviZ: against exact posteriors, brute-force grids and its own surrogate by quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conjugate import NOISE, X, conjugate, iid
from scipy import stats

import numpyro_kme as kme


@pytest.fixture(scope="module")
def kelfi():
    engine = kme.KELFI(conjugate, num_simulations=200, form=kme.KernelMeans(), progress_bar=False)
    engine.run(jax.random.key(0), x=X)
    return engine


EXACT = stats.norm(X[0] / (1 + NOISE**2), np.sqrt(NOISE**2 / (1 + NOISE**2)))


def signed_sum(engine, grid):
    """`q(x | theta)` of the published form as the sum of kernels that it is, in 64 bits."""
    terms = engine.likelihoods["x"].at(X).expansion()
    kernels = np.exp(-0.5 * ((grid[:, None] - terms.points[:, 0]) / terms.kernel.length_scale) ** 2)
    return kernels @ terms.weights * np.exp(terms.log_scale)


@pytest.mark.smoke
def test_posterior_is_near_the_exact_one(kelfi):
    draws = kelfi.get_samples()["theta"]
    assert draws.shape == (1000,)
    quantiles = EXACT.ppf((np.arange(1000) + 0.5) / 1000)
    assert np.mean(np.abs(np.sort(draws) - quantiles)) < 0.6 * EXACT.std()
    np.testing.assert_allclose(kelfi.get_samples()["twice"], 2 * draws, rtol=1e-6)


def test_density_is_that_of_the_draws_and_integrates_to_one(kelfi):
    grid = np.linspace(-6, 6, 4001)
    density = np.exp(kelfi.posterior.log_density({"theta": grid}))
    step = grid[1] - grid[0]
    negative = 1 - 1 / (density.sum() * step)
    assert -1e-6 < negative < 0.1
    mean = np.sum(grid * density) / density.sum()
    sd = np.sqrt(np.sum((grid - mean) ** 2 * density) / density.sum())
    draws = kelfi.get_samples()["theta"]
    np.testing.assert_allclose(draws.mean(), mean, atol=5 * sd / np.sqrt(1000) + 0.05 * sd)
    np.testing.assert_allclose(draws.std(), sd, rtol=5 / np.sqrt(2000) + 0.05)
    np.testing.assert_allclose(kelfi.posterior.mode()["theta"], grid[np.argmax(density)], atol=2 * step)


def test_marginal_likelihood_by_quadrature(kelfi):
    grid = np.linspace(-8, 8, 4001)
    likelihood = signed_sum(kelfi, grid)
    found = np.exp(kelfi.posterior.log_likelihood({"theta": grid}))
    np.testing.assert_allclose(found, np.maximum(likelihood, 0.0), atol=1e-4 * likelihood.max())
    mass = np.sum(likelihood * stats.norm.pdf(grid)) * (grid[1] - grid[0])
    np.testing.assert_allclose(kelfi.posterior.log_marginal_likelihood(), np.log(mass), rtol=1e-6)
    assert abs(kelfi.posterior.log_marginal_likelihood() - stats.norm.logpdf(X[0], 0, np.sqrt(1 + NOISE**2))) < 0.5


@pytest.mark.filterwarnings("ignore:The observation lies far outside")
def test_predictive_density_is_the_mean_over_the_posterior(kelfi):
    at = np.array([[0.0], [1.0], [2.0]])
    found = kelfi.posterior.predictive_log_density(at)
    exact = stats.norm.logpdf(at[:, 0], EXACT.mean(), np.sqrt(EXACT.var() + NOISE**2))
    np.testing.assert_allclose(found, exact, atol=0.5)
    values = np.linspace(-3.5, 5.0, 60)
    mass = np.exp(kelfi.posterior.predictive_log_density(values[:, None])).sum() * (values[1] - values[0])
    np.testing.assert_allclose(mass, 1.0, atol=0.15)


def test_learns_the_prior(kelfi):
    """At the learnt mean and sd the penalised marginal, by quadrature, is highest; densities use the learnt prior."""
    learnt = kme.KELFI(conjugate, simulations=kelfi.posterior.simulations, form=kme.KernelMeans(), learn_prior=True)
    learnt.run(jax.random.key(0), x=X)
    mean, sd = learnt.info["prior mean of x"][0], learnt.info["prior sd of x"][0]
    assert abs(mean) > 0.05 or abs(np.log(sd)) > 0.05
    grid = np.linspace(-8, 8, 4001)
    step = grid[1] - grid[0]
    q = signed_sum(learnt, grid)

    def height(mean, sd):
        return np.log(np.sum(q * stats.norm.pdf(grid, mean, sd)) * step) - 0.5 * np.log(sd) ** 2

    neighbours = [height(mean + a, sd * np.exp(b)) for a in (-0.02, 0, 0.02) for b in (-0.02, 0, 0.02)]
    assert height(mean, sd) > max(neighbours) - 1e-8
    expected = q * stats.norm.pdf(grid, mean, sd)
    found = np.exp(learnt.posterior.log_density({"theta": grid}))
    np.testing.assert_allclose(found, np.maximum(expected, 0) / expected.sum() / step, atol=1e-6)
    np.testing.assert_allclose(learnt.posterior.mode()["theta"], grid[np.argmax(expected)], atol=2 * step)
    draws = learnt.get_samples()["theta"]
    np.testing.assert_allclose(draws.mean(), np.sum(grid * expected) / expected.sum(), atol=0.1)


def test_a_further_fit_and_condition_compile_nothing(programs):
    """Other keys, data and numbers of simulations, after a first fit in this process; JAX counts its compilations."""

    def fit(seed, num_simulations, x, num_rounds=1):
        engine = kme.KELFI(conjugate, num_simulations, num_rounds=num_rounds, progress_bar=False)
        engine.run(jax.random.key(seed), x=x)
        return engine

    jax.jit(lambda x: 3.0 * x - 0.123)(jnp.ones(7))
    assert programs  # the counter counts
    fit(0, 100, X).condition(jax.random.key(3), x=X - 0.1)
    fit(0, 100, X, num_rounds=2)
    programs.clear()
    fit(1, 240, X + 0.1, num_rounds=3)
    fit(1, 170, X + 0.3).condition(jax.random.key(2), x=-X)
    assert not programs


def test_herded_samples_meet_the_signed_moments(kelfi):
    herded = kelfi.posterior.herd(jax.random.key(1), 200).samples["theta"]
    (mean,), ((variance,),) = kelfi.posterior.in_coordinates.moments
    sd = np.sqrt(variance)
    np.testing.assert_allclose(herded.mean(), mean, atol=0.1 * sd)
    np.testing.assert_allclose(herded.std(), sd, rtol=0.15)
    assert abs(mean - EXACT.mean()) < 0.5 * EXACT.std() and 0.7 < sd / EXACT.std() < 1.4
    assert 0.2 < kelfi.posterior.in_coordinates.herding_kernel().length_scale[0] / (EXACT.std() / 3) < 2


def test_relevance_and_variance(kelfi):
    assert kelfi.posterior.informativeness()[1]["x"].shape == (1,)
    assert kelfi.posterior.informativeness()[1]["x"][0] > 0.2
    near, far = kelfi.posterior.surrogate_variance({"theta": np.array([0.0, 9.0])})
    assert 0 <= near < 0.5 < far <= 1 + 1e-9


@pytest.fixture(scope="module")
def residual(kelfi):
    engine = kme.KELFI(conjugate, simulations=kelfi.posterior.simulations)
    engine.run(jax.random.key(0), x=X)
    return engine


def test_the_default_form_does_what_the_published_one_does(residual):
    """Density, evidence, mode, prediction, herding and informativeness, by quadrature of its own likelihood."""
    grid = np.linspace(-6, 6, 2001)
    step = grid[1] - grid[0]
    log_q = residual.likelihoods["x"].at(X).log_density(grid[:, None])
    joint = np.exp(log_q) * stats.norm.pdf(grid)
    mass = joint.sum() * step
    np.testing.assert_allclose(residual.posterior.log_marginal_likelihood(), np.log(mass), atol=0.1)
    density = np.exp(residual.posterior.log_density({"theta": grid}))
    np.testing.assert_allclose(density, joint / mass, atol=0.1 * density.max())
    np.testing.assert_allclose(residual.posterior.mode()["theta"], grid[np.argmax(joint)], atol=2 * step)
    mean = np.sum(grid * joint) / joint.sum()
    sd = np.sqrt(np.sum((grid - mean) ** 2 * joint) / joint.sum())
    draws = residual.get_samples()["theta"]
    np.testing.assert_allclose(draws.mean(), mean, atol=5 * sd / np.sqrt(1000))
    np.testing.assert_allclose(mean, EXACT.mean(), atol=0.3 * EXACT.std())
    np.testing.assert_allclose(sd, EXACT.std(), rtol=0.2)
    herded = residual.posterior.herd(jax.random.key(1), 200).samples["theta"]
    np.testing.assert_allclose(herded.mean(), mean, atol=0.1 * sd)
    predicted = np.exp(residual.posterior.predictive_log_density(np.array([[0.5], [2.0]])))
    exact = stats.norm(EXACT.mean(), np.sqrt(EXACT.var() + NOISE**2)).pdf([0.5, 2.0])
    np.testing.assert_allclose(predicted, exact, rtol=0.3)
    assert residual.posterior.informativeness()[1]["x"].shape == (1,)
    assert residual.posterior.informativeness()[1]["x"][0] > 0.3
    with pytest.raises(NotImplementedError, match="no Gaussian-process variance"):
        residual.posterior.surrogate_variance({"theta": np.zeros(2)})


def unobserved(x=None):
    conjugate(None)


@pytest.mark.parametrize(
    ("make", "x", "sentence"),
    [
        (lambda: kme.KELFI(conjugate, num_simulations=1), X, "`num_simulations` must be at least 2; got 1"),
        (lambda: kme.KELFI(unobserved), X, "'x' is not observed"),
        (lambda: kme.KELFI(conjugate), np.zeros(3), r"shape \(3,\)"),
        (
            lambda: kme.KELFI(iid, 20, form=kme.KernelMeans(data_kernel=kme.kernels.Gaussian(1.0))),
            np.zeros(20),
            "draws of the same parameters along plates",
        ),
        (lambda: kme.KELFI(conjugate, 20, learn_prior=True), X, "published form"),
    ],
)
def test_bad_input_gets_a_sentence(make, x, sentence):
    with pytest.raises(ValueError, match=sentence):
        make().run(jax.random.key(0), x=x)


def test_a_likelihood_from_a_table_takes_its_own_arguments():
    rng = np.random.default_rng(0)
    theta = rng.uniform(-3, 3, (200, 1))
    fitted = kme.fit_likelihood(theta, theta + NOISE * rng.normal(size=(200, 1)))
    with pytest.raises(ValueError, match="learnt from 1 arguments"):
        fitted(jnp.zeros(1), jnp.zeros(2))
