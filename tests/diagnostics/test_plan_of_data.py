"""Data sets and predictions are simulated as the engine simulates: where, how long, and what becomes of failures."""

import time
from dataclasses import replace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme.diagnostics import calibrate, predictive_check
from numpyro_kme.engines import Engine, Posterior
from numpyro_kme.simulations import Retry, SimulationError

KEY = jax.random.key(0)
LIMIT, LONG = 0.2, 5.0
faults: list = []
"""What the simulator does where `theta` is positive: one of the functions below, while a test asks for it."""


def measured(rng, theta):
    if faults and theta > 0.0:
        return faults[0](rng)
    return theta + 0.5 * rng.normal()


def hang(rng):
    time.sleep(LONG)
    return 0.0


def break_down(rng):
    raise OSError("disk full")


def give_nan(rng):
    return np.nan


def give_nan_half_of_the_time(rng):
    return np.nan if rng.uniform() < 0.5 else rng.normal()


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(measured, theta, shape=(), dtype=float), obs=x)


@pytest.fixture(scope="module")
def trained():
    engine = kme.RejectionABC(model, 100, quantile=0.3, timeout=LIMIT, progress_bar=False)
    engine.run(KEY, x=0.0)
    return engine


@pytest.fixture
def engine(trained):
    """One whose settings a test may change."""
    found = replace(trained)
    found._found = trained._found
    return found


@pytest.fixture
def fault():
    yield faults.append
    faults.clear()


def test_a_simulator_that_hangs_ends_at_the_time_limit(engine, fault, capsys):
    fault(hang)
    began, number = time.monotonic(), 8
    found = calibrate(KEY, engine, number, num_draws=10, progress_bar=False)
    assert found.failures.keys() == {"x: timeout"} and 0 < (failed := sum(found.failures.values())) < number
    assert time.monotonic() - began < 20.0 + LIMIT * failed
    assert len(found.tarp) + found.refused + failed == number and (found.truths["theta"] <= 0.0).all()
    found.print_summary()
    assert f"{failed} further data sets could not" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("how", "kind"), [(break_down, "x: OSError"), (give_nan, "x: not finite")])
def test_predictions_that_fail_are_left_out_and_counted(engine, fault, how, kind):
    sound = predictive_check(KEY, engine, 60)
    assert sound.failures == {} and "failed" not in repr(sound)
    fault(how)
    found = predictive_check(KEY, engine, 60)
    (number,) = found.failures.values()
    assert found.failures.keys() == {kind} and 0 < number < 60
    assert len(found.predicted["x"]) == 60 - number and np.isfinite(found.predicted["x"]).all()
    assert np.isin(found.predicted["x"], sound.predicted["x"]).all()  # each has a key of its own
    assert f"{number} {kind}" in repr(found)
    failing = {"theta": np.full(3, 0.5)}
    with pytest.raises(SimulationError, match="All 3 simulations failed"):
        predictive_check(KEY, replace(engine.posterior, samples=failing))


def test_predictions_are_repeated_where_the_engine_repeats(engine, fault):
    fault(give_nan_half_of_the_time)
    once = predictive_check(KEY, engine, 60).failures["x: not finite"]
    engine.on_failure = Retry(times=4)
    again = sum(predictive_check(KEY, engine, 60).failures.values())
    assert again < 0.5 * once


def test_an_engine_without_settings_of_a_plan_simulates_here():
    class OfYours(Engine):
        def _infer(self, rng_key, args, kwargs):
            problem = kme.Problem.read(self.model, *args, **kwargs)
            posterior = Posterior(engine="OfYours", samples=problem.draw(rng_key, 50).latents, problem=problem)
            return None, posterior

    engine = OfYours(model)
    engine.run(KEY, x=0.0)
    assert engine.plan.executor is engine.plan.timeout is engine.plan.store is None and engine.progress_bar
    assert calibrate(KEY, engine, 5, num_draws=10, progress_bar=False).failures == {}
