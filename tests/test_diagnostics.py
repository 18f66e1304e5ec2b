"""Diagnostics on an engine whose posterior is exact, and on engines with planted faults."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import planted_faults
import pytest
from scipy import stats

import numpyro_kme as kme
from numpyro_kme._checks import EffectiveSampleSizeError
from numpyro_kme.diagnostics import (
    Calibration,
    Check,
    MisspecificationTest,
    calibrate,
    calibration,
    check,
    misspecification_test,
    predictive_check,
    uniformity,
)
from numpyro_kme.engines._base import Engine, Result

KEY = jax.random.key(1)
NOISE = 0.7


def noisy(rng_key, theta):
    return theta + NOISE * jax.random.normal(rng_key, theta.shape, jnp.result_type(theta))


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


class Conjugate(Engine):
    """Draws from the exact posterior, or from one with a fault; refuses data above a bound."""

    def __init__(self, shift=0.0, widen=1.0, prior=1.0, swap=False, sign=1.0, refuse=np.inf):
        super().__init__(model)
        self.shift, self.widen, self.prior, self.swap, self.sign = shift, widen, prior, swap, sign
        self.refuse, self.problem = refuse, None

    def _infer(self, rng_key, args, kwargs):
        if self.problem is None or args:
            self.problem = kme.Problem.read(self.model, *args, **kwargs)
            self.simulations = kme.simulate(KEY, self.problem, 300, progress_bar=False)
        x = np.asarray((*args, *kwargs.values())[0])
        if x[0] > self.refuse:
            raise EffectiveSampleSizeError("too far out")
        precision = self.prior + NOISE**-2
        mean = self.sign * x * NOISE**-2 / precision + self.shift / np.sqrt(precision)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).ravel())
        draws = mean + self.widen / np.sqrt(precision) * rng.normal(size=(200, 2))
        return Result({"theta": draws[:, ::-1] if self.swap else draws})


def calibrated(number=150, **faults):
    engine = Conjugate(**faults)
    engine.run(KEY, x=np.zeros(2))
    return calibrate(KEY, engine, number, progress_bar=False)


@pytest.fixture(scope="module")
def exact():
    return calibrated()


def test_an_exact_posterior_passes(exact):
    assert exact.p_value > 1e-3
    for share in exact.coverage(0.9).values():
        assert abs(share - 0.9) < 4.5 * np.sqrt(0.09 / 150)
    levels, curves = exact.coverage_curve()
    assert set(curves) == {"theta[0]", "theta[1]", "TARP"}
    assert all(np.max(np.abs(curve - levels)) < 2.2 / np.sqrt(150) for curve in curves.values())
    assert exact.ranks["theta"].shape == (150, 2) and exact.truths["theta"].shape == (150, 2)


@pytest.mark.parametrize(
    "fault, test",
    [
        (dict(shift=0.5), "location"),
        (dict(shift=-0.5), "location"),
        (dict(widen=1.5), "spread"),
        (dict(widen=0.7), "spread"),
        (dict(prior=0.0), "data"),
        (dict(prior=2.5), "data"),
        (dict(sign=-1.0), "data"),
        (dict(swap=True), "data"),
    ],
)
def test_faults_are_flagged_by_the_test_that_is_for_them(fault, test):
    """At each fault the power of the named test at level .001, with 150 data sets, is above .999 by its normal approximation."""
    found = calibrated(**fault)
    assert found.p_value < 1e-3
    assert all(found.tests[name][test] < 1e-3 / 11 for name in found.columns)


def test_a_posterior_that_is_the_prior_passes_ranks_and_fails_on_the_data():
    """Ranks of a prior are uniform, which the data test alone sees."""
    found = calibrated(prior=1.0, sign=0.0, widen=np.sqrt(1.0 + NOISE**-2))
    assert all(found.tests[name][test] > 1e-4 for name in found.columns for test in ("shape", "location", "spread"))
    assert found.p_value < 1e-10


def test_the_tests_of_ranks_are_exact(rng):
    """Uniform ranks give uniform p-values, each against an oracle; the components are orthonormal and see no constants."""
    data = {"x": rng.standard_cauchy((80, 3)), "constant": np.ones((80, 2))}
    components = uniformity.components_of(data)
    assert components.shape == (80, 3)
    np.testing.assert_allclose(components.T @ components, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(components.sum(axis=0), 0.0, atol=1e-12)
    assert uniformity.components_of({"x": rng.normal(size=(80, 30))}).shape == (80, 8)
    found = [uniformity.tests(rng.uniform(size=80), components) for _ in range(400)]
    for name in ("shape", "location", "spread", "data"):
        p = np.array([row[name] for row in found])
        assert stats.kstest(p, "uniform").pvalue > 1e-5, name
    ranks = rng.uniform(size=80)
    z = stats.norm.ppf(ranks)
    one = uniformity.tests(ranks, components)
    np.testing.assert_allclose(one["location"], stats.norm.cdf(-abs(z.sum()) / np.sqrt(80)) * 2)
    fit = np.linalg.lstsq(components, z, rcond=None)[0]
    np.testing.assert_allclose(one["data"], 1 - stats.chi2.cdf(np.sum((components @ fit) ** 2), 3), rtol=1e-6)
    lower = stats.gamma.cdf(z @ z, 40.0, scale=2.0)
    np.testing.assert_allclose(one["spread"], 2 * min(lower, 1 - lower), rtol=1e-6)


def test_p_values_are_combined_by_their_number(exact):
    """Bonferroni, by hand."""
    assert list(exact.tests["theta[0]"]) == ["shape", "location", "spread", "data"]
    assert list(exact.tests["TARP"]) == ["shape", "location", "spread"]
    values = [p for tests in exact.tests.values() for p in tests.values()]
    assert len(values) == 11 and exact.p_value == min(1.0, 11 * min(values))
    assert exact.p_values()["TARP"] == min(1.0, 3 * min(exact.tests["TARP"].values()))


def test_coverage_and_tarp_of_known_ranks(rng):
    """Evenly spread ranks cover at every level; a truth further from a point than all draws has a share near one."""
    even = (np.arange(1000) + 0.5) / 1000
    found = Calibration({"a": even}, even**2, {})
    assert abs(found.coverage(0.9)["a"] - 0.9) < 2e-3 and abs(found.coverage(0.5)["a"] - 0.5) < 2e-3
    levels, curves = found.coverage_curve()
    np.testing.assert_allclose(curves["a"], levels, atol=2e-3)
    np.testing.assert_allclose(curves["TARP"], np.sqrt(levels), atol=2e-3)
    bank = kme.Simulations({}, {"x": np.zeros(9)}, {"a": np.linspace(-0.1, 0.1, 9)})
    near, far = np.full(50, 0.0), np.full(50, 5.0)
    for draws, truth, share in ((near, 5.0, 1.0), (far, 0.0, 0.0)):
        assert abs(calibration._tarp(rng, {"a": draws}, {"a": truth}, bank) - share) <= 1 / 51


def test_data_sets_that_an_engine_refuses_are_counted_and_left_out():
    found = calibrated(refuse=0.8)
    assert 10 < found.refused < 60 and len(found.shares) == len(found.data["x"]) == 150 - found.refused
    assert found.data["x"][:, 0].max() <= 0.8 and found.p_value > 1e-3
    np.testing.assert_allclose(np.std(found.data["x"][:, 1] - found.truths["theta"][:, 1]), NOISE, rtol=0.35)
    engine = Conjugate()
    engine.run(KEY, x=np.zeros(2))
    engine.refuse = -np.inf
    with pytest.raises(ValueError, match="refused 5 of 5 data sets"):
        calibrate(KEY, engine, 5, progress_bar=False)


def test_p_values_of_null_runs_are_not_small():
    """Ranks of independent uniforms in place of runs: at most a few of 300 below .01."""
    rng = np.random.default_rng(0)
    p = [Calibration({"a": rng.uniform(size=(60, 2))}, rng.uniform(size=60), {}).p_value for _ in range(300)]
    assert np.mean(np.array(p) < 0.05) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 300)


def test_calibration_in_arviz_and_in_print(exact, capsys):
    idata = exact.to_inference_data()
    assert idata["prior_sbc"]["theta"].shape == (1, 150, 2)
    exact.print_summary()
    printed = capsys.readouterr().out
    assert "150 data sets;" in printed and "theta[1]" in printed and "TARP" in printed and "location" in printed
    dataclasses.replace(exact, refused=3).print_summary()
    assert "150 data sets and 3 refused;" in capsys.readouterr().out


def test_predictive_check():
    engine = Conjugate()
    engine.run(KEY, x=np.array([0.2, 6.0]))
    check = predictive_check(KEY, engine, 150)
    assert check.predicted["x"].shape == (150, 2)
    near, far = check.tail_probabilities()["x"]
    assert near > 0.1 > far
    assert len(np.unique(check.predicted["x"])) == 300
    idata = check.to_inference_data()
    assert idata["posterior_predictive"]["x"].shape == (1, 150, 2)


def test_misspecification_is_a_valid_test(rng):
    """Under the model the p-value is uniform on its grid; far or oddly combined observations are found, and where."""
    draw = lambda n: rng.normal(size=(n, 1)) * np.array([1.0, 1.0, 2.0]) + 0.1 * rng.normal(size=(n, 3))  # noqa: E731
    null = np.array([misspecification_test(draw(99), draw(1)[0]).p_value for _ in range(200)])
    assert abs(np.mean(null <= 0.1) - 0.1) < 4.5 * np.sqrt(0.09 / 200)
    assert abs(null.mean() - 0.505) < 4.5 * np.sqrt(1 / 12 / 200)
    odd = misspecification_test(draw(300), np.array([1.0, -1.0, 2.0]))
    assert odd.p_value < 0.01 and odd.witness.min() > 0.05
    far = misspecification_test(draw(300), np.array([0.0, 9.0, 0.0]))
    assert far.p_value < 0.01 and np.argmin(far.witness) == 1


def test_check_runs_all_and_leaves_the_engine_as_it_was(capsys):
    engine = Conjugate()
    engine.run(KEY, x=np.array([0.2, -0.4]))
    before = engine.get_samples()["theta"]
    found = check(KEY, engine, 60, progress_bar=False)
    assert engine.get_samples()["theta"] is before
    np.testing.assert_array_equal(found.predictive.observed["x"], [0.2, -0.4])
    by_hand = misspecification_test(engine.simulations.x["x"], np.array([0.2, -0.4])).p_value
    assert found.misspecification["x"].p_value == by_hand
    assert found.p_value == min(1.0, 2 * min(found.calibration.p_value, by_hand)) > 1e-3 and not found.flagged()
    found.print_summary()
    printed = capsys.readouterr().out
    assert "not flagged" in printed and "tail probability" in printed


def test_the_rule_counts_every_test(exact):
    """Twice the smaller of calibration and model, the model's times the number of sites."""
    quiet = MisspecificationTest(0.5, 0.0, np.zeros(1), np.zeros(1))
    small = dataclasses.replace(quiet, p_value=1e-4)
    assert Check(exact, {"x": small, "y": quiet}).p_value == 4e-4
    assert Check(exact, {"x": small, "y": quiet}).flagged() and not Check(exact, {"x": small}).flagged(1e-4)
    assert not Check(exact, {"x": quiet}).flagged()


@pytest.mark.parametrize("fault, test", [("sign of a residual", "data"), ("one key for all", None)])
def test_planted_faults_in_kernel_bayes(fault, test, monkeypatch):
    """Two of the faults of `benchmarks/planted_faults.py`, on fewer simulations and data sets."""
    monkeypatch.setitem(planted_faults.SIZES, "kernel Bayes", 400)
    row = planted_faults.one_run("kernel Bayes", fault, 0, 60)
    assert row["flagged"] and row["p"] < 1e-6
    assert test is None or min(row["p-values"][f"{name} {test}"] for name in "ab") < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["KELFI", "kernel Bayes"])
@pytest.mark.parametrize("fault", list(planted_faults.FAULTS))
def test_planted_faults(engine, fault):
    assert planted_faults.one_run(engine, fault, 0, 150)["p"] < 0.05


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda e: calibrate(KEY, e, 1), "`num_datasets` must be at least 2; got 1"),
        (lambda e: predictive_check(KEY, e, 0), "`num_draws` must be at least 1; got 0"),
        (lambda e: misspecification_test(np.zeros((20, 2)), np.zeros(3)), r"got shapes \(20, 2\) and \(3,\)"),
        (lambda e: e.run(KEY, np.zeros(2)) or calibrate(KEY, e, 5), "keyword arguments named like its sites"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    engine = Conjugate()
    engine.run(KEY, x=np.zeros(2))
    with pytest.raises(ValueError, match=sentence):
        call(engine)
