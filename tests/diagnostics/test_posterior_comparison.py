"""Posteriors beside the first of them: means, widths and errors of draws that are known."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme.diagnostics import compare_posteriors

DRAWS = np.linspace(-1.0, 1.0, 101)


def test_means_and_widths_are_measured_from_the_first():
    first = {"a": 2.0 * DRAWS, "b": np.stack([DRAWS, DRAWS], axis=1), "own": DRAWS, "constant": 0.0 * DRAWS}
    other = {"constant": DRAWS, "a": 4.0 * DRAWS + 1.0, "b": np.stack([DRAWS, DRAWS - 3.0], axis=1)}
    found = compare_posteriors({"plain": first, "robust": other})
    sd = DRAWS.std()
    assert found.moved == {"robust": pytest.approx({"b[1]": -3.0 / sd, "a": 0.5 / sd, "b[0]": 0.0})}
    assert found.widths["robust"] == pytest.approx({"a": 2.0, "b[0]": 1.0, "b[1]": 1.0})
    assert found.verdict == f"the answer moves: b[1] by {-3.0 / sd:+.2f} sd under robust"
    assert "b[1] by -5.14 sd, sd x 1.00; a by" in repr(found)


def test_nothing_moves_where_posteriors_are_alike():
    found = compare_posteriors({"one": {"a": DRAWS}, "same": {"a": DRAWS + 0.1}})
    assert found.verdict.startswith("the answer stays within 1 sd: at most a by +0.17 sd")


def noisy(rng_key, theta):
    return theta + jax.random.normal(rng_key)


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("draws", 20):
        numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


def test_engines_of_two_kinds_are_compared():
    """By their draws; stated errors are passed on, where a posterior has some."""
    x = np.random.default_rng(0).normal(0.5, 1.0, 20).astype(np.float32)
    kelfi = kme.KELFI(model, 300, num_rounds=1, progress_bar=False)
    kelfi.run(jax.random.key(0), x=x)
    bootstrap = kme.PosteriorBootstrap(model, num_samples=50, progress_bar=False)
    bootstrap.run(jax.random.key(1), x=x)
    found = compare_posteriors({"likelihood": kelfi, "bootstrap": bootstrap.posterior})
    (error, none), own = found.standard_errors["theta"], kelfi.posterior.error_of_mean["theta"]
    assert error == pytest.approx(float(own)) and np.isnan(none)
    first, other = (np.asarray(engine.get_samples()["theta"], np.float64) for engine in (kelfi, bootstrap))
    assert found.moved["bootstrap"]["theta"] == pytest.approx((other.mean() - first.mean()) / first.std())


def test_what_has_nothing_in_common_is_refused():
    with pytest.raises(ValueError, match="two or more"):
        compare_posteriors({"one": {"a": DRAWS}})
    with pytest.raises(ValueError, match="no number in common"):
        compare_posteriors({"one": {"a": DRAWS}, "two": {"b": DRAWS}})
    with pytest.raises(TypeError):
        compare_posteriors({"one": 3.0, "two": {"b": DRAWS}})
