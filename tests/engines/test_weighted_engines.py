"""Engines that weight simulations: printed formulas by other code, exact posteriors, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import NOISE, X, conjugate, iid, shifted

import numpyro_kme as kme
from numpyro_kme.engines.weighting import herded, warn_of_negative_variances

KEY = jax.random.key(0)
MEAN, SD = 0.8 / 1.25, 0.2**0.5


def three_times(rng_key, theta):
    return jnp.stack([theta, theta, theta])


@pytest.fixture(scope="module")
def bank():
    return kme.simulate(KEY, kme.Problem.read(conjugate, x=X), 500, progress_bar=False)


@pytest.fixture(scope="module")
def sets():
    return kme.simulate(KEY, kme.Problem.read(iid, x=np.zeros(20)), 400, progress_bar=False)


@pytest.fixture(scope="module")
def kernel_abc(bank):
    engine = kme.KernelABC(conjugate, simulations=bank, kernel=kme.kernels.Gaussian(0.7))
    engine.run(KEY, x=X)
    return engine


def moments(engine):
    mean = engine.posterior.expectation(lambda latents: latents["theta"])
    return mean, np.sqrt(engine.posterior.expectation(lambda latents: (latents["theta"] - mean) ** 2))


def gaussian(a, b, scale):
    return np.exp(-0.5 * (a[:, None] - b[None]) ** 2 / scale**2)


@pytest.mark.x64
def test_kernel_abc_by_its_formula(kernel_abc, bank):
    x = np.asarray(bank.x["x"])[:, 0]
    gram = gaussian(x, x, 0.7) + np.sqrt(500) * 0.01 * np.eye(500)
    seen = np.array([0.8, -0.4])
    expected = np.linalg.solve(gram, gaussian(x, seen, 0.7)).T
    other = kernel_abc.condition(KEY, x=seen[1:])
    np.testing.assert_allclose(other.weights, expected[1] / expected[1].sum(), atol=1e-9)
    found = kernel_abc.posterior.get_weights()
    np.testing.assert_allclose(found["weight"], expected[0] / expected[0].sum(), atol=1e-9)
    np.testing.assert_array_equal(found["theta"], bank.latents["theta"])
    assert kernel_abc.info["effective sample size"] == pytest.approx(1 / np.sum(found["weight"] ** 2))
    assert kernel_abc.info["sum of weights"] == pytest.approx(expected[0].sum())
    negative = -expected[0][expected[0] < 0].sum() / np.abs(expected[0]).sum()
    assert kernel_abc.info["proportion of negative weight"] == pytest.approx(negative)


def test_nine_draws_are_no_posterior_and_ten_are(bank):
    engine = kme.RejectionABC(conjugate, simulations=bank, quantile=9 / 500)
    with pytest.raises(RuntimeError, match=r"effective sample size is 9.0 of 500 simulations, below 10: this is not a"):
        engine.run(KEY, x=X)
    enough = kme.RejectionABC(conjugate, simulations=bank, quantile=10 / 500)
    enough.run(KEY, x=X)
    assert enough.info["effective sample size"] == pytest.approx(10)


def test_kernel_abc_by_a_low_rank_factor(kernel_abc, bank):
    ranks = []
    for tolerance, error in ((1e-12, 1e-7), (1e-4, 0.02)):
        engine = kme.KernelABC(conjugate, simulations=bank, kernel=kme.kernels.Gaussian(0.7), tolerance=tolerance)
        engine.run(KEY, x=X)
        np.testing.assert_allclose(engine.posterior.weights, kernel_abc.posterior.weights, atol=error)
        ranks.append(engine.method.fitted.right.rank)
        assert engine.info["rank of the data"] == f"{ranks[-1]} of 500"
        np.testing.assert_allclose(moments(engine), moments(kernel_abc), atol=10 * error)
    assert ranks[1] < ranks[0] < 60


@pytest.mark.smoke
def test_kernel_abc_meets_the_exact_posterior(kernel_abc):
    mean, sd = moments(kernel_abc)
    assert abs(mean - MEAN) < 5 * SD / np.sqrt(kernel_abc.info["effective sample size"])
    np.testing.assert_allclose(sd, SD, rtol=0.25)
    herded = kernel_abc.get_samples()
    np.testing.assert_allclose(herded["theta"].mean(), mean, atol=0.15 * SD)
    np.testing.assert_allclose(herded["theta"].std(), sd, rtol=0.25)
    np.testing.assert_allclose(herded["twice"], 2 * herded["theta"], rtol=1e-6)
    np.testing.assert_allclose(kernel_abc.posterior.mode()["theta"], MEAN, atol=0.35 * SD)


def test_kernel_bayes_with_a_weighted_prior(bank, kernel_abc):
    """Signed weights of another engine as the prior: draws that carry them; the posterior of two observations."""
    prior = kernel_abc.posterior.get_weights()
    settings = dict(simulations=bank, kernel=kme.kernels.Gaussian(0.7), parameter_kernel=kme.kernels.Gaussian(0.8))
    engine = kme.KernelBayes(conjugate, prior=prior, **settings)
    engine.run(KEY, x=np.array([0.5]))
    z, x = np.asarray(bank.latents["theta"], np.float64), np.asarray(bank.x["x"], np.float64)[:, 0]
    eps = 0.01 / 500
    gram_z, gram_x = gaussian(z, z, 0.8), gaussian(x, x, 0.7)
    mu = np.linalg.solve(gram_z + 500 * eps * np.eye(500), gram_z @ prior["weight"])
    product = mu[:, None] * gram_x
    right = mu * gaussian(x, np.array([0.5]), 0.7)[:, 0]
    rho = product @ np.linalg.solve(product @ product + 2 * eps * np.eye(500), right)
    np.testing.assert_allclose(moments(engine)[0], rho @ z / rho.sum(), atol=1e-4)
    precision = 1 + 2 / NOISE**2
    exact, without = 1.3 / NOISE**2 / precision, 0.5 / (1 + NOISE**2)
    assert abs(moments(engine)[0] - exact) < 0.35 * abs(without - exact)


def test_kernel_bayes_refuses_a_prior_where_nothing_was_simulated(bank):
    far = {"theta": 12.0 + 0.1 * np.random.default_rng(0).normal(size=200)}
    engine = kme.KernelBayes(conjugate, prior=far, simulations=bank)
    with pytest.raises(RuntimeError, match="simulations that cover the prior"):
        engine.run(KEY, x=X)


def between(x=None):
    top = numpyro.sample("top", dist.Uniform(1.0, 2.0))
    theta = numpyro.sample("theta", dist.Uniform(0.0, top))
    numpyro.sample("x", kme.Simulator(shifted, theta), obs=x)


@pytest.mark.parametrize(
    "theta, sentence",
    [
        ([0.5, -0.3, 1.4, 1.6], r"`prior\['theta'\]` has 2 of 4 draws outside the support .* such as \[-0.3\]"),
        ([0.5, np.nan, 1.4, 1.6], r"`prior\['theta'\]` has 1 entries that are not finite"),
        ([0.5, 0.5, 0.5], r"as many draws as 'top'; got \(3,\)"),
    ],
)
def test_kernel_bayes_refuses_draws_outside_the_support(theta, sentence):
    """A support that depends on another latent; said before any simulation is run."""
    prior = {"top": np.array([1.0, 1.5, 1.5, 1.5]), "theta": np.array(theta)}
    engine = kme.KernelBayes(between, prior=prior)
    with pytest.raises(ValueError, match=sentence):
        engine.run(KEY, x=X)
    with pytest.raises(RuntimeError, match="should be called first"):
        _ = engine.posterior.simulations


@pytest.mark.filterwarnings("ignore:.*the posterior is coarse")
def test_kernel_bayes_by_folds(bank):
    engine = kme.KernelBayes(conjugate, simulations=bank, num_folds=5, tolerance=1e-6)
    engine.run(KEY, x=X)
    assert abs(moments(engine)[0] - MEAN) < 0.5 * SD
    on_parameters = kme.kernels.median_heuristic(engine.method.table.z)
    ratio = engine.method.fitted.kernel_x.length_scale / on_parameters
    assert min(abs(ratio - c) for c in (0.5, 0.7, 1.0, 1.4, 2.0)) < 1e-6
    assert min(abs(engine.info["regularisation"] * 500 / 0.01 - c) for c in (0.1, 1, 10, 100)) < 1e-6


class Fixed(kme.kernels.LengthScaleRule):
    needs_targets = True

    def __call__(self, x, targets=None):
        assert len(x) == len(targets)
        self.seen = x.shape, targets.shape
        return np.float64(0.37)


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in (kme.KernelBayes, kme.DistributionRegressionABC)]


@pytest.mark.filterwarnings("ignore:K2ABC. the posterior is coarse")
@pytest.mark.parametrize("make", [kme.KernelABC, kme.K2ABC, kme.KernelRecursiveABC, *SLOW])
def test_length_scale_rules_reach_every_engine(make, bank, sets, rng):
    """A rule that gives .37 makes the kernel that .37 makes; on data sets it sees draws with their parameters."""
    rule, on_sets = Fixed(), make in (kme.K2ABC, kme.DistributionRegressionABC)
    settings = dict(num_simulations=40, num_iterations=1) if make is kme.KernelRecursiveABC else {}
    settings |= {} if settings else dict(simulations=sets if on_sets else bank)
    engine = make(iid if on_sets else conjugate, length_scale=rule, **settings)
    y = 0.5 + rng.normal(size=20) if on_sets else X
    engine.run(KEY, x=y)
    used = {
        kme.KernelABC: lambda: engine.method.fitted.right.kernel.length_scale,
        kme.KernelBayes: lambda: engine.method.fitted.right.kernel.length_scale,
        kme.DistributionRegressionABC: lambda: engine.method.fitted.features.kernel.inner.length_scale,
    }.get(make)
    if used:
        assert float(used()) == 0.37
    else:
        kernel = kme.kernels.Gaussian(0.37)
        named = {"estimator": kme.embeddings.Quadratic(kernel)} if on_sets else {"kernel": kernel}
        other = make(iid if on_sets else conjugate, **named, **settings)
        other.run(KEY, x=y)
        np.testing.assert_array_equal(other.get_samples()["theta"], engine.get_samples()["theta"])
    rows = {kme.K2ABC: 8000, kme.DistributionRegressionABC: 2000, kme.KernelRecursiveABC: 40}.get(make, 500)
    assert rule.seen == ((rows, 1), (rows, 1))
    with pytest.raises(ValueError, match="or `length_scale`, not both"):
        given = {"estimator": 1} if make is kme.K2ABC else {"kernel": kme.kernels.Gaussian(1.0)}
        make(conjugate, length_scale=rule, **given)


def test_rejection_accepts_the_nearest(bank):
    x = np.asarray(bank.x["x"])[:, 0]
    nearest = np.argsort(np.abs(x - 0.8))
    engine = kme.RejectionABC(conjugate, simulations=bank, quantile=0.1)
    engine.run(KEY, x=X)
    np.testing.assert_array_equal(np.flatnonzero(engine.posterior.get_weights()["weight"]), np.sort(nearest[:50]))
    assert round(engine.info["effective sample size"]) == 50
    assert abs(moments(engine)[0] - MEAN) < 5 * SD / np.sqrt(50)

    def python_only(a, b):
        return float(np.abs(np.asarray(a) - np.asarray(b))[0]) ** 2

    for discrepancy in (lambda a, b: jnp.sum((a - b) ** 2), python_only):
        other = kme.RejectionABC(conjugate, simulations=bank, discrepancy=discrepancy, threshold=0.04)
        other.run(KEY, x=X)
        np.testing.assert_array_equal(other.posterior.get_weights()["weight"] > 0, np.abs(x - 0.8) <= 0.2)


def test_rejection_on_data_sets(sets, rng):
    """By default the order of draws under a plate does not matter; with the MMD it never does."""
    y = 0.5 + rng.normal(size=20)
    engine = kme.RejectionABC(iid, simulations=sets, quantile=0.1)
    engine.run(KEY, x=y)
    kept = engine.posterior.get_weights()["weight"]
    np.testing.assert_array_equal(engine.condition(KEY, x=y[::-1]).get_weights()["weight"], kept)
    mean, sd = moments(engine)
    assert abs(mean - y.sum() / 21) < 5 * sd / np.sqrt(40)
    mmd = kme.embeddings.Quadratic(kme.kernels.Gaussian(1.0))
    by_mmd = kme.RejectionABC(iid, simulations=sets, quantile=0.1, discrepancy=mmd)
    by_mmd.run(KEY, x=y)
    assert abs(moments(by_mmd)[0] - y.sum() / 21) < 5 * sd / np.sqrt(40)


@pytest.mark.filterwarnings("ignore:.*the posterior is coarse")
def test_rejection_sees_numbers_that_are_mostly_equal(rng):
    """Zeros in more than half of the simulations: the median absolute deviation is zero, the number not without
    meaning."""
    theta = rng.normal(size=400)
    outputs = np.stack([rng.normal(size=400), np.maximum(theta - 0.5, 0.0), np.ones(400)], axis=1)
    rare = kme.Simulations.from_table(theta[:, None], outputs)

    def model(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(three_times, theta), obs=x)

    engine = kme.RejectionABC(model, simulations=rare, quantile=0.05)
    engine.run(KEY, x=np.array([0.0, 1.0, 1.0]))
    spread = np.array([np.median(np.abs(outputs[:, 0] - np.median(outputs[:, 0]))), outputs[:, 1].std(), 1.0])
    nearest = np.argsort(np.sum(((outputs - [0.0, 1.0, 1.0]) / spread) ** 2, axis=1))[:20]
    np.testing.assert_array_equal(np.flatnonzero(engine.posterior.get_weights()["weight"]), np.sort(nearest))
    threshold = kme.RejectionABC(model, simulations=rare, threshold=3.0)
    with pytest.raises(RuntimeError, match=r"The least discrepancy is 8.*, the threshold 3: raise it"):
        threshold.run(KEY, x=np.array([0.0, 1.0, 9.0]))


def test_pre_image_is_the_mode_of_the_smoothed_weights(bank):
    engine = kme.RejectionABC(conjugate, simulations=bank, quantile=0.2)
    engine.run(KEY, x=X)
    theta, weights = engine.posterior.get_weights()["theta"], engine.posterior.get_weights()["weight"]
    grid = np.linspace(-2, 3, 2001)
    heights = gaussian(grid, theta, moments(engine)[1]) @ weights
    np.testing.assert_allclose(engine.posterior.mode()["theta"], grid[np.argmax(heights)], atol=0.01)


def with_a_likelihood(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(shifted, theta), obs=x)
    numpyro.sample("y", dist.Normal(theta, 1.0), obs=0.0)


def in_groups(x=None):
    with numpyro.plate("groups", 3):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(shifted, theta, event_dims=0), obs=x)


GAUSSIAN = kme.kernels.Gaussian(0.7)
ERRORS = (ValueError, TypeError, RuntimeError)


@pytest.mark.parametrize(
    ("kind", "model", "settings", "x", "sentence"),
    [
        (kme.KernelBayes, conjugate, dict(prior={"weight": np.ones(3)}), X, "it lacks .'theta'."),
        (kme.KernelBayes, conjugate, dict(prior={"theta": np.zeros(3), "weight": np.ones(3)}), X, "must sum to one"),
        (kme.KernelABC, conjugate, dict(kernel=3), X, "`kernel` must be a kernel"),
        (kme.K2ABC, iid, dict(estimator=GAUSSIAN), X, "`estimator` must be an estimator"),
        (kme.RejectionABC, iid, dict(discrepancy=GAUSSIAN), X, "got Gaussian. Use"),
        (kme.DistributionRegressionABC, conjugate, dict(kernel=GAUSSIAN), X + 1e3, "zero between .* and all 500 simul"),
        (kme.KernelABC, iid, {}, np.zeros(20), "have 1 draws, not 20: make others"),
        (kme.KernelABC, with_a_likelihood, {}, X, "nothing else that is observed"),
        (kme.KernelABC, in_groups, {}, np.zeros((3, 1)), "vary along plates of shape"),
        (kme.K2ABC, conjugate, {}, X, "compares data sets"),
    ],
)
def test_bad_input_gets_a_sentence(kind, model, settings, x, sentence, bank):
    with pytest.raises(ERRORS, match=sentence):
        kind(model, simulations=bank, **settings).run(KEY, x=x)


def test_draws_follow_signed_weights_in_four_dimensions(rng):
    """They have the means of the weights, where the positive part's are far off and variances may be negative."""
    z = rng.normal(size=(1000, 4))
    kernel, prior = kme.kernels.Gaussian(2.5), kme.embeddings.MeanEmbedding(kme.kernels.Gaussian(2.5), z)
    rule = kme.embeddings.KernelBayesRule.fit(kernel, z, z + 0.4 * rng.normal(size=(1000, 4)), prior, 1e-3)
    weights = np.asarray(rule.weights(np.array([[-1.5, -0.5, 0.8, -1.0]]))[0], np.float64)
    weights /= weights.sum()
    mean, positive = weights @ z, np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    assert np.abs(positive @ z - mean).max() > 0.35
    np.testing.assert_allclose(z[herded(z, weights, 400)].mean(axis=0), mean, atol=0.25)


def two_numbers(rng_key, theta):
    first, second = jax.random.normal(rng_key, (2,))
    return jnp.stack([theta + first, theta**2 + second])


def in_other_units(rng_key, theta):
    return two_numbers(rng_key, theta) * np.array([1e3, 1e-2])


def test_points_do_not_depend_on_the_units_of_the_statistics():
    """By default each statistic has its own length scale."""
    points = []
    for simulator, units in ((two_numbers, np.ones(2)), (in_other_units, np.array([1e3, 1e-2]))):

        def model(x=None, simulator=simulator):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)

        engine = kme.KernelRecursiveABC(model, 40, num_iterations=1, num_samples=30, progress_bar=False)
        engine.run(KEY, x=np.array([0.5, 1.0]) * units)
        points.append(engine.get_samples()["theta"])
    assert points[0].shape == (30,)
    np.testing.assert_allclose(*points, rtol=1e-3, atol=1e-3)


def test_small_variances_are_not_negative_ones_and_negative_ones_may_be_small():
    z = np.array([[0.0, -0.1], [0.1, 0.0], [0.0, 0.1]])
    warn_of_negative_variances(("a", "b"), z, np.array([0.1, 0.8, 0.1]))
    with pytest.warns(UserWarning, match="the variance of a is negative"):
        warn_of_negative_variances(("a", "b"), z, np.array([0.6, -0.2, 0.6]))


def test_functions_of_the_wrong_length(kernel_abc):
    with pytest.raises(ValueError, match="must give 500 rows"):
        kernel_abc.posterior.expectation(lambda latents: latents["theta"][:3])
