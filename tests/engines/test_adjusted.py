"""Statistics that may be shifted: beside quadrature, under NUTS, and what is told of them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.infer import MCMC, NUTS

import numpyro_kme as kme
from numpyro_kme.mcmc import handlers

KEY, NOISE, P = jax.random.key(0), 0.3, 0.1
pytestmark = pytest.mark.filterwarnings(
    "ignore:The observation lies far outside", "ignore:Statistics of 'x' are over", "ignore:.*may be off by"
)
OBSERVED = {"one": 0.4, "other": 0.2, "far": 8.0}


def three(rng_key, theta):
    """Three measurements of the same number."""
    x = theta + NOISE * jax.random.normal(rng_key, (3,))
    return dict(zip(OBSERVED, x))


def model(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(three, theta), obs=x)


def fitted(x=None, **settings):
    engine = kme.KELFI(model, 300, **{"adjust": P, "progress_bar": False} | settings)
    engine.run(jax.random.key(0), x=OBSERVED if x is None else x)
    return engine


@pytest.fixture(scope="module")
def engine():
    return fitted(num_samples=4000)


def exact(surrogate):
    """Mean and standard deviation of the posterior by quadrature, where shifts are as a likelihood says."""
    theta, shift = np.linspace(-4.0, 4.0, 201), np.linspace(-60.0, 60.0, 6001)
    log_p = scipy.stats.norm.logpdf(theta)
    for y, scale, p in zip(OBSERVED.values(), surrogate.scale, surrogate.probabilities, strict=True):
        slab = scipy.stats.cauchy(scale=scale).pdf(shift) * np.gradient(shift)
        spike = scipy.stats.norm.pdf(y, theta, NOISE)
        moved = np.array([slab @ scipy.stats.norm.pdf(y - shift, at, NOISE) for at in theta])
        log_p = log_p + np.log((1.0 - p) * spike + p * moved)
    p = np.exp(log_p - log_p.max())
    mean = np.average(theta, weights=p)
    return mean, np.sqrt(np.average(np.square(theta - mean), weights=p))


def test_the_posterior_is_that_of_quadrature(engine):
    """A measurement that the other two contradict does not count, and widths are those of a spike and a slab."""
    mean, sd = exact(engine.likelihoods["x"].surrogate)
    theta = engine.get_samples()["theta"]
    assert abs(theta.mean() - mean) < 0.2 * sd
    assert 0.8 < theta.std() / sd < 1.3


def test_shifts_are_told_by_name(engine):
    """With their probability, in units of the output; a statistic that fits is not."""
    shifts = engine.posterior.shifts()["x"]
    probable = np.mean(shifts != 0.0, axis=0)
    assert probable[2] > 0.95 and probable[:2].max() < 0.3
    assert np.median(shifts[:, 2]) == pytest.approx(7.7, abs=0.5)
    said = engine.info["shifted"]
    assert said.startswith("far by 7.") and said.count("probability") == 1


def test_the_summary_names_what_does_not_fit():
    """Of plain KELFI too, in standard deviations of what the model makes at the draws; nothing where all fits."""
    beyond = fitted(adjust=None).posterior
    assert beyond.info["fit"].startswith("far is ") and not any("sd from" in one for one in beyond.warned)
    fine = fitted({"one": 0.4, "other": 0.2, "far": 0.1}, adjust=None).posterior
    assert fine.info["fit"] == "all statistics lie within 3 sd of simulations at the draws" and not fine.warned
    with pytest.warns(UserWarning, match=r"over 4 sd from simulations at the posterior draws: far \("):
        odd = fitted({"one": 0.4, "other": 0.2, "far": 2.5}, adjust=None)  # which some simulations have
    apart = {check.name: check for check in odd.checks}["misfit of x, sd"]
    assert not apart.ok and apart.value == odd.posterior.misfits["x"]["far"] > max(fine.misfits["x"].values())


def test_nothing_is_shifted_where_all_fits():
    engine = fitted({"one": 0.4, "other": 0.2, "far": 0.1})
    assert engine.info["shifted"].startswith("none, most probably ")
    assert abs(engine.get_samples()["theta"].mean() - 0.23) < 0.15


def test_a_shift_is_a_spike_and_a_cauchy_slab(engine):
    """Standard normal scores become 0 with probability `1 - p`, and Cauchy numbers otherwise."""
    surrogate = engine.likelihoods["x"].surrogate
    scores = scipy.stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    z = np.concatenate([np.zeros((200_000, 1)), np.repeat(scores[:, None], 3, axis=1)], axis=1)
    shift = surrogate.split(z)[1] / surrogate.scale
    np.testing.assert_allclose(np.mean(shift == 0.0, axis=0), 1.0 - surrogate.probabilities, atol=1e-4)
    moved = shift[shift[:, 0] != 0.0, 0]
    for q in (0.1, 0.3, 0.7, 0.9):
        assert np.quantile(moved, q) == pytest.approx(scipy.stats.cauchy.ppf(q), rel=0.01)
    in_jax = surrogate.split(jnp.asarray(z))[1]
    np.testing.assert_allclose(in_jax[::1000], surrogate.split(z)[1][::1000], rtol=2e-3, atol=1e-5)


def test_a_shift_is_less_probable_where_no_other_statistic_serves(engine):
    """Of three alike two thirds of the precision are left; of the only one, what the prior had, and the posterior keeps
    its width."""
    surrogate = engine.likelihoods["x"].surrogate
    alike = (1.0 + 2.0 / NOISE**2) / (1.0 + 3.0 / NOISE**2)
    np.testing.assert_allclose(surrogate.probabilities, P * alike, rtol=0.1)
    one = surrogate.marginal(np.array([True, False, False])).probabilities[0]
    assert one == pytest.approx(P / (1.0 + 1.0 / NOISE**2), rel=0.3)

    def two(rng_key, theta):
        x = 30.0 * theta + jax.random.normal(rng_key, (20,))
        return jnp.stack([x.mean(), x.var()])

    def wide(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("x", kme.Simulator(two, theta), obs=x)

    alone = kme.KELFI(wide, 300, adjust=P, num_rounds=1, progress_bar=False)
    alone.run(KEY, x=np.array([3.0, 1.1]))
    assert alone.get_samples()["theta"].std() < 0.05


def crowd(rng_key, theta):
    """Ten measurements that share a part of their noise."""
    common, own = jax.random.normal(rng_key, (11,))[:1], jax.random.normal(rng_key, (11,))[1:]
    return theta[0] + theta[1] * jnp.linspace(-1.0, 1.0, 10) + NOISE * (0.5 * common + own)


def of_crowd(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(crowd, theta), obs=x)


def beside(x=None):
    of_crowd(x)
    numpyro.factor("nothing", 0.0)


@pytest.mark.parametrize("model", [pytest.param(of_crowd, marks=pytest.mark.slow), beside])
def test_narrow_modes_are_found_at_once(model):
    """Of ten statistics two are shifted: every key has their modes, the same evidence, and few evaluations, in
    coordinates and through the model alike."""
    x = np.asarray(crowd(jax.random.key(3), jnp.array([0.3, -0.2])))
    x = x + np.array([0.0, 0.0, 0.0, 6.0, 0.0, 0.0, 0.0, -4.0, 0.0, 0.0])
    engine = kme.KELFI(model, 400, adjust=P, num_rounds=1, standard_errors=False, progress_bar=False)
    engine.run(KEY, x=x)
    learnt, problem = engine.method, engine.posterior.problem
    drawn = [learnt.draw(jax.random.key(number), problem) for number in range(4)]
    assert np.std([one.log_evidence for one in drawn], ddof=1) < 0.3
    for one in drawn:
        assert one.info["effective sample size"] > 300
        shifted = np.mean(learnt.likelihoods["x"].surrogate.split(one.coordinates["x"])[1] != 0.0, axis=0)
        assert shifted[[3, 7]].min() > 0.9 and np.delete(shifted, [3, 7]).max() < 0.3


def test_guided_scores_have_the_density_that_is_stated(engine):
    """Weighted by the ratio, the scores that a sampler's normal numbers become are standard normal again, and so their
    moments under the prior; the two are one to one."""
    at = engine.likelihoods["x"].at(np.array(list(OBSERVED.values())))
    e = scipy.stats.norm.ppf(scipy.stats.qmc.Sobol(3, rng=np.random.default_rng(0)).random(2**15))
    for theta in (0.3, 2.0):
        z, log_ratio = at.guided(np.column_stack([np.full(len(e), theta), e]))
        weights, u = np.exp(log_ratio), z[:, 1:]
        assert np.mean(weights) == pytest.approx(1.0, abs=0.05)
        for q in (-1.0, 0.0, 1.0, 2.0):
            below = np.mean(weights[:, None] * (u < q), axis=0)
            np.testing.assert_allclose(below, scipy.stats.norm.cdf(q), atol=0.05)
        assert len(np.unique(u[:, 0])) > 0.99 * len(u)


def test_nuts_infers_shifts_too(engine):
    """On the same likelihood, by the handlers; all rounds and halves have one scale."""
    fitted = engine.likelihoods["x"]
    scales = [np.asarray(other.surrogate.scale) for other in (fitted, *fitted.others)]
    assert len(scales) > 2 and all((scale == scales[0]).all() for scale in scales)
    mcmc = MCMC(
        NUTS(handlers.surrogate(handlers.adjustable(model), engine.likelihoods)),
        num_warmup=300,
        num_samples=700,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), x=OBSERVED)
    theta, own = np.asarray(mcmc.get_samples()["theta"]), engine.get_samples()["theta"]
    assert abs(theta.mean() - own.mean()) < 0.4 * own.std()


def test_a_statistic_that_was_not_observed_stays_out():
    engine = fitted({**OBSERVED, "other": np.nan}, num_rounds=1)
    assert np.isfinite(engine.get_samples()["theta"]).all()


def along_a_plate(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("draws", 4):
        numpyro.sample("x", kme.Simulator(three, theta), obs=x)


def test_what_cannot_be_adjusted_is_refused(engine):
    with pytest.raises(ValueError, match="must be a probability"):
        kme.KELFI(model, adjust=2.0)
    with pytest.raises(ValueError, match="`adjust` must be"):
        kme.KELFI(model, adjust=0.1, statistics=kme.SemiAutomaticStatistics())
    plate = kme.KELFI(along_a_plate, adjust=0.1)
    with pytest.raises(ValueError, match="let `form` be ResidualKernelMeans"):
        kme.KELFI(model, adjust=0.1, form=kme.KernelMeans())
    with pytest.raises(ValueError, match="PosteriorBootstrap"):
        plate.run(KEY, x={name: np.ones(4) for name in OBSERVED})
    with pytest.raises(ValueError, match=r"adjust=0\.1"):
        fitted(adjust=None, num_rounds=1, standard_errors=False).posterior.shifts()


@pytest.mark.slow
def test_an_adjusted_engine_is_calibrated_on_data_with_shifts():
    """Simulated data have the shifts of their scores: without them the scores' posteriors are too narrow."""
    engine = fitted({"one": 0.4, "other": 0.2, "far": 0.1}, num_rounds=1)
    found = kme.diagnostics.calibrate(jax.random.key(2), engine, 60, progress_bar=False)
    z = np.concatenate([found.truths["theta"][:, None], found.truths["x_shift"]], axis=1)
    shift = engine.likelihoods["x"].surrogate.split(z)[1]
    assert np.mean(shift != 0.0) == pytest.approx(np.mean(engine.likelihoods["x"].surrogate.probabilities), abs=0.08)
    assert np.abs(found.data["x"] - shift - z[:, :1]).max() < 5.0 * NOISE
    assert found.p_value > 0.001
