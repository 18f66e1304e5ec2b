"""Programs that functions made anew share, and those that must not be shared."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random

from numpyro_kme._core import programs as shared_programs
from numpyro_kme._core.programs import Program
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.simulator import Simulator

HERE = {"scale": 2.0}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(shared_programs, "_shared", type(shared_programs._shared)())


def shifted(amount):
    return Program(lambda x: {"y": jnp.sin(x) + amount})


def test_functions_that_do_the_same_share_a_program():
    x = np.arange(3.0)
    for _ in range(2):
        np.testing.assert_allclose(shifted(1.0)(x)["y"], np.sin(x) + 1.0, rtol=1e-6)
    assert len(shared_programs._shared) == 1
    np.testing.assert_allclose(shifted(2.0)(x)["y"], np.sin(x) + 2.0, rtol=1e-6)
    assert len(shared_programs._shared) == 2


def test_large_constants_and_the_structure_of_results_count():
    x = np.zeros(1000)
    for constant in (np.arange(1000.0), np.arange(1000.0)[::-1].copy()):
        held = jnp.asarray(constant)
        np.testing.assert_array_equal(Program(lambda x, held=held: x + held)(x), constant)
        assert list(Program(lambda x, held=held: {"a": x + held})(x)) == ["a"]
        assert list(Program(lambda x, held=held: {"b": x + held})(x)) == ["b"]


def test_shapes_and_precisions_have_programs_of_their_own():
    double = Program(lambda x: 2 * x)
    assert double(np.ones(2)).shape == (2,) and double(np.ones(3)).shape == (3,)
    for precise in (False, True):
        with jax.enable_x64(precise):
            assert double(np.ones(2)).dtype == (np.float64 if precise else np.float32)
    np.testing.assert_array_equal(double(np.ones(2, int)), [2, 2])


def test_programs_that_call_back_are_not_shared():
    """Their text does not say what they call."""

    def calls(function):
        return Program(lambda x: jax.pure_callback(function, jax.ShapeDtypeStruct((2,), x.dtype), x))

    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(calls(lambda x: np.asarray(x) + 1)(x), [2, 2])
    np.testing.assert_array_equal(calls(lambda x: np.asarray(x) + 2)(x), [3, 3])
    assert not shared_programs._shared


def noise(rng_key, theta):
    return theta + random.normal(rng_key)


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, HERE["scale"]))
    numpyro.sample("x", Simulator(noise, theta), obs=x)


def test_another_observation_compiles_no_further_prior_and_a_changed_model_does(monkeypatch):
    key = random.key(0)
    before = Problem.read(model, x=1.0).draw(key, 70).latents["theta"]
    programs = dict(shared_programs._shared)
    np.testing.assert_array_equal(Problem.read(model, x=3.0).draw(key, 70).latents["theta"], before)
    assert dict(shared_programs._shared) == programs
    monkeypatch.setitem(HERE, "scale", 4.0)
    np.testing.assert_allclose(Problem.read(model, x=3.0).draw(key, 70).latents["theta"], 2.0 * before, rtol=1e-5)
