"""Diagnostics on an engine whose posterior is exact, and on engines with planted faults.

`tests/engines/test_conformance.py` runs them on every engine of the package."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive
from scipy import stats
from scipy.spatial.distance import cdist

import numpyro_kme as kme
from numpyro_kme.diagnostics import (
    Calibration,
    Check,
    PredictiveCheck,
    calibrate,
    calibration,
    check,
    misspecification_test,
    predictive_check,
)
from numpyro_kme.diagnostics.calibration import MARGIN, components_of, uniformity_tests
from numpyro_kme.engines import EffectiveSampleSizeError, Engine, Posterior
from numpyro_kme.likelihoods.statistics import StatisticsTransform
from numpyro_kme.mcmc.chain_checks import SurrogateCheck
from numpyro_kme.models import tracing

slow = partial(pytest.param, marks=pytest.mark.slow)
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
        self.refuse = refuse

    def _infer(self, rng_key, args, kwargs):
        problem = kme.Problem.read(self.model, *args, **kwargs)
        method = problem, kme.simulate(KEY, problem, 300, progress_bar=False)
        return method, self._condition(rng_key, args, kwargs, method)

    def _condition(self, rng_key, args, kwargs, method):
        problem, simulations = method[0].with_data(*args, **kwargs), method[1]
        x = problem.observations["x"]
        if x[0] > self.refuse:
            raise EffectiveSampleSizeError("too far out")
        precision = self.prior + NOISE**-2
        mean = self.sign * x * NOISE**-2 / precision + self.shift / np.sqrt(precision)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).ravel())
        draws = mean + self.widen / np.sqrt(precision) * rng.normal(size=(200, 2))
        samples = {"theta": draws[:, ::-1] if self.swap else draws}
        return Posterior(engine="Conjugate", samples=samples, problem=problem, simulations=simulations)


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
    assert exact.ranks["theta"].shape == (150, 2) and exact.truths["theta"].shape == (150, 2)


@pytest.mark.parametrize(
    "fault, test",
    [
        (dict(shift=0.6), "location"),
        (dict(swap=True), "data"),
        slow(dict(widen=1.6), "scale"),
        slow(dict(prior=0.0), "data"),
    ],
)
def test_faults_are_flagged_by_the_test_that_is_for_them(fault, test):
    """At each fault the power of the named test at level .001, with 250 data sets, was above .999 in 3,000 simulated
    sets of ranks."""
    found = calibrated(250, **fault)
    assert found.p_value < 1e-3
    assert all(found.tests[name][test] < 1e-3 / 11 for name in found.columns)
    kind = {"scale": "too wide" if fault.get("widen", 0.0) > 1.0 else "too narrow"}.get(test, test)
    (sentence,) = (line for line in found.findings() if line.startswith(kind))
    assert "theta[0]" in sentence and "theta[1]" in sentence and calibration.NEXT[kind] in sentence
    if test == "location":
        assert ("sd too high" in sentence) == (fault["shift"] > 0)


OTHER = 0.9


def both(x=None, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)
    numpyro.sample("y", dist.Normal(theta, OTHER).to_event(1), obs=y)


class WithLikelihood(Conjugate):
    """Draws from the exact posterior of `both`; or with the likelihood of `y` to a power, or of the `y` of `run`."""

    def __init__(self, power=1.0, stale=False, model=both):
        Engine.__init__(self, model)
        self.power, self.stale = power, stale

    def _condition(self, rng_key, args, kwargs, method):
        problem, simulations = method[0].with_data(*args, **kwargs), method[1]
        y = np.zeros(2) if self.stale else problem.factor_observations["y"]
        counts = NOISE**-2, self.power * OTHER**-2
        precision = 1.0 + sum(counts)
        mean = (counts[0] * problem.observations["x"] + counts[1] * y) / precision
        rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).ravel())
        samples = {"theta": mean + rng.normal(size=(200, 2)) / np.sqrt(precision)}
        return Posterior(engine="Conjugate", samples=samples, problem=problem, simulations=simulations)


def calibrated_with_likelihood(number=200, arguments=None, **settings):
    engine = WithLikelihood(**settings)
    engine.run(KEY, x=np.zeros(2), y=np.zeros(2))
    return calibrate(KEY, engine, number, arguments=arguments, progress_bar=False)


def test_ordinary_observed_sites_are_drawn_and_passed_on():
    """The exact posterior passes; the correlation of the data with the truth is that of the model."""
    found = calibrated_with_likelihood()
    assert found.p_value > 1e-3
    errors = found.data["y"] - found.truths["theta"]
    np.testing.assert_allclose(errors.std(axis=0), OTHER, rtol=4.5 / np.sqrt(400))
    correlations = np.corrcoef(errors.T, (found.data["x"] - found.truths["theta"]).T)
    assert abs(correlations - np.eye(4)).max() < 4.5 / np.sqrt(200)


@pytest.mark.parametrize(
    "fault, test", [(dict(power=0.0), "data"), slow(dict(power=4.0), "scale"), slow(dict(stale=True), "data")]
)
def test_faults_of_ordinary_likelihoods_are_flagged(fault, test):
    """Left out, where ranks alone are uniform; counted four times; and of the observation of `run`, as where a data set
    is not passed on."""
    found = calibrated_with_likelihood(**fault)
    assert found.p_value < 1e-3 and all(found.tests[name][test] < 1e-3 / 11 for name in found.columns)


def changed(fn):
    """The model, with what it observes at `y` changed before."""

    def model(x=None, y=None):
        both(x, fn(y))

    return model


def on_the_data(x=None, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)
    numpyro.sample("y", dist.Normal(theta + y.mean(), OTHER).to_event(1), obs=y)


@pytest.mark.parametrize(
    "model, sentence",
    [
        (changed(lambda y: 2.0 * y), r"does not observe at 'y'.*Pass `arguments=lambda x"),
        (changed(lambda y: np.ones(2)), r"does not observe at 'y'.*Pass `arguments=lambda x"),
        (on_the_data, "distribution of site 'y' changes with the data .* Let it depend on latents and covariates"),
    ],
)
def test_ordinary_sites_that_cannot_be_drawn_or_passed_on_are_told_of(model, sentence):
    with pytest.raises(ValueError, match=sentence):
        calibrated_with_likelihood(5, model=model)


def test_arguments_undo_what_a_model_does_to_its_data():
    usual = calibrated_with_likelihood(20)
    found = calibrated_with_likelihood(20, lambda x: x | {"y": x["y"] / 2.0}, model=changed(lambda y: 2.0 * y))
    assert np.array_equal(found.data["y"], usual.data["y"]) and np.allclose(found.ranks["theta"], usual.ranks["theta"])


def test_a_number_that_a_model_does_not_take_is_told_of():
    engine = WithLikelihood(model=lambda x=None: both(x, np.zeros(2)))
    engine.run(KEY, x=np.zeros(2))
    with pytest.raises(ValueError, match=r"named like its sites \['y'\]: \['x'\]. Rename its arguments"):
        calibrate(KEY, engine, 5, progress_bar=False)


@pytest.mark.slow
def test_an_engine_for_two_simulators_and_a_count_is_checked():
    """What the card of the engine recommends."""

    def model(a=None, b=None, n=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("a", kme.Simulator(noisy, theta), obs=a)
        numpyro.sample("b", kme.Simulator(noisy, -theta), obs=b)
        numpyro.sample("n", dist.Poisson(jnp.exp(theta)), obs=n)

    kelfi = kme.KELFI(model, 150, num_rounds=1, num_samples=100, progress_bar=False)
    kelfi.run(KEY, a=0.3, b=-0.2, n=1)
    assert "diagnostics.predictive_check(rng_key, engine)" in repr(kelfi)
    found = check(KEY, kelfi, 4, progress_bar=False)
    assert set(found.calibration.data) == {"a", "b", "n"} and len(found.calibration.tarp) == 4
    assert found.misspecification["b"].p_value == misspecification_test(kelfi, site="b").p_value
    assert list(found.surrogate) == ["a", "b"] and found.surrogate["b"].findings("b") == []
    with pytest.raises(ValueError, match=r"sites, \['a', 'b'\], by `site=`; got None"):
        misspecification_test(kelfi)


def test_findings_say_by_how_much():
    """Normal scores of known mean and sd: the truth 0.5 sd above, posteriors twice as wide, a third too narrow."""
    even = stats.norm.ppf((np.arange(400) + 0.5) / 400)
    columns = {"low": even + 0.5, "wide": even / 2.0, "narrow": even * 1.5}
    found = Calibration({name: stats.norm.cdf(z) for name, z in columns.items()}, stats.norm.cdf(even), {})
    location, wide, narrow = found.findings()
    assert location.startswith("location (low 0.5 sd too low):")
    assert wide.startswith("too wide (wide by 100%):") or wide.startswith("too wide (wide by 101%):")
    assert narrow.startswith("too narrow (narrow by 33%):")
    assert Calibration({"a": stats.norm.cdf(even)}, stats.norm.cdf(even), {}).findings() == []


@pytest.mark.smoke
def test_a_posterior_that_is_the_prior_passes_ranks_and_fails_on_the_data():
    """Ranks of a prior are uniform, which the data test alone sees."""
    found = calibrated(prior=1.0, sign=0.0, widen=np.sqrt(1.0 + NOISE**-2))
    assert all(found.tests[name][test] > 1e-4 for name in found.columns for test in ("shape", "location", "scale"))
    assert found.p_value < 1e-10


def test_the_tests_of_ranks_are_exact(rng):
    """Uniform ranks give uniform p-values, each against an oracle; the components are orthonormal and see no
    constants."""
    data = {"x": rng.standard_cauchy((80, 3)), "constant": np.ones((80, 2))}
    components = components_of(data)
    assert components.shape == (80, 3)
    np.testing.assert_allclose(components.T @ components, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(components.sum(axis=0), 0.0, atol=1e-12)
    assert components_of({"x": rng.normal(size=(80, 30))}).shape == (80, 8)
    found = [uniformity_tests(rng.uniform(size=80), components, 0.0) for _ in range(400)]
    for name in ("shape", "location", "scale", "data"):
        p = np.array([row[name] for row in found])
        assert stats.kstest(p, "uniform").pvalue > 1e-5, name
    ranks = rng.uniform(size=80)
    z = stats.norm.ppf(ranks)
    one = uniformity_tests(ranks, components, 0.0)
    np.testing.assert_allclose(one["location"], stats.norm.cdf(-abs(z.sum()) / np.sqrt(80)) * 2)
    fit = np.linalg.lstsq(components, z, rcond=None)[0]
    np.testing.assert_allclose(one["data"], 1 - stats.chi2.cdf(np.sum((components @ fit) ** 2), 3), rtol=1e-6)
    lower = stats.gamma.cdf(80 * np.var(z), 39.5, scale=2.0)
    np.testing.assert_allclose(one["scale"], 2 * min(lower, 1 - lower), rtol=1e-6)


def test_p_values_are_the_largest_within_the_margin(rng):
    """Each against draws from the end of the margin where it is largest."""
    margin, size = 0.15, 60
    components = components_of({"x": rng.normal(size=(size, 2))})
    ranks = stats.norm.cdf(rng.normal(size=size) * 1.3 + 0.45)
    z = stats.norm.ppf(ranks)
    found = uniformity_tests(ranks, components, margin)
    draws = rng.normal(size=(20_000, size))
    ends = {
        "location": np.abs((draws + margin).mean(axis=1)) >= abs(z.mean()),
        "scale": 2 * (np.var(draws * np.exp(margin / np.sqrt(2.0)), axis=1) >= np.var(z)),
        "data": np.sum(((draws + margin * np.sqrt(size) * components[:, 0]) @ components) ** 2, axis=1)
        >= np.sum((z @ components) ** 2),
    }
    for test, above in ends.items():
        share = np.mean(above)
        assert abs(found[test] - share) < 5 * np.sqrt(max(share, 1e-3) / 20_000), test
    shift = np.max(np.abs(stats.norm.cdf(np.linspace(-4, 4, 4001) - margin) - stats.norm.cdf(np.linspace(-4, 4, 4001))))
    above = stats.kstest(ranks, "uniform").statistic - shift
    np.testing.assert_allclose(found["shape"], stats.kstwo.sf(above, size), rtol=1e-4)


def test_p_values_are_combined_by_their_number(exact):
    """Bonferroni, by hand: of all tests, and of calibration and the observation at each site."""
    assert list(exact.tests["theta[0]"]) == ["shape", "location", "scale", "data"]
    values = [p for tests in exact.tests.values() for p in tests.values()]
    assert len(values) == 11 and exact.p_value == min(1.0, 11 * min(values))
    assert exact.tests["TARP"] == uniformity_tests(exact.tarp, margin=MARGIN * np.sqrt(2.0))
    quiet = kme.diagnostics.MisspecificationTest(0.5, 0.0, np.zeros(999), {"x": 0.5})
    small = dataclasses.replace(quiet, p_value=1e-4)
    assert kme.diagnostics.Check(exact, {"x": small, "y": quiet}).p_value == 4e-4
    assert kme.diagnostics.Check(exact, {"x": small, "y": quiet}).flagged() and not kme.diagnostics.Check(
        exact, {"x": small}
    ).flagged(1e-4)
    assert not kme.diagnostics.Check(exact, {"x": quiet}).flagged()


def test_coverage_of_known_ranks():
    """Evenly spread ranks cover at every level."""
    even = (np.arange(1000) + 0.5) / 1000
    found = Calibration({"a": even}, even**2, {})
    assert abs(found.coverage(0.9)["a"] - 0.9) < 2e-3 and abs(found.coverage(0.5)["a"] - 0.5) < 2e-3
    assert found.coverage() == found.coverage(0.9)


def test_data_sets_that_an_engine_refuses_are_counted_and_left_out():
    found = calibrated(refuse=0.8)
    assert 10 < found.refused < 60 and len(found.tarp) == len(found.data["x"]) == 150 - found.refused
    assert found.data["x"][:, 0].max() <= 0.8 and found.p_value > 1e-3
    np.testing.assert_allclose(np.std(found.data["x"][:, 1] - found.truths["theta"][:, 1]), NOISE, rtol=0.35)
    engine = Conjugate(refuse=-3.0)
    engine.run(KEY, x=np.full(2, -4.0))
    with pytest.raises(ValueError, match="refused 5 of 5 data sets"):
        calibrate(KEY, engine, 5, progress_bar=False)


def test_calibration_in_arviz_and_in_print(exact, capsys):
    idata = exact.to_inference_data()
    assert idata["prior_sbc"]["theta"].shape == (1, 150, 2)
    exact.print_summary()
    printed = capsys.readouterr().out
    assert "on 150 data sets" in printed and "theta[1]" in printed and "TARP" in printed and "refused" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert "3 further data sets" in repr(dataclasses.replace(exact, refused=3))
    assert dataclasses.replace(exact, refused=16).findings() == []
    (refused,) = dataclasses.replace(exact, refused=17).findings()
    assert refused.startswith("refused (17 of 167 data sets):")


def test_predictive_check():
    engine = Conjugate()
    engine.run(KEY, x=np.array([0.2, 6.0]))
    check = predictive_check(KEY, engine, 150)
    assert check.predicted["x"].shape == (150, 2)
    near, far = check.tail_probabilities()["x"]
    assert near > 0.1 > far and check.by_statistic == {"x": {"x[1]": far, "x[0]": near}}
    predicted, observed = np.stack([check.predicted["x"]] * 2, 1), np.array([[0.2, 6.0], [np.nan, 0.3]])
    plate = dataclasses.replace(check, predicted={"x": predicted}, observed={"x": observed})
    named = dataclasses.replace(plate, names={"x": ("a", "b")})
    found, tails = named.by_statistic["x"], named.tail_probabilities()["x"]
    assert found == {"a[0]": tails[0, 0], "b[0]": tails[0, 1], "b[1]": tails[1, 1]}  # without NaN
    assert list(found.values()) == sorted(found.values()) and f"{far:.2g} (b[0])" in repr(named)
    idata = check.to_inference_data()
    assert idata["posterior_predictive"]["x"].shape == (1, 150, 2)


def test_an_engine_inside_a_simulator_that_a_model_calls_back_is_refused(monkeypatch):
    """It would wait for the model that waits for it; a check simulates outside of the model, where one may run."""
    monkeypatch.setattr(tracing, "PATIENCE", 0.1)
    ran = []

    def nested(rng, theta):
        kme.RejectionABC(model, num_simulations=200, quantile=0.2, progress_bar=False).run(KEY, x=np.zeros(2))
        ran.append(theta)
        return theta + rng.normal()

    def outer(x=None):
        theta = numpyro.sample("theta", dist.Normal())
        numpyro.sample("x", kme.Simulator(nested, theta, shape=(), dtype=float), obs=x)

    problem = kme.Problem.read(outer, x=0.5)
    simulations = kme.simulate(KEY, problem, 2, progress_bar=False)
    posterior = Posterior(engine="none", samples={"theta": np.zeros(3)}, problem=problem, simulations=simulations)
    assert len(ran) == 2
    before = pytest.raises(Exception, match="Run the engine before, outside of the simulator")
    with before, tracing.one_model_at_a_time():
        Predictive(outer, num_samples=2)(KEY)
    assert len(ran) == 2 and predictive_check(KEY, posterior, 2).predicted["x"].shape == (2,)
    assert len(ran) == 4 and predictive_check(KEY, conjugate_posterior(), 5).predicted["x"].shape == (5, 2)


def conjugate_posterior():
    engine = Conjugate()
    engine.run(KEY, x=np.zeros(2))
    return engine.posterior


def test_misspecification_is_a_valid_test(rng):
    """Under the model the p-value is uniform on its grid; far or oddly combined observations are found, and where."""
    draw = lambda n: rng.normal(size=(n, 1)) * np.array([1.0, 1.0, 2.0]) + 0.1 * rng.normal(size=(n, 3))  # noqa: E731
    null = np.array([misspecification_test(draw(99), draw(1)[0]).p_value for _ in range(200)])
    assert abs(np.mean(null <= 0.1) - 0.1) < 4.5 * np.sqrt(0.09 / 200)
    assert abs(null.mean() - 0.505) < 4.5 * np.sqrt(1 / 12 / 200)
    odd = misspecification_test(draw(300), np.array([1.0, -1.0, 2.0]))
    assert odd.p_value < 0.01 and min(odd.by_statistic.values()) > 0.05
    far = misspecification_test(draw(300), np.array([0.0, 9.0, 0.0]))
    assert far.p_value < 0.01 and next(iter(far.by_statistic)) == "x[1]"


def test_misspecification_by_hand(rng):
    """The logarithm of Mahalanobis's distance to the fifth neighbour, and how many are as far out, in any units."""
    x, y = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 3)), np.array([0.3, -0.2, 2.0])
    found = misspecification_test(x, y)
    white = np.asarray(StatisticsTransform.fit(x).forward(np.concatenate([x, y[None]])), np.float64)
    apart = cdist(white, white, "mahalanobis", VI=np.linalg.inv(np.cov(white.T, bias=True)))
    scores = np.log(np.sort(apart, axis=1)[:, 5])
    np.testing.assert_allclose(found.scores, scores[:-1], rtol=1e-5)
    np.testing.assert_allclose(found.score, scores[-1], rtol=1e-5)
    assert found.p_value == np.mean(scores >= scores[-1])
    tails = np.abs(white - np.median(white, axis=0))
    single = [found.by_statistic[f"x[{i}]"] for i in range(3)]
    np.testing.assert_allclose(single, np.mean(tails >= tails[-1], axis=0))
    assert list(found.by_statistic.values()) == sorted(single)
    twice = misspecification_test(x[:, [0, 1, 2, 2]] * [1e-8, 1.0, 1e8, 1e8], y[[0, 1, 2, 2]] * [1e-8, 1.0, 1e8, 1e8])
    np.testing.assert_allclose(twice.score, scores[-1], rtol=1e-4)  # a column twice tells nothing more


def test_misspecification_by_simulations_that_coincide():
    """Where six are equal the fifth neighbour is at no distance."""
    x = np.repeat(np.arange(10.0), 8)[:, None]
    found = misspecification_test(x, np.array([1.0]))
    assert found.p_value == 1.0 and np.isfinite(found.scores).all()
    alone = misspecification_test(x, np.array([40.0]))
    assert alone.p_value == 1 / 81 and alone.least and "the smallest that 80 simulations allow" in alone.told
    assert "smallest" not in found.told


def test_check_runs_all_and_says_what_to_do_next(exact, capsys):
    engine = Conjugate(shift=1.0)
    engine.run(KEY, x=np.array([0.2, 9.0]))
    found = check(KEY, engine, 100, progress_bar=False)
    np.testing.assert_allclose(found.predictive.observed["x"], np.array([0.2, 9.0]), rtol=1e-6)
    by_hand = misspecification_test(engine.posterior.simulations.x["x"], np.array([0.2, 9.0])).p_value
    assert found.misspecification["x"].p_value == by_hand < 0.005
    assert found.p_value == min(1.0, 2 * min(found.calibration.p_value, by_hand)) < 1e-3 and found.flagged()
    found.print_summary()
    printed = capsys.readouterr().out
    assert printed.startswith("\nDiagnostics: FLAGGED") and "found: location (theta[0]" in printed
    assert "compare `predictive_check`" in printed and "data sets show in nine of ten cases" in printed
    found.print_summary(verbose=True)
    whole = capsys.readouterr().out
    assert whole.startswith(printed.partition("  more: ")[0].rstrip(" ")) and "TARP" in whole and "TARP" not in printed
    assert "hardly makes this observation" not in printed
    assert "p-value 0.0033, the smallest that 300 simulations allow" in printed.replace("\n", " ")
    assert max(map(len, printed.splitlines())) <= 80
    *_, few = found.findings()
    assert few.startswith("x (p-value 0.0033, the smallest") and "this many cannot flag" in few and "; 2,000 " in few
    usual = dataclasses.replace(found, misspecification={"x": misspecification_test(engine, np.array([0.2, 0.1]))})
    assert not [sentence for sentence in usual.findings() if sentence.startswith("x (")]
    unlike, _ = found.findings(0.05)[:2]
    assert unlike.startswith("x (p-value 0.003") and "by_statistic" in unlike
    fine = kme.diagnostics.Check(exact, surrogate={"x": SurrogateCheck(0.2, 0.06)})
    beyond, negative = fine.findings()
    assert beyond.startswith("20.00% of the posterior draws lie beyond")
    assert negative.startswith("The surrogate at site 'x' is negative at 6%")
    fine.print_summary()
    assert "not flagged" in capsys.readouterr().out


@pytest.mark.parametrize("size", [40, 200])
def test_errors_that_data_sets_can_show_are_shown_in_nine_of_ten_cases(rng, size):
    data = {"x": rng.normal(size=(size, 3))}
    even = (np.arange(size) + 0.5) / size
    location, factor = Calibration({"a": even}, even, {}, data).visible(0.01)
    for shift, scale in ((location, 1.0), (0.0, factor), (0.0, 1.0 / factor)):
        scores = shift + scale * rng.normal(size=(100, size))
        flagged = [Calibration({"a": stats.norm.cdf(z)}, even, {}, data).p_value < 0.01 for z in scores]
        assert 0.9 - 4.0 * np.sqrt(0.09 / 100) < np.mean(flagged)
    small = stats.norm.cdf(0.5 * location + rng.normal(size=(100, size)))
    assert np.mean([Calibration({"a": ranks}, even, {}, data).p_value < 0.01 for ranks in small]) < 0.7


def test_data_that_were_given_by_position_cannot_be_replaced():
    engine = Conjugate()
    engine.run(KEY, np.zeros(2))
    with pytest.raises(ValueError, match="keyword arguments named like its sites"):
        calibrate(KEY, engine, 5)


def test_the_observation_of_an_engine_is_compared_with_its_prior_draws(rng):
    """Simulations at chosen parameters are no draws from the prior; names are the simulator's."""

    def named(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("x", kme.Simulator(noisy, theta, names=("a", "b")), obs=x)

    problem = kme.Problem.read(named, x=np.array([0.2, 9.0]))
    simulations = dataclasses.replace(kme.simulate(KEY, problem, 60, progress_bar=False), proposed=20)
    found = Posterior(engine="none", samples={"theta": np.zeros((3, 2))}, problem=problem, simulations=simulations)
    test = misspecification_test(found)
    assert len(test.scores) == 40 and list(test.by_statistic) == ["b", "a"]
    assert test.p_value == misspecification_test(simulations.x["x"][:40], np.array([0.2, 9.0])).p_value
    assert misspecification_test(found, {"b": 0.1, "a": 0.3}).p_value > 1 / 41
    with pytest.raises(TypeError, match=r"none keeps no simulations.* with simulated outputs of prior draws"):
        misspecification_test(dataclasses.replace(found, simulations=None))


def one_draw(rng_key, loc, log_sd):
    return loc + jnp.exp(log_sd) * jax.random.normal(rng_key)


def under_a_plate(x=None, size=60):
    loc, log_sd = numpyro.sample("loc", dist.Normal(0.0, 3.0)), numpyro.sample("log_sd", dist.Normal(0.0, 1.0))
    with numpyro.plate("draws", size):
        numpyro.sample("x", kme.Simulator(one_draw, loc, log_sd), obs=x)


@pytest.fixture(scope="module")
def of_draws():
    """Simulations of sixty draws."""
    return kme.simulate(jax.random.key(3), under_a_plate, 300, progress_bar=False)


def test_draws_along_a_plate_are_compared_in_order_of_size(of_draws, rng):
    """Two modes, of which the model has one, show; the order of the draws does not; names say which."""

    def posterior_of(x):
        problem = kme.Problem.read(under_a_plate, x=x)
        return Posterior(engine="none", samples={"loc": np.zeros(3)}, problem=problem, simulations=of_draws)

    two = np.where(np.arange(60) < 30, 3.0, -3.0) + 0.4 * rng.normal(size=60)
    found = misspecification_test(posterior_of(two))
    names = {f"sorted[{k}]" for k in np.round(np.linspace(0, 59, 30)).astype(int)}
    assert found.p_value < 0.05 and set(found.by_statistic) == names
    by_hand = np.round(np.linspace(0, 59, 30)).astype(int)
    x = np.sort(of_draws.x["x"], axis=1)[:, by_hand]
    assert found.p_value == misspecification_test(x, np.sort(two)[by_hand]).p_value
    assert misspecification_test(posterior_of(rng.permutation(two))).score == pytest.approx(found.score, rel=1e-5)


def test_draws_in_order_of_size_that_never_vary_are_left_out():
    """The smallest of forty counts with a mean of one is 0 in every simulation; not in the data."""

    def model(x=None):
        mean = numpyro.sample("mean", dist.LogNormal(0.0, 0.1))
        with numpyro.plate("draws", 40):
            numpyro.sample("x", kme.Simulator(jax.random.poisson, mean), obs=x)

    drawn = kme.simulate(jax.random.key(0), model, 100, progress_bar=False)
    problem = kme.Problem.read(model, x=1 + np.arange(40) % 3)
    posterior = Posterior(engine="none", samples={"mean": np.ones(3)}, problem=problem, simulations=drawn)
    found = misspecification_test(posterior)
    assert "sorted[0]" not in found.by_statistic and "sorted[39]" in found.by_statistic and found.p_value < 0.05


def test_predictions_of_a_model_that_asks_its_data_for_their_number():
    """As most people write it: `len(x)`, the data by position or by another name; a factor and another site too."""

    def model(data):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        numpyro.factor("more", -0.1 * loc**2)
        numpyro.sample("z", dist.Normal(loc, 5.0), obs=0.3)
        with numpyro.plate("draws", len(data)):
            numpyro.sample("x", kme.Simulator(one_draw, loc, 0.0), obs=data)

    problem, draws = kme.Problem.read(model, np.full(6, 0.5)), {"loc": np.random.default_rng(0).normal(size=200)}
    simulations = kme.simulate(KEY, problem, 2, progress_bar=False)
    found = predictive_check(KEY, Posterior(engine="none", samples=draws, problem=problem, simulations=simulations))
    assert found.predicted["x"].shape == (200, 6) and (found.observed["x"] == 0.5).all()
    assert np.std(found.predicted["x"]) > 0.8


def test_numbers_beyond_all_predictions_are_named():
    """In standard deviations of the predictions beyond the farthest of these."""
    x = np.random.default_rng(0).normal(size=(200, 3))
    found = PredictiveCheck({"x": x}, {"x": np.array([0.0, 7.0, -9.0])}, {"x": ("mean", "max", "min")})
    expected = {"min": (x[:, 2].min() + 9.0) / x[:, 2].std(), "max": (7.0 - x[:, 1].max()) / x[:, 1].std()}
    assert found.beyond == pytest.approx(expected) and list(found.beyond) == ["min", "max"]
    ranks = np.random.default_rng(1).uniform(size=100)
    for single, remedy in ((True, "adjust=0.1"), (False, "Use `PosteriorBootstrap`")):
        check = Check(Calibration({"theta": ranks}, ranks, {"theta": ranks}), {}, found, single=single)
        (said,) = [sentence for sentence in check.findings() if "beyond anything that the model makes" in sentence]
        assert "min by" in said and remedy in said
