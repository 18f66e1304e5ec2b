"""Kernel recursive ABC against maximum likelihood; synthetic likelihoods against SciPy and quadrature."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import X, conjugate, shifted
from numpyro.infer import MCMC, NUTS
from scipy import stats

import numpyro_kme as kme
from numpyro_kme.simulations import Plan, StoreError

KEY = jax.random.key(0)


def with_a_rare_count(rng_key, theta):
    first, second = jax.random.split(rng_key)
    count = jax.random.bernoulli(second, 0.2, (1,)).astype(jnp.result_type(theta))
    return jnp.concatenate([shifted(first, theta), count])


def counting(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(with_a_rare_count, theta), obs=x)


def weighted_sum(rng_key, p):
    return p @ jnp.array([1.0, 2.0, 4.0], p.dtype) + 0.2 * jax.random.normal(rng_key, (1,), p.dtype)


def shares(x=None):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("x", kme.Simulator(weighted_sum, p), obs=x)


def hierarchical(x=None):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, scale))
    numpyro.sample("x", kme.Simulator(shifted, theta), obs=x)


def test_recursive_abc_leaves_the_prior_behind():
    """Maximum likelihood is at 0.8, the posterior mean at 0.64; the points close in."""
    engine = kme.KernelRecursiveABC(conjugate, 100, num_iterations=5)
    engine.run(KEY, x=X)
    draws = engine.get_samples()["theta"]
    assert draws.shape == (200,) and draws.std() < 0.35
    assert abs(engine.posterior.mode()["theta"] - 0.8) < 0.2
    assert abs(draws.mean() - 0.8) < 0.2
    first, last = engine.info["standard deviations of the points, first and last"]
    assert last < 0.7 * first
    assert 0.0 < engine.info["last move of the estimate"][0] < 0.3


def test_recursive_abc_takes_counts_that_mostly_coincide():
    engine = kme.KernelRecursiveABC(counting, 100, num_iterations=5)
    engine.run(KEY, x=np.array([0.8, 0.0]))
    assert abs(engine.posterior.mode()["theta"] - 0.8) < 0.25


def test_recursive_abc_where_arguments_do_not_determine_the_latents():
    """The points lie on the surface of greatest likelihood, inside the support; the prior's are elsewhere."""
    problem, engine = kme.Problem.read(hierarchical, x=X), kme.KernelRecursiveABC(hierarchical, 150, num_iterations=5)
    engine.run(KEY, x=X)
    draws = engine.get_samples()
    problem.require_inside_support("draws", draws)
    far = np.abs(problem.draw(KEY, 500).latents["theta"] - 0.8).mean()
    assert np.abs(draws["theta"] - 0.8).mean() < 0.3 * far
    assert abs(engine.posterior.mode()["theta"] - 0.8) < 0.3 * far


def fails_above(rng, theta):
    if theta[0] > 1.2:
        raise OSError("disk full")
    return theta + 0.5 * rng.normal(size=1)


def failing(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([1]).to_event(1))
    numpyro.sample("x", kme.Simulator(fails_above, theta, shape=(1,), dtype=float), obs=x)


def test_recursive_abc_without_the_simulations_that_fail():
    engine = kme.KernelRecursiveABC(failing, 100, num_iterations=3, on_failure="skip")
    engine.run(KEY, x=X)
    assert engine.get_samples()["theta"].shape == (200, 1)
    assert "OSError" in engine.info["simulations that failed"]
    assert abs(engine.posterior.mode()["theta"][0] - 0.8) < 0.5
    with pytest.raises(RuntimeError, match="disk full"):
        kme.KernelRecursiveABC(failing, 60).run(KEY, x=X)
    with pytest.raises(ValueError, match="`on_failure` must be"):
        kme.KernelRecursiveABC(failing, on_failure="drop")


calls: list = []


def counted_shift(rng, theta):
    calls.append(theta)
    if len(calls) == 130:
        raise KeyboardInterrupt
    return theta + 0.5 * rng.normal(size=1)


def interrupted(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([1]).to_event(1))
    numpyro.sample("x", kme.Simulator(counted_shift, theta, shape=(1,), dtype=float), obs=x)


@pytest.mark.filterwarnings("ignore:The store .* is taken, though")  # the simulator counts its calls
def test_recursive_abc_goes_on_from_its_store(tmp_path):
    """A store of each iteration; another observation writes nothing there."""
    calls.clear()
    settings = dict(num_simulations=50, num_iterations=4, version=1, progress_bar=False)
    engine = kme.KernelRecursiveABC(interrupted, **settings, store=tmp_path / "runs")
    with pytest.raises(KeyboardInterrupt):
        engine.run(KEY, x=X)
    engine.run(KEY, x=X)
    assert len(calls) == 4 * 50 + 1  # the one that was interrupted is made again
    once = kme.KernelRecursiveABC(interrupted, **settings)
    once.run(KEY, x=X)
    np.testing.assert_array_equal(engine.get_samples()["theta"], once.get_samples()["theta"])
    names = [f"iteration {number}" for number in (1, 2, 3, 4)]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == names
    engine.condition(jax.random.key(5), x=X + 0.1)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == names
    with pytest.raises(StoreError, match="iteration 2 holds simulations at other parameters"):
        engine.run(KEY, x=X + 0.1)  # its first points are the same


def test_recursive_abc_begins_where_given_simulations_are(monkeypatch):
    """The first iteration is not simulated; that of any number serves, and failures of it are told of."""
    simulate_at, points = Plan.simulate_at, []
    monkeypatch.setattr(Plan, "simulate_at", lambda *args: points.append(args[3]["theta"]) or simulate_at(*args))
    problem = kme.Problem.read(conjugate, x=X)
    given = Plan(30).simulate_at(KEY, problem, {"theta": np.linspace(0.4, 1.2, 60, dtype=np.float32)})
    points.clear()
    engine = kme.KernelRecursiveABC(conjugate, 40, num_iterations=2, simulations=given, progress_bar=False)
    engine.run(KEY, x=X)
    (second,) = points
    assert second.shape == (40,) and second.min() > 0.1 and second.max() < 1.5
    assert engine.info["simulations"] == 100 and "simulations that failed" not in engine.info
    engine.simulations = replace(given, attempted=62, failures={"x: timeout": 2})
    engine.run(KEY, x=X)
    assert engine.info["simulations"] == 102 and "2 x: timeout" in engine.info["simulations that failed"]
    with pytest.raises(ValueError, match="were made by another model"):
        replace(engine, model=shares).run(KEY, x=X)


@pytest.mark.parametrize(
    "x, settings, message",
    [
        (60.0, {}, "the weights of 50 simulations sum to 0, their sizes to 0"),
        (6.0, {}, r"\d+ points of an iteration have come together in 1\.\d places"),
        (0.8, {"kernel": "gaussian"}, "`kernel` must be a kernel, such as Gaussian"),
        (0.8, {"num_iterations": 2.5}, "`num_iterations` must be a whole number; got 2.5"),
    ],
)
def test_recursive_abc_far_from_the_prior_raises(x, settings, message):
    with pytest.raises((RuntimeError, TypeError), match=message):
        engine = kme.KernelRecursiveABC(conjugate, 50, **({"num_iterations": 3} | settings))
        engine.run(KEY, x=np.array([x]))


def pair(rng_key, a, b):
    z = jax.random.normal(rng_key, (2,))
    return jnp.stack([a + z[0], b + 0.5 * z[0] + jnp.exp(a) * z[1]])


@pytest.mark.x64
def test_synthetic_likelihood_by_scipy(rng):
    likelihood = kme.SyntheticLikelihood(pair, 0.3, -0.2, num_simulations=50, rng_key=jax.random.key(3))
    draw = jax.jit(jax.vmap(lambda key: pair(key, 0.3, -0.2)))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(3), 50)))
    y = rng.normal(size=(4, 2))
    expected = stats.multivariate_normal(drawn.mean(0), np.cov(drawn.T)).logpdf(y[0])
    assert jax.eval_shape(lambda key: likelihood.sample(key, (3,)), KEY).shape == (3, 2)
    of_a = lambda a: kme.SyntheticLikelihood(pair, a, -0.2, num_simulations=50, rng_key=jax.random.key(3))  # noqa: E731
    density = jax.jit(jax.value_and_grad(lambda a: of_a(a).log_prob(y[0])))
    (below, _), (value, slope), (above, _) = (density(0.3 + step) for step in (-1e-5, 0.0, 1e-5))
    np.testing.assert_allclose(value, expected, rtol=1e-8)
    np.testing.assert_allclose(slope, (above - below) / 2e-5, rtol=1e-5)
    keys = jax.random.split(jax.random.key(3), 5)
    drawn = np.asarray(draw(jax.vmap(lambda key: jax.random.split(key, 10))(keys).reshape(50)))
    expected = stats.multivariate_normal(drawn.mean(0), np.cov(drawn.T)).logpdf(y)
    in_parts = kme.SyntheticLikelihood(pair, 0.3, -0.2, num_simulations=50, rng_key=keys)
    np.testing.assert_allclose(jax.jit(in_parts.log_prob)(y), expected, rtol=1e-8)
    with pytest.raises(ValueError, match="a multiple of the number of blocks; got 49 and 5"):
        kme.SyntheticLikelihood(pair, 0.3, -0.2, num_simulations=49, rng_key=keys)
    with pytest.raises(ValueError, match=r"must be at least 5; got .* exceed the numbers"):
        kme.SyntheticLikelihood(pair, 0.3, -0.2, num_simulations=4)


def in_numpy(rng, theta):
    return theta + 0.5 * rng.normal(size=1)


def test_gradients_of_a_black_box_raise():
    """NUTS asks for one."""

    def model(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        likelihood = kme.SyntheticLikelihood(in_numpy, theta, num_simulations=20, shape=(1,), dtype=float)
        numpyro.sample("x", likelihood, obs=x)

    with pytest.raises(TypeError, match=r"`in_numpy` runs in NumPy.* no derivative.*Write it in JAX.*PseudoMarginal"):
        MCMC(NUTS(model), num_warmup=2, num_samples=2, progress_bar=False).run(KEY, X)
