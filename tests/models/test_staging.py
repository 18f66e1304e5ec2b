"""A simulator in two stages gives what it gives in one, and computes the first stage once."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_kme import lift_noise
from numpyro_kme.models.staging import Stages

pytestmark = pytest.mark.x64

SIMULATORS = {
    "Student t": (lambda key, u: u[0] + u[1] * jax.random.t(key, 4.0), [()]),
    "sorted uniforms": (lambda key, u: u[0] + u[1] * jnp.sort(jax.random.uniform(key, (3,))), [(3,)]),
    "two parts": (
        lambda key, u: u[0] * jnp.exp(jax.random.normal(key)) + jax.random.laplace(jax.random.fold_in(key, 1)) / u[1],
        [(), ()],
    ),
    "a loop over fixed noise": (
        lambda key, u: u[0] * jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), jax.random.normal(key)),
        [()],
    ),
}
ONE = {
    "normal": lambda key, u: u[0] + u[1] * jax.random.normal(key),
    "gamma of a free shape": lambda key, u: jax.random.gamma(key, u[0]) / u[1],
    "more numbers than the noise has": lambda key, u: jnp.sum(jnp.sin(jnp.arange(5.0) * jax.random.normal(key)) * u[0]),
}


def staged(simulator):
    lifted = lift_noise(simulator, np.ones(2))
    u, z = (jax.ShapeDtypeStruct((size,), np.float64) for size in (2, lifted.dim))
    return lifted, Stages(lambda u, z: lifted(z, u), (u, z))


@pytest.mark.parametrize("name", SIMULATORS)
def test_two_stages_are_one(name, rng):
    """Values, and derivatives of both orders."""
    simulator, shapes = SIMULATORS[name]
    lifted, stages = staged(simulator)
    assert stages.pay
    u = jnp.array([0.7, 1.3])

    def with_derivatives(f):
        kinds = (lambda f: f, jax.jacfwd, jax.jacrev, lambda f: jax.jacfwd(jax.jacrev(f)))
        return jax.jit(lambda u, given: [kind(f)(u, given) for kind in kinds])

    in_two, in_one = with_derivatives(stages.rest), with_derivatives(lambda u, z: lifted(z, u))
    for z in rng.normal(size=(4, lifted.dim)):
        values = stages.of_noise(z)
        assert [np.shape(value) for value in values] == shapes
        (found, *slopes), (expected, *others) = in_two(u, values), in_one(u, z)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        for slope, other in zip(slopes, others):
            np.testing.assert_allclose(slope, other, rtol=1e-10, atol=1e-12)


def of_one_normal(u, z):
    return u[0] + u[1] * jnp.exp(z[0])


def test_stages_go_to_another_process(rng):
    shapes = tuple(jax.ShapeDtypeStruct((size,), np.float64) for size in (2, 1))
    stages, u, z = Stages(of_one_normal, shapes), np.array([0.7, 1.3]), rng.normal(size=1)
    assert stages.pay
    again = pickle.loads(pickle.dumps(stages))
    np.testing.assert_allclose(again.rest(u, again.of_noise(z)), 0.7 + 1.3 * np.exp(z[0]), rtol=1e-12)


def test_the_second_stage_draws_no_quantile():
    """It is the affine function alone."""
    lifted, stages = staged(SIMULATORS["Student t"][0])
    values = jax.eval_shape(stages.of_noise, jax.ShapeDtypeStruct((lifted.dim,), np.float64))
    program = jax.jit(stages.rest).lower(jax.ShapeDtypeStruct((2,), np.float64), values).compile().as_text()
    assert "while" not in program and "log" not in program


@pytest.mark.parametrize("name", ONE)
def test_one_stage_where_two_gain_nothing(name):
    """Nothing but sums and products of the noise, parameters inside, or more numbers than the noise has."""
    assert not staged(ONE[name])[1].pay
