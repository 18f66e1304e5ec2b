"""Pointwise log likelihoods for `arviz.loo`: against exact leave-one-out densities, and where there are none."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Predictive
from scipy import stats
from scipy.special import logsumexp

import numpyro_kme as kme
from numpyro_kme._core.arviz import to_inference_data
from numpyro_kme.models import Problem

KEY = jax.random.key(2)
Y = np.random.default_rng(4).normal(0.7, 1.3, 50).astype(np.float32)


def draw(rng_key, mean, sd):
    return mean + sd * jax.random.normal(rng_key)


def normal(y=None, z=None, mask=True):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("trials", 50), handlers.mask(mask=mask):
        numpyro.sample("y", kme.Simulator(draw, mean, 1.3), obs=y)
    if z is not None:
        with numpyro.plate("visits", len(z)), handlers.scale(scale=2.0):
            numpyro.sample("z", dist.Normal(mean, 1.0), obs=z)


def one_event(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    numpyro.sample("x", kme.Simulator(draw, mean, 1.3), obs=x)


@pytest.fixture(scope="module")
def kelfi():
    engine = kme.KELFI(normal, 1800, num_rounds=1, num_samples=400, standard_errors=False, progress_bar=False)
    engine.run(KEY, y=Y)
    return engine


def loo_pit(data):
    """`arviz.loo_pit` of one site, as the installed ArviZ has it."""
    import arviz

    if arviz.__version__.startswith("0."):
        return arviz.loo_pit(data, y="y")
    return np.asarray(arviz.loo_pit(data)["y"])


def test_one_of_several_numbers_of_each_call_is_chosen_by_its_name():
    """As the documentation says: ArviZ takes the other groups as they are."""
    rng = np.random.default_rng(0)
    mean, y = 0.2 * rng.normal(size=400), rng.normal(size=(30, 2))
    groups = {
        "posterior": {"mean": mean[None]},
        "observed_data": {"y": y},
        "log_likelihood": {"y": -0.5 * ((y - mean[:, None, None]) ** 2).sum(axis=-1)[None]},
        "posterior_predictive": {"y": mean[:, None, None][None] + rng.normal(size=(1, 400, 30, 2))},
    }
    data = to_inference_data(groups, dims={"y": ["person", "what"]}, coords={"what": ["seconds", "errors"]})
    single = {group: {"y": groups[group]["y"][..., 0]} for group in ("observed_data", "posterior_predictive")}
    expected = loo_pit(to_inference_data({**groups, **single}, dims={"y": ["person"]}))
    np.testing.assert_allclose(loo_pit(data.sel(what="seconds")), expected)


@pytest.mark.slow
def test_loo_of_fifty_normal_trials(kelfi):
    """The exact value by quadrature over the mean, and so the probability of less than each trial by the others."""
    predicted = Predictive(normal, kelfi.get_samples())(jax.random.key(5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz = pytest.importorskip("arviz")
        data = kelfi.to_inference_data(log_likelihood=True, posterior_predictive=predicted)
        found, pit = arviz.loo(data, pointwise=True), loo_pit(data)
    mean = np.linspace(-1.5, 3.0, 2001)
    each = stats.norm.logpdf(Y[:, None], mean, 1.3)
    joint = stats.norm.logpdf(mean, 0.0, 2.0) + each.sum(axis=0)
    exact = logsumexp(joint) - logsumexp(joint - each, axis=1)
    elpd = float(found.elpd_loo if hasattr(found, "elpd_loo") else found.elpd)
    assert abs(elpd - exact.sum()) < 0.5
    assert float(np.max(found.pareto_k)) < 0.7
    assert [*data["posterior_predictive"].data_vars] == ["y"] and data["posterior_predictive"]["y"].dims[-1] == "trials"
    for wrong in ({"other": predicted["y"]}, {"y": predicted["y"][:7]}):
        with pytest.raises(ValueError, match="`posterior_predictive` must have"):
            kelfi.to_inference_data(posterior_predictive=wrong)
    others = np.exp(joint - each - logsumexp(joint - each, axis=1, keepdims=True))
    below = np.sum(others * stats.norm.cdf(Y[:, None], mean, 1.3), axis=1)
    np.testing.assert_allclose(pit, below, atol=5.0 * 0.5 / np.sqrt(400))  # of 400 draws


def test_each_value_is_the_density_of_that_trial(kelfi):
    found = kelfi.posterior.pointwise_log_likelihood()
    assert list(found) == ["y"]
    assert found["y"].shape == (400, 50)
    expected = stats.norm.logpdf(Y, kelfi.get_samples()["mean"][:, None], 1.3)
    np.testing.assert_allclose(found["y"], expected, atol=0.35)
    total = kelfi.posterior.log_likelihood({"mean": kelfi.get_samples()["mean"]})
    np.testing.assert_allclose(found["y"].sum(axis=1), total, rtol=1e-4)


def test_masked_trials_are_left_out_and_other_likelihoods_are_there(kelfi):
    z, mask = np.array([0.1, 0.9, 1.4], np.float32), jnp.arange(50) < 30
    problem = Problem.read(normal, Y, z, mask)
    found = replace(kelfi.posterior, problem=problem).pointwise_log_likelihood()
    assert found["y"].shape == (400, 30)
    mean = kelfi.get_samples()["mean"][:, None]
    np.testing.assert_allclose(found["z"], stats.norm.logpdf(z, mean, 1.0), atol=1e-4)


def test_names_of_dimensions_reach_what_stands_along_them():
    """`dims` names the plates and the event; a log likelihood has the plates alone, and none of them if a mask left
    some calls out."""
    groups = {
        "observed_data": {"x": np.zeros((3, 4, 1)), "y": np.zeros((5, 2))},
        "log_likelihood": {"x": np.zeros((1, 6, 3, 4)), "y": np.zeros((1, 6, 2))},
    }
    dims = {"x": ["unit", "trial", "number"], "y": ["visit", "of it"]}
    found = to_inference_data(groups, dims=dims, coords={"trial": list("abcd")})
    assert found["observed_data"]["x"].dims == ("unit", "trial", "number")
    assert found["log_likelihood"]["x"].dims == ("chain", "draw", "unit", "trial")
    assert list(found["log_likelihood"]["trial"].values) == list("abcd")
    assert found["log_likelihood"]["y"].dims == ("chain", "draw", "y_dim_0")


def test_one_event_has_no_part_to_leave_out():
    engine = kme.KELFI(one_event, 100, num_samples=100, progress_bar=False)
    engine.run(KEY, x=np.float32(0.5))
    with pytest.raises(ValueError, match=r"\['x'\] are one event each.*numpyro.plate"):
        engine.to_inference_data(log_likelihood=True)
    rejection = kme.RejectionABC(one_event, 1000, progress_bar=False)
    rejection.run(KEY, x=np.float32(0.5))
    with pytest.raises(NotImplementedError, match="RejectionABC has draws and no likelihood of single observations"):
        rejection.to_inference_data(log_likelihood=True)
