"""The surrogate handler with a stand-in density whose posterior is known, and un-observing simulators."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, Predictive, log_likelihood
from numpyro.infer.inspect import get_model_relations
from numpyro.infer.util import log_density

from numpyro_kme.handlers import surrogate, uncondition_simulators
from numpyro_kme.simulator import Simulator

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as az


def shifted(key, theta):
    return theta + random.normal(key, (2,))


def normal(theta):
    return dist.Normal(theta, 1.0).to_event(1)


def model(x=None, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("x", Simulator(shifted, theta), obs=x)
    with numpyro.plate("visits", 3):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


X, Y = jnp.array([2.0, -1.0]), jnp.array([0.5, 1.0, 1.5])
SMODEL = surrogate(model, {"x": normal})


def exact(x=None, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("x", normal(theta), obs=x)
    with numpyro.plate("visits", 3):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


def same_density(a, b, args, params):
    left, right = log_density(a, args, {}, params)[0], log_density(b, args, {}, params)[0]
    np.testing.assert_allclose(left, right, rtol=1e-12)
    return float(left)


@pytest.fixture(scope="module")
def mcmc():
    mcmc = MCMC(NUTS(SMODEL), num_warmup=200, num_samples=1000, progress_bar=False)
    mcmc.run(random.key(0), X, Y)
    return mcmc


def test_the_density_is_that_of_the_model_written_out():
    same_density(SMODEL, exact, (X, Y), {"theta": jnp.array([0.3, -0.7]), "b": jnp.array(0.2)})


def test_nuts_finds_the_known_posterior(mcmc):
    samples = mcmc.get_samples()
    # theta | x is N(x/2, 1/2) and b | y is N(sum(y)/4, 1/4); 5 standard errors at 400 effective draws
    np.testing.assert_allclose(samples["theta"].mean(0), X / 2, atol=5 * np.sqrt(0.5 / 400))
    np.testing.assert_allclose(samples["theta"].var(0), 0.5, atol=5 * 0.5 * np.sqrt(2 / 400))
    np.testing.assert_allclose(samples["b"].mean(), 0.75, atol=5 * np.sqrt(0.25 / 400))


def test_arviz_takes_the_run_as_it_is(mcmc):
    idata = az.from_numpyro(mcmc, log_likelihood=True)
    np.testing.assert_array_equal(idata["observed_data"]["x"].values, X)
    theta = mcmc.get_samples()["theta"]
    expected = dist.Normal(theta, 1.0).log_prob(X[None]).sum(-1)
    np.testing.assert_allclose(np.asarray(idata["log_likelihood"]["x"])[0], expected, rtol=1e-9)


def test_log_likelihood_by_site(mcmc):
    samples = {name: value[:5] for name, value in mcmc.get_samples().items()}
    found = log_likelihood(SMODEL, samples, X, Y)
    np.testing.assert_allclose(found["x"], normal(samples["theta"]).log_prob(X[None]), rtol=1e-12)
    assert found["y"].shape == (5, 3)


def test_predictive_still_simulates(mcmc):
    samples = {name: value[:7] for name, value in mcmc.get_samples().items()}
    through = Predictive(SMODEL, samples)(random.key(1))
    direct = Predictive(model, samples)(random.key(1))
    np.testing.assert_array_equal(through["x"], direct["x"])
    trace = handlers.trace(handlers.seed(SMODEL, 0)).get_trace()
    assert isinstance(trace["x"]["fn"], Simulator)


def test_condition_inside_works_and_outside_is_explained():
    params = {"theta": jnp.zeros(2), "b": jnp.array(0.0)}
    inside = surrogate(handlers.condition(model, {"x": X, "y": Y}), {"x": normal})
    same_density(inside, lambda: exact(X, Y), (), params)
    with pytest.raises(NotImplementedError, match=r"Site 'x' is a simulator.*around any `condition`"):
        log_density(handlers.condition(SMODEL, {"x": X, "y": Y}), (), {}, params)


def test_the_graph_of_the_surrogate_model():
    relations = get_model_relations(SMODEL, (X, Y))
    assert relations["sample_sample"]["x"] == ["theta"] and relations["sample_dist"]["x"] == "Normal"


MASK = jnp.array([True, False, True])


def in_plates(simulator):
    """Draws that share a parameter, groups with their own, a mask and a scale, with either kind of site."""

    def site(name, fn, x, density):
        numpyro.sample(name, fn if simulator else density, obs=x)

    def run(iid, groups):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("n", 3), handlers.mask(mask=MASK), handlers.scale(scale=2.5):
            site("iid", Simulator(shifted, theta, event_dims=1), iid, normal(theta))
        with numpyro.plate("g", 3):
            eta = numpyro.sample("eta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            with numpyro.plate("r", 4):
                site("groups", Simulator(shifted, eta, event_dims=1), groups, normal(eta))
        site(
            "joint",
            Simulator(shifted, eta, event_dims=1).to_event(1).mask(True),
            eta + 1.0,
            normal(eta).to_event(1),
        )

    return run


def test_plates_masks_scales_and_events():
    args = (random.normal(random.key(0), (3, 2)), random.normal(random.key(1), (4, 3, 2)))
    params = {"theta": jnp.array([0.3, -0.7]), "eta": jnp.arange(6.0).reshape(3, 2)}
    smodel = surrogate(in_plates(True), {"iid": normal, "groups": normal, "joint": normal})
    with jax.numpy_rank_promotion("allow"):  # NumPyro's own Normal under a plate
        same_density(smodel, in_plates(False), args, params)
    trace = handlers.trace(handlers.seed(smodel, 0)).get_trace(*args)
    assert trace["iid"]["fn"].batch_shape == (3,) and trace["groups"]["fn"].batch_shape == (4, 3)
    assert trace["joint"]["fn"].event_shape == (3, 2)


def test_parameters_arrive_with_common_leading_dimensions():
    shapes = []

    def likelihood(theta, scale):
        shapes.append((theta.shape, scale.shape))
        return dist.Normal(theta, scale[..., None]).to_event(1)

    def groups(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        with numpyro.plate("g", 3):
            numpyro.sample("x", Simulator(lambda k, t, s: t * s, theta, 2.0, event_dims=(1, 0)), obs=x)

    log_density(surrogate(groups, {"x": likelihood}), (jnp.zeros((3, 2)),), {}, {"theta": jnp.zeros((3, 2))})
    assert set(shapes) == {((3, 2), (3,))}


@pytest.mark.parametrize(
    ("likelihoods", "args", "sentence"),
    [
        ({"z": normal}, (), r"`likelihoods` names \['z'\], but the simulator sites of the model are \['x'\]"),
        ({"x": normal, "y": normal}, (X, Y), r"names \['y'\]"),
        ({"z": normal}, (X, Y), "Site 'x' is an observed simulator without a likelihood"),
        (
            {"x": lambda t: dist.Normal(t, 1.0)},
            (X, Y),
            r"event shape \(\), the simulator `shifted` has \(2,\)",
        ),
        ({"x": lambda t: normal(t).expand([5])}, (X, Y), r"batch shape \(5,\)"),
        ({"x": lambda t: t}, (X, Y), "must give a numpyro Distribution"),
    ],
)
def test_likelihoods_that_do_not_fit_are_explained(likelihoods, args, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        handlers.seed(surrogate(model, likelihoods), 0)(*args)
    assert numpyro.primitives._PYRO_STACK == []


@pytest.mark.parametrize("likelihoods", [None, {}, {"x": 3.0}])
def test_likelihoods_must_be_functions(likelihoods):
    with pytest.raises(ValueError, match="`likelihoods` must be a dictionary"):
        surrogate(model, likelihoods)


def test_unconditioning_simulators_alone():
    samples = {"theta": jnp.zeros((4, 2)), "b": jnp.zeros(4)}
    free = Predictive(uncondition_simulators(model), samples)(random.key(0), X, Y)
    assert free["x"].shape == (4, 2) and len(np.unique(free["x"])) == 8
    np.testing.assert_array_equal(free["y"], np.tile(Y, (4, 1)))
    trace = handlers.trace(handlers.seed(uncondition_simulators(model), 0)).get_trace(X, Y)
    assert not trace["x"]["is_observed"] and trace["y"]["is_observed"]


def test_engines_of_both_kinds_can_share_a_model():
    both = uncondition_simulators(surrogate(model, {"x": normal}))
    trace = handlers.trace(handlers.seed(both, 0)).get_trace(X, Y)
    assert trace["x"]["is_observed"] and not isinstance(trace["x"]["fn"], Simulator)
