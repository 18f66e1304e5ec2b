"""Comparison of models: evidence beside closed forms, what is refused, and the check on simulated data."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats

import numpyro_kme as kme
from numpyro_kme.diagnostics import ComparisonCheck, check_comparison, compare

SDS = {"narrow": 1.0, "wide": 3.0}
"""Prior standard deviations of two models of which everything else is the same."""


def noisy(rng_key, theta):
    return theta + jnp.array([0.5, 1.0]) * jax.random.normal(rng_key, (2,))


def model(sd, x=None, scale=1.0, names=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, sd))
    with numpyro.handlers.scale(scale=scale):
        numpyro.sample("x", kme.Simulator(noisy, theta, names=names), obs=x)


def fitted(sd, x=(2.0, 2.5), form=None, **given):
    """KELFI on the model with this prior."""
    engine = kme.KELFI(lambda x=None: model(sd, x, **given), 300, num_rounds=1, form=form, progress_bar=False)
    engine.run(jax.random.key(0), x=np.asarray(x))
    return engine


@pytest.fixture(scope="module")
def engines():
    return {name: fitted(sd) for name, sd in SDS.items()}


def exact(x):
    """Log evidence of both models at data `(..., 2)`."""
    noise = np.diag([0.25, 1.0])
    return np.stack([scipy.stats.multivariate_normal(np.zeros(2), noise + sd**2).logpdf(x) for sd in SDS.values()], -1)


def test_evidence_of_conjugate_models(engines):
    """Log evidence, Bayes factor and probabilities are those of the closed form, within what is stated."""
    found, true = compare(engines), exact([2.0, 2.5])
    for name, value in zip(SDS, true):
        assert abs(found.log_evidence[name] - value) < 4.0 * found.standard_errors[name] + 0.1
    ratio, error = found.log_bayes_factor("wide", "narrow")
    assert abs(ratio - (true[1] - true[0])) < 4.0 * error + 0.1
    assert 0.0 < error < 0.5
    assert sum(found.probabilities.values()) == pytest.approx(1.0)
    assert found.probabilities["wide"] == pytest.approx(1.0 / (1.0 + np.exp(-ratio)))


def test_the_verdict_says_odds(engines):
    """In words, with what the simulations leave, the model with the larger evidence first."""
    found = compare(engines)
    assert found.order == ["wide", "narrow"]
    assert (
        found.verdict.startswith("wide is favoured over narrow, ") and " to 1; the simulations leave " in found.verdict
    )
    assert repr(found).startswith("Comparison of 2 models") and "check_comparison" in repr(found)
    same = compare({"one": engines["wide"], "other": engines["wide"]})
    assert same.verdict.startswith("undecided: 1 to 1")
    unsure = replace(same, standard_errors={"one": 1.0, "other": 1.0})
    sure = replace(same, standard_errors={"one": 0.1, "other": 0.1})
    assert unsure.verdict.endswith("Simulate more") and sure.verdict.endswith("hardly tell these models apart")


@pytest.mark.filterwarnings("ignore")
def test_data_that_no_model_makes_are_told():
    """The better of two wrong models is named, and that both are wrong."""
    far = {name: fitted(sd, (20.0, 2.0)) for name, sd in SDS.items()}
    found = compare(far)
    assert max(found.p_values.values()) < 0.01
    assert "no model makes such data" in found.verdict and "hardly makes such data" in " ".join(repr(found).split())


def test_a_discrete_choice_of_the_model_gives_the_same_answer():
    """A model with an index of the prior, enumerated, has the probabilities of the two models."""

    def both(x=None):
        index = numpyro.sample("index", dist.Bernoulli(0.5))
        theta = numpyro.sample("theta", dist.Normal(0.0, jnp.where(index == 1, SDS["wide"], SDS["narrow"])))
        numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)

    x = np.array([1.0, 1.0])
    engine = kme.KELFI(both, 600, num_rounds=1, num_samples=4000, progress_bar=False)
    engine.run(jax.random.key(1), x=x)
    apart = compare({name: fitted(sd, x) for name, sd in SDS.items()}).probabilities["wide"]
    assert abs(engine.get_samples()["index"].mean() - apart) < 0.08
    narrow, wide = exact(x)
    assert abs(apart - 1.0 / (1.0 + np.exp(narrow - wide))) < 0.08


REFUSED = {
    "other data": (lambda: fitted(3.0, (2.0, 2.6)), "other data at 'x'"),
    "a power": (lambda: fitted(3.0, scale=2.0), "raised to a power"),
    "another form": (lambda: fitted(3.0, form=kme.KernelMeans()), "likelihoods of other kinds"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_comparable_is_refused_by_name(engines, case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        compare({"narrow": engines["narrow"], "other": make()})


def test_other_intervals_are_refused():
    """Of a number that is not known but to lie in one."""

    def limited(high):
        def within(x=None):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            numpyro.sample("x", kme.Simulator(noisy, theta).within(high=np.array([high, np.inf])), obs=x)

        engine = kme.KELFI(within, 200, num_rounds=1, progress_bar=False)
        engine.run(jax.random.key(0), x=np.array([np.nan, 1.0]))
        return engine

    with pytest.raises(ValueError, match="other intervals at 'x'"):
        compare({"one": limited(0.5), "other": limited(2.0)})


def test_other_statistics_are_refused():
    one, other = (fitted(sd, names=names) for sd, names in ((1.0, ("mean", "max")), (3.0, ("mean", "min"))))
    with pytest.raises(ValueError, match="other statistics"):
        compare({"one": one, "other": other})


def test_one_model_and_engines_without_evidence_are_refused(engines):
    with pytest.raises(ValueError, match="two or more models"):
        compare({"narrow": engines["narrow"]})
    rejection = kme.RejectionABC(engines["narrow"].model, 2000, progress_bar=False)
    rejection.run(jax.random.key(0), x=np.array([2.0, 2.5]))
    with pytest.raises(ValueError, match="no evidence"):
        compare({"narrow": engines["narrow"], "rejection": rejection})


def test_models_without_standard_errors_are_refused(engines):
    bare = kme.KELFI(engines["wide"].model, 300, num_rounds=1, standard_errors=False, progress_bar=False)
    bare.run(jax.random.key(0), x=np.array([2.0, 2.5]))
    with pytest.raises(ValueError, match="no standard errors"):
        compare({"narrow": engines["narrow"], "bare": bare})


def test_the_check_counts_what_the_models_say_of_simulated_data(engines):
    """Data sets of each model, evidence beside closed forms, and rows of confusion that add up to one."""
    found = check_comparison(jax.random.key(2), engines, 20, progress_bar=False)
    assert found.names == tuple(SDS) and np.bincount(found.truth).tolist() == [10, 10]
    np.testing.assert_allclose(found.confusion.sum(axis=1), 1.0)
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0)
    assert found.reliability[:, 2].sum() == 40
    assert found.p_value > 1e-6


def test_rounds_cannot_be_checked(engines):
    rounds = kme.KELFI(engines["wide"].model, 300, num_rounds=2, progress_bar=False)
    rounds.run(jax.random.key(0), x=np.array([2.0, 2.5]))
    with pytest.raises(ValueError, match="num_rounds=1"):
        check_comparison(jax.random.key(2), {"narrow": engines["narrow"], "wide": rounds}, 20, progress_bar=False)


@pytest.mark.parametrize(("factor", "flagged"), [(1.0, False), (4.0, True), (0.2, True)])
def test_the_check_sees_too_much_and_too_little_certainty(factor, flagged):
    """Log odds that are true, and four times too large or five times too small."""
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=1.5, size=2000)
    truth = (rng.random(2000) < 1.0 / (1.0 + np.exp(logits))).astype(int)
    found = ComparisonCheck(("a", "b"), truth, np.stack([factor * logits, np.zeros(2000)], axis=1))
    assert (found.p_value < 1e-4) == flagged
    assert ("FLAGGED" in repr(found)) == flagged


def level(rng_key, mean):
    return mean + jax.random.normal(rng_key)


def erratic(rng_key, mean):
    return mean + 4.0 * jax.random.normal(rng_key)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_leave_one_out_is_that_of_arviz():
    """The model that predicts further draws better stands first, as in `arviz.compare`."""

    def along_plate(call):
        def draws(x=None):
            mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
            with numpyro.plate("draws", 30):
                numpyro.sample("x", kme.Simulator(call, mean), obs=x)

        engine = kme.KELFI(draws, 400, num_rounds=1, progress_bar=False)
        engine.run(jax.random.key(0), x=np.random.default_rng(0).normal(size=30))
        return engine

    found = compare({"erratic": along_plate(erratic), "right": along_plate(level)})
    assert repr(found).startswith("Comparison of 2 models")
    assert list(found.leave_one_out().index) == ["right", "erratic"] == found.order
