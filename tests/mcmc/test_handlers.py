"""The surrogate handler with a stand-in density whose posterior is known, and un-observing simulators."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import HMCECS, MCMC, NUTS, SVI, Predictive, Trace_ELBO, autoguide, log_likelihood
from numpyro.infer.inspect import get_model_relations
from numpyro.infer.util import log_density
from scipy import stats

from numpyro_kme.engines import KELFI
from numpyro_kme.kernels import Gaussian
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.distribution import FittedLikelihood, KernelMeansLikelihood, fit_likelihood
from numpyro_kme.likelihoods.extrapolation import Region
from numpyro_kme.likelihoods.published.form import KernelMeans
from numpyro_kme.likelihoods.published.learning import Hyperparameters
from numpyro_kme.mcmc.chain_checks import SurrogateCheck, check_surrogate
from numpyro_kme.mcmc.handlers import surrogate, uncondition_simulators
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.simulator import Simulator

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as az


def shifted(key, theta):
    return theta + random.normal(key, (2,))


def normal(theta):
    return dist.Normal(theta, 1.0).to_event(1)


SIMULATED = functools.partial(Simulator, shifted)


def model(x=None, y=None, fn=SIMULATED):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("x", fn(theta), obs=x)
    with numpyro.plate("visits", 3):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


X, Y = jnp.array([2.0, -1.0]), jnp.array([0.5, 1.0, 1.5])
SMODEL, exact = surrogate(model, {"x": normal}), functools.partial(model, fn=normal)


def same_density(a, b, args, params):
    left, right = jax.jit(lambda at: [log_density(model, args, {}, at)[0] for model in (a, b)])(params)
    np.testing.assert_allclose(left, right, rtol=1e-12)
    return float(left)


@pytest.fixture(scope="module")
def mcmc():
    mcmc = MCMC(NUTS(SMODEL), num_warmup=200, num_samples=1000, progress_bar=False)
    mcmc.run(random.key(0), X, Y)
    return mcmc


def test_the_density_is_that_of_the_model_written_out():
    theta, b = np.array([0.3, -0.7]), 0.2
    found = same_density(SMODEL, exact, (X, Y), {"theta": jnp.asarray(theta), "b": jnp.asarray(b)})
    terms = [stats.norm.logpdf(theta), stats.norm.logpdf(b), stats.norm.logpdf(X, theta), stats.norm.logpdf(Y, b)]
    np.testing.assert_allclose(found, sum(term.sum() for term in terms), rtol=5e-6)


def test_nuts_finds_the_known_posterior(mcmc):
    samples = mcmc.get_samples()
    # theta | x is N(x/2, 1/2) and b | y is N(sum(y)/4, 1/4); 5 standard errors at 400 effective draws
    np.testing.assert_allclose(samples["theta"].mean(0), X / 2, atol=5 * np.sqrt(0.5 / 400))
    np.testing.assert_allclose(samples["theta"].var(0), 0.5, atol=5 * 0.5 * np.sqrt(2 / 400))
    np.testing.assert_allclose(samples["b"].mean(), 0.75, atol=5 * np.sqrt(0.25 / 400))


def test_arviz_takes_the_run_as_it_is(mcmc):
    idata = az.from_numpyro(mcmc, log_likelihood=True)
    np.testing.assert_array_equal(idata["observed_data"]["x"].values, X)
    theta = np.asarray(mcmc.get_samples()["theta"])
    expected = stats.norm.logpdf(X, theta).sum(-1)
    np.testing.assert_allclose(np.asarray(idata["log_likelihood"]["x"])[0], expected, rtol=2e-6)


def test_predictive_still_simulates(mcmc):
    samples = {name: np.asarray(value)[:7] for name, value in mcmc.get_samples().items()}
    draws = jax.jit(lambda key: [Predictive(any_model, samples)(key)["x"] for any_model in (SMODEL, model)])
    through, direct = draws(random.key(1))
    np.testing.assert_array_equal(through, direct)
    trace = handlers.trace(handlers.seed(SMODEL, 0)).get_trace()
    assert isinstance(trace["x"]["fn"], Simulator)


@pytest.mark.smoke
def test_condition_inside_works_and_outside_is_explained():
    params = {"theta": jnp.zeros(2), "b": jnp.array(0.0)}
    inside = surrogate(handlers.condition(model, {"x": X, "y": Y}), {"x": normal})
    same_density(inside, lambda: exact(X, Y), (), params)
    with pytest.raises(NotImplementedError, match=r"is a simulator.*around `condition`"):
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
        site("joint", Simulator(shifted, eta, event_dims=1).to_event(1).mask(True), eta + 1.0, normal(eta).to_event(1))

    return run


@pytest.mark.slow
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
        ({"z": normal}, (), r"`likelihoods` names \['z'\], but the model has the simulator sites \['x'\]"),
        ({"x": normal, "y": normal}, (X, Y), r"names \['y'\]"),
        ({"z": normal}, (X, Y), "Site 'x' is an observed simulator without a likelihood"),
        ({"x": lambda t: dist.Normal(t, 1.0)}, (X, Y), r"event shape \(\), the simulator `shifted` has \(2,\)"),
        ({"x": lambda t: normal(t).expand([5])}, (X, Y), r"batch shape \(5,\)"),
        ({"x": lambda t: t}, (X, Y), "must be a distribution of NumPyro"),
    ],
)
def test_likelihoods_that_do_not_fit_are_explained(likelihoods, args, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        handlers.seed(surrogate(model, likelihoods), 0)(*args)
    assert numpyro.primitives._PYRO_STACK == []


@pytest.mark.parametrize(
    ("likelihoods", "shown"), [(None, "NoneType"), ({}, "dict"), ({"x": 3.0}, "{'x': 'float'}"), (normal, "function")]
)
def test_likelihoods_must_be_functions(likelihoods, shown):
    with pytest.raises(ValueError, match=f"`likelihoods` must be a dictionary.*got {shown}"):
        surrogate(model, likelihoods)


def test_unconditioning_simulators_alone():
    samples = {"theta": jnp.zeros((4, 2)), "b": jnp.zeros(4)}
    free = Predictive(uncondition_simulators(model), samples)(random.key(0), X, Y)
    assert free["x"].shape == (4, 2) and len(np.unique(free["x"])) == 8
    np.testing.assert_array_equal(free["y"], np.tile(Y, (4, 1)))
    trace = handlers.trace(handlers.seed(uncondition_simulators(model), 0)).get_trace(X, Y)
    assert not trace["x"]["is_observed"] and trace["y"]["is_observed"]
    seeded_inside = handlers.trace(uncondition_simulators(handlers.seed(model, 0))).get_trace(X, Y)
    assert np.ptp(seeded_inside["x"]["value"]) > 0.0


def test_engines_of_both_kinds_can_share_a_model():
    both = uncondition_simulators(surrogate(model, {"x": normal}))
    trace = handlers.trace(handlers.seed(both, 0)).get_trace(X, Y)
    assert trace["x"]["is_observed"] and not isinstance(trace["x"]["fn"], Simulator)


@register
class NormalAt(LikelihoodAt):
    """N(y; location, scale) as a function of coordinates, for arguments (location (2,), log scale)."""

    coordinates: Coordinates
    y: jax.Array

    @property
    def data(self):
        return self.y

    def signed_log(self, z):
        value = self.log_density(z)
        return jnp.ones_like(value), value

    def log_density(self, z):
        knots = jnp.asarray(self.coordinates.scores.knots)
        arguments = knots.mean(axis=1) + 0.5 * (knots[:, 1] - knots[:, 0]) * jnp.asarray(z)
        return dist.Normal(arguments[..., :2], jnp.exp(arguments[..., 2:])).log_prob(jnp.asarray(self.y)).sum(-1)


@register
class ExactSurrogate(Surrogate):
    coordinates: Coordinates

    region = Region.of(np.zeros((3, 3)), np.ones(3))

    def at(self, y):
        return NormalAt(self.coordinates, y if isinstance(y, jax.core.Tracer) else np.asarray(y, np.float64))

    def at_rows(self, rows, axes=1):
        return self.at(rows)

    def describe(self):
        return {}


TABLE = np.random.default_rng(1).normal(size=(50, 3))
EXACT = FittedLikelihood(ExactSurrogate(Coordinates.standardise(TABLE)), Coordinates.standardise(TABLE), (2,), TABLE)


def scaled(key, location, log_scale):
    return location + jnp.exp(log_scale) * random.normal(key, (2,))


def hierarchy(density):
    """Groups pooled, covariates, a mask, replicates, independent draws, a second site, an ordinary likelihood."""

    def fn(location, log_scale, dims):
        if density:
            return dist.Normal(location, jnp.exp(log_scale)[..., None]).to_event(1)
        return Simulator(scaled, location, log_scale, event_dims=dims)

    def run(covariate, groups=None, replicates=None, draws=None, counts=None):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        log_scale = numpyro.sample("log_scale", dist.Normal(0.0, 0.3))
        with numpyro.plate("g", 4):
            eta = numpyro.sample("eta", dist.Normal(mean, spread))
            location = eta[:, None] + covariate[:, None] * jnp.array([[0.0, 1.0]])
            with handlers.mask(mask=jnp.array([True, True, False, True])):
                numpyro.sample("groups", fn(location, log_scale, (1, 0)), obs=groups)
            numpyro.sample("counts", dist.Poisson(jnp.exp(eta)), obs=counts)
            with numpyro.plate("r", 3):
                numpyro.sample("replicates", fn(location, log_scale, (1, 0)), obs=replicates)
        with numpyro.plate("n", 5), handlers.scale(scale=0.5):
            numpyro.sample("draws", fn(jnp.stack([mean, spread]), log_scale, (1, 0)), obs=draws)

    return run


LEARNT = surrogate(hierarchy(False), {"groups": EXACT, "replicates": EXACT, "draws": EXACT})
DATA = (
    jnp.linspace(-1.0, 1.0, 4),
    *(random.normal(random.key(i), shape) for i, shape in enumerate([(4, 2), (3, 4, 2), (5, 2)])),
    jnp.array([0, 2, 1, 4]),
)
LATENTS = {"mean": 0.3, "spread": 0.8, "log_scale": -0.2, "eta": np.array([0.1, -0.4, 0.9, 0.2])}
LATENTS = jax.tree.map(jnp.asarray, LATENTS)


@jax.numpy_rank_promotion("allow")  # NumPyro's own Normal under plates
def test_one_likelihood_of_single_calls_serves_plates_of_groups_and_of_draws():
    def scored(model):
        density = lambda eta: log_density(model, DATA, {}, LATENTS | {"eta": eta})[0]  # noqa: E731
        return jax.jit(jax.value_and_grad(density))(LATENTS["eta"])

    (ours, our_slope), (theirs, slope) = scored(LEARNT), scored(hierarchy(True))
    np.testing.assert_allclose(ours, theirs, rtol=5e-6)
    np.testing.assert_allclose(our_slope, slope, rtol=5e-6)
    traced = jax.jit(lambda *data: log_density(LEARNT, data, {}, LATENTS)[0])(*DATA)
    np.testing.assert_allclose(traced, theirs, rtol=5e-6)


@pytest.mark.x64
@jax.numpy_rank_promotion("allow")
def test_log_likelihood_has_the_dimensions_of_the_plates():
    samples = {name: np.float64(np.stack([value, value + 0.1])) for name, value in LATENTS.items()}
    covariate, *data, counts = (np.asarray(a) if a.dtype.kind == "i" else np.float64(a) for a in DATA)
    found = jax.jit(lambda at: log_likelihood(LEARNT, at, covariate, *data, counts))(samples)
    mean, spread, scale, eta = samples["mean"], samples["spread"], np.exp(samples["log_scale"]), samples["eta"]
    location = eta[:, :, None] + covariate[:, None] * np.array([[0.0, 1.0]])
    ends = np.stack([mean, spread], axis=-1)
    expected = {
        "groups": np.array([1, 1, 0, 1]) * stats.norm.logpdf(data[0], location, scale[:, None, None]).sum(-1),
        "replicates": stats.norm.logpdf(data[1], location[:, None], scale[:, None, None, None]).sum(-1),
        "draws": stats.norm.logpdf(data[2], ends[:, None], scale[:, None, None]).sum(-1),
        "counts": stats.poisson.logpmf(counts, np.exp(eta)),
    }
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), found, expected)


@functools.cache
def learnt():
    """A likelihood learnt from 200 single calls, hyperparameters given."""
    theta = np.random.default_rng(0).normal(size=(200, 2))
    hyper = Hyperparameters(Gaussian(np.full(2, 1.5)), Gaussian(np.full(2, 1.0)), np.array(1e-3))
    x = theta + np.random.default_rng(1).normal(size=(200, 2))
    return fit_likelihood(theta, x, form=KernelMeans(hyperparameters=hyper), standard_errors=False)


def test_a_likelihood_of_other_parameters_and_one_of_whole_data_sets_are_explained():
    with pytest.raises(ValueError, match="The likelihood was learnt from 3 arguments of a simulation"):
        handlers.seed(surrogate(model, {"x": EXACT}), 0)(X, Y)
    whole = lambda theta: dist.Normal(theta, 1.0).expand([3, 2]).to_event(2)  # noqa: E731
    likelihoods = {"iid": whole, "groups": normal, "joint": normal}
    with pytest.raises(ValueError, match="make the data set one event of the simulator, outside the plate"):
        handlers.seed(surrogate(in_plates(True), likelihoods), 0)(jnp.zeros((3, 2)), jnp.zeros((4, 3, 2)))


def single(x):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", Simulator(shifted, theta), obs=x)


def test_a_site_a_factor_and_the_handler_are_one_density():
    """`KernelMeansLikelihood` written out in a model."""

    def site(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("x", KernelMeansLikelihood(learnt(), theta), obs=x)

    def factor(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.factor("x", KernelMeansLikelihood(learnt(), theta).log_prob(x))

    for theta in (jnp.array([-1.0, 0.5]), jnp.array([0.2, 0.1])):
        at = (X,), {}, {"theta": theta}
        models = site, factor, surrogate(single, {"x": learnt()})
        by_site, by_factor, by_handler = (log_density(model, *at)[0] for model in models)
        np.testing.assert_allclose(by_factor, by_site, rtol=1e-6)
        np.testing.assert_allclose(by_handler, by_site, rtol=1e-4)


@functools.cache
def residual(number=200):
    """The default form, of the same single calls."""
    theta = np.random.default_rng(0).normal(size=(number, 2))
    return fit_likelihood(theta, theta + np.random.default_rng(1).normal(size=(number, 2)), standard_errors=False)


@pytest.mark.parametrize("learnt", [learnt, residual])
def test_chains_side_by_side_have_the_density_of_single_ones(learnt):
    """As `chain_method="vectorized"` evaluates them."""
    model, theta = surrogate(single, {"x": learnt()}), jnp.array([[-1.0, 0.5], [0.2, 0.1], [3.0, -3.0]])
    density = jax.value_and_grad(lambda theta: log_density(model, (X,), {}, {"theta": theta})[0])
    for together, alone in zip(jax.vmap(density)(theta), zip(*map(density, theta))):
        np.testing.assert_allclose(together, jnp.stack(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("learnt", [learnt, residual])
def test_second_derivatives_in_single_precision(learnt):
    """Against differences of gradients, and at points where kernels coincide with simulations or vanish."""
    fitted = learnt()
    slope = jax.jit(jax.grad(lambda theta: fitted(theta).log_prob(X)))
    curvature, h = jax.jit(jax.hessian(lambda theta: fitted(theta).log_prob(X))), 0.02
    for theta in (jnp.array([0.3, -0.4]), jnp.zeros(2)):
        found = [(slope(theta + step) - slope(theta - step)) / (2.0 * h) for step in h * jnp.eye(2)]
        np.testing.assert_allclose(curvature(theta), jnp.stack(found), atol=0.02)
    assert np.isfinite(curvature(jnp.array([9.0, -9.0]))).all()


@pytest.mark.slow
@jax.numpy_rank_promotion("allow")  # as NumPyro needs it
def test_what_takes_second_derivatives_finds_the_known_posterior():
    """Laplace's approximation, and Hamiltonian Monte Carlo by subsamples with a Taylor proxy: N(n mean / (n + 1))."""

    def sampled(x, size=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("n", len(x), subsample_size=size):
            numpyro.sample("x", residual(2000)(theta), obs=numpyro.subsample(x, 1))

    x = jnp.asarray(np.random.default_rng(2).normal(0.5, 1.0, (200, 2)), jnp.float32)
    exact, sd = 200 * x.mean(axis=0) / 201, 1 / np.sqrt(201)
    guide = autoguide.AutoLaplaceApproximation(sampled)
    descent = SVI(sampled, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    params = descent.run(random.key(0), 400, x, progress_bar=False).params
    laplace = guide.sample_posterior(random.key(1), params, sample_shape=(2000,))["theta"]
    kernel = HMCECS(NUTS(sampled), num_blocks=10, proxy=HMCECS.taylor_proxy({"theta": x.mean(axis=0)}))
    chain = MCMC(kernel, num_warmup=200, num_samples=400, progress_bar=False)
    chain.run(random.key(2), x, 40)
    for found in (laplace, chain.get_samples()["theta"]):
        np.testing.assert_allclose(found.mean(axis=0), exact, atol=4.5 / np.sqrt(2000))  # of the simulations
        np.testing.assert_allclose(found.std(axis=0), sd, rtol=0.35)


def one_number(key, theta):
    return theta + 0.5 * random.normal(key)


def test_a_likelihood_of_rounds_warns_of_another_observation(tmp_path):
    def model(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", Simulator(one_number, theta), obs=x)

    engine = KELFI(model, 100, num_rounds=2, num_samples=100, standard_errors=False, progress_bar=False)
    engine.run(random.key(0), x=0.5)
    engine.likelihoods["x"].save(tmp_path / "likelihood.npz")
    for likelihood in (engine.likelihoods["x"], FittedLikelihood.load(tmp_path / "likelihood.npz")):
        learnt = surrogate(model, {"x": likelihood})
        handlers.seed(learnt, 0)(x=np.float32(0.5))
        with pytest.warns(UserWarning, match=r"near the posterior of the observation .*0.5.*is used for .*1.5"):
            handlers.seed(learnt, 0)(x=1.5)


@pytest.mark.x64
def test_a_chain_outside_the_simulations_or_where_the_surrogate_is_negative_is_noticed():
    fitted, x = learnt(), np.array([0.3, -0.4])
    smodel = surrogate(single, {"x": fitted})
    inside = check_surrogate(smodel, {"theta": 0.3 * np.random.default_rng(0).normal(size=(50, 2))}, x)["x"]
    assert inside.beyond < 0.03 and inside.negative == 0.0
    with pytest.warns(UserWarning, match="50.00% of the posterior draws lie beyond the simulated parameters"):
        half = check_surrogate(smodel, {"theta": np.array([[30.0, 0.0], [0.0, 0.0]])}, x)["x"]
    assert half.beyond == 0.5
    grid = np.stack(np.meshgrid(*[np.linspace(-3.0, 3.0, 41)] * 2), -1).reshape(-1, 2)
    signs = jax.jit(jax.vmap(lambda t: fitted.at(x).signed_log(fitted.coordinates.forward(t))[0]))(grid)
    worst = grid[np.asarray(signs) < 0]
    assert len(worst)
    with pytest.warns(UserWarning) as met:
        found = check_surrogate(smodel, {"theta": worst}, x, max_draws=10)["x"]
    assert any("surrogate at site 'x' is negative at 100% of the draws" in str(w.message) for w in met)
    assert found.negative == 1.0
    assert SurrogateCheck(0.05, 0.05).findings("x") == []  # more is worth a warning
    with pytest.raises(ValueError, match="No observed site of the model has a learnt likelihood"):
        check_surrogate(single, {"theta": worst}, x)
    with pytest.raises(ValueError, match=r"at 'theta', of shape \(2,\), it has \(3, 4, 2\). Pass `mcmc.get_samples"):
        check_surrogate(smodel, {"theta": np.zeros((3, 4, 2))}, x)
    with pytest.raises(ValueError, match="it has nothing"):
        check_surrogate(smodel, {"eta": worst}, x)
    with pytest.raises(ValueError, match=r"observation at 'x' has shape \(3,\); the simulator .* \(2,\)"):
        handlers.seed(smodel, 0)(np.zeros(3))


def around(rng_key, mean, log_sd):
    return mean + jnp.exp(log_sd) * jax.random.normal(rng_key)


def test_standard_errors_of_a_chain_are_those_of_the_same_draws_of_kelfi():
    """With draws along a plate, some masked, all scaled; the effective sizes of the draws differ."""

    def along(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("draws", 12), handlers.mask(mask=np.arange(12) < 9), handlers.scale(scale=0.5):
            numpyro.sample("x", Simulator(around, theta[0], theta[1]), obs=x)

    x = np.random.default_rng(0).normal(size=12).astype(np.float32)
    engine = KELFI(along, 150, num_rounds=1, progress_bar=False)
    engine.run(jax.random.key(0), x=x)
    found = check_surrogate(surrogate(along, engine.likelihoods), engine.get_samples(), x=x)["x"]
    sd, posterior = engine.get_samples()["theta"].std(axis=0), engine.posterior
    np.testing.assert_allclose(found.error_of_mean["theta"] / sd, posterior.error_of_mean["theta"] / sd, atol=0.02)
    np.testing.assert_allclose(found.error_of_sd["theta"], posterior.error_of_sd["theta"], atol=0.02)
    largest = max(*2.0 * found.error_of_mean["theta"] / sd, *3.0 * found.error_of_sd["theta"])
    np.testing.assert_allclose(found.off, largest, 1e-5)
    drawn = {"theta": np.repeat(engine.get_samples()["theta"][:2], 50, axis=0)}
    with pytest.warns(UserWarning, match=r"split R-hat of theta\[[01]\] is .* and 100 draws count as") as caught:
        found = check_surrogate(surrogate(along, engine.likelihoods), drawn, x=x)["x"]
    assert len(caught) == 1 and found.findings("x") == [found.told] and "not converged" in str(found)
    drawn = {"theta": np.repeat(engine.get_samples()["theta"][:1], 50, axis=0)}
    with pytest.warns(UserWarning, match="has not moved: 50 draws are the same"):
        assert not check_surrogate(surrogate(along, engine.likelihoods), drawn, x=x)["x"].error_of_mean
