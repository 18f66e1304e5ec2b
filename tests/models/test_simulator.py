"""The Simulator distribution: draws, shapes, plates, and the sentences for everything it cannot do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, log_likelihood
from numpyro.infer.inspect import get_dependencies, get_model_relations, render_model
from numpyro.infer.util import log_density

from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import FromNoise, Joined, WrongOutput


def noisy_sum(key, theta, scale=1.0):
    """`(2,)`: the sum of theta plus noise, and a uniform draw."""
    a, b = random.split(key)
    return jnp.stack([theta.sum() + scale * random.normal(a), random.uniform(b)])


def counts(key, rate):
    return random.bernoulli(key, 0.1 * rate, (3,)).astype(int)


def numpy_normal(rng, theta):
    return rng.normal(theta, 1.0)


BlackBox = partial(Simulator, numpy_normal, shape=(3,), dtype=np.float64)


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    return numpyro.sample("x", Simulator(noisy_sum, theta), obs=x)


X = jnp.array([0.3, 0.2])


# draws and shapes


def test_shapes_are_found_by_tracing():
    fn = Simulator(noisy_sum, jnp.zeros(3), 2.0)
    assert (fn.batch_shape, fn.event_shape, fn.call_shapes) == ((), (2,), ((3,), ()))
    fn = Simulator(noisy_sum, jnp.zeros((5, 3)), jnp.ones((4, 1)), event_dims=(1, 0))
    assert (fn.batch_shape, fn.groups, fn.call_shapes) == ((4, 5), (4, 5), ((3,), ()))


def test_each_event_has_its_own_call_and_key():
    thetas, scales = jnp.arange(15.0).reshape(5, 3), jnp.array([[1.0], [2.0], [3.0], [4.0]])
    fn, key = Simulator(noisy_sum, thetas, scales, event_dims=(1, 0)), random.key(0)
    x, keys, one = fn.sample(key, (2,)), random.split(key, (2, 4, 5)), jax.jit(noisy_sum)
    assert x.shape == (2, 4, 5, 2)
    for s, i, j in [(0, 0, 0), (1, 3, 4), (1, 0, 2)]:
        np.testing.assert_allclose(x[s, i, j], one(keys[s, i, j], thetas[j], scales[i, 0]), rtol=1e-12)
    assert len(np.unique(x[..., 1])) == 40


@pytest.mark.parametrize(
    ("fn", "support", "differentiable"),
    [
        (Simulator(noisy_sum, jnp.zeros(3)), "real", True),
        (Simulator(counts, 2.0), "Integer", False),
        (BlackBox(jnp.zeros(3)), "real", False),
        (Simulator(lambda key, p: random.bernoulli(key, p), 0.5), "Boolean", False),
    ],
    ids=["float", "integer", "black box", "truth value"],
)
def test_support_and_differentiability(fn, support, differentiable):
    assert support.lower() in repr(fn.support).lower()
    assert fn.has_rsample is differentiable
    draw = fn.sample(random.key(0))
    assert np.all(fn.support(draw))
    feasible = fn.mask(jnp.array(False)).support.feasible_like(draw)
    assert feasible.shape == draw.shape and feasible.dtype == draw.dtype


@pytest.mark.x64
def test_arguments_flatten_and_come_back():
    theta, scale, n = jnp.arange(15.0).reshape(5, 3), jnp.float64(2.0), jnp.arange(5)
    fn = Simulator(lambda key, t, s, n: t.sum() + s * n, theta, scale, n, event_dims=(1, 0, 0)).expand((2, 5))
    a = fn.arguments
    assert a.shape == (5, 5)
    np.testing.assert_array_equal(a, np.column_stack([theta, np.full(5, 2.0), n]))
    again = fn.with_arguments(a)
    assert again.batch_shape == (2, 5) and again.params[2].dtype == n.dtype
    np.testing.assert_array_equal(again.sample(random.key(0)), fn.sample(random.key(0)))


# black boxes


@pytest.mark.x64
def test_black_box_inside_jax_depends_on_the_key_alone():
    theta = jnp.arange(3.0)
    draw = BlackBox(theta).sample
    x = draw(random.key(0))
    np.testing.assert_array_equal(x, draw(random.key(0)))
    np.testing.assert_array_equal(x, jax.jit(draw)(random.key(0)))
    assert not np.array_equal(x, draw(random.key(1)))
    rng = np.random.default_rng(np.asarray(random.key_data(random.key(0))))
    np.testing.assert_array_equal(x, rng.normal(theta, 1.0))


@pytest.mark.parametrize(
    ("fn", "shape", "dtype"),
    [
        (lambda rng, t: rng.normal(size=4), 3, float),
        (lambda rng, t: rng.normal(size=3), (3,), np.int32),
        (lambda rng, t: np.array(["a", "b", "c"]), (3,), float),
        (lambda rng, t: [rng.normal(), rng.normal()], (3,), float),
    ],
    ids=["shape", "float as integer", "text", "list"],
)
def test_black_box_that_breaks_its_declaration(fn, shape, dtype):
    simulator = Simulator(fn, 0.0, shape=shape, dtype=dtype)
    for sample, error in [(simulator.sample, WrongOutput), (jax.jit(simulator.sample), jax.errors.JaxRuntimeError)]:
        with pytest.raises(error, match=r"declares shape \(3,\) and dtype .* but returned shape"):
            np.asarray(sample(random.key(0)))


def test_without_x64():
    """float64 declared or returned while it is off."""

    def box(rng, theta):
        assert theta.dtype == np.float64
        return rng.normal(theta, 1.0)

    def model(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", Simulator(box, theta, shape=(), dtype=np.float64), obs=x)
        numpyro.sample("y", Simulator(lambda key, t: random.randint(key, (), 0, 3) + 0 * t, np.float64(1.0)))

    for parallel in (False, True):
        draws = Predictive(model, num_samples=3, parallel=parallel)(random.key(0))
        assert draws["x"].dtype == np.float32 and draws["y"].dtype == np.float32, draws
        assert np.isfinite(draws["x"]).all()
    with jax.enable_x64(True):
        x = Simulator(lambda rng, t: rng.normal(), 1.0, shape=(), dtype=np.float64).sample(random.key(0))
        assert x.dtype == np.float64 and np.isfinite(x)


def two_arrays(rng, theta):
    return {"quantiles": theta + rng.normal(size=3), "extremes": rng.normal(size=(1, 2))}


@pytest.mark.parametrize("declared", [dict(shape=5), dict(dtype=float), dict(shape=(5,), dtype=np.float32)])
def test_a_black_box_declares_arrays_by_name(declared):
    made = Simulator(two_arrays, 1.0, names={"quantiles": 3, "extremes": (1, 2)}, **declared)
    x = {"quantiles": np.arange(3.0), "extremes": np.array([[3.0, 4.0]])}
    assert made.sample(random.key(0)).shape == (5,) and made.labels[3] == "extremes[0,0]"
    np.testing.assert_array_equal(made.vector(x), np.arange(5.0))


def test_one_declared_number_may_be_a_scalar():
    fn = Simulator(lambda rng, t: {"a": rng.normal(size=2), "b": 4.0}, 1.0, names={"a": 2, "b": 1}, dtype=float)
    assert fn.sample(random.key(0))[2] == 4.0
    np.testing.assert_array_equal(fn.vector({"a": np.zeros((3, 2)), "b": np.arange(3.0)})[:, 2], np.arange(3.0))
    np.testing.assert_array_equal(fn.vector({"a": np.zeros(2), "b": 1}), fn.vector({"a": np.zeros(2), "b": [1]}))


def test_a_jax_simulator_has_the_arrays_that_are_declared():
    fn = lambda key, t: {"a": t * jnp.ones(2), "b": t}  # noqa: E731
    for names in (None, {"a": 2, "b": ()}, {"a": 2, "b": 1}, ("a", "b")):
        assert Simulator(fn, 1.0, names=names).labels[:2] == ("a[0]", "a[1]")


# plates and event_dims


def numpy_sum(rng, theta):
    return np.array([np.sum(theta), rng.uniform()])


def grouped(theta_shape, event_dims, plates):
    theta = jnp.arange(np.prod(theta_shape)).reshape(theta_shape)
    with numpyro.plate_stack("p", plates):
        return numpyro.sample("x", Simulator(numpy_sum, theta, event_dims=event_dims, shape=2, dtype=np.float64))


@pytest.mark.parametrize(
    ("theta_shape", "event_dims", "plates"),
    [
        ((3,), None, (20,)),  # iid draws of one parameter
        ((3,), 1, (3,)),
        ((20, 3), 1, (20,)),  # groups
        ((20,), 0, (20,)),
        ((1, 3), 1, (20,)),
        ((20, 3), 1, (7, 20)),  # groups, each with 7 draws
        ((7, 1, 3), 1, (7, 20)),
        ((3,), None, (7, 20)),
        ((20,), None, (20,)),  # as event_dims=0
        ((20, 3), None, (20,)),
        ((20,), None, (7, 20)),
        ((7, 1), None, (7, 20)),
    ],
)
def test_plates_make_one_call_for_each_element(theta_shape, event_dims, plates):
    trace = handlers.trace(handlers.seed(grouped, 0)).get_trace(theta_shape, event_dims, plates)
    fn, x = trace["x"]["fn"], trace["x"]["value"]
    assert fn.batch_shape == plates and x.shape == (*plates, 2)
    assert len(np.unique(x[..., 1])) == np.prod(plates)
    theta = fn.params[0]
    sums = theta if fn.call_shapes == ((),) else theta.sum(axis=-1)
    np.testing.assert_array_equal(x[..., 0], np.broadcast_to(sums, plates))


def test_what_may_run_along_a_plate_needs_event_dims_outside_of_it():
    for shape, plates in (((20,), (20,)), ((20, 3), (20,)), ((7, 1), (7, 20)), ((7, 3), (7, 1))):
        with pytest.raises(ValueError, match=r"has shape .* calls, so it is not clear .* for each parameter"):
            Simulator(numpy_sum, jnp.zeros(shape), shape=2).expand(plates)


def test_a_mask_inside_a_plate_does_not_hide_the_simulator_from_it():
    def masked(theta, event_dims=None):
        mask = jnp.arange(4) > 0
        with numpyro.plate("n", 4), handlers.mask(mask=mask), handlers.mask(mask=jnp.array(True)):
            numpyro.sample("x", BlackBox(theta, event_dims=event_dims))

    assert handlers.trace(handlers.seed(masked, 0)).get_trace(jnp.zeros((4, 3)))["x"]["fn"].batch_shape == (4,)
    fn = handlers.trace(handlers.seed(masked, 0)).get_trace(jnp.zeros((4, 3)), 1)["x"]["fn"]
    assert fn.batch_shape == (4,) and isinstance(fn.base_dist, Simulator)
    np.testing.assert_array_equal(fn._mask, [False, True, True, True])


# what works with NumPyro


def test_predictive_condition_substitute_uncondition():
    serial = Predictive(model, num_samples=6)(random.key(0))
    parallel = Predictive(model, num_samples=6, parallel=True)(random.key(0))
    for name in ("theta", "x"):
        np.testing.assert_allclose(serial[name], parallel[name], rtol=1e-5, atol=1e-6)
    assert serial["x"].shape == (6, 2)

    seeded = handlers.seed(model, 0)
    trace = handlers.trace(handlers.condition(seeded, {"x": X})).get_trace()
    assert trace["x"]["is_observed"] and np.array_equal(trace["x"]["value"], X)
    trace = handlers.trace(handlers.substitute(seeded, {"x": X})).get_trace()
    assert not trace["x"]["is_observed"] and np.array_equal(trace["x"]["value"], X)
    trace = handlers.trace(handlers.uncondition(seeded)).get_trace(X)
    assert not trace["x"]["is_observed"] and trace["x"]["value"].shape == (2,)


def test_mask_and_scale():
    masked = handlers.mask(handlers.scale(handlers.seed(model, 0), 2.0), False)
    density, trace = log_density(masked, (X,), {}, {})
    assert float(density) == 0.0 and isinstance(trace["x"]["fn"], dist.MaskedDistribution)
    with pytest.raises(NotImplementedError, match="`noisy_sum` is a simulator"):
        log_density(handlers.mask(handlers.seed(model, 0), jnp.array(True)), (X,), {}, {})


@pytest.mark.parametrize("x", [None, X], ids=["simulated", "observed"])
def test_the_graph_of_the_model_has_the_right_edges(x):
    relations = get_model_relations(model, model_args=(x,))
    assert relations["sample_sample"]["x"] == ["theta"] and relations["sample_dist"]["x"] == "Simulator"
    assert get_dependencies(model, model_args=(x,))["prior_dependencies"]["x"] == {"theta": set(), "x": set()}
    assert "theta -> x" in render_model(model, model_args=(x,)).source


# what has no density says so


def guide(x=None):
    numpyro.sample("theta", dist.Normal(numpyro.param("m", jnp.zeros(3)), 1.0).to_event(1))


def nuts():
    MCMC(NUTS(model), num_warmup=2, num_samples=2, progress_bar=False).run(random.key(0), X)


def svi():
    SVI(model, guide, numpyro.optim.Adam(0.1), Trace_ELBO()).run(random.key(0), 2, X, progress_bar=False)


@pytest.mark.parametrize(
    "evaluate",
    [
        nuts,
        svi,
        lambda: log_density(model, (X,), {}, {"theta": jnp.zeros(3)}),
        lambda: log_likelihood(model, {"theta": jnp.zeros((4, 3))}, X),
        lambda: jax.jit(lambda t: log_density(model, (X,), {}, {"theta": t})[0])(jnp.zeros(3)),
    ],
    ids=["NUTS", "SVI", "log_density", "log_likelihood", "jit"],
)
def test_a_density_is_refused_with_the_name_of_the_simulator(evaluate):
    with pytest.raises(NotImplementedError) as caught:
        evaluate()
    sentence = str(caught.value)
    assert sentence.startswith("`noisy_sum` is a simulator")
    assert "handlers.surrogate(model, {site: fitted})" in sentence and "KELFI(model)" in sentence


# bad input


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Simulator(3.0, 1.0), "first argument of Simulator must be a function; got 3.0"),
        (lambda: Simulator(noisy_sum), "`noisy_sum` has no parameter"),
        (lambda: Simulator(numpy_normal, 1.0, dtype=float), "no shape. Give a NumPy simulator both, shape=\\(\\)"),
        (lambda: Simulator(numpy_normal, 1.0), r"could not trace simulator `numpy_normal`.*passing shape"),
        (lambda: Simulator(lambda k, t: (t, t), 1.0), "must return one array"),
        (lambda: Simulator(lambda k, t: t * 1j, 1.0), "dtype complex64; it must return at least one real number"),
        (lambda: Simulator(lambda k, t: jnp.zeros(0), 1.0), r"shape \(0,\)"),
        (lambda: Simulator(noisy_sum, jnp.zeros(3), event_dims=2), r"event_dims=2 for parameters of shapes \[\(3,\)\]"),
        (lambda: Simulator(noisy_sum, jnp.zeros(3), event_dims=(1, 0)), "one number for each parameter"),
        (lambda: Simulator(two_arrays, 1.0, names=("quantiles", "extremes"), shape=5), "with their lengths, names="),
        (lambda: Simulator(two_arrays, 1.0, names={"quantiles": 3}, shape=5), "declares 3 numbers"),
        (lambda: Joined(lambda rng, t: {"a": t}, ("a",), ((2,),))(0, 1.0), "declares entries of the shapes"),
        (lambda: Simulator(noisy_sum, jnp.zeros(4), jnp.ones(5), event_dims=0), r"\[\(4,\), \(5,\)\]; these must"),
        (lambda: Simulator(noisy_sum, jnp.zeros(4), event_dims=0).expand((5,)), r"\(4,\), does not expand to \(5,\)"),
    ],
)
def test_bad_input_is_explained(make, sentence):
    with pytest.raises((ValueError, TypeError), match=f"(?s){sentence}"):
        make()


def of_sites(key, theta):
    """A simulator that is a NumPyro model itself."""
    with handlers.seed(rng_seed=key):
        a = numpyro.sample("a", dist.Normal(theta, 1.0))
        numpyro.deterministic("twice", 2.0 * a)
        return numpyro.sample("x", dist.Normal(a, 0.5))


def test_sites_of_a_simulator_are_not_those_of_the_model():
    def model(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", Simulator(of_sites, theta), obs=x)

    for x in (None, 1.0):
        assert list(handlers.trace(handlers.seed(model, 0)).get_trace(x)) == ["theta", "x"]
    alone = Simulator(of_sites, 2.0).sample(random.key(1))
    np.testing.assert_allclose(alone, of_sites(random.key(1), 2.0), rtol=1e-6)
    with pytest.raises(ValueError, match=r"`<lambda>` .* AssertionError\. Sites of NumPyro in it need handlers\.seed"):
        handlers.seed(lambda: Simulator(lambda k, t: numpyro.sample("a", dist.Normal(t, 1.0)), 1.0), 0)()


def test_numpys_own_random_numbers_are_refused_in_a_jax_simulator():
    fixed = lambda key, theta: theta + random.normal(key) + np.random.default_rng(0).normal()  # noqa: E731
    Simulator(fixed, 1.0)
    with pytest.raises(ValueError, match="draws random numbers of NumPy, which JAX would keep for all simulations"):
        Simulator(lambda key, theta: theta + random.normal(key) + np.random.normal(), 1.0)  # noqa: NPY002
    beside_the_key = lambda key, theta: theta + random.normal(key) + np.random.default_rng().normal()  # noqa: E731
    for fn in (beside_the_key, jax.jit(beside_the_key)):
        with pytest.raises(ValueError, match="draws random numbers of NumPy, which JAX would keep for all simulations"):
            Simulator(fn, 1.0)
    seeds_them_itself = lambda key, theta: theta + np.random.RandomState(0).normal() + random.normal(key)  # noqa: E731
    Simulator(seeds_them_itself, 1.0)


def test_an_unhashable_simulator_is_explained():
    class Settings:
        __hash__ = None

        def __call__(self, key, theta):
            return theta

    with pytest.raises(TypeError, match=r"`Settings` cannot be hashed.*frozen=True"):
        Simulator(Settings(), 1.0)


def test_numpy_simulators_give_floats_unless_they_say_otherwise():
    assert Simulator(numpy_normal, 1.0, shape=3).dtype == Simulator(numpy_normal, 1.0, shape=3, dtype=float).dtype


def test_arguments_have_the_names_of_the_signature():
    theta = jnp.zeros(2)
    dictionary = lambda rng, theta, scale: {"a": 0.0}  # noqa: E731
    for fn, settings in ((noisy_sum, {}), (jax.jit(noisy_sum), {}), (dictionary, {"names": ["a"], "dtype": float})):
        assert Simulator(fn, theta, 2.0, **settings).argument_names == ("theta[0]", "theta[1]", "scale")
    assert Simulator(partial(noisy_sum, scale=2.0), theta).parameters == ["theta"]
    assert Simulator(FromNoise(lambda noise, R0: R0 + noise, dist.Normal(0.0, 1.0)), 1.0).argument_names == ("R0",)
    unnamed = Simulator(lambda key, *params: noisy_sum(key, *params), theta, 2.0)
    assert unnamed.argument_names == ("arguments[0][0]", "arguments[0][1]", "arguments[1]")
    assert Simulator(noisy_sum, theta).labels_at("y") == ("y[0]", "y[1]")
