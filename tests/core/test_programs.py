"""Programs that models read anew share, and those that must not be shared."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random

from numpyro_kme._core import programs as shared_programs
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.simulator import Simulator

HERE = {"scale": 2.0}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(shared_programs, "_shared", type(shared_programs._shared)())


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
