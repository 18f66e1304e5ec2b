import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from numpyro import handlers, sample
from numpyro.contrib.control_flow import scan

from numpyro_kme.embeddings.measures import standard_normal
from numpyro_kme.kernels import EmpiricalMeasure, FromCallable, Gaussian, GaussianProcessPath, Laplace
from numpyro_kme.likelihoods.distribution import fit_likelihood
from numpyro_kme.likelihoods.posterior import KernelMeansPosterior
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.learning import Hyperparameters

M, D, N = 40, 2, 3
BETA, EPS, LAM = np.array([0.7, 1.1]), np.array([0.5, 0.3, 0.8]), 1e-3
HYPER = Hyperparameters(Gaussian(BETA), Gaussian(EPS), LAM)
RNG = np.random.default_rng(3)
Z = RNG.normal(size=(M, D))
X = np.sinh(np.c_[Z, Z[:, 0] * Z[:, 1]] + 0.3 * RNG.normal(size=(M, N))) * [1.0, 10.0, 0.1] + [0.0, 5.0, 0.0]
Y = X[0] + [0.1, 1.0, 0.02]
POINTS = RNG.normal(size=(7, D))


@pytest.fixture(scope="module")
def surrogate():
    return KernelMeans(hyperparameters=HYPER).fit(Z, X)


def squared(a, b, scale):
    return np.sum(((a[:, None] - b[None]) / scale) ** 2, axis=-1)


def likelihood_by_hand(z, x, y, points):
    """q(y | points) of raw statistics, from the formulas, with an independent linear solver."""
    centre = np.median(x, axis=0)
    scale = 1.4826 * np.median(np.abs(x - centre), axis=0)
    s, t = np.arcsinh((x - centre) / scale), np.arcsinh((y - centre) / scale)
    kappa = np.exp(-0.5 * squared(t[None], s, EPS)[0]) / np.prod(np.sqrt(2 * np.pi) * EPS)
    weights = np.linalg.solve(np.exp(-0.5 * squared(z, z, BETA)) + len(z) * LAM * np.eye(len(z)), kappa)
    jacobian = np.prod(1 / np.sqrt(1 + ((y - centre) / scale) ** 2) / scale)
    return np.exp(-0.5 * squared(points, z, BETA)) @ weights * jacobian


@jax.jit
def signed_values(likelihood, points):
    sign, log_size = jax.vmap(likelihood.signed_log)(points)
    return sign * jnp.exp(log_size)


@pytest.mark.smoke
def test_a_data_kernel_without_numbers_leaves_the_others_to_be_learnt():
    def near(a, b):
        return jnp.exp(-0.5 * jnp.sum(jnp.square(a - b)))

    learnt = KernelMeans(data_kernel=FromCallable(near), standardise=False).fit(Z, Z)
    beta, lam = np.asarray(learnt.hyper.parameter_kernel.length_scale), float(learnt.hyper.regularisation)
    weights = np.linalg.solve(np.exp(-0.5 * squared(Z, Z, beta)) + M * lam * np.eye(M), np.exp(-0.5 * squared(Z, Z, 1)))
    values = np.exp(-0.5 * squared(POINTS, Z, beta)) @ weights[:, 0]
    np.testing.assert_allclose(signed_values(learnt.at(Z[0]), POINTS), values, rtol=1e-4, atol=1e-5)


@pytest.mark.x64
def test_likelihood_by_hand(surrogate):
    values = signed_values(surrogate.at(Y), POINTS)
    np.testing.assert_allclose(values, likelihood_by_hand(Z, X, Y, POINTS), rtol=1e-9, atol=1e-12)
    sign, log_size = surrogate.at(Y).signed_log(POINTS)
    np.testing.assert_allclose(sign * np.exp(log_size), values, rtol=1e-12)
    terms = surrogate.at(Y).terms
    by_weights = np.exp(-0.5 * squared(POINTS, Z, BETA)) @ terms.weights * np.exp(terms.log_scale)
    np.testing.assert_allclose(by_weights, values, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.x64
def test_prediction_of_an_independent_gaussian_process(surrogate):
    """The likelihood is a predictive mean and `variance` the predictive variance, to 1e-8."""
    likelihood = surrogate.at(Y)
    kappa = np.exp(surrogate.hyper.data_kernel.log_gram(surrogate.transform.forward(Y)[None], surrogate.data))[0]
    kernel = tinygp.transforms.Linear(1 / BETA, tinygp.kernels.ExpSquared())
    process = tinygp.GaussianProcess(kernel, jnp.asarray(Z), diag=M * LAM)
    mean, variance = jax.jit(lambda: [(gp := process.condition(kappa, POINTS, diag=0.0).gp).loc, gp.variance])()
    values = signed_values(likelihood, POINTS)
    shift = surrogate.hyper.data_kernel.log_integral(N) - surrogate.transform.log_abs_det_jacobian(Y)
    np.testing.assert_allclose(values * np.exp(shift), mean, atol=1e-8)
    np.testing.assert_allclose(surrogate.variance(POINTS), variance, atol=1e-8)


def test_nothing_underflows(surrogate):
    far = surrogate.at(Y).signed_log(jnp.full(D, 1e3))
    assert np.isfinite(far[1]) and far[0] in (-1.0, 1.0)
    with pytest.warns(UserWarning, match="far outside"):
        likelihood = surrogate.at(Y * 1e12)
    assert np.isfinite(likelihood.signed_log(Z[0])[1])


@pytest.mark.x64
def test_positive_version(surrogate):
    """Close to `q` where it is large; finite gradients that lead back from anywhere, in both precisions."""
    likelihood = surrogate.at(Y)
    at_simulations = signed_values(likelihood, Z)
    logs = likelihood.log_density(Z)
    large = at_simulations > 0.1 * at_simulations.max()
    np.testing.assert_allclose(logs[large], np.log(at_simulations[large]), atol=3e-3)
    z = np.outer([3.0, 10.0, 1e3, 1e6], [1.0, -1.0])
    slopes = jax.jit(lambda likelihood, z: jax.vmap(jax.value_and_grad(likelihood.log_density))(z))
    for x64, dtype in ((True, np.float64), (False, np.float32)):
        with jax.enable_x64(x64):
            value, slope = (np.asarray(part) for part in slopes(*jax.tree.map(dtype, (likelihood, z))))
        assert slope.dtype == dtype and np.isfinite(value).all() and np.isfinite(slope).all()
        assert (np.sum(slope * (likelihood.centre - z), axis=1) > 0).all()


@pytest.mark.slow
def test_sessions_in_single_precision():
    """Fits are the same to the last digits, evaluation is in float32, traced observations included."""
    z, x, y = Z.copy(), X.copy(), Y.copy()
    with jax.enable_x64(False):
        hyper = Hyperparameters(Gaussian(BETA.copy()), Gaussian(EPS.copy()), LAM)
        surrogate = KernelMeans(hyperparameters=hyper).fit(z, x)
        likelihood = surrogate.at(y)
        assert likelihood.terms.weights.dtype == np.float64
        value = likelihood.log_density(jnp.asarray(z[0]))
        traced = jax.jit(lambda z: surrogate.at(y).log_density(z))(jnp.asarray(z[0]))
        in_place = jax.jit(lambda y: surrogate.at(y).log_density(jnp.asarray(z[0])))(jnp.asarray(y))
        assert value.dtype == jnp.float32
        tiny = KernelMeans(hyperparameters=Hyperparameters(Gaussian(0.5), Gaussian(0.5), 1e-8)).fit(z[:9], x[:9])
        with pytest.raises(ValueError, match=re.escape("lam = 1.0e-08 is too small to solve")):
            jax.jit(lambda y: tiny.at(y).log_density(jnp.zeros(2)))(jnp.asarray(y))
    expected = np.log(likelihood_by_hand(Z, X, Y, Z[:1])[0])
    np.testing.assert_allclose([value, traced], expected, atol=5e-3)
    np.testing.assert_allclose(in_place, expected, atol=2e-2)


def test_warns_far_from_the_simulations(surrogate):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for y in X:
            surrogate.at(y)
    with pytest.warns(UserWarning, match=r"far outside all simulations in x\[1\] \(observed 1e\+06"):
        surrogate.at(np.array([X[0, 0], 1e6, X[0, 2]]))
    with pytest.warns(UserWarning, match="log data kernel"):
        narrow = KernelMeans(hyperparameters=Hyperparameters(Gaussian(1.0), Gaussian(0.3), LAM))
        narrow.fit(Z, np.c_[X[:, :1], X[:, :1]]).at(np.quantile(X[:, 0], [0.02, 0.98]))


def test_constant_statistics():
    x = np.c_[X[:, :1], np.full(M, 7.0), X[:, 1:]]
    with pytest.warns(UserWarning, match=r"Statistics \[1\] are constant over the simulations"):
        surrogate = KernelMeans(hyperparameters=HYPER).fit(Z, x)
    found = surrogate.at(np.array([Y[0], 7.0, *Y[1:]])).log_density(Z[0])
    np.testing.assert_allclose(found, np.log(likelihood_by_hand(Z, X, Y, Z[:1])[0]), atol=3e-3)
    assert surrogate.informativeness()[1][1] == 0.0
    with pytest.raises(ValueError, match=r"Statistic x\[1\] is 7.0 in every simulation but 8.0"):
        surrogate.at(np.array([Y[0], 8.0, *Y[1:]]))


def test_inside_scan(surrogate):
    """NumPyro stacks what the distributions of the steps hold: log densities are those of each step."""
    x = np.linspace(-1.0, 1.0, 20)[:, None]
    likelihood = fit_likelihood(x, x + 0.3 * np.random.default_rng(0).normal(size=x.shape))
    y, theta = jnp.array([[0.1], [0.5], [-0.2]]), 0.3

    def model():
        scan(lambda s, y: (s, sample("y", likelihood(s), obs=y)), theta, y)

    with jax.numpy_rank_promotion("allow"):
        found = handlers.trace(handlers.seed(model, 0)).get_trace()["y"]["fn"].log_prob(y)
    np.testing.assert_allclose(found, likelihood(theta).log_prob(y), rtol=1e-5, atol=1e-6)


@pytest.mark.x64
def test_a_kernel_of_another_family_on_raw_vectors():
    raw = KernelMeans(hyperparameters=Hyperparameters(Gaussian(BETA), Laplace(2.0), LAM), standardise=False).fit(Z, X)
    kappa = np.exp(-np.sqrt(squared(Y[None], X, 2.0)[0]) - Laplace(2.0).log_integral(N))
    weights = np.linalg.solve(np.exp(-0.5 * squared(Z, Z, BETA)) + M * LAM * np.eye(M), kappa)
    values = np.exp(-0.5 * squared(POINTS, Z, BETA)) @ weights
    np.testing.assert_allclose(signed_values(raw.at(Y), POINTS), values, rtol=1e-8, atol=1e-14)


@pytest.mark.slow
@pytest.mark.x64
def test_data_sets_and_time_series_compared_as_a_whole():
    sets = Z[:, None, :1] + RNG.normal(size=(M, 12, 1))
    kernel = EmpiricalMeasure(Gaussian(1.0), 0.3)
    empirical = KernelMeans(hyperparameters=Hyperparameters(Gaussian(BETA), kernel, LAM)).fit(Z, sets)
    kappa = np.asarray(kernel.gram(sets[:1], sets))[0]
    weights = np.linalg.solve(np.exp(-0.5 * squared(Z, Z, BETA)) + M * LAM * np.eye(M), kappa)
    near = np.exp(-0.5 * squared(POINTS, Z, BETA))
    np.testing.assert_allclose(signed_values(empirical.at(sets[0]), POINTS), near @ weights, rtol=1e-8, atol=1e-12)
    with pytest.raises(ValueError, match="EmpiricalMeasure is not a density"):
        KernelMeansPosterior(empirical, sets[0], standard_normal(D)).log_marginal()

    times = np.linspace(0, 1, 9)[:, None]
    paths = Z[:, :1] * np.sin(4 * times[:, 0]) + 0.2 * RNG.normal(size=(M, 9))
    kernel = GaussianProcessPath(Gaussian(0.4), 0.3)
    series = KernelMeans(hyperparameters=Hyperparameters(Gaussian(BETA), kernel, LAM)).fit(Z, (times, paths))
    kappa = np.exp(np.asarray(kernel.log_gram((times[::2], paths[:1, ::2]), (times, paths))))[0]
    weights = np.linalg.solve(np.exp(-0.5 * squared(Z, Z, BETA)) + M * LAM * np.eye(M), kappa)
    values = signed_values(series.at((times[::2], paths[0, ::2])), POINTS)
    np.testing.assert_allclose(values, near @ weights, rtol=1e-8, atol=1e-12)
    for whole in (empirical, series):
        with pytest.raises(ValueError, match="The held-out drop needs statistics"):
            whole.informativeness()
