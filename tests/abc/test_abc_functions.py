"""ABC without a model: weights, learnt summaries and recursive ABC by loops, dense solves and exact answers."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conjugate import conjugate, iid
from scipy.spatial.distance import cdist

import numpyro_kme as kme
from numpyro_kme.kernels import Gaussian

KEY = jax.random.key(0)


def gaussian(a, b, scale):
    return np.exp(-0.5 * cdist(a, b, "sqeuclidean") / scale**2)


@pytest.mark.x64
@pytest.mark.smoke
def test_k2_abc_by_a_double_loop(rng):
    theta = rng.normal(size=40)
    x, y = theta[:, None, None] + rng.normal(size=(40, 12, 1)), 0.4 + rng.normal(size=(9, 1))
    found = kme.abc.discrepancies_to(y, x, kme.embeddings.Quadratic(Gaussian(0.9)))

    def k(a, b):
        return np.exp(-0.5 * (a[0] - b[0]) ** 2 / 0.81)

    def squared_mmd(a):
        within = [np.mean([k(s, t) for i, s in enumerate(one) for j, t in enumerate(one) if i != j]) for one in (a, y)]
        return sum(within) - 2 * np.mean([k(s, t) for s in a for t in y])

    expected = np.array([squared_mmd(a) for a in x])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    weights, epsilon = kme.abc.soft_abc_weights(found, 0.05)
    np.testing.assert_allclose(weights, np.exp(-expected / 0.05) / np.exp(-expected / 0.05).sum(), rtol=1e-9)
    assert epsilon == 0.05


def test_default_epsilon_sets_the_effective_sample_size(rng):
    distance = rng.exponential(size=5000)
    for number, size in ((5000, 100), (400, 50), (40, 20)):
        weights, epsilon = kme.abc.soft_abc_weights(distance[:number])
        assert 1 / np.sum(weights**2) == pytest.approx(size, rel=1e-6)
        raw = np.exp(-distance[:number] / epsilon)
        np.testing.assert_allclose(weights, raw / raw.sum(), rtol=1e-9)


def test_rejection_weights_by_sorting(rng):
    distance = rng.normal(size=200)
    weights, threshold = kme.abc.rejection_weights(distance, quantile=0.1)
    np.testing.assert_array_equal(np.flatnonzero(weights), np.sort(np.argsort(distance)[:20]))
    np.testing.assert_allclose(weights[weights > 0], 1 / 20)
    assert threshold == np.sort(distance)[19]
    assert np.sum(kme.abc.rejection_weights(distance).weights > 0) == 4
    weights, _ = kme.abc.rejection_weights(distance, threshold=0.3)
    np.testing.assert_allclose(weights, (distance <= 0.3) / np.sum(distance <= 0.3))


def test_effective_sample_size():
    assert kme.abc.effective_sample_size(np.full(7, 3.0)) == pytest.approx(7)
    assert kme.abc.effective_sample_size([1.0, 1.0, 0.0, 0.0]) == pytest.approx(2)
    assert kme.abc.effective_sample_size([2.0, -1.0]) == pytest.approx(1 / 5)
    assert kme.abc.effective_sample_size(np.zeros(3)) == 0


@pytest.mark.x64
@pytest.mark.parametrize(
    "estimator",
    [
        lambda: kme.embeddings.Quadratic(Gaussian(0.8)),
        lambda: kme.embeddings.LinearTime(Gaussian(0.8)),
        pytest.param(lambda: kme.embeddings.Fourier.draw(KEY, Gaussian(0.8), 1, 20_000), marks=pytest.mark.slow),
    ],
    ids=["quadratic", "linear", "fourier"],
)
def test_similarity_is_the_mean_kernel(estimator, rng):
    """`E k(X, Y) = (1 + s^2 / l^2)^-1/2 exp(-d^2 / 2 (l^2 + s^2))` for normals `d` apart, variances of sum `s^2`."""
    x, y = rng.normal(size=(1000, 1)), 0.7 + rng.normal(size=(1000, 1))
    exact = (1 + 2 / 0.64) ** -0.5 * np.exp(-0.5 * 0.49 / (0.64 + 2))
    estimator = estimator()
    found = estimator.similarity(x, y)
    assert abs(found - exact) < 0.05
    by_loop = np.mean(gaussian(x, y, 0.8)) if not isinstance(estimator, kme.embeddings.LinearTime) else None
    by_loop = np.mean(np.diagonal(gaussian(x, np.roll(y, 1), 0.8))) if by_loop is None else by_loop
    error = 5 * 20_000**-0.5 * isinstance(estimator, kme.embeddings.Fourier) + 1e-9
    np.testing.assert_allclose(found, by_loop, atol=error)


def test_out_of_distribution_check_by_sorting(rng):
    x = rng.normal(size=100)
    between = np.abs(x[:20, None] - x[None, :20])
    found = kme.abc.out_of_distribution_check(np.abs(x - 9.0), between)
    assert found.nearest == np.sort(np.abs(x - 9.0))[1] and found.proportion == 1 / 40
    pairs = between[np.triu_indices(20, 1)]
    neighbours = [min(between[i, j] for j in range(20) if j != i) for i in range(20)]
    assert found.threshold == pytest.approx(max(np.quantile(np.concatenate([pairs, pairs]), 0.75), max(neighbours)))
    near = kme.abc.out_of_distribution_check(np.abs(x - 0.5), between)
    assert found.is_out_of_distribution and not near.is_out_of_distribution


@pytest.mark.parametrize("distribution", ["normal", "standard_cauchy"])
def test_out_of_distribution_check_is_seldom_wrong(distribution, rng):
    """For observations from the simulator once in `k + 1` times at most, here 51, and hardly ever for the normal."""
    draw = getattr(rng, distribution)
    alarms = np.zeros(400)
    for i in range(400):
        x, y = draw(size=500), draw()
        between = np.abs(x[:50, None] - x[None, :50])
        alarms[i] = kme.abc.out_of_distribution_check(np.abs(x - y), between).is_out_of_distribution
    assert alarms.sum() <= (400 / 51 + 5 * np.sqrt(400 / 51) if distribution == "standard_cauchy" else 2)


def test_distribution_regression_against_dense(rng):
    """Dense solves, one for each data set left out; the error of a low-rank factor by its tolerance."""
    theta = rng.normal(size=(60, 2))
    x, y, kernel = theta + 0.3 * rng.normal(size=(60, 2)), rng.normal(size=(3, 2)), Gaussian(2.0)
    gram, rows = gaussian(x, x, 2.0), gaussian(y, x, 2.0)
    centred, added = theta - theta.mean(axis=0), 60 * 1e-3 * np.eye(60)
    at_y = theta.mean(axis=0) + rows @ np.linalg.solve(gram + added, centred)
    held_out = np.empty((60, 2))
    for i in range(60):
        rest = np.arange(60) != i
        system = gram[np.ix_(rest, rest)] + added[:59, :59]
        held_out[i] = theta.mean(axis=0) + gram[i, rest] @ np.linalg.solve(system, centred[rest])
    for tolerance, error in ((1e-12, 1e-6), (1e-3, 0.05)):
        fitted = kme.abc.DistributionRegression.fit(kernel, x, theta, 1e-3, tolerance=tolerance)
        np.testing.assert_allclose(fitted.predict(y), at_y, atol=error)
        np.testing.assert_allclose(fitted.held_out, held_out, atol=error)
        np.testing.assert_allclose(fitted.error, np.sqrt(np.mean((theta - held_out) ** 2, axis=0)), atol=error)
    assert fitted.features.rank < 50
    exact = partial(kme.abc.DistributionRegression.fit, kernel, x, theta, tolerance=1e-12)
    errors = [np.sum(exact(lam).error ** 2) for lam in 10.0 ** np.arange(-9, 1)]
    assert np.sum(exact().error ** 2) == min(errors)


@pytest.mark.x64
@pytest.mark.parametrize("best", [0, 1, 2])
def test_of_kernels_the_one_that_predicts_best_is_taken(rng, best):
    """By dense leave-one-out errors in units of the targets, whose scales differ."""
    theta = rng.normal(size=(80, 2))
    x, targets = theta + 0.3 * rng.normal(size=(80, 2)), theta * [1e3, 1e-3]
    scales = np.roll([2.0, 0.02, 300.0], best)
    kernels = [Gaussian(scale) for scale in scales]

    def dense(kernel):
        inverse = np.linalg.inv(np.asarray(kernel.gram(x)) + 80 * 1e-3 * np.eye(80))
        scaled = (targets - targets.mean(axis=0)) / targets.std(axis=0)
        return np.mean(np.square((inverse @ scaled) / np.diag(inverse)[:, None]))

    assert np.argmin([dense(kernel) for kernel in kernels]) == best
    fitted = kme.abc.DistributionRegression.fit_best(kernels, x, targets, 1e-3)
    assert float(fitted.features.kernel.length_scale) == scales[best]


def test_recursive_abc_step_by_its_parts(rng):
    """Points of a dense solve's embedding, and herding by a loop over the candidates."""
    theta = rng.normal(size=(80, 1))
    x, y = theta + 0.5 * rng.normal(size=(80, 1)), np.array([0.8])
    step = partial(kme.abc.recursive_abc_step, KEY, Gaussian(0.7), theta, x, y, 25)
    found = step(tolerance=1e-12)
    weights = np.linalg.solve(gaussian(x, x, 0.7) + 0.01 * np.sqrt(80) * np.eye(80), gaussian(x, y[None], 0.7))[:, 0]
    weights /= weights.sum()
    scale = kme.kernels.median_heuristic(theta)

    def squared_distance(points):
        equal = np.full(len(points), 1 / len(points))
        between = [gaussian(a, b, scale) for a, b in ((points, points), (points, theta), (theta, theta))]
        return equal @ between[0] @ equal - 2 * equal @ between[1] @ weights + weights @ between[2] @ weights

    # the first point is the mode of the embedding; all of them are nearer to it than those that were there
    grid = np.linspace(-2, 3, 2001)[:, None]
    np.testing.assert_allclose(found[0], grid[np.argmax(gaussian(grid, theta, scale) @ weights)], atol=0.03)
    nearest = theta[np.argsort(np.abs(theta[:, 0] - 0.64))[:25]]
    assert squared_distance(found) < 0.1 * min(squared_distance(theta), squared_distance(nearest))
    np.testing.assert_array_equal(step(regularisation=0.01 / np.sqrt(80), tolerance=1e-12), found)
    assert abs(step(tolerance=1e-3).mean() - found.mean()) < 0.05


@pytest.fixture(scope="module")
def simulated():
    """Simulations of each model, and data sets to observe."""

    def drawn(model, size, *numbers):
        problem = kme.Problem.read(model, x=np.zeros(size))
        return [kme.simulate(jax.random.key(i), problem, n, progress_bar=False) for i, n in enumerate(numbers)]

    return {conjugate: drawn(conjugate, 1, 600, 10), iid: drawn(iid, 20, 600, 10)}


WARNING = "the observation lies away from the simulations"


@pytest.mark.filterwarnings("ignore:.*the posterior is coarse")
@pytest.mark.parametrize(
    "make, model, size",
    [
        (kme.RejectionABC, conjugate, 1),
        (kme.RejectionABC, iid, 20),
        pytest.param(
            lambda model, **rest: kme.RejectionABC(model, discrepancy=kme.embeddings.Quadratic(Gaussian(1.0)), **rest),
            iid,
            20,
            marks=pytest.mark.slow,
        ),
        (lambda model, **rest: kme.RejectionABC(model, discrepancy=distance_of_means, **rest), iid, 20),
        (kme.K2ABC, iid, 20),
        (kme.DistributionRegressionABC, conjugate, 1),
        pytest.param(kme.DistributionRegressionABC, iid, 20, marks=pytest.mark.slow),
        (kme.KernelABC, conjugate, 1),
        pytest.param(kme.KernelABC, iid, 20, marks=pytest.mark.slow),
        (kme.KernelBayes, conjugate, 1),
        pytest.param(kme.KernelBayes, iid, 20, marks=pytest.mark.slow),
    ],
)
def test_far_observations_raise_or_warn_and_near_ones_do_not(make, model, size, simulated):
    """No engine answers in silence eight standard deviations away; none warns of data of its own model."""
    simulations, new = simulated[model]
    engine = make(model, simulations=simulations, num_samples=20)
    engine.run(KEY, x=0.3 + np.random.default_rng(0).normal(size=size) * (size > 1))
    assert not any(WARNING in message for y in new.x["x"] for message in warnings_of(engine, y))
    (message,) = warnings_of(engine, np.linspace(-0.5, 0.5, size) + 9.0)
    assert WARNING in message or "effective sample size" in message


def warnings_of(engine, y):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            engine.condition(KEY, x=y)
        except RuntimeError as error:
            return [str(error)]
    said = [str(warning.message) for warning in caught]
    return [text for text in said if "variance" not in text and "coarse" not in text]


def distance_of_means(a, b):
    return jnp.abs(jnp.mean(a) - jnp.mean(b))
