"""Regression adjustment by a loop over what is left out, by exact posteriors, and in every engine that weights."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import one_draw
from scipy import stats

import numpyro_kme as kme
from numpyro_kme.abc import RegressionAdjustment
from numpyro_kme.engines import SignedWeights
from numpyro_kme.kernels.low_rank import REGULARISATIONS

KEY = jax.random.key(0)


def ridge(features, targets, weights, added):
    gram = features.T @ (weights[:, None] * features) + added * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ (weights[:, None] * targets))


def test_by_a_loop_over_what_is_left_out(rng):
    m = 30
    s, w = rng.normal([0.0, 5.0, 3.0], [1.0, 4.0, 0.0], (m, 3)), rng.normal(0.5, 0.5, m)
    t = s[:, :1] * [[1.0, -0.5]] + 0.2 * s[:, 1:2] ** 2 * [[0.0, 0.1]] + rng.normal(size=(m, 2))
    w, y = w / w.sum(), np.array([0.5, 4.0, 3.0])
    found = RegressionAdjustment.fit(t, s, w, y)
    positive = np.maximum(w, 0.0) / np.maximum(w, 0.0).sum()
    features = s[:, :2] - positive @ s[:, :2]
    features /= np.sqrt(positive @ features**2)
    centred = t - positive @ t

    def left_out(lam):
        rest = []
        for i in np.flatnonzero(positive):
            others = np.arange(m) != i
            slopes = ridge(features[others], centred[others], positive[others], lam)
            rest.append(positive[i] * np.sum((centred[i] - features[i] @ slopes) ** 2))
        return np.sum(rest)

    lam = min(REGULARISATIONS, key=left_out)
    slopes = ridge(features, centred, positive, lam)
    at = (y[:2] - positive @ s[:, :2]) / np.sqrt(positive @ (s[:, :2] - positive @ s[:, :2]) ** 2)
    np.testing.assert_allclose(found.adjusted, t + (at - features) @ slopes, rtol=1e-9)
    np.testing.assert_allclose(found.shift, w @ found.adjusted - w @ t, rtol=1e-9)
    np.testing.assert_allclose(found.scale, np.sqrt(w @ (t - w @ t) ** 2), rtol=1e-9)
    np.testing.assert_allclose(np.sum(found.residual**2), left_out(lam), rtol=1e-9)
    assert 5 < (positive > 0).sum() < m


def test_the_error_of_the_shift_is_that_of_a_prediction(rng):
    shifts = []
    for _ in range(300):
        s = rng.normal(size=(200, 2))
        t = s @ np.array([[1.0], [0.5]]) + rng.normal(size=(200, 1))
        found = RegressionAdjustment.fit(t, s, np.full(200, 1 / 200), np.array([1.0, -2.0]))
        centre = s.mean(axis=0)
        shifts.append((found.shift - (np.array([1.0, -2.0]) - centre) @ [1.0, 0.5]) / found.error)
    assert np.std(shifts) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("wrong", ["targets", "statistics", "weights", "observed"])
def test_shapes_are_checked(wrong):
    given = dict(targets=np.ones((5, 1)), statistics=np.ones((5, 2)), weights=np.full(5, 0.2), observed=np.ones(2))
    with pytest.raises(ValueError, match=r"must fit one another; got shapes \(.*\(2,\)|\(3,\)"):
        RegressionAdjustment.fit(**{**given, wrong: np.ones(3)})


def location(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 3.0))
    numpyro.deterministic("twice", 2.0 * theta)
    with numpyro.plate("n", 20):
        numpyro.sample("x", kme.Simulator(one_draw, theta), obs=x)


Y = 1.0 + stats.norm.ppf((np.arange(20) + 0.5) / 20)
VARIANCE = 1.0 / (20 + 1 / 9)
MEAN, SD = VARIANCE * Y.sum(), VARIANCE**0.5


@pytest.fixture(scope="module")
def bank():
    return kme.simulate(KEY, kme.Problem.read(location, x=Y), 2000, progress_bar=False)


@pytest.fixture(scope="module")
def fewer():
    """For regressions on data sets, which learn from all pairs of them."""
    return kme.simulate(KEY, kme.Problem.read(location, x=Y), 1200, progress_bar=False)


@pytest.mark.parametrize(
    "cls, settings",
    [
        (kme.RejectionABC, {"quantile": 0.1}),
        pytest.param(kme.K2ABC, {"epsilon": 0.1}, marks=pytest.mark.slow),
        pytest.param(kme.DistributionRegressionABC, {"epsilon": 0.3}, marks=pytest.mark.slow),
        pytest.param(kme.KernelABC, {"regularisation": 0.01}, marks=pytest.mark.slow),
        pytest.param(kme.KernelBayes, {}, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_coarse_posterior_becomes_the_exact_one(cls, settings, bank, fewer):
    simulations = fewer if cls in (kme.KernelABC, kme.KernelBayes) else bank
    engine = cls(location, simulations=simulations, regression_adjustment=True, **settings)
    engine.run(KEY, x=Y)
    found = engine.posterior.get_weights()
    mean = found["weight"] @ found["theta"]
    positive = np.maximum(found["weight"], 0.0) / np.maximum(found["weight"], 0.0).sum()
    assert abs(mean - MEAN) < 0.2 * SD
    assert np.sqrt(positive @ (found["theta"] - mean) ** 2) == pytest.approx(SD, rel=0.2)
    kept = np.abs(found["weight"]) > 1e-6
    np.testing.assert_allclose(found["twice"][kept], 2.0 * found["theta"][kept], rtol=1e-5)
    assert abs(engine.get_samples()["theta"].mean() - MEAN) < 0.3 * SD
    assert len(engine.info["regression adjustment"]) == 1
    assert abs(engine.posterior.mode()["theta"] - MEAN) < 0.5 * SD


def test_without_it_a_coarse_posterior_is_told_of(bank):
    engine = kme.K2ABC(location, simulations=bank, epsilon=0.5)
    with pytest.warns(UserWarning, match=r"K2ABC: the posterior is coarse.*move a mean by \d.*make its sd 0"):
        engine.run(KEY, x=np.full(20, 4.0) + Y)


@pytest.mark.slow
def test_too_narrow_a_posterior_is_told_of(fewer, monkeypatch):
    def narrow(self, y, distances):
        """Weights with a sum of one, the exact mean, and a variance far below the exact one."""
        z = self.table.z[:, 0] - MEAN / 3
        basis = np.exp(-0.5 * (z / 0.2) ** 2)[:, None] * z[:, None] ** np.arange(3)
        return basis @ np.linalg.solve((z[:, None] ** np.arange(3)).T @ basis, [1.0, 0.0, (0.2 * SD / 3) ** 2]), {}

    monkeypatch.setattr(SignedWeights, "weigh", narrow)
    with pytest.warns(UserWarning, match=r"KernelABC: the posterior is too narrow.*make its sd [2-9]"):
        kme.KernelABC(location, simulations=fewer).run(KEY, x=Y)


def on_a_simplex(x=None):
    normal, onto_simplex = dist.Normal(jnp.zeros(2), 1.0).to_event(1), dist.transforms.StickBreakingTransform()
    shares = numpyro.sample("shares", dist.TransformedDistribution(normal, onto_simplex))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("x", kme.Simulator(blurred, shares, scale), obs=x)


def blurred(rng_key, shares, scale):
    return scale * shares + 0.05 * jax.random.normal(rng_key, (3,))


@pytest.mark.slow
def test_constraints_are_kept():
    engine = kme.RejectionABC(on_a_simplex, 3000, quantile=0.1, regression_adjustment=True, progress_bar=False)
    engine.run(KEY, x=np.array([0.05, 0.6, 0.4]))
    found = engine.get_samples()
    assert found["shares"].min() > 0 and found["scale"].min() > 0
    np.testing.assert_allclose(found["shares"].sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose((found["scale"][:, None] * found["shares"]).mean(axis=0), [0.05, 0.6, 0.4], atol=0.05)


def arrived(rng_key, rate):
    """Whether something has happened at a time of one: 0 with the probability of a Poisson count."""
    return (jax.random.exponential(rng_key) < rate).astype(int)


@pytest.mark.parametrize("size", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_data_sets_without_any_variance_are_taken(size):
    def counts(x=None):
        rate = numpyro.sample("rate", dist.Exponential(4.0))
        with numpyro.plate("n", size):
            numpyro.sample("x", kme.Simulator(arrived, rate), obs=x)

    engine = kme.RejectionABC(counts, 1000, quantile=0.1, regression_adjustment=True, progress_bar=False)
    engine.run(KEY, x=np.zeros(size, int))
    assert abs(engine.get_samples()["rate"].mean() - 1.0 / (4.0 + size)) < 0.35 / (4.0 + size)
