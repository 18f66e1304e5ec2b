"""Simulations: keys, blocks, black boxes, failures, groups, and tables made elsewhere."""

from dataclasses import replace
from zlib import crc32

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random

from numpyro_kme._core import progress
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.simulations import SimulationError, Simulations, simulate


def walk(key, theta):
    return jnp.cumsum(theta + random.normal(key, (4,)))


def boxed_walk(rng, theta):
    return np.cumsum(theta + rng.normal(size=4))


def model(x=None, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.deterministic("double", 2.0 * theta)
    numpyro.sample("x", Simulator(walk, theta), obs=x)
    numpyro.sample("y", Simulator(boxed_walk, theta, shape=4, dtype=np.float64), obs=y)


@pytest.fixture(scope="module")
def problem():
    return Problem.read(model)


@pytest.fixture(scope="module")
def simulations(problem):
    return simulate(random.key(0), problem, 100, progress_bar=False)


@pytest.mark.smoke
def test_everything_is_kept(simulations):
    assert len(simulations) == 100 and simulations.failures == {}
    assert list(simulations.x) == list(simulations.arguments) == ["x", "y"]
    theta = simulations.latents["theta"]
    np.testing.assert_array_equal(simulations.arguments["x"], theta[:, None], strict=True)
    np.testing.assert_array_equal(simulations.deterministics["double"], 2.0 * theta)
    np.testing.assert_array_equal(simulations.index, np.arange(100))
    for site, dtype in (("x", np.float32), ("y", np.float64)):  # JAX's own, and what the black box declares
        value = simulations.x[site]
        assert isinstance(value, np.ndarray) and value.shape == (100, 4) and value.dtype == dtype


def test_each_simulation_is_the_simulator_at_its_own_key(simulations):
    for site, fn in (("x", Simulator(walk, 0.0)), ("y", Simulator(boxed_walk, 0.0, shape=4, dtype=float))):
        for j in (0, 3, 99):
            key = random.fold_in(random.fold_in(random.key(0), crc32(site.encode())), j)
            expected = fn.with_arguments(simulations.arguments[site][j]).sample(key)
            np.testing.assert_allclose(simulations.x[site][j], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("number", [1, 65])
def test_results_do_not_depend_on_how_many_there_are(problem, simulations, number):
    few = simulate(random.key(0), problem, number, progress_bar=False)
    for part in ("x", "latents", "arguments", "deterministics"):
        for name, value in getattr(few, part).items():
            np.testing.assert_array_equal(value, getattr(simulations, part)[name][:number])


def test_another_key_and_another_block_size(problem, simulations):
    other = simulate(random.key(1), problem, 5, progress_bar=False)
    assert not np.intersect1d(other.x["x"], simulations.x["x"]).size
    blocks = simulate(random.key(0), problem, 100, progress_bar=False, block_size=7)
    np.testing.assert_array_equal(blocks.x["y"], simulations.x["y"])
    np.testing.assert_allclose(blocks.x["x"], simulations.x["x"], rtol=1e-5, atol=1e-6)


def test_groups_and_iid_draws():
    def boxed(rng, theta):
        return rng.normal(theta)

    def many(simulator, **kwargs):
        with numpyro.plate("g", 3):
            theta = numpyro.sample("theta", dist.Normal(0.0, 100.0))
            with numpyro.plate("r", 5):
                numpyro.sample("x", Simulator(simulator, np.float64(1.0) * theta, event_dims=0, **kwargs))

    for args in ({"simulator": lambda k, t: t + random.normal(k)}, dict(simulator=boxed, shape=(), dtype=float)):
        found = simulate(random.key(0), Problem.read(many, **args), 4, progress_bar=False)
        assert found.arguments["x"].shape == (4, 3, 1) and found.x["x"].shape == (4, 5, 3)
        noise = found.x["x"] - found.latents["theta"][:, None, :]
        assert np.abs(noise).max() < 6 and len(np.unique(noise)) == 60


# failures


def fragile(rng, theta):
    if theta > 1.0:
        raise OverflowError("population exploded")
    return np.array([theta, np.nan if theta < -1.0 else rng.normal()])


def fragile_jax(key, theta):
    return jnp.stack([theta, jnp.sqrt(theta + 1.0)])


def failing(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(fragile, theta, shape=2, dtype=float), obs=x)


def failing_jax(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(fragile_jax, theta), obs=x)


@pytest.mark.parametrize("model", [failing, failing_jax])
def test_the_default_is_to_raise_with_number_and_theta(model):
    problem = Problem.read(model)
    theta = problem.draw(random.fold_in(random.key(0), 0), 200).latents["theta"]
    bad = (theta < -1.0) | ((theta > 1.0) if model is failing else False)
    first = int(np.flatnonzero(bad)[0])
    with pytest.raises(SimulationError) as caught:
        simulate(random.key(0), problem, 200, progress_bar=False)
    assert f"Simulation {first} of site 'x' failed at {{'theta': {theta[first]}}}" in str(caught.value)
    assert "on_failure='skip'" in str(caught.value) and caught.value.__cause__ is not None


def test_skipping_counts_by_reason():
    found = simulate(random.key(0), failing, 200, on_failure="skip", progress_bar=False)
    theta = Problem.read(failing).draw(random.fold_in(random.key(0), 0), 200).latents["theta"]
    kept = np.abs(theta) <= 1.0
    assert found.failures == {"x: OverflowError": np.sum(theta > 1.0), "x: not finite": np.sum(theta < -1.0)}
    np.testing.assert_array_equal(found.index, np.flatnonzero(kept))
    np.testing.assert_array_equal(found.latents["theta"], theta[kept])
    np.testing.assert_array_equal(found.x["x"][:, 0], theta[kept])
    assert len(found) + sum(found.failures.values()) == 200


def test_joined_simulations_count_all_attempts_and_remember_what_they_are_near():
    """Numbers of the second ones come after all attempts of the first; a table has as many attempts as rows."""
    first = simulate(random.key(0), failing, 50, on_failure="skip", progress_bar=False)
    second = simulate(random.key(1), failing, 40, on_failure="skip", progress_bar=False)
    second = replace(second, near={"x": np.ones(1)})
    both = first.joined(second)
    assert both.attempted == 90 and sum(both.failures.values()) == 90 - len(both)
    np.testing.assert_array_equal(both.index, [*first.index, *(50 + second.index)])
    assert both.near == second.near == second.joined(first).near
    table = replace(second, attempted=0)
    assert first.joined(table).attempted == 50 + len(second)


def test_one_failing_site_drops_the_simulation_at_all_sites():
    def two(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("a", Simulator(fragile, theta, shape=2, dtype=float))
        numpyro.sample("b", Simulator(fragile_jax, theta))

    found = simulate(random.key(0), two, 60, on_failure="skip", progress_bar=False)
    assert set(found.failures) == {"a: OverflowError", "a: not finite"}
    np.testing.assert_array_equal(found.x["a"][:, 0], found.x["b"][:, 0])
    assert len(found) + sum(found.failures.values()) == 60


# tables made elsewhere


def test_a_table_of_arguments():
    a, x = np.arange(6.0).reshape(3, 2), np.ones((3, 4))
    found = Simulations.from_table(a, x)
    assert len(found) == 3 and found.arguments["x"] is a and found.latents == {}


def test_a_table_of_latents(problem, simulations):
    found = Simulations.from_latents(problem, simulations.latents, simulations.x)
    np.testing.assert_array_equal(found.arguments["y"], simulations.arguments["y"])
    np.testing.assert_array_equal(found.deterministics["double"], simulations.deterministics["double"])
    single = Problem.read(failing_jax)
    found = Simulations.from_latents(single, {"theta": np.zeros(3)}, np.ones((3, 2)))
    np.testing.assert_array_equal(found.x["x"], np.ones((3, 2)))


def two(problem, **x):
    return Simulations.from_latents(problem, {"theta": np.ones(2)}, x)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda p: Simulations.from_table(np.ones(3), np.ones(3)), r"`arguments` must have shape \(points, dim\)"),
        (lambda p: Simulations.from_table(np.ones((3, 1)), np.full(3, np.nan)), "`x` has 3 entries"),
        (lambda p: two(p, x=np.ones((2, 4))), r"no simulations of.*\['y'\]"),
        (lambda p: two(p, x=np.ones((2, 4)), y=np.ones((2, 3))), r"site 'y' must have shape \(2, 4\); got \(2, 3\)"),
        (lambda p: two(p, z=np.ones((2, 4))), r"one of the model's simulator sites, \['x', 'y'\]; got 'z'"),
    ],
)
def test_tables_that_do_not_fit_are_explained(problem, call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(problem)


# the session


def test_the_progress_bar_counts_and_is_quiet_under_ci(problem, capsys, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(progress, "_moves", lambda: True)
    simulate(random.key(0), problem, 70)
    assert "simulating: 100%" in (bar := capsys.readouterr().err) and "140/140" in bar
    simulate(random.key(0), problem, 2, progress_bar=False)
    monkeypatch.setenv("CI", "1")
    simulate(random.key(0), problem, 2)
    assert capsys.readouterr().err == ""


def far(rng, theta):
    """Numbers that float32 cannot tell apart."""
    return 1e8 + theta + rng.normal(size=1)


def test_black_boxes_and_their_observations_keep_64_bits():
    def model(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", Simulator(far, theta, shape=1, dtype=float), obs=x)

    problem = Problem.read(model, x=np.array([1e8 + 0.3]))
    np.testing.assert_array_equal(problem.observations["x"], [1e8 + 0.3])
    x = simulate(random.key(0), problem, 400, progress_bar=False)
    residuals = x.x["x"][:, 0] - 1e8 - x.latents["theta"]
    assert abs(np.var(residuals) - 1.0) < 5 * np.sqrt(2 / 400)
