"""What users do without a thought: kinds of arrays, handlers, settings of JAX, slips in a model or a simulator. Each is
right, against an exact answer, or refused in one sentence."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from scipy import stats

import numpyro_kme as kme
from numpyro_kme.kernels import Gaussian

KEY = random.key(0)
QUIET = dict(num_samples=200, progress_bar=False)


def noisy(rng_key, theta):
    return theta + 0.5 * random.normal(rng_key, jnp.shape(theta))


def model(x=None):
    numpyro.sample("x", kme.Simulator(noisy, numpyro.sample("theta", dist.Normal(0.0, 1.0))), obs=x)


def nearest(model, *args, **kwargs):
    engine = kme.RejectionABC(model, 300, quantile=0.1, **QUIET)
    engine.run(KEY, *args, **kwargs)
    return engine


def learnt(model, *args, **kwargs):
    engine = kme.KELFI(model, 200, num_rounds=1, **QUIET)
    engine.run(KEY, *args, **kwargs)
    return engine


def with_counts(x, z):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("n", 3):
        numpyro.sample("z", dist.Normal(theta, 1.0), obs=z)
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


class Column:
    """A column of a table, such as pandas has: an array by `__array__` alone."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


Z = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.mark.parametrize("kind", [lambda z: z.astype(">f8"), np.longdouble, lambda z: z.astype(jnp.bfloat16), Column])
def test_numbers_in_any_type_are_the_same_numbers(kind):
    """For a simulator, beside it, and in a likelihood outside of engines."""
    problem = kme.Problem.read(with_counts, x=kind(Z)[0] if kind is not Column else 1.0, z=kind(Z))
    expected = kme.Problem.read(with_counts, x=1.0, z=Z)
    points = {"theta": np.array([0.3, 0.7], np.float32)}
    np.testing.assert_allclose(problem.pointwise(points)["z"], expected.pointwise(points)["z"], rtol=1e-6)
    assert problem.observations["x"] == 1.0


def test_a_learnt_likelihood_takes_them_too(rng):
    theta = rng.normal(size=(40, 1))
    fitted = kme.fit_likelihood(theta, theta[:, 0] + 0.5 * rng.normal(size=40))
    expected = fitted(0.5).log_prob(Z)
    for value in (Z.astype(">f8"), Z.tolist(), Column(Z)):
        np.testing.assert_array_equal(fitted(0.5).log_prob(value), expected)
    with pytest.raises(ValueError, match="`x` has 1 entries that are not finite"):
        kme.fit_likelihood(theta, np.ma.array(theta[:, 0], mask=np.arange(40) == 3))
    with pytest.raises(ValueError, match="`x` has 1 entries that are not finite"):
        kme.Simulations.from_table(theta, np.ma.array(theta[:, 0], mask=np.arange(40) == 3))


def test_what_is_masked_was_not_observed(rng):
    x, y = rng.normal(size=(100, 2)), np.ma.array([0.0, 99.0], mask=[False, True])
    masked, missing = (kme.diagnostics.misspecification_test(x, one) for one in (y, np.array([0.0, np.nan])))
    assert masked.p_value == missing.p_value > 0.05
    rows = np.ma.array(x, mask=np.arange(200).reshape(100, 2) == 3)
    with pytest.raises(ValueError, match="`points` has 1 entries that are not finite"):
        kme.embeddings.MeanEmbedding(Gaussian(1.0), rows)
    for use in (kme.kernels.median_heuristic, lambda x: kme.abc.DistributionRegression.fit(Gaussian(1.0), x, x.data)):
        with pytest.raises(ValueError, match="`x` has 1 entries that are not finite"):
            use(rows)
    with pytest.raises(ValueError, match="`x` has 1 entries that are not finite"):
        made = kme.Simulations({"x": x[:, :1]}, {"x": rows[:, 1]}, {"theta": x[:, 0]})
        kme.KELFI(model, simulations=made, **QUIET).run(KEY, x=0.5)
    with pytest.raises(ValueError, match=r"'z' is a NumPy masked array, .* put numpyro.handlers.mask around it"):
        learnt(with_counts, 1.0, np.ma.array(Z, mask=[False, True, False]))


OFFSET = 2.4e8


def since_long_ago(rng_key, theta):
    return OFFSET + noisy(rng_key, theta)


def numpy_since_long_ago(rng, theta):
    return OFFSET + theta + 0.5 * rng.normal()


def dated(x=None, fn=since_long_ago, **kinds):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(fn, theta, **kinds), obs=x)


def test_an_offset_that_takes_the_digits_of_the_data():
    """Steps of single precision are 16 there, and numbers vary by 1: simulated, observed, or both."""
    black_box, lost = dict(fn=numpy_since_long_ago, shape=(), dtype=float), "steps of about 29. Subtract the offset"
    for run in (nearest, learnt):
        for x, kinds in ((OFFSET + 1.2, {}), (jnp.array(OFFSET + 1.2), black_box)):
            with pytest.raises(ValueError, match=lost):
                run(dated, x=x, **kinds)
    found = nearest(dated, x=OFFSET + 1.2, **black_box).get_samples()["theta"].mean()
    assert abs(found - 0.96) < 0.5  # N(.96, .45^2), by thirty draws
    theta = np.linspace(0.0, 1.0, 50)[:, None]
    with pytest.raises(ValueError, match=lost):
        kme.fit_likelihood(theta, np.float32(OFFSET) + 99 * theta.astype(np.float32))

    def data(x):
        with numpyro.plate("n", 20):
            numpyro.sample("x", dist.Normal(numpyro.sample("theta", dist.Normal(OFFSET, 1.0)), 1.0), obs=x)

    def since_then(x):
        theta = numpyro.sample("theta", dist.Normal(OFFSET, 1.0))
        numpyro.sample("x", kme.Simulator(noisy, theta - OFFSET), obs=x)

    for run in (nearest, learnt):
        with pytest.raises(ValueError, match="the prior draws of 'theta' .*" + lost):
            run(since_then, x=0.3)
    with pytest.raises(ValueError, match=lost):
        kme.PosteriorBootstrap(data, progress_bar=False).run(KEY, x=OFFSET + np.arange(20.0))


def test_an_observation_that_would_count_several_times_is_refused():
    """(3, 1) under a plate of 3 is a table of nine numbers to NumPyro, whose posterior is far too narrow."""
    with pytest.raises(ValueError, match=r"'z' has shape \(3, 1\) and its distribution \(3,\)"):
        learnt(with_counts, 1.0, Z[:, None])


def test_a_mask_of_the_observation_is_nan_in_it():
    def masked(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("n", 3):
            numpyro.sample("x", kme.Simulator(noisy, theta), obs=x, obs_mask=np.array([True, False, True]))

    with pytest.raises(ValueError, match="`obs_mask` makes such sites: put NaN"):
        learnt(masked, Z)


def test_a_dictionary_for_a_simulator_without_names():
    with pytest.raises(ValueError, match="Its output has no names: pass an array"):
        nearest(model, x={"mean": 1.0})


@pytest.mark.parametrize("names", [("mean", "sd"), ()])
@pytest.mark.parametrize("form", [kme.ResidualKernelMeans(), kme.KernelMeans()])
def test_a_learnt_likelihood_asks_for_the_numbers_of_a_dictionary_in_its_order(rng, names, form):
    theta = rng.normal(size=(40, 1))
    fitted = kme.fit_likelihood(theta, theta + rng.normal(size=(40, 2)), names=names, form=form)
    order = r", \['mean', 'sd'\]: jnp" if names else "dictionary: jnp"
    for use in (fitted(0.5).log_prob, fitted(0.5).observing, lambda x: numpyro.sample("x", fitted(0.5), obs=x)):
        with pytest.raises(TypeError, match=order), numpyro.handlers.trace() as trace:
            use({"sd": 1.0, "mean": 0.0})
            trace["x"]["fn"].log_prob(trace["x"]["value"])


def of_data(x):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.deterministic("residual", x - theta)
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


@pytest.mark.parametrize("run", [nearest, learnt])
def test_deterministic_sites_follow_the_data(run):
    engine = run(of_data, x=1.2)
    posterior = engine.condition(KEY, x=-1.0)
    samples = posterior.get_samples()
    np.testing.assert_allclose(samples["residual"], -1.0 - samples["theta"], rtol=1e-5, atol=1e-6)
    mean = posterior.expectation(lambda sites: sites["residual"] + sites["theta"])
    np.testing.assert_allclose(mean, -1.0, rtol=1e-5)
    prior = posterior.groups["prior"]
    np.testing.assert_allclose(prior["residual"], -1.0 - prior["theta"], rtol=1e-5, atol=1e-6)


def test_deterministic_sites_of_a_store_follow_the_data(tmp_path):
    for x in (1.2, -1.0):
        problem = kme.Problem.read(of_data, x=x)
        found = kme.simulate(KEY, problem, 5, store=tmp_path / "store", progress_bar=False)
        np.testing.assert_allclose(found.deterministics["residual"], x - found.latents["theta"], rtol=1e-5)


def test_draws_without_a_plate():
    """`expand` makes calls as a plate does."""
    y = np.array([1.2, 0.3, -0.5, 0.9, 1.6], np.float32)

    def expanded(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(noisy, theta).expand([5]).to_event(1), obs=x)

    def plated(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("n", 5):
            numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)

    found, expected = (learnt(one, y) for one in (expanded, plated))
    np.testing.assert_allclose(found.get_samples()["theta"], expected.get_samples()["theta"], rtol=1e-5)
    tests = [kme.diagnostics.misspecification_test(one).p_value for one in (found, expected)]
    assert tests[0] == tests[1]


def sign(rng_key, theta):
    return theta + random.normal(rng_key) > 0


def test_truth_values():
    """Of N(0, 1), given that theta and N(0, 1) have a positive sum: a mean of 1 / sqrt(pi)."""

    def signs(x=None):
        numpyro.sample("x", kme.Simulator(sign, numpyro.sample("theta", dist.Normal(0.0, 1.0))), obs=x)

    engine = learnt(signs, x=True)
    assert abs(engine.get_samples()["theta"].mean() - 1 / np.sqrt(np.pi)) < 0.4


def black_box(fn, **kinds):
    def boxed(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(fn, theta, **{"shape": ()} | kinds), obs=x)

    return boxed


def test_outputs_that_their_type_cannot_hold_are_refused():
    """NumPy would count on from the other end."""
    counts = black_box(lambda rng, theta: rng.poisson(300.0), dtype=np.int8)
    with pytest.raises(ValueError, match=r"returned \d+, which int8 cannot hold"):
        kme.simulate(KEY, counts, 2, progress_bar=False)
    many = kme.Simulator(lambda rng, theta: 3 * 10**9, 0.0, shape=(), dtype=int)
    with pytest.raises(Exception, match="3000000000, which int32 cannot hold"):
        np.asarray(many.sample(KEY))


def test_outputs_that_are_masked_are_failures():
    masked = black_box(lambda rng, theta: np.ma.array([theta, 99.0], mask=[False, theta > 0]), shape=(2,))
    found = kme.simulate(KEY, masked, 50, on_failure="skip", progress_bar=False)
    assert (found.latents["theta"] <= 0).all() and found.failures == {"x: not finite": found.attempted - len(found)}


def probit(rng_key, theta):
    first, second = random.split(rng_key)
    return jnp.where(random.normal(first) < theta, noisy(second, theta), jnp.nan)


def runs(x):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("n", len(x)):
        numpyro.sample("x", kme.Simulator(probit, theta), obs=x)


@pytest.mark.parametrize(
    "kind, number, calls", [(kme.KELFI, 1200, 3), (kme.KernelBayes, 3000, 1), (kme.KernelABC, 3000, 1)]
)
def test_skipped_failures_mean_the_prior_given_success(kind, number, calls):
    """N(theta | 0, 1) Phi(theta)^n N(x_1 | theta, 1/2) ... by a grid: all calls succeed, or nothing is known."""
    x = np.array([-0.8, -0.3, -0.4], np.float32)[:calls]
    grid = np.linspace(-4.0, 4.0, 2001)
    logs = (
        stats.norm.logpdf(grid) + calls * stats.norm.logcdf(grid) + stats.norm.logpdf(x[:, None], grid, 0.5).sum(axis=0)
    )
    weights = np.exp(logs) / np.exp(logs).sum()
    mean, square = weights @ grid, weights @ grid**2
    engine = kind(runs, number, on_failure="skip", **QUIET)
    if kind is kme.KELFI:
        engine.num_rounds = 1
    engine.run(KEY, x=x)
    found = engine.posterior.expectation(lambda sites: sites["theta"])
    assert abs(found - mean) < 0.4 * np.sqrt(square - mean**2)  # the plain prior is more than .5 off
    if kind is kme.KELFI:
        fitted = engine.likelihoods["x"]
        change = fitted(0.3).log_prob(x) - replace(fitted, success=None)(0.3).log_prob(x)
        np.testing.assert_allclose(change, np.full(3, stats.norm.logcdf(0.3)), atol=0.1)


def test_the_evidence_given_success():
    """`q(y) = int N(theta | 0, 1) Phi(theta) N(y | theta, 1/2)`; a posterior in coordinates would miss the middle."""

    def run(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(probit, theta), obs=x)

    engine = kme.KELFI(run, 600, on_failure="skip", num_rounds=1, standard_errors=False, **QUIET)
    engine.run(KEY, x=np.float32(-0.8))
    grid = np.linspace(-6.0, 6.0, 2001)
    logs = stats.norm.logpdf(grid) + stats.norm.logcdf(grid) + stats.norm.logpdf(-0.8, grid, 0.5)
    exact = np.log(np.exp(logs).sum() * (grid[1] - grid[0]))
    assert abs(engine.posterior.log_marginal_likelihood() - exact) < 0.3  # 1.3 more without the probability of success
    density = np.exp(engine.posterior.log_density({"theta": grid}))
    assert abs(density.sum() * (grid[1] - grid[0]) - 1.0) < 0.1
    with pytest.raises(ValueError, match="whose calls all succeed"):
        engine.posterior.in_coordinates  # noqa: B018


def line(rng_key, a, b):
    return a - b * jnp.linspace(-3.0, 3.0, 7)


def curve(rng_key, a, b):
    return jnp.exp(a * jnp.linspace(0.0, 1.0, 6)) + b


@pytest.mark.parametrize("fn, rounds", [(line, 1), pytest.param(curve, 2, marks=pytest.mark.slow)])
def test_a_simulator_without_noise(fn, rounds):
    """Its posterior is a point: that standard errors are many sd is told, and nothing overflows."""

    def run(x):
        a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
        numpyro.sample("x", kme.Simulator(fn, a, b), obs=x)

    engine = kme.KELFI(run, 300, num_rounds=rounds, **QUIET)
    with pytest.warns(UserWarning, match="may be off by"):
        engine.run(KEY, x=fn(None, 0.4, 0.7))
    errors = engine.posterior.error_of_mean
    for name, exact in (("a", 0.4), ("b", 0.7)):
        found = engine.get_samples()[name].mean()
        assert np.isfinite(errors[name]) and (fn is curve or abs(found - exact) < 5 * errors[name] < 1e-3)


@pytest.mark.parametrize("value, kinds", [(-1.5, {"dtype": int}), (1e30, {"dtype": int}), (2.0, {"dtype": bool})])
def test_a_penalty_that_outputs_cannot_hold_is_refused(value, kinds):
    with pytest.raises(ValueError, match=r"is Penalise\(.*\), which the outputs of 'x', .*, cannot hold"):
        kme.simulate(KEY, black_box(noisy, **kinds), 5, on_failure=kme.Penalise(value), progress_bar=False)


def test_calibration_of_a_model_that_changes_its_data():
    def halved(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(noisy, theta), obs=None if x is None else x / 2)

    engine = nearest(halved, x=1.2)
    with pytest.raises(ValueError, match=r"does not observe at 'x' what is passed to it.* Pass `arguments=lambda"):
        kme.diagnostics.calibrate(KEY, engine, 5, progress_bar=False)
    kme.diagnostics.calibrate(KEY, engine, 5, arguments=lambda x: {"x": 2 * x["x"]}, progress_bar=False)


def test_the_precision_may_not_change_in_between():
    engine = nearest(model, x=1.2)
    with jax.enable_x64(True), pytest.raises(ValueError, match=r"change the prior of 'theta'.*jax_enable_x64"):
        engine.condition(KEY, x=0.3)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(60, 1))
    return kme.fit_likelihood(theta, theta[:, 0] + 0.5 * rng.normal(size=60))


def test_groups_with_trials_outside_of_plates_are_told_apart(fitted):
    x, theta = np.zeros((3, 3), np.float32), np.array([[-1.0], [0.0], [1.0]], np.float32)
    with pytest.raises(ValueError, match=r"of the shape \(3,\) or \(3, 1\).* by `in_batches\(\(3, 1\)\)`"):
        fitted(theta).log_prob(x)
    found = fitted(theta).in_batches((3, 1)).log_prob(x)
    np.testing.assert_allclose(found, np.repeat(found[:, :1], 3, axis=1), rtol=1e-6)
    for value in (0.0, x[0]):
        assert jax.eval_shape(lambda value=value: fitted(theta).log_prob(value)).shape == (3,)


def bounded(x=None):
    numpyro.sample("x", kme.Simulator(noisy, numpyro.sample("theta", dist.Uniform(0.0, 1.0))), obs=x)


def test_simulations_outside_the_prior_have_no_coordinates():
    with pytest.raises(ValueError, match=r"`latents\['theta'\]` has 2 of 3 draws outside the support"):
        learnt(bounded, x=0.5).refine(KEY, {"theta": np.array([-1.0, 0.5, 2.0])})
    with pytest.raises(ValueError, match=r"`latents\['theta'\]` has 1 of 2 draws outside the support"):
        kme.Simulations.from_latents(kme.Problem.read(bounded), {"theta": np.array([0.5, 2.0])}, np.zeros(2))


def test_names_that_are_taken():
    def named(site, x=None):
        numpyro.sample("x", kme.Simulator(noisy, numpyro.sample(site, dist.Normal(0.0, 1.0))), obs=x)

    with pytest.raises(ValueError, match="A site of the model is called 'weight'"):
        nearest(named, "weight", x=1.2)
    with pytest.raises(ValueError, match=r"ArviZ calls dimensions \['chain'\]"):
        learnt(named, "chain", x=1.2).to_inference_data()


def test_plates_name_dimensions(capsys):
    """Of latents, simulations, the observation and the log likelihood; names of one's own come before them."""

    def schools(x=None):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("school", 3):
            own = numpyro.sample("own", dist.Normal(mean, 1.0).expand([2]).to_event(1))
            numpyro.sample("x", kme.Simulator(noisy, own, event_dims=1), obs=x)

    engine = learnt(numpyro.handlers.scope(schools, prefix="here"), x=np.zeros((3, 2)))
    found = engine.to_inference_data(log_likelihood=True)
    plate, dims = "here.school", {"here.own": ("chain", "draw", "here.school", "here.own_dim_1")}
    assert {name: found["posterior"][name].dims for name in dims} == dims
    assert found["prior_predictive"]["here.x"].dims == ("chain", "draw", plate, "here.x_dim_1")
    assert found["observed_data"]["here.x"].dims == (plate, "here.x_dim_1")
    assert found["log_likelihood"]["here.x"].dims == ("chain", "draw", plate)
    found = engine.to_inference_data(dims={"here/x": ["a", "b"]}, coords={plate: ["N", "S", "W"]})
    assert found["observed_data"]["here.x"].dims == ("a", "b")
    assert list(found["posterior"][plate].values) == ["N", "S", "W"]
    capsys.readouterr()
    engine.print_summary(coords={"here/school": ["N", "S", "W"], "number": "ab"}, dims={"here/own": [plate, "number"]})
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip().startswith("here/own")]
    assert rows == [f"here/own[{school},{number}]" for school in "NSW" for number in "ab"]
    with pytest.raises(ValueError, match="`coords` has the same name twice"):
        engine.print_summary(coords={plate: ["N", "S", "S"]})
    table = engine.posterior.summary(coords={plate: ["N", "S", "W"]})
    assert "here.own[N, 0]" in table.index


def test_the_bootstrap_says_what_failed():
    engine = kme.PosteriorBootstrap(model, progress_bar=False)
    with pytest.raises(ValueError, match=r"The model `model` failed .* unexpected keyword argument 'y'"):
        engine.run(KEY, y=1.0)
