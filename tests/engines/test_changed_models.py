"""What has changed between two runs is seen: closures, arguments of the model, simulations of another model; and kinds
of data."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import jit, random
from numpyro.infer.util import log_density
from scipy import stats

import numpyro_kme as kme
from numpyro_kme.engines._iid import IidModel

KEY = random.key(0)


def noisy(rng_key, theta):
    return theta + 0.5 * random.normal(rng_key)


def model(x=None, middle=0.0, spread=None):
    theta = numpyro.sample("theta", dist.Normal(middle, 1.0))
    fn = noisy if spread is None else lambda key, theta: theta + spread * random.normal(key)
    numpyro.sample("x", kme.Simulator(fn, theta), obs=x)


def test_a_simulator_is_seen_as_it_is_now():
    """A user changes an array and a length that the simulator refers to, between two runs in one session."""
    scale, length = np.array(1.0), 2

    def fn(rng_key, theta):
        return theta * scale + jnp.zeros(length)

    def changing(x=None):
        numpyro.sample("x", kme.Simulator(fn, numpyro.sample("theta", dist.Normal(0.0, 1.0))), obs=x)

    for _ in range(2):
        found = kme.simulate(KEY, changing, 5, progress_bar=False)
        expected = np.broadcast_to(found.latents["theta"][:, None] * scale, (5, length))
        np.testing.assert_allclose(found.x["x"], expected, rtol=1e-6)
        np.testing.assert_allclose(kme.Simulator(fn, 2.0).sample(KEY), np.full(length, 2.0 * scale))
        np.testing.assert_allclose(
            kme.Simulator(fn, jnp.ones(3), event_dims=0).sample(KEY), np.full((3, length), scale)
        )
        scale, length = np.array(10.0), 4


@pytest.mark.parametrize("engine", [kme.RejectionABC, pytest.param(kme.KELFI, marks=pytest.mark.slow)])
def test_condition_is_for_other_observations_only(engine):
    settings = {"quantile": 0.1} if engine is kme.RejectionABC else {"num_rounds": 1}
    run = engine(model, 200, num_samples=50, progress_bar=False, **settings)
    run.run(KEY, x=1.2)
    before = run.get_samples()["theta"]
    with pytest.raises(ValueError, match=r"change the prior of 'theta': .* call `run`"):
        run.condition(KEY, x=1.2, middle=5.0)
    with (
        pytest.raises(ValueError, match=r"change the simulator at 'x'"),
        pytest.warns(UserWarning, match="new function"),
    ):
        run.condition(KEY, x=1.2, spread=3.0)
    np.testing.assert_array_equal(run.get_samples()["theta"], before)
    run.condition(KEY, x=-0.5)
    assert run.get_samples()["theta"].mean() < before.mean() - 0.5  # exactly 1.36 less, and .06 of noise


def test_a_new_function_that_does_the_same_is_the_same_simulator():
    run = kme.RejectionABC(model, 200, quantile=0.1, num_samples=50, progress_bar=False)
    with pytest.warns(UserWarning, match="new function each time"):
        run.run(KEY, x=1.2, spread=0.5)
        run.condition(KEY, x=-0.5, spread=0.5)
        with pytest.raises(ValueError, match=r"change the simulator at 'x'"):
            run.condition(KEY, x=-0.5, spread=3.0)


def test_simulations_of_another_model_are_refused():
    bank = kme.simulate(KEY, model, 100, progress_bar=False)

    def renamed(x=None):
        numpyro.sample("x", kme.Simulator(noisy, numpyro.sample("phi", dist.Normal(0.0, 1.0))), obs=x)

    def reshaped(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(lambda key, theta: noisy(key, theta) * jnp.ones(2), theta), obs=x)

    for engine in (kme.RejectionABC, kme.KELFI):
        with pytest.raises(ValueError, match=r"has the latents \['theta'\], the model \['phi'\]"):
            engine(renamed, simulations=bank).run(KEY, x=1.2)
        with pytest.raises(ValueError, match=r"has outputs of shape \(\) at site 'x'.* gives \(2,\)"), pytest.warns():
            engine(reshaped, simulations=bank).run(KEY, x=np.ones(2))


class Column:
    """A column of a table, such as pandas has: an array by `__array__` alone."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


def iid(x):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


@pytest.mark.parametrize("kind", [list, Column])
def test_columns_of_tables_are_observations(kind):
    y = [1.0, 1.5, 0.5, 1.2, 0.8]
    np.testing.assert_array_equal(kme.Problem.read(iid, kind(y)).observations["x"], y)


def test_the_bootstrap_takes_columns_too():
    y = [1.0, 1.5, 0.5]
    for kind in (list, Column):
        np.testing.assert_array_equal(IidModel.read(iid, (kind(y),), {}).data, y)


def test_the_bootstrap_sees_a_simulator_as_it_is_now():
    scale, y = 1.0, np.linspace(-0.5, 0.5, 20)

    def fn(rng_key, theta):
        return theta + scale * random.normal(rng_key)

    def changing(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", kme.Simulator(fn, theta), obs=x)

    def of(y):
        engine = kme.PosteriorBootstrap(changing, kme.MMD(kme.kernels.Gaussian(1.0)), num_samples=4)
        engine.run(random.key(0), y)
        return engine.replicates.minimum_loss

    first = of(y)
    scale = 2.0
    assert of(y) > 1.2 * first


def test_rows_with_parameters_of_their_own_under_two_plates():
    """`mu` of shape (2, 1) is two parameters, and no parameter of length 1."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(40, 1))
    fitted = kme.fit_likelihood(theta, theta[:, 0] + 0.5 * rng.normal(size=40))

    def rows(x):
        with numpyro.plate("rows", 2, dim=-2):
            mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
            with numpyro.plate("columns", 3, dim=-1):
                numpyro.sample("x", kme.Simulator(noisy, mu, event_dims=0), obs=x)

    x, mu = rng.normal(size=(2, 3)).astype(np.float32), np.array([[0.3], [-0.8]], np.float32)
    surrogate = kme.handlers.surrogate(rows, {"x": fitted})
    found = jit(lambda mu: log_density(surrogate, (x,), {}, {"mu": mu})[0])(mu)
    one = jit(lambda mu, x: fitted(mu).log_prob(x))
    expected = sum(float(one(mu[i, 0], x[i, j])) for i in range(2) for j in range(3))
    assert np.isclose(found, expected + stats.norm.logpdf(mu).sum(), rtol=1e-4)
