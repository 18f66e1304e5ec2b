"""Parts of the residual form against brute-force refits, finite differences and quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats
from scipy.special import ndtr

import numpyro_kme as kme
from numpyro_kme.likelihoods.residual import location_scale as ls
from numpyro_kme.likelihoods.residual.decorrelation import TriangularMap, fit_triangular_map
from numpyro_kme.likelihoods.residual.functions import RidgeFunctions
from numpyro_kme.likelihoods.residual.location_scale import Location, ScaleFunction, start_locations
from numpyro_kme.likelihoods.residual.ridge import Ridge
from numpyro_kme.likelihoods.residual.smoothness import Inputs, Smoothness
from numpyro_kme.likelihoods.statistics import MarginalTransform, jitter_ties, jitter_width, lattice_step, log_cosh


@pytest.fixture
def smoothness(rng):
    return Smoothness(rng.normal(size=4) - 1.0, -0.3, rng.normal(size=2) * 0.2 + 0.5, -1.0)


def kernel_by_hand(smoothness, a, b):
    phi = [np.concatenate([p, np.sqrt(12.0) * (ndtr(p) - 0.5)]) for p in (a, b)]
    linear = np.sum(np.exp(2 * np.asarray(smoothness.linear)) * phi[0] * phi[1])
    radial = np.exp(2 * smoothness.rbf - 0.5 * np.sum(((a - b) / np.exp(smoothness.length)) ** 2))
    return 100.0 + linear + radial


def together(*trees):
    """Hyperparameters of several regressions as those of one call."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def columns_of(ridge):
    """`F`, `(..., m, r)`."""
    return ridge.scaled * ridge.root[..., None]


def everywhere(z):
    """Every simulation is an inducing point."""
    return Inputs(z, z)


def signal(smoothness, a, b):
    return np.array([[kernel_by_hand(smoothness, p, q) for q in b] for p in a])


def test_covariance_of_the_regression_is_the_stated_kernel(rng, smoothness):
    z = rng.normal(size=(5, 2))
    factor = columns_of(smoothness.regress(everywhere(z), np.ones(5), np.ones(5)).held_out)
    np.testing.assert_allclose(factor @ factor.T, signal(smoothness, z, z), rtol=1e-8)


def test_few_inducing_points_are_nystroems_approximation(rng, smoothness):
    z, points = rng.normal(size=(6, 2)), rng.normal(size=(3, 2))
    factor = columns_of(smoothness.regress(Inputs(z, points), np.ones(6), np.ones(6)).held_out)[:, -3:]
    near, among = (
        np.exp(-0.5 * np.sum(np.square((p[:, None] - points) / np.exp(smoothness.length)), axis=-1))
        for p in (z, points)
    )
    expected = np.exp(2 * smoothness.rbf) * near @ np.linalg.solve(among, near.T)
    np.testing.assert_allclose(factor @ factor.T, expected, rtol=1e-6)


def test_inducing_points_explain_the_other_coordinates(rng):
    few, many = (Inputs.pivoted(rng.normal(size=(300, dim)), 50).inducing_points for dim in (1, 8))
    assert 10 < len(few) < 45 and few.min() < -2.0 and few.max() > 2.0
    assert len(many) == 50 and len(np.unique(many, axis=0)) == 50


@pytest.mark.parametrize("columns", [4, 12, 30])
def test_held_out_predictions_are_those_of_refits(rng, columns):
    """Fewer columns than simulations, as many, and more."""
    factor, t, noise = rng.normal(size=(12, columns)), rng.normal(size=12), rng.uniform(0.5, 2.0, size=12)
    found = Ridge.of(factor / np.sqrt(noise)[:, None], np.sqrt(noise), t)
    matrix = factor @ factor.T + np.diag(noise)
    for j in range(12):
        rest = np.delete(np.arange(12), j)
        inverse = np.linalg.inv(matrix[np.ix_(rest, rest)])
        cross = matrix[j, rest]
        np.testing.assert_allclose(found.residual[j], t[j] - cross @ inverse @ t[rest], rtol=1e-7)
        np.testing.assert_allclose(found.variance[j], matrix[j, j] - cross @ inverse @ cross, rtol=1e-7)
    np.testing.assert_allclose(factor @ found.coefficients, t - noise * found.alpha, atol=1e-10)


@pytest.mark.x64
@pytest.mark.parametrize("points", [4, 15])
def test_gradients_by_hand_agree_with_finite_differences(rng, smoothness, points):
    z, e, noise, size = (rng.normal(size=shape) for shape in ((15, 2), 15, 15, 15))
    x = np.where(np.arange(15) == 3, 40.0, np.exp(z[:, 0] + 0.3 * e))
    inputs, at = Inputs(z, z[:points]), Location(smoothness, -0.2, -1.0)
    loss = lambda location: ls.location_loss(location, inputs, x, noise**2, size**2)  # noqa: E731
    flat, unpack = ravel_pytree(at)
    flat = np.asarray(flat)

    def differences(step):
        steps = step * np.eye(len(flat))
        return np.array([loss(unpack(flat + e))[0] - loss(unpack(flat - e))[0] for e in steps]) / (2.0 * step)

    extrapolated = (4.0 * differences(3e-4) - differences(6e-4)) / 3.0  # nearly singular matrices round smaller steps
    np.testing.assert_allclose(ravel_pytree(loss(at)[1])[0], extrapolated, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("points", [4, 15])
def test_several_regressions_at_once_are_each_alone(rng, points):
    """Values and gradients, with fewer columns than simulations and with more."""
    z, x, noise, size = rng.normal(size=(15, 2)), *rng.uniform(0.5, 2.0, size=(3, 3, 15))
    inputs = Inputs(z, z[:points])
    hypers = [Smoothness(rng.normal(size=4), rng.normal(), rng.normal(size=2), -1.0) for _ in range(3)]
    hypers = [Location(hyper, rng.normal(), rng.normal()) for hyper in hypers]
    found = ls.location_loss(together(*hypers), inputs, x, noise, size)
    alone = [ls.location_loss(*one[:1], inputs, *one[1:]) for one in zip(hypers, x, noise, size, strict=True)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8), found, together(*alone))


@pytest.mark.parametrize("dim", [1, 7])
def test_priors_of_the_smoothness_are_exponential(rng, dim):
    """Amplitudes at rate `sqrt(2 D)`, inverse lengths at rate `D`, radial basis functions at 2, up to constants."""
    hypers = [Smoothness(rng.normal(size=2 * dim), rng.normal(), rng.normal(size=dim), 0.0) for _ in range(2)]

    def log_prior(hyper):
        parts = (hyper.linear, np.sqrt(2 * dim)), (-hyper.length, dim), (hyper.rbf, 2.0)
        return sum(np.sum(stats.expon.logpdf(np.exp(part), scale=1.0 / rate)) for part, rate in parts)

    difference = hypers[0].penalty()[0] - hypers[1].penalty()[0]
    np.testing.assert_allclose(difference, log_prior(hypers[1]) - log_prior(hypers[0]), rtol=1e-10)


def test_functions_are_the_fitted_regressions(rng, smoothness):
    z, t, new = rng.normal(size=(9, 2)), rng.normal(size=9), rng.normal(size=2)
    fit, exact = together(smoothness).regress(everywhere(z), np.ones((1, 9)), t[None]), np.full((1, 9), 1e-6)
    parts = RidgeFunctions.of(fit, exact), RidgeFunctions.of(fit.again(2.0 * t[None]), exact)
    functions = RidgeFunctions.together(parts)
    gram = signal(smoothness, z, z) + (np.exp(2.0 * smoothness.noise) + 1e-6) * np.eye(9)
    value = signal(smoothness, new[None], z)[0] @ np.linalg.solve(gram, t)
    np.testing.assert_allclose(functions(jnp.asarray(new)), [value, 2 * value], atol=1e-5)


@pytest.mark.x64
def test_functions_take_as_many_gaussian_kernels_as_they_need(rng):
    """A straight one none, one that is curved along one coordinate a few, a rough one all; new points agree too."""
    z, tolerance = rng.normal(size=(200, 2)), 1e-2
    lengths = (np.full(2, 300.0), np.array([2.0, 300.0]), np.full(2, 0.05))
    targets = (z[:, 0], z[:, 1] + np.sin(z[:, 0]), rng.normal(size=200))
    hypers = [Smoothness(np.full(4, -1.0), 0.0, np.log(length), -2.0) for length in lengths]
    fits = together(*hypers).regress(everywhere(z), np.ones((3, 200)), np.stack(targets))
    functions = RidgeFunctions.of(fits, np.full((3, 200), tolerance))
    straight, curved, rough = np.count_nonzero(functions.rbf, axis=1)
    assert straight == 0 and 0 < curved < 40 and rough == 200
    new = rng.uniform(-1.5, 1.5, size=(20, 2))
    for points, most in ((z[:50], tolerance), (new, 3.0 * tolerance)):
        found = functions(points, np)
        for i, hyper in enumerate(hypers):
            expected = signal(hyper, points, z) @ fits.held_out.alpha[i]
            np.testing.assert_allclose(found[:, i], expected, atol=most)


def test_functions_are_as_exact_as_each_simulation_asks(rng):
    """Half of the simulations have a hundredth of the tolerance: errors are within it at each, by more kernels."""
    z = rng.normal(size=(200, 2))
    fit = together(Smoothness(np.full(4, -1.0), 0.0, np.log(np.full(2, 1.0)), -2.0)).regress(
        everywhere(z), np.ones((1, 200)), np.sin(3.0 * z[None, :, 0])
    )
    expected, counts = columns_of(fit.held_out)[0] @ fit.held_out.coefficients[0], []
    for narrow in (1e-1, 1e-3):
        tolerance = np.where(z[:, 0] < 0.0, 1e-1, narrow)
        functions = RidgeFunctions.of(fit, tolerance[None])
        error = functions(z, np)[:, 0] - expected
        assert (np.abs(error) <= 1.01 * tolerance + 1e-5).all()
        counts.append(np.count_nonzero(functions.rbf))
    assert counts[0] < counts[1]


@pytest.mark.x64
def test_marginal_transforms_are_monotone_with_their_jacobian(rng):
    marginals = MarginalTransform(
        np.array([0.5, -1.0]), np.array([0.01, 30.0]), np.array([0.2, 0.0]), np.array([1.5, 0.03])
    )
    x = rng.normal(size=2) * 3.0
    slope = jnp.diagonal(jax.jacfwd(marginals)(x))
    assert (slope > 0).all()
    np.testing.assert_allclose(marginals.log_slope(x), np.log(slope), rtol=1e-9)
    np.testing.assert_allclose(marginals(marginals.middle), 0.0, atol=1e-12)
    np.testing.assert_allclose(log_cosh(jnp.arcsinh(1e300)), np.log(1e300), rtol=1e-12)


def test_location_is_scored_by_the_held_out_density_of_the_raw_statistic(rng, smoothness):
    z, x = rng.normal(size=(40, 2)), rng.gamma(2.0, size=40)
    at = Location(smoothness, -0.2, -1.0)
    v = np.arcsinh((x + 0.2) / np.exp(-1.0))
    slope = 1.0 / np.sqrt(1 + ((x + 0.2) / np.exp(-1.0)) ** 2) / np.exp(-1.0) / np.std(v)
    target = (v - v.mean()) / v.std()
    found = at.fit(everywhere(z), x, np.ones(40)).held_out
    expected = smoothness.regress(everywhere(z), np.ones(40), target).held_out
    np.testing.assert_allclose(found.residual, expected.residual)
    density = 0.98 * stats.norm.pdf(found.residual, 0.0, np.sqrt(found.variance)) * slope + 0.02 * stats.cauchy.pdf(x)
    value = ls.location_loss(at, everywhere(z), x, np.ones(40), np.ones(40))[0]
    np.testing.assert_allclose(value, at.penalty()[0] - np.sum(np.log(density)), rtol=1e-10)


def test_a_lognormal_statistic_starts_from_a_logarithm(rng):
    z = rng.normal(size=(80, 1))
    x = np.exp(2.0 * z + 0.1 * rng.normal(size=(80, 1)))
    scaled = (x - np.median(x)) / x.std()
    start, _ = start_locations(everywhere(z), scaled.T, -np.median(x, axis=0) / x.std())
    u = (scaled[:, 0] - start.centre) / np.exp(start.log_width)
    assert np.corrcoef(np.arcsinh(u), np.log(x[:, 0]))[0, 1] > 0.98


def test_lattices_and_atoms_are_recognised(rng):
    counts = rng.poisson(3.0, size=200).astype(float)
    assert lattice_step(counts) == 1.0
    np.testing.assert_allclose(lattice_step(0.3 + counts / 40), 1 / 40)
    assert lattice_step(rng.normal(size=200)) == lattice_step(np.arange(5.0)) == lattice_step(np.ones(5)) == 0.0
    for each in (counts, 0.3 + counts / 40):
        np.testing.assert_array_equal(jitter_width(each), lattice_step(each))
    mixed = np.where(rng.random(200) < 0.3, 0.0, rng.gamma(2.0, size=200))
    assert not jitter_width(rng.normal(size=20)).any()  # of few values each is a large share
    width = jitter_width(mixed)
    rest = np.quantile(mixed[mixed != 0], [0.25, 0.75])
    np.testing.assert_allclose(width[mixed == 0], 0.05 * (rest[1] - rest[0]))
    assert (width[mixed == 0] > 0).all() and (width[mixed != 0] == 0).all()
    jittered = jitter_ties(np.stack([counts, rng.normal(size=200)], axis=1))
    assert np.abs(jittered[:, 0] - counts).max() <= 0.5 and len(np.unique(jittered[:, 0])) == 200
    assert abs(np.mean(jittered[:, 0] - counts)) < 0.01


def test_a_statistic_without_noise_is_known_to_a_thousandth():
    """Held-out simulations say a millionth, which rounding of the fitted function may exceed."""
    for seed in range(6):
        z = np.random.default_rng(seed).normal(size=(300, 2))
        x = 2.0 * z[:, :1] + 1.0
        surrogate = kme.ResidualKernelMeans().fit(z, x)
        log_densities = surrogate.at_rows(x[:20]).log_density(z[:20])
        assert np.median(log_densities) > -np.log(2.0 * 1e-3 * np.sqrt(2.0 * np.pi))
        standardised, _ = surrogate.standardisation(surrogate._at(x, np).standard, z, np)
        assert 0.3 < np.sqrt(np.mean(np.square(standardised))) < 2.0  # neither narrower than it is off, nor wider


def test_scale_of_residuals_is_found_within_its_error(rng):
    z = rng.normal(size=(400, 2))
    log_scale = 0.8 * z[:, 0]
    scale = ScaleFunction(2, 1, 400)
    scale.update(everywhere(z), rng.normal(size=(1, 400)) * np.exp(log_scale), 12)
    error = scale.held_out - log_scale
    assert np.std(error) < 5 * np.sqrt(3 / 400 / 2)
    assert abs(np.mean(error)) < 0.3


def test_scale_of_equal_residuals_is_flat_and_one_outlier_hardly_matters(rng):
    z, residuals = rng.normal(size=(200, 3)), rng.normal(size=200)
    scale = ScaleFunction(3, 2, 200)
    scale.update(everywhere(z), np.stack([residuals, np.where(np.arange(200) == 0, 1e6, residuals)]), 10)
    assert np.std(scale.fitted[0]) < 5 * np.sqrt(1 / 200)
    assert np.abs(scale.fitted[1] - scale.fitted[0])[1:].mean() < 0.1


@pytest.mark.x64
def test_decorrelation_is_triangular_with_the_stated_jacobian(rng):
    decorrelation = TriangularMap(np.tril(rng.normal(size=(3, 3)), -1), np.array([0.0, 0.3, -0.5]))
    u, z = rng.normal(size=3), rng.normal(size=2)
    jacobian = jax.jacfwd(lambda u: decorrelation(u, z)[0])(u)
    np.testing.assert_allclose(jacobian, np.tril(jacobian))
    np.testing.assert_allclose(np.linalg.slogdet(jacobian)[1], -np.sum(decorrelation.log_scale), rtol=1e-10)


def test_decorrelation_follows_the_regression_it_was_fitted_by(rng):
    u = rng.normal(size=(60, 2))
    u[:, 1] = 0.6 * u[:, 0] + 0.3 * u[:, 1]
    decorrelation, rest = fit_triangular_map(u, np.arange(60), np.arange(2))
    decorrelated, _ = decorrelation(u, u, np)
    np.testing.assert_allclose(decorrelated[:, 0], u[:, 0])
    assert np.corrcoef(decorrelated[:, 1], rest[:, 1])[0, 1] > 0.97
    assert abs(decorrelation.coefficients[1, 0] - 0.6) < 5 * 0.3 / np.sqrt(60) + 0.1
    assert np.exp(decorrelation.log_scale[1]) < 0.5


def test_a_correlation_that_follows_the_parameters_is_learnt(rng):
    """Mean gap to the exact density in nats; of one correlation for all parameters it is 0.19."""
    z, e = rng.normal(size=(900, 1)), rng.normal(size=(900, 2))
    x = np.stack([e[:, 0], (0.3 + 0.6 * z[:, 0]) * e[:, 0] + 0.3 * e[:, 1]], axis=1)
    found = kme.ResidualKernelMeans().fit(z[:400], x[:400]).at_rows(x[400:]).log_density(z[400:])
    exact = stats.norm.logpdf(e[400:]).sum(axis=1) - np.log(0.3)
    assert np.mean(exact - found) < 0.14
