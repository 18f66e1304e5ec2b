"""Reading a model: its parts, prior draws, densities, and the sentences for models that cannot be used."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.contrib.control_flow import scan
from scipy import stats

from numpyro_kme.models import reading
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.simulator import Simulator


def total(key, theta, sd, constant):
    return theta.sum() + sd * random.normal(key, (2,)) + constant


def model(x=None, y=None):
    theta = numpyro.sample("theta", dist.Normal(jnp.array([0.0, 1.0]), 2.0).to_event(1))
    scale = numpyro.deterministic("scale", jnp.exp(theta[0]))
    sd = numpyro.sample("sd", dist.HalfNormal(scale))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    x = numpyro.sample("x", Simulator(total, theta, sd, 3.0), obs=x)
    numpyro.deterministic("of x", x.mean())
    with numpyro.plate("visits", 3):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)
    numpyro.factor("penalty", -(b**2))


@pytest.fixture(scope="module")
def problem():
    return Problem.read(model, x=np.array([0.5, 1.5]), y=jnp.zeros(3))


@pytest.fixture(scope="module")
def draws(problem):
    return problem.draw(random.key(0), 150)


@pytest.mark.smoke
def test_the_parts_of_a_model(problem):
    assert list(problem.latents) == ["theta", "sd", "b"]
    assert [latent.parents for latent in problem.latents.values()] == [(), ("theta",), ()]
    assert list(problem.simulators) == ["x"] and problem.simulators["x"].parents == ("theta", "sd")
    assert problem.factors == ("y", "penalty") and problem.deterministics == {"scale": ()}
    np.testing.assert_array_equal(problem.observations["x"], [0.5, 1.5])
    assert problem.simulators["x"].simulator.name == "total" and problem.simulators["x"].dims == ("x_dim_0",)


def test_draws_follow_the_prior(draws):
    theta, sd = draws.latents["theta"], draws.latents["sd"]
    assert theta.shape == (150, 2) and isinstance(theta, np.ndarray)
    np.testing.assert_allclose(theta.mean(0), [0.0, 1.0], atol=5 * 2 / np.sqrt(150))
    np.testing.assert_allclose(draws.deterministics["scale"], np.exp(theta[:, 0]), rtol=1e-5)
    assert abs(np.mean(sd / np.exp(theta[:, 0])) - np.sqrt(2 / np.pi)) < 5 * 0.603 / np.sqrt(150)
    np.testing.assert_array_equal(draws.arguments["x"], np.column_stack([theta, sd, np.full(150, 3.0)]))


@pytest.mark.smoke
def test_draws_do_not_depend_on_their_number(problem, draws):
    few = problem.draw(random.key(0), 3)
    for group in ("latents", "arguments", "deterministics"):
        for name, value in getattr(few, group).items():
            np.testing.assert_array_equal(value, getattr(draws, group)[name][:3])


def test_draws_have_the_keys_that_numpyro_gives():
    """Also those beyond the keys that are split before."""

    def long(x=None):
        values = [numpyro.sample(f"v{i}", dist.Normal(i, 1.0)) for i in range(5)]
        with numpyro.plate("rows", 2):
            values.append(numpyro.sample("row", dist.Exponential(1.0)).sum())
        values += [numpyro.sample(f"w{i}", dist.Uniform(0.0, 1.0)) for i in range(5)]
        numpyro.sample("x", Simulator(total, jnp.stack(values), 1.0, 0.0), obs=x)

    draws = Problem.read(long, x=np.zeros(2)).draw(random.key(3), 2).latents

    @jax.jit
    def by_hand(key):
        trace = numpyro.handlers.trace(numpyro.handlers.seed(long, key)).get_trace(x=jnp.zeros(2))
        return {name: trace[name]["value"] for name in draws}

    for i in range(2):
        expected = by_hand(random.fold_in(random.key(3), i))
        for name, value in draws.items():
            np.testing.assert_allclose(value[i], expected[name], rtol=1e-5, err_msg=name)


def test_no_simulator_runs_and_observations_do_not_count():
    def explode(rng, theta):
        raise AssertionError("the simulator ran")

    def plain(x=None, y=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", Simulator(explode, theta, shape=(), dtype=float), obs=x)
        numpyro.sample("y", dist.Normal(theta, 1e-3), obs=y)

    for kwargs in ({"x": 0.0, "y": 50.0}, {}):
        theta = Problem.read(plain, **kwargs).draw(random.key(0), 64).latents["theta"]
        assert abs(theta.mean()) < 5 / np.sqrt(64)


def test_arguments_and_deterministics_of_given_latents(problem, draws):
    again = problem.evaluate(draws.latents)
    np.testing.assert_allclose(again.arguments["x"], draws.arguments["x"], rtol=1e-6)
    np.testing.assert_allclose(again.deterministics["scale"], draws.deterministics["scale"], rtol=1e-6)
    np.testing.assert_array_equal(problem.arguments(draws.latents)["x"], again.arguments["x"])


def test_log_prior(problem, draws):
    theta, sd, b = (draws.latents[name] for name in ("theta", "sd", "b"))
    of_sd = stats.halfnorm.logpdf(sd, scale=np.exp(theta[:, 0]))
    expected = stats.norm.logpdf(theta, [0.0, 1.0], 2.0).sum(-1) + of_sd + stats.norm.logpdf(b)
    np.testing.assert_allclose(problem.log_prior(draws.latents), expected, rtol=1e-5)


def groups_model(x=None):
    slope = dist.Normal(0.0, 1.0).expand([2]).to_event(1)
    numpyro.sample("slope", slope, infer={"event_dims": ["covariate"]})
    with numpyro.plate("g", 4):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.deterministic("twice", jnp.stack([theta, 2.0 * theta], axis=-1))
    numpyro.deterministic("outside", theta)
    with numpyro.plate("g", 4), numpyro.plate("r", 3), numpyro.handlers.mask(mask=jnp.array(True)):
        numpyro.sample("x", Simulator(total, theta[:, None], 1.0, 0.0, event_dims=(1, 0, 0)), obs=x)


def test_a_simulator_with_groups():
    problem = Problem.read(groups_model, jnp.zeros((3, 4, 2)))
    site = problem.simulators["x"]
    assert site.dims == ("r", "g", "x_dim_2") and site.simulator.groups == (4,)
    assert site.fn.shape() == (3, 4, 2)
    assert {name: problem.dims[name] for name in ("theta", "twice", "outside", "slope")} == {
        "theta": ("g",),
        "twice": ("g", "twice_dim_1"),
        "outside": ("outside_dim_0",),
        "slope": ("covariate",),
    }
    draws = problem.draw(random.key(0), 5)
    assert draws.arguments["x"].shape == (5, 4, 3)
    np.testing.assert_allclose(draws.arguments["x"][:, :, 0], draws.latents["theta"], rtol=1e-6)  # XLA may fuse
    x = np.arange(5 * 3 * 4 * 2).reshape(5, 3, 4, 2)
    arguments, rows = site.rows(draws.arguments["x"], x)
    assert arguments.shape == (20, 3) and rows.shape == (20, 3, 2)
    np.testing.assert_array_equal(arguments[7], draws.arguments["x"][1, 3])
    np.testing.assert_array_equal(rows[7], x[1, :, 3])


def two_sites(x=None, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(total, theta, 1.0, 0.0), obs=x)
    numpyro.sample("y", Simulator(total, theta, 1.0, 0.0), obs=y)


def test_naming_a_site(problem):
    assert problem.site() == "x" == problem.site("x")
    with pytest.raises(ValueError, match=r"Name one of the model's simulator sites, \['x'\]; got 'y'"):
        problem.site("y")
    with pytest.raises(ValueError, match=r"Name one of the model's simulator sites, \['x', 'y'\]; got None"):
        Problem.read(two_sites).site()


def with_other_sites(x=None, counts=None, sums=None, twice=None):
    log_rate = numpyro.sample("log_rate", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(total, log_rate, 1.0, 0.0), obs=x)
    with numpyro.plate("days", 3), numpyro.handlers.mask(mask=np.array([True, False, True])):
        numpyro.sample("counts", dist.Poisson(jnp.exp(log_rate)), obs=counts)
    sums = numpyro.sample("sums", dist.Normal(log_rate, np.float32([1.0, 2.0])).to_event(1), obs=sums)
    numpyro.sample("twice", dist.Normal(2.0 * sums[0], 0.1), obs=twice)  # three draws, under no plate


def test_other_likelihoods_are_drawn_from_their_own_distributions():
    """Their moments at a given latent; each draw and site has a key of its own, and sites depend on those before."""
    problem = Problem.read(with_other_sites, np.zeros(2), np.array([1, 7, 2]), np.zeros(2), np.zeros(3))
    assert {n: v.tolist() for n, v in problem.factor_observations.items()} == {
        "counts": [1, 7, 2], "sums": [0, 0], "twice": [0, 0, 0],
    }  # fmt: skip
    at = {"log_rate": np.full(4000, 0.5, np.float32)}
    found = problem.draw_factors(random.key(3), at)
    counts, sums, twice = (found[name] for name in ("counts", "sums", "twice"))
    assert counts.shape == (4000, 3) and sums.shape == (4000, 2) and twice.shape == (4000, 3)
    rate, few = np.exp(0.5), np.sqrt(4000)
    assert (counts[:, 1] == 7).all() and (counts == np.round(counts)).all()
    np.testing.assert_allclose(counts[:, [0, 2]].mean(0), rate, atol=4.5 * np.sqrt(rate) / few)
    np.testing.assert_allclose(counts[:, [0, 2]].var(0), rate, rtol=0.15)
    np.testing.assert_allclose(sums.mean(0), 0.5, atol=9 / few)
    np.testing.assert_allclose(sums.std(0), [1.0, 2.0], rtol=5 / few)
    np.testing.assert_allclose((twice - 2.0 * sums[:, :1]).std(0), 0.1, rtol=5 / few)
    columns = np.concatenate([counts[:, [0, 2]], sums, twice - 2.0 * sums[:, :1]], axis=1)
    assert np.abs(np.corrcoef(columns.T) - np.eye(7)).max() < 5 / few
    again = problem.draw_factors(random.key(3), {"log_rate": at["log_rate"][:70]})
    assert all(np.array_equal(again[name], found[name][:70]) for name in found)
    assert Problem.read(two_sites).draw_factors(random.key(3), {"theta": np.zeros(2)}) == {}


def test_a_factor_is_not_drawn(problem, draws):
    with pytest.raises(ValueError, match=r"'penalty' is a factor \(numpyro.factor\), from which no data can be drawn"):
        problem.draw_factors(random.key(0), draws.latents)


def test_a_missing_observation_is_named():
    with pytest.raises(ValueError, match="simulator site 'y' is not observed: pass its observation"):
        Problem.read(two_sites, x=jnp.zeros(2)).observations  # noqa: B018


def broken(x):
    raise RuntimeError("no data loaded")


def no_simulator():
    numpyro.sample("theta", dist.Normal(0.0, 1.0))


def with_prior(prior, x=None):
    theta = numpyro.sample("theta", prior)
    numpyro.sample("x", Simulator(total, 1.0 * theta, 1.0, 0.0), obs=x)


def feeds():
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    x = numpyro.sample("x", Simulator(total, theta, 1.0, 0.0))
    mean = numpyro.deterministic("mean", x.mean())
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=0.0)


def learns():
    theta = numpyro.sample("theta", dist.Normal(numpyro.param("m", 0.0), 1.0))
    numpyro.sample("x", Simulator(total, theta, 1.0, 0.0))


def in_scan():
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))

    def step(state, _):
        numpyro.sample("x", Simulator(total, theta, 1.0, 0.0))
        return state, None

    scan(step, 0.0, None, length=3)


class Drawn(dist.Distribution):
    """A prior that can only be drawn from."""

    support = dist.constraints.real

    def sample(self, key, sample_shape=()):
        return jax.random.normal(key, sample_shape)


def without_density():
    numpyro.sample("x", Simulator(total, numpyro.sample("theta", Drawn()), 1.0, 0.0))


def nothing_latent():
    numpyro.sample("x", Simulator(total, 0.0, 1.0, 0.0))


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (
            lambda: Problem.read(broken, 1.0),
            r"`broken` failed while its sites were read: no data loaded \(RuntimeError\)\.\nCauses",
        ),
        (lambda: Problem.read(without_density), "sites were read: `Drawn` does not define `log_prob`"),
        (lambda: Problem.read(model, z=1.0), r"unexpected keyword argument 'z'.*keyword arguments \['z'\]"),
        (lambda: Problem.read(no_simulator), r"no simulator site among \['theta'\]: add"),
        (lambda: Problem.read(feeds), "Site 'y' depends on the output of the simulator at 'x'.*inside the simulator"),
        (lambda: Problem.read(numpyro.handlers.seed(with_prior, 0), dist.Normal(0.0, 1.0)), "a key of its own already"),
        (lambda: Problem.read(learns), r"`param` sites \['m'\], which have no prior"),
        (lambda: Problem.read(nothing_latent), "no latent site to infer"),
        (lambda: Problem.read(in_scan), r"has shape \(3, 2\); the simulator `total` gives .*inside `scan`"),
        (lambda: Problem.read(two_sites, x=jnp.zeros(3)), r"at 'x' has shape \(3,\); .* gives shape \(2,\). Let the"),
    ],
)
def test_models_that_cannot_be_used_are_explained(read, sentence):
    with pytest.raises(ValueError, match=f"(?s){sentence}"):
        read()
    assert numpyro.primitives._PYRO_STACK == []


def test_a_simulator_made_inside_the_model_is_pointed_out():
    def inside():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", Simulator(lambda key, t: t + random.normal(key), theta))

    with pytest.warns(UserWarning, match=r"`<lambda>` of site 'x' is a new function each time the model runs") as told:
        problem = Problem.read(inside)
    assert told[0].filename == __file__
    assert problem.draw(random.key(0), 2).arguments["x"].shape == (2, 1)


class Colony:
    """A simulator that is a method: a new object at each access, but an equal one."""

    def grow(self, key, theta):
        return theta + random.normal(key)

    def model(self):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", Simulator(self.grow, theta))


def test_a_method_is_no_new_simulator():
    assert Problem.read(Colony().model).simulators["x"].simulator.name == "grow"  # a warning would be an error


def test_latents_of_the_wrong_shape_are_explained(problem, draws):
    with pytest.raises(ValueError, match=r"`latents` must have the sites \['theta', 'sd', 'b'\]; got \['theta'\]"):
        problem.evaluate({"theta": draws.latents["theta"]})
    wrong = {**draws.latents, "sd": draws.latents["sd"][:4]}
    with pytest.raises(ValueError, match=r"`latents\['sd'\]` needs shape .* as 'theta'; got \(4,\)"):
        problem.log_prior(wrong)
    with pytest.raises(ValueError, match="`num_draws` must be at least 1; got 0"):
        problem.draw(random.key(0), 0)


def other_sites(x=None, extra=0):
    """Latents, or what depends on what, that follow from an argument."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Gamma(2.0, 1.0) if extra == 2 else dist.Normal(0.0, 1.0)) if extra else 0.0
    theta = jnp.stack([a, b])
    numpyro.sample("x", Simulator(total, theta, 1.0, 3.0), obs=x)


def same_parts(one, other):
    for name in one.latents:
        assert one.latents[name].parents == other.latents[name].parents
        np.testing.assert_array_equal(one.latents[name].value, other.latents[name].value)
    assert list(one.latents) == list(other.latents)
    assert one.simulators["x"].parents == other.simulators["x"].parents
    assert (one.factors, one.deterministics) == (other.factors, other.deterministics)
    np.testing.assert_array_equal(one.observations["x"], other.observations["x"])


def test_other_data_of_a_model_that_was_read(problem, monkeypatch):
    """As if read anew; where sites are others, it is read anew."""
    x, y = np.array([7.0, 8.0]), np.ones(3)
    same_parts(problem.with_data(x=x, y=y), Problem.read(model, x=x, y=y))
    first, wide = Problem.read(other_sites, x=x), Problem.read(groups_model, x=np.zeros((3, 4, 2)))
    for extra in (1, 2):
        same_parts(first.with_data(x=x, extra=extra), Problem.read(other_sites, x=x, extra=extra))
    changed = Problem.read(other_sites, x=x, extra=1).with_data(x=x, extra=2)
    assert type(changed.latents["b"].fn) is dist.Gamma
    with pytest.raises(ValueError, match="has shape"):
        first.with_data(x=np.zeros(3))
    with pytest.raises(ValueError, match="failed while its sites were read"):
        first.with_data(x=x, wrong=1)
    assert len(wide.latents) == len(wide.with_data(x=np.ones((3, 4, 2))).latents)
    monkeypatch.setattr(reading, "get_model_relations", None)
    np.testing.assert_array_equal(first.with_data(x=2.0 * x).observations["x"], 2.0 * x)
