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
from scipy.optimize import minimize, minimize_scalar

from numpyro_kme import plots
from numpyro_kme.bootstrap.emulator import Ellipsoid, Emulator, monomials
from numpyro_kme.bootstrap.least_squares import Targets
from numpyro_kme.bootstrap.rounds import loss_scale
from numpyro_kme.engines._iid import IidModel
from numpyro_kme.engines.posterior_bootstrap import PosteriorBootstrap
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD, Loss, NegativeLogLikelihood, Wasserstein
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
    engine = PosteriorBootstrap(model, MMD(Gaussian(1.0), fit_proportion=True), num_samples=64)
    engine.run(jax.random.key(0), X)
    return engine


def test_samples_keep_constraints_and_resist_outliers(engine):
    samples = engine.get_samples()
    assert set(samples) == {"mean", "scale", "ratio"}
    assert samples["mean"].shape == (64,) and samples["mean"].dtype == np.float64
    assert (samples["scale"] > 0).all()
    np.testing.assert_allclose(samples["ratio"], samples["mean"] / samples["scale"], rtol=1e-5)
    clean = X[X < 50]
    assert abs(samples["mean"].mean() - clean.mean()) < 4 * clean.std() / np.sqrt(len(clean))
    assert abs(samples["scale"].mean() - clean.std()) < 5 * clean.std() / np.sqrt(len(clean))
    fields = engine.get_extra_fields()
    assert fields["converged"].all()
    assert abs(fields["mixing_proportion"].mean() - 0.95) < 0.03
    assert 0 < engine.posterior.replicates.minimum_loss < fields["loss"].max()


def test_point_estimate_is_the_lowest_point_of_the_landscape(engine):
    estimate = engine.posterior.mode()
    values = estimate["mean"] + np.linspace(-1.0, 1.0, 21)
    landscape = engine.posterior.landscape("mean", values)
    assert landscape.argmin() == 10
    np.testing.assert_allclose(landscape[10], engine.posterior.replicates.minimum_loss, rtol=0.05)
    with pytest.raises(ValueError, match=r"`site` must be one of \['mean', 'scale'\]"):
        engine.posterior.landscape("x", [0.0])


def exact_loss(u, w, x, proportion):
    """The squared MMD of weighted data and a normal distribution, length scale 1, least over the proportion."""
    s2 = np.exp(2.0 * u[1])
    own, cross = 1.0 / np.sqrt(1.0 + 2.0 * s2), w @ np.exp(-0.5 * (x - u[0]) ** 2 / (1.0 + s2)) / np.sqrt(1.0 + s2)
    c = min(cross / own, 1.0) if proportion else 1.0
    return w @ np.exp(-0.5 * (x[:, None] - x) ** 2) @ w + c * (c * own - 2.0 * cross)


def test_replicates_are_the_exact_minimisers_for_their_weights(engine):
    found, sd = engine.posterior.replicates, engine.posterior.replicates.u.std(axis=0)
    for u, w, loss in zip(found.u[:12], found.reweightings.weights, found.loss):
        exact = minimize(exact_loss, u, (w, X, True), method="Nelder-Mead", options=dict(xatol=1e-7, fatol=1e-13))
        assert np.abs((u - exact.x) / sd).max() < 0.03
        np.testing.assert_allclose(loss, exact.fun, rtol=0.02)
    assert found.error < 0.05 and found.settled


def test_a_replicate_does_not_depend_on_how_many_there_are(engine):
    few = replace(engine, num_samples=5)
    few.run(jax.random.key(0), X)
    np.testing.assert_allclose(few.posterior.replicates.u, engine.posterior.replicates.u[:5], rtol=1e-5)


def test_results_go_to_arviz_and_predictive(engine, capsys):
    idata = engine.to_inference_data()
    assert dict(idata.posterior.sizes) == {"chain": 1, "draw": 64}
    assert {"loss", "converged", "mixing_proportion"} <= set(idata.sample_stats.data_vars)
    predictive = Predictive(model, {name: engine.get_samples()[name].astype(np.float64) for name in ("mean", "scale")})
    assert predictive(jax.random.key(1), X)["x"].shape == (64, 200)
    panels = plots.marginals(engine, prior=True).axes
    assert "prior" in {label for axis in panels for label in axis.get_legend_handles_labels()[1]}
    engine.print_summary()
    said = capsys.readouterr().out
    assert "64 of 64 replicates" in said


@pytest.mark.parametrize("loss", [pytest.param(NegativeLogLikelihood(), marks=pytest.mark.slow), Wasserstein()])
def test_likelihood_and_transport_are_pulled_by_outliers_as_published(loss):
    """Both have the weighted mean as minimiser."""
    engine = PosteriorBootstrap(density if isinstance(loss, NegativeLogLikelihood) else model, loss, num_samples=16)
    with warnings.catch_warnings(action="ignore"):  # quantiles of few outliers
        engine.run(jax.random.key(0), X)
    means = engine.posterior.replicates.reweightings.weights @ X
    assert np.sqrt(np.mean(np.square(engine.get_samples()["mean"] - means))) < 0.1 * means.std()
    np.testing.assert_allclose(engine.posterior.mode()["mean"], X.mean(), rtol=0.01)


def gaussian(key, num):
    return 5.0 + jax.random.normal(key, (num,))


def own_guess(simulator, **declared):
    def own(x):
        mean = numpyro.sample("mean", dist.Normal(5.0, 0.5))
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", Simulator(simulator, mean, 2.0, **declared), obs=x)

    return own


@pytest.mark.parametrize(
    "simulator, guess, variance",
    [
        pytest.param(DECLARED, dist.Normal(5.0, 1.0), 1.0, marks=pytest.mark.slow),
        (DECLARED, gaussian, 1.0),
        pytest.param(DECLARED, "prior predictive", 4.25, marks=pytest.mark.slow),
        (keyed, "prior predictive", 4.25),
    ],
    ids=["distribution", "sampler", "declared noise", "key"],
)
def test_a_prior_guess_is_a_distribution_a_sampler_or_the_models_own(simulator, guess, variance):
    own = own_guess(simulator)
    engine = PosteriorBootstrap(own, concentration=200.0, centering=guess, truncation=500)
    drawn = engine._process(IidModel.read(own, (X,), {}), None).points(jax.random.key(2), np.arange(8), X)
    assert drawn.shape == (8, 500)
    assert abs(drawn.mean() - 5.0) < 5 * np.sqrt(variance / 4000)
    assert abs(drawn.std() / np.sqrt(variance) - 1.0) < 5 / np.sqrt(8000)


class Means(Loss):
    """Half the squared difference of the means, least where the model's mean is that of the weighted points."""

    def value(self, x, w, y, v):
        return 0.5 * (w @ x - v @ y) ** 2


@pytest.mark.slow
def test_the_prior_guess_reaches_the_fit():
    settings = dict(num_samples=8, concentration=200.0, truncation=200)
    pulled = PosteriorBootstrap(own_guess(DECLARED), Means(), centering="prior predictive", **settings)
    pulled.run(jax.random.key(0), X[:190])
    reweightings, mean = pulled.posterior.replicates.reweightings, pulled.get_samples()["mean"]
    assert reweightings.extra.shape == (8, 200) and len(np.unique(reweightings.extra)) > 1590
    joined = np.concatenate([np.broadcast_to(X[:190], (8, 190)), reweightings.extra], axis=1)
    np.testing.assert_allclose(mean, np.sum(reweightings.weights * joined, axis=1), rtol=0.02)
    # 200 of 390 parts of a guess of 5, against a mean of the data of 2
    assert abs(mean.mean() - (190 * X[:190].mean() + 200 * 5.0) / 390) < 5 * 2.5 / np.sqrt(390 / 2)


def by_steps(rng_key, mean, scale):
    """By a loop of unknown length, through which JAX has no reverse derivative."""
    end = keyed(rng_key, mean, scale)
    return jax.lax.while_loop(lambda x: jnp.abs(x - end) > 1e-6, lambda x: 0.2 * x + 0.8 * end, 0.0 * end)


def in_numpy(rng, mean, scale):
    return mean + scale * rng.normal()


@pytest.mark.parametrize(
    "simulator", [keyed, *(pytest.param(fn, marks=pytest.mark.slow) for fn in (by_steps, in_numpy))]
)
def test_any_simulator_will_do_for_a_squared_distance(simulator):
    """With the minimiser of the distance of two normals, the same whatever the simulator is written in."""
    declared = dict(shape=(), dtype=float) if simulator is in_numpy else {}
    nodes = 256 if simulator is in_numpy else 2048
    engine = PosteriorBootstrap(
        own_guess(simulator, **declared), MMD(Gaussian(1.0)), num_samples=8, num_nodes=nodes, progress_bar=False
    )
    with warnings.catch_warnings(action="ignore"):
        engine.run(jax.random.key(0), X[:60])
    for u, w in zip(engine.posterior.replicates.u[:, 0], engine.posterior.replicates.reweightings.weights):
        exact = minimize_scalar(lambda m, w=w: exact_loss((m, np.log(2.0)), w, X[:60], False), (u - 0.5, u + 0.5)).x
        assert abs(u - exact) < (0.1 if simulator is keyed else 0.5) * 2.0 / np.sqrt(60)


def test_a_loss_that_needs_derivatives_refuses_a_simulator_without():
    engine = PosteriorBootstrap(own_guess(in_numpy, shape=(), dtype=float), Means())
    with pytest.raises(ValueError, match=r"Means is minimised by derivatives, and simulator `in_numpy` has none: it"):
        engine.run(jax.random.key(0), X)
    with pytest.raises(ValueError, match="`prior_weight` needs a squared distance"):
        PosteriorBootstrap(own_guess(keyed), Means(), prior_weight=1.0).run(jax.random.key(0), X)


def test_what_falls_short_is_reported(engine):
    found = replace(engine.posterior.replicates, settled=False, error=0.4)
    with pytest.warns(UserWarning, match="move them by 0.4 posterior standard deviations"):
        found.emit_warnings({})
    with pytest.warns(UserWarning, match=r"2 of 64 replicates did not converge: \[3, 4\]"):
        replace(found, settled=True, converged=~np.isin(np.arange(64), [3, 4])).emit_warnings({})


def folded(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", Simulator(DECLARED, jnp.abs(mean), 1.0), obs=x)


def positive(x):
    mean = numpyro.sample("mean", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", Simulator(DECLARED, mean, 20.0), obs=x)


@pytest.mark.slow
def test_a_parameter_that_the_data_leave_open_on_one_side_is_told(rng):
    x, end = 20.0 * rng.normal(size=50), np.exp(3.7)  # one prior draw in 10,000 is above
    engine = PosteriorBootstrap(positive, MMD(Gaussian(20.0)), num_samples=32, num_nodes=256)
    with pytest.warns(UserWarning, match="minimum where the prior ends: {'mean': "):
        engine.run(jax.random.key(0), x - x.mean() + end)
    assert "replicates at the end of a prior" in engine.posterior.info
    engine.run(jax.random.key(0), x - x.mean() + 0.3 * end)
    assert "replicates at the end of a prior" not in engine.posterior.info


def test_separate_minima_are_found_and_reported():
    """Means of either sign are equally good: about half of the replicates have each."""
    engine = PosteriorBootstrap(folded, MMD(Gaussian(1.0)), num_samples=64)
    engine.run(jax.random.key(0), RNG.normal(3.0, 1.0, 100))
    mean = engine.get_samples()["mean"]
    assert engine.posterior.replicates.regions and len(engine.posterior.replicates.regions) == 2
    assert np.abs(np.abs(mean) - 3.0).max() < 0.7 and 5 < (mean > 0).sum() < 59
    assert "separate regions" in engine.info


def open_parameter(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    unseen = numpyro.sample("unseen", dist.Normal(1.0, 0.5))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", Simulator(DECLARED, mean + 0.0 * unseen, 1.0), obs=x)


def test_what_the_data_leave_open_spreads_as_the_prior():
    engine = PosteriorBootstrap(open_parameter, MMD(Gaussian(1.0)), num_samples=400, prior_weight=1.0)
    engine.run(jax.random.key(0), X[:100])
    unseen = engine.get_samples()["unseen"]
    assert abs(unseen.mean() - 1.0) < 5 * 0.5 / np.sqrt(400)
    assert abs(unseen.std() / 0.5 - 1.0) < 5 / np.sqrt(800)
    assert engine.get_samples()["mean"].std() < 0.3


def test_the_loss_scale_makes_a_squared_distance_a_log_likelihood(rng):
    """`m(u) = u` and data of variance `s^2`: `|u - d|^2 / (2 s^2)`, so the scale is `2 s^2`."""
    region = Ellipsoid(np.zeros(2), np.eye(2), 9.0, np.full(2, -np.inf), np.full(2, np.inf))
    basis = monomials(region, 1)
    emulator = Emulator(basis, np.concatenate([np.zeros((1, 2)), np.eye(2)])[None])
    targets = Targets(0.3 * rng.normal(size=(5000, 2)), False, np.zeros((5000, 2)))
    np.testing.assert_allclose(loss_scale(targets, emulator, targets.data[:64]), 2 * 0.09, rtol=5 * np.sqrt(2 / 5000))


def regression(c, y):
    a = numpyro.sample("a", dist.Normal(0.0, 3.0))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", Simulator(DECLARED, a + b * c, 0.3, event_dims=0), obs=y)


def on_line(rng_key, a, b, c):
    return DECLARED(rng_key, a + b * c, 0.3)


def written_out(c, y):
    a, b = numpyro.sample("a", dist.Normal(0.0, 3.0)), numpyro.sample("b", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", Simulator(on_line, a, b, c), obs=y)


def exact_regression(u, w, c, y):
    """Squared distance of the joint distributions, length scales 0.5, noise 0.3."""
    mean, l2, s2 = u[0] + u[1] * c, 0.25, 0.09

    def smooth(a, b, noise):
        return np.sqrt(l2 / (l2 + noise)) * np.exp(-0.5 * (a[:, None] - b) ** 2 / (l2 + noise))

    near = smooth(c, c, 0.0)
    return w @ (near * (smooth(mean, mean, 2 * s2) - 2.0 * smooth(y, mean, s2))) @ w


def test_robust_regression_compares_joint_distributions(rng):
    """Against the exact minimisers for the same weights."""
    c = rng.uniform(-2.0, 2.0, 40)
    y = 1.0 + 2.0 * c + 0.3 * rng.normal(size=40)
    y[:4] = 15.0
    loss = MMD(Gaussian(0.5), covariate_kernel=Gaussian(0.5))
    engine = PosteriorBootstrap(regression, loss, num_samples=8, covariates="c")
    engine.run(jax.random.key(0), c=c, y=y)
    found = engine.posterior.replicates
    for u, w in zip(found.u, found.reweightings.weights):
        exact = minimize(exact_regression, u, (w, c, y), method="Nelder-Mead", options=dict(xatol=1e-7, fatol=1e-12))
        assert np.abs((u - exact.x) / found.u.std(axis=0)).max() < 0.2
    np.testing.assert_array_equal(IidModel.read(written_out, (c, y), {}).covariates(None)[:, 0], c.astype(np.float32))
    with pytest.raises(ValueError, match="pass covariates=the name"):
        PosteriorBootstrap(regression).run(jax.random.key(0), c=c, y=y)
    for other in (Wasserstein(), Means()):
        with pytest.raises(ValueError, match=f"{type(other).__name__} takes no covariates. Use MMD"):
            PosteriorBootstrap(regression, other, covariates="c").run(jax.random.key(0), c=c, y=y)


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
        (no_plate, np.float64(1.0), "must stand in one plate, along its first axis"),
        (two_sites, X, r"needs one observed site .* observes \['x', 'y'\]"),
        (inside, X, r"latents \['own'\] stand inside the data plate"),
        (model, np.append(X, np.nan), r"1 of the \d+ points of the observation at 'x' have NaN, such as"),
        (model, X[:1], "at least two points"),
        (model, X[:0], "at least one number along each plate"),
        (pairs, np.zeros((5, 3)), r"one data point has shape \[\(3,\)\] and one simulated point \[\(2,\)\]|shape"),
    ],
)
def test_bad_models_and_data_are_named(bad, x, sentence):
    with pytest.raises(ValueError, match=sentence):
        PosteriorBootstrap(bad, MMD(Gaussian(1.0))).run(jax.random.key(0), x)


def test_bad_settings_are_named():
    for settings, sentence in (
        (dict(concentration=-1.0), "`concentration` must be finite and not negative"),
        (dict(num_samples=0), "`num_samples` must be at least 1"),
        (dict(num_nodes=500), "`num_nodes` must be a power of two, such as 2048; got 500"),
        (dict(prior_draws=5), "`prior_draws` does nothing without a prior weight"),
        (dict(concentration=1.0, centering="x"), 'a distribution, sampler or "prior predictive"; got .x.'),
    ):
        with pytest.raises(ValueError, match=sentence):
            PosteriorBootstrap(model, **settings)
    with pytest.raises(ValueError, match="needs a Simulator site"):
        PosteriorBootstrap(density, concentration=1.0, centering="prior predictive").run(jax.random.key(0), X)
    with pytest.raises(RuntimeError, match="should be called first"):
        _ = PosteriorBootstrap(model).posterior.mode()


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
    engine = PosteriorBootstrap(whole_numbers, MMD(Gaussian(3.0)), num_samples=32)
    engine.run(jax.random.key(0), x)
    found, k = engine.posterior.replicates, np.arange(200.0)
    assert found.converged.mean() >= 0.95
    gram = np.exp(-0.5 * ((k[:, None] - k) / 3.0) ** 2)

    def exact(weights):
        observed = np.bincount(x.astype(int), weights, len(k))

        def loss(log_mean):
            apart = -np.expm1(-np.exp(-log_mean)) * np.exp(-k * np.exp(-log_mean)) - observed
            return apart @ gram @ apart

        return minimize_scalar(loss, (0.0, 1.0, 3.0), method="brent").x

    best = np.array([exact(weights) for weights in found.reweightings.weights])
    assert np.abs(found.u[:, 0] - best).max() < 0.1 * best.std()
