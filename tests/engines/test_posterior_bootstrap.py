"""The engine on NumPyro models: samples, constraints, losses, covariates, sentences."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive
from scipy.optimize import minimize_scalar

from numpyro_kme.bootstrap import Quadrature, fit
from numpyro_kme.engines._iid import IidModel
from numpyro_kme.engines.posterior_bootstrap import PosteriorBootstrap, warn_of
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD, Generator, Loss, NegativeLogLikelihood, NormalNoise, Wasserstein
from numpyro_kme.models.simulator import Simulator
from numpyro_kme.models.simulator_functions import FromNoise

RNG = np.random.default_rng(0)
X = np.append(RNG.normal(2.0, 1.5, 190), np.full(10, 60.0))


def scaled(noise, mean, scale):
    return mean + scale * noise


def keyed(rng_key, mean, scale):
    return mean + scale * jax.random.normal(rng_key)


DECLARED = FromNoise(scaled, dist.Normal(0.0, 1.0))


def model(x, simulator=DECLARED):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    numpyro.deterministic("ratio", mean / scale)
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", Simulator(simulator, mean, scale), obs=x)


def density(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(mean, scale), obs=x)


@pytest.fixture(scope="module")
def engine():
    engine = PosteriorBootstrap(
        model, MMD(Gaussian(1.0), fit_proportion=True), num_samples=64, num_nodes=128, num_starts=64
    )
    engine.run(jax.random.key(0), X)
    return engine


def test_samples_keep_constraints_and_resist_outliers(engine):
    samples = engine.get_samples()
    assert set(samples) == {"mean", "scale", "ratio"}
    assert samples["mean"].shape == (64,) and samples["mean"].dtype == np.float64
    assert (samples["scale"] > 0).all()
    np.testing.assert_allclose(samples["ratio"], samples["mean"] / samples["scale"], rtol=1e-10)
    clean = X[X < 50]
    assert abs(samples["mean"].mean() - clean.mean()) < 4 * clean.std() / np.sqrt(len(clean))
    assert abs(samples["scale"].mean() - clean.std()) < 5 * clean.std() / np.sqrt(len(clean))
    fields = engine.get_extra_fields()
    assert fields["converged"].all()
    assert abs(fields["mixing_proportion"].mean() - 0.95) < 0.03
    assert 0 < engine.replicates.fit.value < fields["loss"].max()


def test_point_estimate_is_the_lowest_point_of_the_landscape(engine):
    estimate = engine.mode()
    values = estimate["mean"] + np.linspace(-1.0, 1.0, 21)
    landscape = engine.posterior.landscape("mean", values)
    assert landscape.argmin() == 10
    np.testing.assert_allclose(landscape[10], engine.replicates.fit.value, rtol=1e-8)
    with pytest.raises(ValueError, match=r"`site` must be one of \['mean', 'scale'\]"):
        engine.posterior.landscape("x", [0.0])


def test_the_reported_loss_is_the_squared_mmd_at_the_best_mass(engine):
    y, v = engine.mode()["mean"], engine.replicates.nodes.weights[0]
    y = y + engine.mode()["scale"] * np.ravel(engine.replicates.nodes.values[0])

    def gram(a, b):
        return np.exp(-0.5 * (a[:, None] - b) ** 2)

    own, cross = v @ gram(y, y) @ v, v @ gram(y, X).mean(axis=1)
    expected = gram(X, X).mean() - cross**2 / own
    np.testing.assert_allclose(engine.replicates.fit.value, expected, atol=2e-4)
    assert engine.replicates.fit.value > -5 * engine.replicates.fit.numbers["loss_error"]


def test_prior_draws_of_a_density_have_all_their_digits():
    """In a session of float32 too."""
    starts = IidModel.read(density, (X,), {}).starts(jax.random.key(0), 8)
    assert starts.shape == (8, 2) and (starts != np.float32(starts)).all()


def test_results_go_to_arviz_and_predictive(engine, capsys):
    idata = engine.to_inference_data()
    assert dict(idata.posterior.sizes) == {"chain": 1, "draw": 64}
    assert {"loss", "converged", "steps", "mixing_proportion"} <= set(idata.sample_stats.data_vars)
    predictive = Predictive(model, {name: engine.get_samples()[name].astype(np.float64) for name in ("mean", "scale")})
    assert predictive(jax.random.key(1), X)["x"].shape == (64, 200)
    engine.print_summary()
    said = capsys.readouterr().out
    assert "64 of 64 replicates" in said and "noise: declared" in said


def doubled(noise, mean, scale):
    return mean + 2.0 * scale * noise


def test_losses_of_scalars_compile_little_but_the_simulator(engine, programs):
    """Of a model that is new to the process: its prior, its noise, it with its derivatives, and the way back."""
    simulator = FromNoise(doubled, dist.Normal(0.0, 1.0))
    another = PosteriorBootstrap(model, MMD(Gaussian(1.0)), num_samples=64, num_nodes=128, num_starts=64)
    another.run(jax.random.key(0), X, simulator)
    assert "jit(_scalars)" in programs and "jit(_at_points)" not in programs
    assert len(programs) <= 10, programs


def test_a_second_run_on_new_data_does_not_compile_again(engine, programs):
    generator = engine.trained.learnt.generator
    engine.run(jax.random.key(1), np.append(X[1:] + 1.0, 62.5))
    assert engine.trained.learnt.generator is generator
    assert not {"jit(_moves)", "jit(_curved)", "jit(_scalars)", "jit(_at_points)"} & {*programs}
    assert abs(engine.mode()["mean"] - X[X < 50].mean() - 1.0) < 0.5
    engine.run(jax.random.key(0), X)


def test_another_engine_for_the_same_model_does_not_compile_again(engine):
    another = replace(engine)
    another.run(jax.random.key(1), np.append(X[1:] + 1.0, 62.5))
    assert another.trained.learnt.generator is engine.trained.learnt.generator
    changed = replace(engine, concentration=2.0, centering=gaussian)
    assert changed._generator((X,), {}, None).process.concentration == 2.0


@pytest.mark.slow
def test_likelihood_and_transport_are_pulled_by_outliers_as_published():
    likelihood = PosteriorBootstrap(density, NegativeLogLikelihood(), num_samples=32, num_starts=16)
    likelihood.run(jax.random.key(0), X)
    weights_mean = likelihood.get_samples()["mean"]
    assert abs(weights_mean.mean() - X.mean()) < 5 * X.std() / np.sqrt(200 * 32) + 0.1
    np.testing.assert_allclose(likelihood.mode()["mean"], X.mean(), rtol=1e-5)
    np.testing.assert_allclose(likelihood.mode()["scale"], X.std(), rtol=1e-5)
    generator = Generator(lambda u, z: u[0] + jnp.exp(u[1]) * z[0], NormalNoise(1), 2)
    transport, starts = Wasserstein().objective(X, generator), np.random.default_rng(0).normal(size=(16, 2))
    found = fit(transport, generator.draw_nodes(jax.random.key(0), 128, 1), starts, np.ones(2))
    np.testing.assert_allclose(found.u[0], X.mean(), rtol=1e-3)


def gaussian(key, num):
    return 5.0 + jax.random.normal(key, (num,))


@pytest.mark.parametrize("guess", [dist.Normal(5.0, 1.0), gaussian], ids=["distribution", "sampler"])
def test_a_prior_guess_is_a_distribution_or_a_sampler(guess):
    engine = PosteriorBootstrap(model, concentration=200.0, centering=guess, truncation=500)
    process = engine._generator((X,), {}, None).process
    drawn = process.points(jax.random.key(2), np.arange(8), X)
    assert drawn.shape == (8, 500)
    assert abs(drawn.mean() - 5.0) < 5 / np.sqrt(4000)
    assert abs(drawn.std() - 1.0) < 5 / np.sqrt(8000)


def test_a_prior_guess_or_an_argument_that_is_changed_counts_in_the_next_run():
    engine = PosteriorBootstrap(model)
    first = engine._generator((X, DECLARED), {}, None)
    again = engine._generator((X + 1.0, DECLARED), {}, first)
    assert again.generator is first.generator
    assert engine._generator((X + 1.0, keyed), {}, first).generator is not first.generator
    engine.concentration, engine.centering = 3.0, gaussian
    assert engine._generator((X,), {}, again).process.concentration == 3.0


def own_guess(simulator, **declared):
    def own(x):
        mean = numpyro.sample("mean", dist.Normal(5.0, 0.5))
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", Simulator(simulator, mean, 2.0, **declared), obs=x)

    return own


@pytest.mark.parametrize("simulator", [DECLARED, keyed], ids=["declared noise", "key"])
def test_a_prior_guess_may_be_the_models_own_prior_predictive(simulator):
    iid = IidModel.read(own_guess(simulator), (X,), {})
    drawn = np.asarray(iid.predictive(iid.generator())(jax.random.key(2), 4000))
    sd = np.sqrt(0.25 + 4.0)
    assert drawn.shape == (4000,)
    assert abs(drawn.mean() - 5.0) < 5 * sd / np.sqrt(4000)
    assert abs(drawn.std() / sd - 1.0) < 5 / np.sqrt(8000)


class Means(Loss):
    """Half the squared difference of the means, least where the model's mean is that of the weighted points."""

    def value(self, x, w, y, v):
        return 0.5 * (w @ x - v @ y) ** 2


def test_the_prior_guess_reaches_the_fit():
    settings = dict(num_samples=8, num_nodes=128, num_starts=16, concentration=200.0, truncation=200)
    pulled = PosteriorBootstrap(own_guess(DECLARED), Means(), centering="prior predictive", **settings)
    pulled.run(jax.random.key(0), X[:190])
    reweightings, mean = pulled.replicates.reweightings, pulled.get_samples()["mean"]
    assert reweightings.extra.shape == (8, 200) and len(np.unique(reweightings.extra)) == 1600
    joined = np.concatenate([np.broadcast_to(X[:190], (8, 190)), reweightings.extra], axis=1)
    np.testing.assert_allclose(mean, np.sum(reweightings.weights * joined, axis=1), rtol=1e-6)
    # 200 of 390 parts of a guess of 5, against a mean of the data of 2
    assert abs(mean.mean() - (190 * X[:190].mean() + 200 * 5.0) / 390) < 5 * 2.5 / np.sqrt(390 / 2)


def by_steps(rng_key, mean, scale):
    """By a loop of unknown length, through which JAX has no reverse derivative."""
    end = keyed(rng_key, mean, scale)
    return jax.lax.while_loop(lambda x: jnp.abs(x - end) > 1e-6, lambda x: 0.2 * x + 0.8 * end, 0.0 * end)


def by_callback(rng_key, mean, scale):
    end = keyed(rng_key, mean, scale)
    return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((), end.dtype), end, vmap_method="broadcast_all")


def test_simulators_that_jax_cannot_differentiate_are_fitted_by_differences():
    found = [IidModel.read(own_guess(fn), (X,), {}).generator().differentiable for fn in (keyed, by_steps, by_callback)]
    assert found == [True, False, False]
    engine = PosteriorBootstrap(own_guess(by_steps), Means(), num_samples=4, num_nodes=64, num_starts=8)
    engine.run(jax.random.key(0), X[:60])
    exact = engine.replicates.reweightings.weights @ X[:60]
    np.testing.assert_allclose(engine.get_samples()["mean"], exact, atol=1e-3)
    assert "the simulator has no derivatives" in engine.info["derivatives"]


def test_kinked_losses_are_told_of_what_did_not_converge_alone():
    """The first-order move by more nodes says nothing where a replicate stopped short of its minimum."""
    engine = PosteriorBootstrap(own_guess(DECLARED), Wasserstein(1.0), num_samples=40, num_nodes=256, num_starts=8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run(jax.random.key(0), X[:60])
    said, found = " ".join(str(one.message) for one in caught), engine.replicates
    assert "of 40 replicates did not converge" in said and "doubling" not in said and "overflow" not in said
    assert len(found.quadrature.shift) == min(16, found.converged.sum())
    assert np.isnan(found.quadrature.noise) == (not found.converged.any())


def in_numpy(rng, mean, scale):
    return mean + scale * rng.normal()


@pytest.mark.parametrize("simulator", [DECLARED, keyed, in_numpy])
def test_a_warning_of_noise_says_where_it_comes_from(simulator, engine):
    noisy = replace(engine.replicates, quadrature=Quadrature(np.full((4, 2), 0.5)))
    declared = dict(shape=(), dtype=float) if simulator is in_numpy else {}
    noise = IidModel.read(own_guess(simulator, **declared), (X,), {}).noise
    with pytest.warns(UserWarning, match=r"by 0.5 posterior standard deviations. Raise `num_nodes`") as caught:
        warn_of(noisy, noise)
    assert ("runs in NumPy" in str(caught[0].message)) == (simulator is in_numpy)
    assert (noise == "1 normal a draw, lifted") == (simulator is keyed)


def line(noise, mean, scale):
    return mean + scale * noise


LINE = FromNoise(line, dist.Normal(0.0, 1.0))


def regression(c, y):
    a = numpyro.sample("a", dist.Normal(0.0, 3.0))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", Simulator(LINE, a + b * c, 0.3, event_dims=0), obs=y)


def test_covariates_are_those_of_their_rows():
    c, y = np.linspace(-2.0, 2.0, 12), np.zeros(12)
    engine = PosteriorBootstrap(regression, MMD(Gaussian(0.5), covariate_kernel=Gaussian(0.5)), covariates="c")
    generator = engine._generator((), dict(c=c, y=y), None).generator
    np.testing.assert_array_equal(np.ravel(generator.covariates), c)
    u, noise = jnp.array([1.0, 2.0]), jnp.float32(0.4)
    simulated = jax.jit(jax.vmap(lambda row: generator.simulate(u, noise, row)))(np.arange(12))
    np.testing.assert_allclose(simulated, 1.0 + 2.0 * c + 0.3 * 0.4, rtol=1e-5)
    with pytest.raises(ValueError, match="pass covariates=the name"):
        PosteriorBootstrap(regression).run(jax.random.key(0), c=c, y=y)
    for loss in (Wasserstein(), Means()):
        with pytest.raises(ValueError, match=f"{type(loss).__name__} takes no covariates. Use MMD"):
            PosteriorBootstrap(regression, loss, covariates="c").run(jax.random.key(0), c=c, y=y)


@pytest.mark.slow  # derivatives of the joint loss: test_losses; its sums: test_generalized_bayes
def test_robust_regression_compares_joint_laws():
    rng = np.random.default_rng(1)
    c = rng.uniform(-2.0, 2.0, 40)
    y = 1.0 + 2.0 * c + 0.3 * rng.normal(size=40)
    y[:4] = 15.0
    engine = PosteriorBootstrap(
        regression,
        MMD(Gaussian(0.5), covariate_kernel=Gaussian(0.5)),
        num_samples=8,
        num_nodes=240,
        num_starts=32,
        covariates="c",
    )
    engine.run(jax.random.key(0), c=c, y=y)
    samples = engine.get_samples()
    for name, truth in (("a", 1.0), ("b", 2.0)):
        assert abs(samples[name].mean() - truth) < 5 * 0.3 / np.sqrt(36)


def counts(rng, rate):
    return rng.poisson(rate)


def poisson(x):
    rate = numpyro.sample("rate", dist.LogNormal(1.0, 0.7))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", Simulator(counts, rate, shape=(), dtype=np.int64), obs=x)


@pytest.mark.slow  # differences: test_bootstrap; losses of simulators in NumPy: test_generalized_bayes
def test_black_box_counts_use_differences_and_say_so():
    x = np.random.default_rng(3).poisson(3.0, 60)
    engine = PosteriorBootstrap(poisson, MMD(Gaussian(1.5)), num_samples=4, num_nodes=32, num_starts=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine.run(jax.random.key(0), x)
    assert "differences" in engine.info["derivatives"]
    assert abs(engine.get_samples()["rate"].mean() - 3.0) < 5 * np.sqrt(3.0 / 60 + 3.0 / 32)


def no_plate(x):
    numpyro.sample("x", Simulator(DECLARED, numpyro.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=x)


def two_sites(x):
    density(x)
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=0.0)


def inside(x):
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", Simulator(DECLARED, numpyro.sample("own", dist.Normal(0.0, 1.0)), 1.0, event_dims=0), obs=x)


def two_numbers(noise, mean):
    return mean + noise


TWO = FromNoise(two_numbers, dist.Normal(0.0, 1.0).expand([2]).to_event(1))


def pairs(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", Simulator(TWO, mean), obs=x)


@pytest.mark.parametrize(
    ("bad", "x", "sentence"),
    [
        (no_plate, np.float64(1.0), "must stand in one plate, the data plate"),
        (two_sites, X, r"needs one observed site .* observes \['x', 'y'\]"),
        (inside, X, r"latents \['own'\] stand inside the data plate"),
        (model, np.append(X, np.nan), r"1 of the \d+ points of the observation at 'x' have NaN, such as"),
        (model, X[:1], "at least two points"),
        (model, X[:0], "at least two points"),
        (pairs, np.zeros((5, 3)), r"one data point has shape \[\(3,\)\] and one simulated point \[\(2,\)\]|shape"),
    ],
)
def test_bad_models_and_data_are_named(bad, x, sentence):
    with pytest.raises(ValueError, match=sentence):
        PosteriorBootstrap(bad, MMD(Gaussian(1.0))).run(jax.random.key(0), x)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="`concentration` must be finite and not negative"):
        PosteriorBootstrap(model, concentration=-1.0)
    with pytest.raises(ValueError, match="`num_samples` must be at least 1"):
        PosteriorBootstrap(model, num_samples=0)
    with pytest.raises(
        ValueError, match=r'`centering` must be a distribution, a sampler or "prior predictive"; got \'x\''
    ):
        PosteriorBootstrap(model, concentration=1.0, centering="x")
    with pytest.raises(ValueError, match="`centering` must be given when `concentration` is positive"):
        PosteriorBootstrap(model, concentration=1.0)
    with pytest.raises(ValueError, match="needs a Simulator site"):
        PosteriorBootstrap(density, concentration=1.0, centering="prior predictive").run(jax.random.key(0), X)
    with pytest.raises(RuntimeError, match="should be called first"):
        _ = PosteriorBootstrap(model).mode()


def floored(rng_key, mean):
    return jnp.floor(mean * jax.random.exponential(rng_key))


def whole_numbers(x):
    mean = numpyro.sample("mean", dist.LogNormal(1.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", Simulator(floored, mean), obs=x)


@pytest.mark.slow
def test_replicates_of_counts_are_the_exact_minimisers_for_their_weights(rng):
    """By the probabilities `(1 - e^{-1/m}) e^{-k/m}`; the loss by simulated points is a staircase."""
    x = np.floor(rng.exponential(4.0, 200))
    engine = PosteriorBootstrap(whole_numbers, MMD(Gaussian(3.0)), num_samples=32, num_starts=8)
    engine.run(jax.random.key(0), x)
    found, k = engine.replicates, np.arange(200.0)
    assert found.converged.mean() >= 0.95 and not found.derivatives.automatic
    gram = np.exp(-0.5 * ((k[:, None] - k) / 3.0) ** 2)

    def exact(weights):
        observed = np.bincount(x.astype(int), weights, len(k))

        def loss(log_mean):
            apart = -np.expm1(-np.exp(-log_mean)) * np.exp(-k * np.exp(-log_mean)) - observed
            return apart @ gram @ apart

        return minimize_scalar(loss, (0.0, 1.0, 3.0), method="brent").x

    best = np.array([exact(weights) for weights in found.reweightings.weights])
    assert np.abs(found.u[:, 0] - best).max() < 0.1 * best.std()


@pytest.mark.parametrize(
    "widened, told",
    [(np.full((4, 2), 0.6), "half as wide again move the draws by 0.6"), (np.empty((0, 2)), "no surface")],
)
def test_wider_surfaces_that_disagree_or_have_no_minimum_are_told(widened, told):
    engine = PosteriorBootstrap(model, num_samples=4, num_starts=4, progress_bar=False)
    with warnings.catch_warnings(action="ignore"):
        engine.run(jax.random.key(0), X)
    found = replace(engine.replicates, quadrature=Quadrature(np.full((4, 2), 0.01), widened))
    with pytest.warns(UserWarning, match=told):
        warn_of(found, "")


@pytest.mark.slow
def test_surfaces_that_do_not_follow_the_loss_are_told():
    """A rounded g-and-k: the posterior of `g` reaches from 1.6 to 5; surfaces of degree four find 1.5 to 2."""

    def rounded(rng_key, a, log_b, g, log_k):
        z = jax.random.normal(rng_key)
        y = a + jnp.exp(log_b) * (1.0 + 0.8 * jnp.tanh(0.5 * g * z)) * (1.0 + z * z) ** jnp.exp(log_k) * z
        return jnp.round(2.0 * y) / 2.0

    def four(x):
        prior = {"a": (0.0, 5.0), "log_b": (0.0, 1.0), "g": (0.0, 2.0), "log_k": (-1.0, 1.0)}
        params = [numpyro.sample(name, dist.Normal(*where)) for name, where in prior.items()]
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", Simulator(rounded, *params), obs=x)

    z = np.random.default_rng(0).normal(size=800)
    x = np.round(2.0 * (3.0 + (1.0 + 0.8 * np.tanh(z)) * (1.0 + z * z) ** 0.3 * z)) / 2.0
    engine = PosteriorBootstrap(four, num_samples=64, progress_bar=False)
    with pytest.warns(UserWarning, match="surfaces that are half as wide again move the draws"):
        engine.run(jax.random.key(0), x)
