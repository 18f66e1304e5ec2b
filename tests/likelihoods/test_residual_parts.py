"""Parts of the residual form against brute-force refits, finite differences and quadrature."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats
from scipy.special import ndtr

import numpyro_kme as kme
from numpyro_kme.likelihoods.residual import fitting, support
from numpyro_kme.likelihoods.residual import location_scale as ls
from numpyro_kme.likelihoods.residual.decorrelation import TriangularMap, fit_triangular_map
from numpyro_kme.likelihoods.residual.functions import RidgeFunctions, padded
from numpyro_kme.likelihoods.residual.location_scale import Location, ScaleFunction, start_locations
from numpyro_kme.likelihoods.residual.ridge import Ridge
from numpyro_kme.likelihoods.residual.smoothness import Inputs, Smoothness
from numpyro_kme.likelihoods.residual.weights import EmbeddingWeights
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
    factor = columns_of(smoothness.regress(everywhere(z), np.ones(5), np.ones(5)).held_out.ridge)
    np.testing.assert_allclose(factor @ factor.T, signal(smoothness, z, z), rtol=1e-8)


def test_few_inducing_points_are_nystroems_approximation(rng, smoothness):
    z, points = rng.normal(size=(6, 2)), rng.normal(size=(3, 2))
    factor = columns_of(smoothness.regress(Inputs(z, points), np.ones(6), np.ones(6)).held_out.ridge)[:, -3:]
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
    found = Ridge.of(factor, noise).held_out(t)
    matrix = factor @ factor.T + np.diag(noise)
    for j in range(12):
        rest = np.delete(np.arange(12), j)
        inverse = np.linalg.inv(matrix[np.ix_(rest, rest)])
        cross = matrix[j, rest]
        np.testing.assert_allclose(found.residual[j], t[j] - cross @ inverse @ t[rest], rtol=1e-7)
        np.testing.assert_allclose(found.variance[j], matrix[j, j] - cross @ inverse @ cross, rtol=1e-7)
    np.testing.assert_allclose(factor @ found.coefficients, t - noise * found.alpha, atol=1e-10)


def test_a_small_noise_costs_no_accuracy(rng):
    """Two ways to the same numbers where the noise is a millionth of the intercept's variance."""
    factor, t = np.concatenate([np.full((40, 1), 10.0), rng.normal(size=(40, 9))], axis=1), rng.normal(size=40)
    few = Ridge.of(factor, np.full(40, 1e-4)).held_out(t)
    many = Ridge.of(np.concatenate([factor, np.zeros((40, 40))], axis=1), np.full(40, 1e-4)).held_out(t)
    np.testing.assert_allclose(few.residual, many.residual, rtol=1e-6)
    np.testing.assert_allclose(few.variance, many.variance, rtol=1e-6)


@pytest.mark.parametrize("columns", [1, 8])
def test_a_matrix_that_is_not_positive_definite_gives_nan(columns):
    assert np.isnan(Ridge.of(np.ones((3, columns)), -np.ones(3)).held_out(np.ones(3)).residual).all()


@pytest.mark.x64
@pytest.mark.parametrize("points", [4, 15])
@pytest.mark.parametrize("part", ["location", "scale"])
def test_gradients_by_hand_agree_with_finite_differences(rng, smoothness, part, points):
    z, e, noise, size = (rng.normal(size=shape) for shape in ((15, 2), 15, 15, 15))
    x = np.where(np.arange(15) == 3, 40.0, np.exp(z[:, 0] + 0.3 * e))
    inputs = Inputs(z, z[:points])
    at, loss = {
        "location": (
            Location(smoothness, -0.2, -1.0),
            lambda t: ls.location_loss(t, inputs, x, noise**2, size**2),
        ),
        "scale": (smoothness, lambda t: ls.scale_loss(t, inputs, np.log(x), noise**2)),
    }[part]
    flat, unpack = ravel_pytree(at)
    flat = np.asarray(flat)

    def differences(step):
        steps = step * np.eye(len(flat))
        return np.array([loss(unpack(flat + e))[0] - loss(unpack(flat - e))[0] for e in steps]) / (2.0 * step)

    extrapolated = (4.0 * differences(3e-4) - differences(6e-4)) / 3.0  # nearly singular matrices round smaller steps
    np.testing.assert_allclose(ravel_pytree(loss(at)[1])[0], extrapolated, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("points", [4, 15])
@pytest.mark.parametrize("part", ["location", "scale"])
def test_several_regressions_at_once_are_each_alone(rng, part, points):
    """Values and gradients, with fewer columns than simulations and with more."""
    z, x, noise, size = rng.normal(size=(15, 2)), *rng.uniform(0.5, 2.0, size=(3, 3, 15))
    inputs = Inputs(z, z[:points])
    hypers = [Smoothness(rng.normal(size=4), rng.normal(), rng.normal(size=2), -1.0) for _ in range(3)]
    if part == "location":
        hypers = [Location(hyper, rng.normal(), rng.normal()) for hyper in hypers]
        found = ls.location_loss(together(*hypers), inputs, x, noise, size)
        alone = [ls.location_loss(*one[:1], inputs, *one[1:]) for one in zip(hypers, x, noise, size, strict=True)]
    else:
        found = ls.scale_loss(together(*hypers), inputs, x, noise)
        alone = [ls.scale_loss(*one[:1], inputs, *one[1:]) for one in zip(hypers, x, noise, strict=True)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8), found, together(*alone))


def test_of_several_matrices_one_that_is_not_positive_definite_gives_nan_alone(rng):
    factor, noise = rng.normal(size=(3, 6, 2)), np.array([1.0, -1.0, 1.0])[:, None] * np.ones(6)
    failed = np.isnan(Ridge.of(factor, noise).held_out(rng.normal(size=(3, 6))).residual)
    np.testing.assert_array_equal(failed, np.array([[False], [True], [False]]) & np.ones((3, 6), bool))


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
    parts = RidgeFunctions.of(fit, [0.7], exact), RidgeFunctions.of(fit.again(2.0 * t[None]), [0.0], exact)
    functions = RidgeFunctions.together(parts)
    gram = signal(smoothness, z, z) + (np.exp(2.0 * smoothness.noise) + 1e-6) * np.eye(9)
    value = signal(smoothness, new[None], z)[0] @ np.linalg.solve(gram, t)
    np.testing.assert_allclose(functions(jnp.asarray(new)), [value + 0.7, 2 * value], atol=1e-5)


@jax.jit
def at_points(functions, points):
    return jax.vmap(functions)(points)


def test_few_sizes_are_compiled():
    """Powers of four up to 256, of two above."""
    assert [padded(size) for size in (1, 64, 65, 256, 257, 512, 1000)] == [64, 64, 256, 256, 512, 512, 1024]


@pytest.mark.x64
def test_functions_take_as_many_gaussian_kernels_as_they_need(rng):
    """A straight one none, one that is curved along one coordinate a few, a rough one all; new points agree too."""
    z, tolerance = rng.normal(size=(200, 2)), 1e-2
    lengths = (np.full(2, 300.0), np.array([2.0, 300.0]), np.full(2, 0.05))
    targets = (z[:, 0], z[:, 1] + np.sin(z[:, 0]), rng.normal(size=200))
    hypers = [Smoothness(np.full(4, -1.0), 0.0, np.log(length), -2.0) for length in lengths]
    fits = together(*hypers).regress(everywhere(z), np.ones((3, 200)), np.stack(targets))
    functions = RidgeFunctions.of(fits, [0.3] * 3, np.full((3, 200), tolerance)).filled()
    straight, curved, rough = np.count_nonzero(functions.rbf, axis=1)
    assert straight == 0 and 0 < curved < 40 and rough == 200
    assert functions.rbf.shape == (3, 256)
    new = rng.uniform(-1.5, 1.5, size=(20, 2))
    for points, most in ((z[:50], tolerance), (new, 3.0 * tolerance)):
        found = at_points(functions, points)
        for i, hyper in enumerate(hypers):
            expected = signal(hyper, points, z) @ fits.held_out.alpha[i] + 0.3
            np.testing.assert_allclose(found[:, i], expected, atol=most)
    slopes = jax.jit(jax.vmap(jax.jacfwd(functions)))(new)
    np.testing.assert_allclose(functions.slopes(new), slopes, rtol=1e-8, atol=1e-8)


def test_functions_are_as_exact_as_each_simulation_asks(rng):
    """Half of the simulations have a hundredth of the tolerance: errors are within it at each, by more kernels."""
    z = rng.normal(size=(200, 2))
    fit = together(Smoothness(np.full(4, -1.0), 0.0, np.log(np.full(2, 1.0)), -2.0)).regress(
        everywhere(z), np.ones((1, 200)), np.sin(3.0 * z[None, :, 0])
    )
    expected, counts = columns_of(fit.held_out.ridge)[0] @ fit.held_out.coefficients[0], []
    for narrow in (1e-1, 1e-3):
        tolerance = np.where(z[:, 0] < 0.0, 1e-1, narrow)
        functions = RidgeFunctions.of(fit, [0.0], tolerance[None])
        error = at_points(functions, z)[:, 0] - expected
        assert (np.abs(error) <= 1.01 * tolerance + 1e-5).all()
        counts.append(np.count_nonzero(functions.rbf))
    assert counts[0] < counts[1]


@pytest.mark.x64
def test_functions_whose_kernels_are_dependent_to_rounding(rng):
    """Smooth kernels at points that come three times, and a tolerance below rounding; warnings are errors here."""
    z, t = np.repeat(rng.normal(size=(300, 5)), 3, axis=0), rng.normal(size=900)
    hyper = Smoothness(np.full(10, -1.0), -1.0, np.log(np.full(5, 10.0)), -1.0)
    fit = together(hyper).regress(Inputs.pivoted(z, 100), np.ones((1, 900)), t[None])
    found = jax.vmap(RidgeFunctions.of(fit, [0.0], np.full((1, 900), 1e-12)))(jnp.asarray(z))[:, 0]
    expected = columns_of(fit.held_out.ridge)[0] @ fit.held_out.coefficients[0]
    np.testing.assert_allclose(found, expected, atol=1e-7 * np.abs(expected).max())


def test_other_fits_of_the_same_size_do_not_compile_again(rng):
    hyper, shapes = Smoothness(np.full(4, -1.0), -1.0, np.zeros(2), -1.0), []
    for _ in range(2):
        z = rng.normal(size=(200, 2))
        fit = together(hyper).regress(Inputs.pivoted(z, 100), np.ones((1, 200)), rng.normal(size=(1, 200)))
        functions = RidgeFunctions.of(fit, [0.0], np.full((1, 200), 0.05)).filled()
        weights = EmbeddingWeights.fit(z, rng.uniform(3.0, 3.5), 0.1)
        shapes.append(jax.tree.map(np.shape, (functions, weights)))
    assert shapes[0] == shapes[1]


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
    start, _ = start_locations(everywhere(z), scaled.T, -np.median(x, axis=0) / x.std(), True)
    u = (scaled[:, 0] - start.centre) / np.exp(start.log_width)
    assert np.corrcoef(np.arcsinh(u), np.log(x[:, 0]))[0, 1] > 0.98


def test_the_score_of_a_statistic_is_its_held_out_log_density_in_its_units(rng, monkeypatch):
    """Of a log-normal one; its zero, a centre that is tried, is that of its standardised values."""
    z, asked = rng.normal(size=(300, 1)), []
    monkeypatch.setattr(support, "start_locations", lambda *args: asked.append(args) or start_locations(*args))
    s = 40.0 * np.exp(0.5 * z[:, 0] + 0.05 * rng.normal(size=300))
    exact = np.mean(stats.lognorm(0.05, scale=40.0 * np.exp(0.5 * z[:, 0])).logpdf(s))
    assert support._score(everywhere(z), s, np.arange(300)) == pytest.approx(exact, abs=0.1)
    ((_, (column,), (zero,), _),) = asked
    np.testing.assert_allclose((column - zero) / (column[0] - zero), s / s[0], rtol=1e-9)
    np.testing.assert_allclose(np.median(column), 0.0, atol=1e-12)


def test_the_score_of_a_bound_is_the_log_density_of_the_statistic_beyond_it(rng):
    """Gaps that are log-normal: the inverse hyperbolic sine is about their logarithm."""
    z = rng.normal(size=(150, 1))
    gap = 40.0 * np.exp(0.5 * z[:, 0] + 0.2 * rng.normal(size=150))
    exact = np.mean(stats.lognorm(0.2, scale=40.0 * np.exp(0.5 * z[:, 0])).logpdf(gap))
    line = support._Line(np.zeros(3), 0.01, 1.0, np.arcsinh(gap / 0.01))
    assert line.score(everywhere(z), np.arange(150)) == pytest.approx(exact, abs=0.1)


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


def test_a_search_of_locations_begins_with_the_score_that_chose_its_start(rng):
    """With the noise of the residuals, too: from another, the first steps lead anywhere, also to a straight line."""
    z = rng.normal(size=(300, 1))
    x = np.stack([np.exp(0.9 * z[:, 0]) + rng.normal(size=300), z[:, 0] + 0.1 * rng.normal(size=300)])
    at, one = everywhere(z), np.ones((2, 300))
    start, scores = ls.start_locations(at, x, np.zeros(2), True)
    losses = ls.location_loss(start, at, x, one, one)[0] - start.penalty()[0]
    np.testing.assert_allclose(losses, -300 * scores, atol=0.3)


def test_starts_are_nearly_as_good_as_with_any_noise(rng):
    """Their scores decide on bounds, too; fifteen times six data sets gave means of 0.003 to 0.013 nats."""
    worse = []
    for _ in range(6):
        z = rng.normal(size=(60, 2))
        x = np.sin(3.0 * z[:, 0]) + 0.3 * rng.normal(size=60)
        x, at = (x - np.median(x)) / x.std(), everywhere(z)
        line = ls._Candidates.of(x, 0.0, False)
        tries = [Smoothness.start(2, 0.5, 1.0, 0.5, noise) for noise in np.geomspace(0.05, 1.6, 11)]
        scores = [line.scores(one.regress(at, np.ones(60), x).held_out.ridge, x)[0] for one in tries]
        worse.append(np.max(scores) - start_locations(at, x[None], np.zeros(1), False)[1])
    assert np.mean(worse) < 0.04


def test_a_statistic_without_noise_is_known_to_a_thousandth():
    """Held-out simulations say a millionth, which rounding of the fitted function may exceed."""
    for seed in range(6):
        z = np.random.default_rng(seed).normal(size=(300, 2))
        x = 2.0 * z[:, :1] + 1.0
        surrogate = kme.ResidualKernelMeans().fit(z, x)
        log_densities = surrogate.at_rows(x[:20]).log_density(z[:20])
        assert np.median(log_densities) > -np.log(2.0 * 1e-3 * np.sqrt(2.0 * np.pi))
        standardised = surrogate.standardised(surrogate._at(x, np).standard, z, np).residuals
        assert 0.3 < np.sqrt(np.mean(np.square(standardised))) < 2.0  # neither narrower than it is off, nor wider


def test_transformations_are_scored_by_hand_and_the_better_half_is_kept(rng):
    """By the held-out density at one variance, winsorised at four robust standard deviations of a normal."""
    z, x = rng.normal(size=(30, 2)), rng.gamma(2.0, size=30)
    x[:3] += 40.0
    candidates = ls._Candidates.of(x, 0.0, True)
    ridge = Smoothness.start(2).regress(everywhere(z), np.ones(30), x).held_out.ridge
    found, variances = candidates.scores(ridge, x)
    for k, (centre, log_width) in enumerate(zip(candidates.centres, candidates.log_widths)):
        at = Location(None, centre, log_width)
        target, scale = ls.standardised(at.transformed(x))
        np.testing.assert_allclose(candidates.targets[k], target)
        held_out = ridge.held_out(target)
        residual, variance = held_out.residual, held_out.variance
        squares = residual**2 / variance
        robust = np.median(squares) / stats.chi2(1).median()
        sd = np.sqrt(np.mean(np.minimum(squares, 4.0**2 * robust)) * variance)
        slope = 1.0 / np.sqrt(np.exp(2.0 * log_width) + (x - centre) ** 2) / scale
        expected = np.log(0.98 * stats.norm.pdf(residual, 0.0, sd) * slope + 0.02 * stats.cauchy.pdf(x))
        np.testing.assert_allclose(found[k], expected.mean(), rtol=1e-3)
        np.testing.assert_allclose(variances[k] * variance, sd**2, rtol=1e-3)
    kept = candidates.half(found)
    np.testing.assert_allclose(np.sort(kept.scores(ridge, x)[0]), np.sort(found)[len(found) // 2 :])


def test_winsorised_mean_squares_by_hand(rng):
    """Where half the residuals are zero winsorising leaves nothing; where all are, the scale is one."""
    plain, outlier = rng.normal(size=50), np.append(rng.normal(size=49), 1e4)
    few, none = np.append(np.zeros(45), rng.normal(size=5)), np.zeros(50)
    found = ls.winsorised_rms(np.stack([plain, outlier, few, none]))
    cuts = [4.0 * np.median(np.abs(one)) / stats.norm.ppf(0.75) for one in (plain, outlier)]
    expected = [np.sqrt(np.mean(np.minimum(one**2, cut**2))) for one, cut in zip((plain, outlier), cuts)]
    np.testing.assert_allclose(found, [*expected, np.std(few), 1.0], rtol=1e-4)


def test_scale_of_residuals_is_found_within_its_error(rng):
    z = rng.normal(size=(400, 2))
    log_scale = 0.8 * z[:, 0]
    scale = ScaleFunction(2, 1, 400)
    scale.update(everywhere(z), rng.normal(size=(1, 400)) * np.exp(log_scale), 3, 12)
    error = scale.held_out - log_scale
    assert np.std(error) < 5 * np.sqrt(3 / 400 / 2)
    assert abs(np.mean(error)) < 0.3


def test_a_scale_that_spans_many_orders_of_magnitude_has_a_large_amplitude(rng):
    """Twenty in logarithms: forty seeds gave amplitudes of 1.8 to 3.6, as large ones have a low prior density."""
    z, points = rng.normal(size=(200, 1)), np.linspace(-3.0, 3.0, 40)[:, None]
    residuals = rng.normal(size=200) * np.exp(10.0 * np.sin(3.0 * z[:, 0]))
    scale = ScaleFunction(1, 1, 200)
    scale.update(Inputs(z, points), residuals[None], 3, 12)
    assert np.exp(scale.smoothness.rbf[0]) > 1.3


def test_scale_of_equal_residuals_is_flat_and_one_outlier_hardly_matters(rng):
    z, residuals = rng.normal(size=(200, 3)), rng.normal(size=200)
    scale = ScaleFunction(3, 2, 200)
    scale.update(everywhere(z), np.stack([residuals, np.where(np.arange(200) == 0, 1e6, residuals)]), 2, 10)
    assert np.std(scale.fitted[0]) < 5 * np.sqrt(1 / 200)
    assert np.abs(scale.fitted[1] - scale.fitted[0])[1:].mean() < 0.1


def test_noise_of_outliers_is_larger_and_that_of_each_statistic_one_on_average(rng):
    """Weights of Student's distribution with four degrees of freedom; where the scale varies, its square besides."""
    residuals = rng.normal(size=(2, 60)) * [[1.0], [50.0]]
    residuals[0, 0] = 1e3
    found, own = fitting._noise(SimpleNamespace(scale=False), None, residuals, None, 1, 1)
    np.testing.assert_array_equal(own, 1.0)
    np.testing.assert_allclose(np.mean(1.0 / found, axis=1), 1.0)
    standard = residuals / ls.winsorised_rms(residuals)[:, None]
    np.testing.assert_allclose(found / found[:, 1:2], (4 + standard**2) / (4 + standard[:, 1:2] ** 2))
    varying = SimpleNamespace(update=lambda *_: None, held_out=np.linspace(-1.0, 1.0, 120).reshape(2, 60))
    whole, own = fitting._noise(SimpleNamespace(scale=True), None, residuals * np.exp(varying.held_out), varying, 1, 1)
    np.testing.assert_allclose(whole, found * own)
    ratio = np.exp(2 * (varying.held_out - varying.held_out[:, :1]))
    np.testing.assert_allclose(own / own[:, :1], ratio)
    np.testing.assert_allclose(np.log(own).mean(axis=1), 0.0, atol=1e-12)


@pytest.mark.parametrize(("off", "settled"), [(0.9, True), (1.1, False)])
def test_scales_have_settled_where_their_logarithms_are_negligibly_off(off, settled, rng):
    """In each statistic: a factor for all its simulations is no change, as only the relative scale counts."""
    scale, change = np.exp(rng.normal(size=(2, 50))), rng.normal(size=(2, 50))
    change *= off * fitting.NEGLIGIBLE / change.std(axis=1, keepdims=True)
    change[1] = 3.0
    assert fitting._settled(np.square(scale * np.exp(change)), np.square(scale)).tolist() == [settled, True]


def test_without_transformations_statistics_stay_as_they_are():
    low, high = Location.bounds(everywhere(np.zeros((3, 2))), False)
    assert low.centre == high.centre and low.log_width == high.log_width
    x = np.linspace(-5.0, 5.0, 11)
    line = Location(None, low.centre, low.log_width).transformed(x)
    np.testing.assert_allclose(ls.standardised(line)[0], ls.standardised(x)[0], atol=1e-3)


def test_independent_residuals_are_left_as_they_are(rng):
    """Least squares would find weights of `1 / sqrt(m)`; learnt priors shrink them."""
    z, u = rng.normal(size=(50, 1)), rng.normal(size=(50, 6))
    found, _ = fit_triangular_map(z, u, np.arange(50), np.arange(u.shape[1]))
    least_squares = sum(np.sum(np.square(np.linalg.lstsq(u[:, :i], u[:, i])[0])) for i in range(1, 6))
    assert np.sum(np.square(found.constant)) < 0.4 * least_squares


def test_a_regression_that_makes_a_residual_no_smaller_is_dropped(rng):
    """The last of five follows the first; of the others some regressions help by chance and the rest are not there."""
    z, u = rng.normal(size=(50, 1)), rng.normal(size=(50, 5))
    u[:, 4] = 0.8 * u[:, 0] + 0.6 * u[:, 4]
    u /= ls.winsorised_rms(u.T)
    found, rest = fit_triangular_map(z, u, np.arange(50), np.arange(5))
    same = np.all(rest == u, axis=0)
    assert same[0] and same[1:4].any() and not same[4]
    assert not found.constant[same].any() and not found.change[same].any() and not found.log_scale[same].any()
    assert np.all(found.log_scale[~same] < 0.0)


@pytest.mark.x64
def test_decorrelation_is_triangular_with_the_stated_jacobian(rng):
    lower = np.tril(rng.normal(size=(3, 3)), -1)
    decorrelation = TriangularMap(lower, lower[:, :, None] * rng.normal(size=2), np.array([0.0, 0.3, -0.5]))
    u, z = rng.normal(size=3), rng.normal(size=2)
    jacobian = jax.jacfwd(lambda u: decorrelation(u, z)[0])(u)
    np.testing.assert_allclose(jacobian, np.tril(jacobian))
    np.testing.assert_allclose(np.linalg.slogdet(jacobian)[1], -np.sum(decorrelation.log_scale), rtol=1e-10)


def test_decorrelation_follows_the_regression_it_was_fitted_by(rng):
    z, u = rng.normal(size=(60, 2)), rng.normal(size=(60, 2))
    u[:, 1] = (0.3 + 0.6 * z[:, 0]) * u[:, 0] + 0.3 * u[:, 1]
    decorrelation, rest = fit_triangular_map(z, u, np.arange(60), np.arange(u.shape[1]))
    decorrelated, _ = jax.vmap(decorrelation)(jnp.asarray(u), jnp.asarray(z))
    np.testing.assert_allclose(decorrelated[:, 0], u[:, 0])
    assert np.corrcoef(decorrelated[:, 1], rest[:, 1])[0, 1] > 0.97
    assert abs(decorrelation.change[1, 0, 0] - 0.6) < 5 * 0.3 / np.sqrt(60) + 0.1
    assert np.exp(decorrelation.log_scale[1]) < 0.5


def test_inducing_points_are_left_out_that_hardly_matter(rng):
    """What they add to the prior covariance at the simulations is below the noise; short lengths need more of them."""
    z = rng.normal(size=(200, 2))
    at, numbers = Inputs.pivoted(z, 100), []
    for length in (6.0, 2.0, 0.6):
        hyper = Smoothness(np.full(4, -9.0), 0.0, np.full(2, np.log(length)), np.log(0.3))
        few = hyper.enough(at)
        numbers.append(len(few.inducing_points))
        np.testing.assert_array_equal(few.inducing_points, at.inducing_points[: numbers[-1]])
        ones = np.ones(200)
        whole, part = (columns_of(hyper.regress(inputs, ones, ones).held_out.ridge) for inputs in (at, few))
        left = np.sum(np.square(whole), axis=1) - np.sum(np.square(part), axis=1)
        assert np.mean(left) < 0.01 * 0.3**2
    assert 10 <= numbers[0] < numbers[1] < numbers[2] <= 100


def test_a_function_without_kernels_needs_the_fewest_inducing_points(rng):
    at = Inputs.pivoted(rng.normal(size=(200, 3)), 100)
    assert len(Smoothness(np.zeros(6), -6.0, np.zeros(3), 0.0).enough(at).inducing_points) == 10
    assert len(Smoothness(np.zeros(6), -6.0, np.zeros(3), 0.0).enough(at.first(4)).inducing_points) == 4
