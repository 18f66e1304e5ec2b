"""Masks and scales of a simulator's site: exact posteriors of what counts, and what each engine says where they mean
nothing."""

import copy
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import one_draw
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import special, stats

import numpyro_kme as kme
from numpyro_kme import diagnostics
from numpyro_kme.engines._iid import IidModel
from numpyro_kme.kernels import Gaussian
from numpyro_kme.losses import MMD
from numpyro_kme.mcmc.densities import SyntheticLikelihood
from numpyro_kme.mcmc.noise import CommonNoise
from numpyro_kme.models.problem import Problem
from numpyro_kme.models.unconstrained import Unconstrained
from numpyro_kme.simulations import Simulations, simulate

KEY = jax.random.key(0)
PRIOR = 2.0
X = np.array([0.2, 1.4, 1.9, 3.1], np.float32)
FIRST, LAST = np.array([True, True, False, False]), np.array([False, True, False, True])


def model(x=None, mask=True, scale=1.0, size=4):
    theta = numpyro.sample("theta", dist.Normal(0.0, PRIOR))
    with numpyro.plate("data", size), handlers.mask(mask=mask), handlers.scale(scale=scale):
        numpyro.sample("x", kme.Simulator(one_draw, theta), obs=x)


def exact(mask, scale=1.0) -> stats.norm:
    """The posterior of `theta` where each point that counts counts `scale` times."""
    number = scale * np.sum(mask)
    variance = 1.0 / (1.0 / PRIOR**2 + number)
    return stats.norm(variance * scale * np.sum(X[mask], dtype=float), np.sqrt(variance))


def hidden(mask):
    """The observation with nothing where it is masked."""
    return np.where(mask, X, np.nan).astype(np.float32)


# --- reading


def site(make):
    def read():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        make(lambda *event_dims: kme.Simulator(one_draw, theta))

    return Problem.read(read).simulators["x"]


ROWS = np.array([[True], [False], [True]])


def plain(simulator):
    with numpyro.plate("rows", 3, dim=-2), numpyro.plate("columns", 2, dim=-1):
        numpyro.sample("x", simulator())


def nested(simulator):
    with (
        handlers.mask(mask=jnp.array([True, False])),
        handlers.scale(scale=3.0),
        numpyro.plate("rows", 3, dim=-2),
        numpyro.plate("columns", 2, dim=-1),
        handlers.mask(mask=ROWS),
        handlers.scale(scale=0.5),
    ):
        numpyro.sample("x", simulator())


def of_the_distribution(simulator):
    with numpyro.plate("rows", 3):
        numpyro.sample("x", simulator().expand([3, 2]).mask(jnp.array([True, False])).to_event(1).mask(ROWS[:, 0]))


def of_events(simulator):
    with numpyro.plate("rows", 3), handlers.mask(mask=ROWS[:, 0]):
        numpyro.sample("x", simulator().expand([2]).to_event(1))


def whole(simulator):
    handlers.mask(lambda: numpyro.sample("x", simulator()), mask=False)()


def all_true(simulator):
    with numpyro.plate("rows", 3), handlers.mask(mask=jnp.ones(3, bool)), handlers.scale(scale=1.0):
        numpyro.sample("x", simulator().mask(True))


BOTH = ROWS & np.array([True, False])


@pytest.mark.parametrize(
    ("make", "mask", "scale"),
    [
        (plain, np.ones((3, 2), bool), 1.0),
        (nested, BOTH, 1.5),
        (of_the_distribution, BOTH, 1.0),
        (of_events, np.broadcast_to(ROWS, (3, 2)), 1.0),
        (whole, np.array(False), 1.0),
        (all_true, np.ones(3, bool), 1.0),
    ],
)
def test_masks_and_scales_are_read(make, mask, scale):
    found = site(make)
    np.testing.assert_array_equal(found.mask, mask)
    np.testing.assert_array_equal(found.scale, scale)
    assert found.weighted == (make not in (plain, all_true))
    x = np.arange(10 * mask.size).reshape(10, *mask.shape)
    np.testing.assert_array_equal(found.counted(x, 1).reshape(10, -1), [row[mask] for row in x])


# --- KELFI


@pytest.fixture(scope="module")
def kelfi():
    engine = kme.KELFI(model, 300, num_rounds=1, progress_bar=False)
    engine.run(KEY, x=hidden(FIRST), mask=FIRST)
    return engine


LOCATION = 0.3
"""A location regressed with about five degrees of freedom on 900 draws with a standard deviation of 1 has a standard
error of .07."""


def elsewhere(engine, **data):
    """A copy of the engine with the posterior of other data."""
    engine = copy.copy(engine)
    engine._found = engine.method, engine.condition(KEY, **data)
    return engine


@pytest.mark.parametrize(
    ("mask", "scale"), [(FIRST, 1.0), pytest.param(LAST, 100.0, marks=pytest.mark.slow)]
)  # scales: the density below
def test_kelfi_against_the_exact_posterior(kelfi, mask, scale):
    if mask is not FIRST:  # a hundred times the likelihood is more than 300 simulations can teach
        with pytest.warns(UserWarning, match="mean of theta may be off by"):
            kelfi = elsewhere(kelfi, x=hidden(mask), mask=mask, scale=scale)
    posterior, draws = exact(mask, scale), kelfi.get_samples()["theta"]
    assert abs(draws.mean() - posterior.mean()) < LOCATION + 5 * posterior.std() / np.sqrt(len(draws))
    grid = np.linspace(draws.min() - 0.1, draws.max() + 0.1, 4001)
    learnt = special.softmax(kelfi.posterior.log_density({"theta": grid}))
    middle = learnt @ grid
    np.testing.assert_allclose(draws.std(), np.sqrt(learnt @ (grid - middle) ** 2), rtol=0.2)
    if scale == 1.0:
        np.testing.assert_allclose(draws.std(), posterior.std(), rtol=0.25)
        covariance = np.eye(2) + PRIOR**2
        evidence = stats.multivariate_normal(np.zeros(2), covariance).logpdf(X[mask])
        assert abs(kelfi.posterior.log_marginal_likelihood() - evidence) < 0.5
    with pytest.raises(ValueError, match="without plates, masks, scales, intervals or shifts"):
        _ = kelfi.posterior.in_coordinates
    points = {"theta": np.linspace(-1.0, 1.0, 5)}
    prior = stats.norm(0.0, PRIOR).logpdf(points["theta"])
    rest = kelfi.posterior.log_density(points) - prior - kelfi.posterior.log_likelihood(points)
    np.testing.assert_allclose(rest, rest[0], atol=1e-4)


def test_where_all_is_masked_the_posterior_is_the_prior(kelfi):
    kelfi = elsewhere(kelfi, x=hidden(np.zeros(4, bool)), mask=False)
    draws = kelfi.get_samples()["theta"]
    assert abs(draws.mean()) < 5 * PRIOR / np.sqrt(len(draws))
    np.testing.assert_allclose(draws.std(), PRIOR, rtol=5 / np.sqrt(2 * len(draws)))
    assert kelfi.posterior.log_marginal_likelihood() == 0.0
    grid = np.linspace(-4.0, 4.0, 9)
    found = kelfi.posterior.log_density({"theta": grid})
    np.testing.assert_allclose(found, stats.norm(0, PRIOR).logpdf(grid), atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "scale"),
    [(FIRST, 2.0), (LAST, np.arange(1.0, 5.0, dtype=np.float32)), (np.zeros(4, bool), 1.0), (False, 2.0)],
)
def test_the_surrogate_model_adds_up_what_counts(kelfi, mask, scale):
    """Under NumPyro's own log density, and as KELFI samples it."""
    theta, likelihood = jnp.float32(0.7), kelfi.likelihoods["x"]
    point = likelihood.coordinates.table(np.array([[0.7]]))
    each = np.array([likelihood.at(x).log_density(point)[0] for x in X])
    expected = dist.Normal(0.0, PRIOR).log_prob(theta) + np.sum(scale * np.where(mask, each, 0.0))
    smodel = kme.handlers.surrogate(model, kelfi.likelihoods)
    given = dict(x=hidden(np.broadcast_to(mask, 4)), mask=mask, scale=scale)
    with jax.numpy_rank_promotion("allow"):
        target = Unconstrained(smodel, (), given, {"theta": ()})

        @jax.jit
        def found(theta):
            return log_density(smodel, (), given, {"theta": theta})[0], sum(target.terms(theta[None]))

        np.testing.assert_allclose(found(theta), expected, rtol=1e-4)


def test_the_surrogate_is_looked_up_where_it_counts(kelfi):
    smodel = kme.handlers.surrogate(model, kelfi.likelihoods)
    draws = {"theta": np.array([0.0, 100.0], np.float32)}
    with pytest.warns(UserWarning, match="50.00% of the posterior draws lie beyond"):
        found = kme.mcmc.check_surrogate(smodel, draws, x=hidden(FIRST), mask=FIRST)
    assert found["x"].beyond == 0.5
    assert kme.mcmc.check_surrogate(smodel, draws, x=hidden(FIRST), mask=False)["x"].beyond == 0.0


# --- engines that compare data sets

NAMES = ["RejectionABC", "KernelABC", "KernelBayes", "K2ABC", "DistributionRegressionABC"]
WEIGHTING = [partial(kme.RejectionABC, quantile=0.1), *(getattr(kme, name) for name in NAMES[1:])]


@pytest.fixture(scope="module")
def simulations():
    return simulate(KEY, Problem.read(model, x=X), 600, progress_bar=False)


MADE_SO = "KernelBayes", "DistributionRegressionABC", "KernelABC", "RejectionABC"
"""Their tables are made as that of KernelABC, and RejectionABC meets the exact posterior below."""


@pytest.mark.filterwarnings("ignore:.*the posterior is coarse")
@pytest.mark.parametrize(
    "make", [pytest.param(m, id=n, marks=pytest.mark.slow if n in MADE_SO else ()) for m, n in zip(WEIGHTING, NAMES)]
)
def test_masked_draws_are_as_if_they_were_never_made(make, simulations):
    """Weights are those of the model of two draws, also where `condition` brings another mask."""

    def alone(mask):
        problem = Problem.read(model, x=X[mask], size=2)
        bank = Simulations.from_latents(problem, simulations.latents, simulations.x["x"][:, mask])
        engine = make(model, simulations=bank)
        engine.run(KEY, x=X[mask], size=2)
        return engine.posterior.get_weights()["weight"]

    engine = make(model, simulations=simulations)
    engine.run(KEY, x=hidden(FIRST), mask=FIRST)
    np.testing.assert_array_equal(engine.posterior.get_weights()["weight"], alone(FIRST))
    np.testing.assert_array_equal(engine.condition(KEY, x=hidden(LAST), mask=LAST).weights, alone(LAST))
    with pytest.raises(ValueError, match="masked as a whole"):
        engine.condition(KEY, x=X, mask=False)
    np.testing.assert_array_equal(engine.condition(KEY, x=hidden(FIRST), mask=FIRST).weights, alone(FIRST))


@pytest.mark.smoke
def test_rejection_against_the_exact_posterior():
    engine = kme.RejectionABC(model, 20_000, progress_bar=False)
    engine.run(KEY, x=hidden(FIRST), mask=FIRST)
    draws, posterior = engine.get_samples()["theta"], exact(FIRST)
    assert abs(draws.mean() - posterior.mean()) < 0.1 + 5 * posterior.std() / np.sqrt(400)  # 400 are accepted


def test_diagnostics_do_not_look_at_masked_draws(simulations):
    engine = kme.RejectionABC(model, quantile=0.1, simulations=simulations)
    engine.run(KEY, x=hidden(FIRST), mask=FIRST)
    found = diagnostics.check(KEY, engine, 10, progress_bar=False)
    assert found.predictive.observed["x"].shape == (2,) and found.predictive.predicted["x"].shape[1:] == (2,)
    assert np.isfinite(found.predictive.tail_probabilities()["x"]).all()
    assert np.isfinite(found.p_value) and found.calibration.data["x"].shape == (10, 2)


@pytest.mark.parametrize("make", [*WEIGHTING, kme.KernelRecursiveABC], ids=[*NAMES, "KernelRecursiveABC"])
def test_what_has_no_meaning_is_refused_before_simulating(make):
    with pytest.raises(ValueError, match=r"'x' is masked as a whole.* Use KELFI"):
        make(model).run(KEY, x=X, mask=False)
    with pytest.raises(ValueError, match=r"'x' is scaled by 0.5.* \w+ compares data sets. Use KELFI"):
        make(model).run(KEY, x=X, scale=0.5)


# --- the posterior bootstrap, losses and synthetic likelihoods

RNG = np.random.default_rng(0)
COVARIATES = RNG.uniform(size=30).astype(np.float32)
Y = (1.0 + 2.0 * COVARIATES + 0.3 * RNG.normal(size=30)).astype(np.float32)
SOME = np.arange(30) % 3 > 0


def straight(noise, mean):
    return mean + 0.3 * noise


STRAIGHT = kme.FromNoise(straight, dist.Normal(0.0, 1.0))


def line(y, covariates, mask=True, density=False, scale=1.0):
    slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    mean = 1.0 + slope * covariates
    law = dist.Normal(mean, 0.3) if density else kme.Simulator(STRAIGHT, mean, event_dims=0)
    with numpyro.plate("data", len(y)), handlers.mask(mask=mask), handlers.scale(scale=scale):
        numpyro.sample("y", law, obs=y)


def test_the_bootstrap_reads_no_masked_points():
    """What it reads of the model is what it reads where they were never there."""
    iid = IidModel.read(line, (np.where(SOME, Y, np.nan),), dict(covariates=COVARIATES, mask=SOME))
    np.testing.assert_array_equal(iid.data, Y[SOME])
    np.testing.assert_array_equal(np.ravel(iid.covariates("covariates")), COVARIATES[SOME])
    arguments = iid.arguments(np.array([[1.7]]))
    assert arguments.shape[:2] == (1, SOME.sum())
    np.testing.assert_allclose(arguments[0, :, 0], 1.0 + 1.7 * COVARIATES[SOME], rtol=1e-5)
    dense = IidModel.read(line, (np.where(SOME, Y, np.nan),), dict(covariates=COVARIATES, mask=SOME, density=True))
    expected = stats.norm.logpdf(Y[SOME], 1.0 + 1.7 * COVARIATES[SOME], 0.3)
    found = jax.jit(dense.family(None).log_density)(jnp.array([1.7]), jnp.asarray(Y[SOME]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    engine = kme.PosteriorBootstrap(line, MMD(Gaussian(1.0)), covariates="covariates")
    with pytest.raises(ValueError, match=r"'y' is scaled by 2\.0, which has no meaning for the posterior bootstrap"):
        engine.run(KEY, Y, covariates=COVARIATES, scale=2.0)


def test_a_joint_loss_has_no_single_points():
    def shifts(x):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", 30):
            numpyro.sample("x", kme.Simulator(one_draw, theta), obs=x)

    loss = kme.handlers.generalized_bayes(shifts, MMD(Gaussian(1.0)), weight=1.0, noise=CommonNoise(64))
    density = lambda of: jax.jit(lambda theta: log_density(of, (Y,), {}, {"theta": theta})[0])(0.0)  # noqa: E731
    with pytest.raises(ValueError, match="compares the data of simulator `one_draw` as a whole"):
        density(handlers.mask(loss, mask=SOME))
    assert density(handlers.mask(loss, mask=False)) == 0.0


def test_a_synthetic_likelihood_is_masked_as_any_density():
    def synthetic(x, mask, scale):
        theta = numpyro.sample("theta", dist.Normal(0.0, PRIOR))
        with numpyro.plate("data", 4), handlers.mask(mask=mask), handlers.scale(scale=scale):
            numpyro.sample("x", SyntheticLikelihood(one_draw, theta, num_simulations=50), obs=x)

    theta = jnp.float32(0.7)
    each = np.asarray(SyntheticLikelihood(one_draw, theta, num_simulations=50).log_prob(X))
    found = log_density(synthetic, (hidden(FIRST), FIRST, 0.5), {}, {"theta": theta})[0]
    np.testing.assert_allclose(found, dist.Normal(0.0, PRIOR).log_prob(theta) + 0.5 * each[FIRST].sum(), rtol=1e-5)


# --- what reading refuses


def by_a_latent(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 4), handlers.mask(mask=jnp.arange(4.0) < theta):
        numpyro.sample("x", kme.Simulator(one_draw, theta), obs=x)


def parts(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 10, subsample_size=4) as rows:
        numpyro.sample("x", kme.Simulator(one_draw, theta), obs=None if x is None else x[rows])


@pytest.mark.parametrize(
    ("of", "x", "sentence"),
    [
        (by_a_latent, X, r"The mask or scale of 'x' depends on \('theta',\)"),
        (handlers.mask(model, mask=False), X, "The prior of 'theta' is masked"),
        (handlers.scale(model, scale=2.0), X, "The prior of 'theta' is scaled, by 2.0"),
        (parts, np.ones(10, np.float32), r"Plate 'data' takes 4 of 10 elements, at random \(subsample_size\)"),
        (model, X + 1j, r"The observation at 'x' has dtype complex(64|128); it must hold real numbers"),
        (model, np.where(FIRST, X, np.inf), "`observation at 'x'` has 2 entries that are not finite"),
    ],
)
def test_other_doors_are_closed_by_name(of, x, sentence):
    for engine in (kme.KELFI, kme.RejectionABC):
        with pytest.raises((ValueError, TypeError), match=sentence) as caught:
            engine(of).run(KEY, x=x)
        assert "racer" not in str(caught.value) and str(caught.value).count("\n") == 0
