"""KELFI on raw outputs: against an exact posterior, and through everything that a posterior offers."""

import dataclasses

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import numpyro_kme as kme
from numpyro_kme import plots

matplotlib.use("Agg")
import matplotlib.pyplot as plt

KEY = jax.random.key(3)
TIMES = np.linspace(-1.0, 1.0, 30).astype(np.float32)
DESIGN = np.stack([np.ones(30), TIMES], axis=1)


def line(rng_key, level, slope):
    """A series of thirty values around a line."""
    return level + slope * TIMES + 2.0 * jax.random.normal(rng_key, (30,))


def model(x=None):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(line, level, slope), obs=x)


def exact(x):
    """Posterior mean and standard deviation of level and slope."""
    covariance = np.linalg.inv(np.eye(2) + DESIGN.T @ DESIGN / 4.0)
    return covariance @ DESIGN.T @ x / 4.0, np.sqrt(np.diagonal(covariance))


def assert_near(samples, x):
    mean, sd = exact(x)
    for name, m, s in zip(("level", "slope"), mean, sd):
        assert abs(samples[name].mean() - m) < 0.5 * s
        assert 0.75 < samples[name].std() / s < 1.4


X = np.asarray(line(jax.random.key(8), 0.5, -0.8))
SETTINGS = dict(num_samples=500, progress_bar=False)


@pytest.fixture(scope="module")
def kelfi():
    engine = kme.KELFI(model, 400, statistics=kme.SemiAutomaticStatistics(), num_rounds=1, **SETTINGS)
    engine.run(KEY, x=X)
    return engine


@pytest.mark.filterwarnings("ignore:.*may be off by")
@pytest.mark.filterwarnings("ignore:.*lie beyond the simulated parameters")  # as a series at the end of the prior may
def test_posterior_is_near_the_exact_one(kelfi):
    assert_near(kelfi.get_samples(), X)
    errors, ratios = [], []
    # of six more series: root mean square errors of means, in exact standard deviations, and ratios of these
    for number, (level, slope) in enumerate(np.random.default_rng(1).normal(size=(6, 2))):
        x = np.asarray(line(jax.random.key(number), level, slope))
        samples, (mean, sd) = kelfi.condition(KEY, x=x).samples, exact(x)
        found = [samples[name] for name in ("level", "slope")]
        errors.append((np.mean(found, axis=1) - mean) / sd)
        ratios.append(np.std(found, axis=1) / sd)
    assert np.all(np.sqrt(np.mean(np.square(errors), axis=0)) < 0.5)
    assert np.all(np.abs(np.log(ratios)) < np.log(1.4))


def test_what_was_learnt_is_named(kelfi, capsys):
    kelfi.print_summary(verbose=True)
    printed = capsys.readouterr().out
    assert "learnt, 2: mean of level, mean of slope" in printed
    assert "held-out R^2: level 0." in printed
    _, worth = kelfi.posterior.informativeness()
    assert worth["x"].shape == (2,)
    learnt = kelfi.likelihoods["x"].surrogate
    assert learnt.simulated.shape == (400, 2)


def test_statistics_are_drawn_and_printed(kelfi):
    figure = plots.statistics(kelfi)
    learnt = kelfi.likelihoods["x"].surrogate
    expected, (axis, other) = learnt.statistics(X[None].astype(np.float64))[0], figure.axes
    np.testing.assert_array_equal(axis.lines[0].get_ydata(), learnt.simulated[:, 0])
    np.testing.assert_array_equal(axis.lines[0].get_xdata(), kelfi.likelihoods["x"].simulated[:, 0])
    assert axis.lines[1].get_ydata()[0] == expected[0] and other.lines[1].get_ydata()[0] == expected[1]
    assert (other.get_xlabel(), other.get_ylabel()) == ("slope, standardised", "mean of slope")
    (axis,) = plots.informativeness(kelfi).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["mean of level", "mean of slope"]
    (axis,) = plots.learnt(kelfi).axes
    assert axis.get_yticklabels()[1].get_text() == "mean of slope"
    assert len(plots.statistics(kelfi, names=["mean of slope"]).axes) == 1
    with pytest.raises(ValueError, match=r"`names` must be among \['mean of level', .*got \['slope'\]"):
        plots.statistics(kelfi, names=["slope"])
    plt.close("all")
    for value in (learnt, learnt.statistics, kelfi.likelihoods["x"], kme.SelectedStatistics(), kelfi):
        printed = repr(value)
        assert len(printed.splitlines()) <= 15 and "array(" not in printed
    assert "mean of level, mean of slope" in repr(learnt) and "mean of level" in repr(learnt.statistics)


def test_the_model_with_the_learnt_density_takes_the_raw_observation(kelfi):
    """Its density and slopes, which NUTS follows, against the posterior's density by NumPy, up to a constant."""
    smodel = kme.handlers.surrogate(model, kelfi.likelihoods)
    rows, step = np.array([[0.5, -0.8], [0.0, 0.3], [0.51, -0.8], [0.49, -0.8]], np.float32), 0.01

    @jax.jit
    @jax.vmap
    @jax.value_and_grad
    def joint(row):
        return log_density(smodel, (X,), {}, {"level": row[0], "slope": row[1]})[0]

    found, slopes = joint(rows)
    expected = kelfi.posterior.log_density({"level": rows[:, 0], "slope": rows[:, 1]})
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-3)
    np.testing.assert_allclose(slopes[0, 0], (expected[2] - expected[3]) / (2 * step), rtol=0.02, atol=0.02)
    assert kelfi.likelihoods["x"](0.0, 0.0).event_shape == (30,)


def test_what_is_no_density_of_the_output_is_refused(kelfi):
    for refused in (kelfi.posterior.log_marginal_likelihood, lambda: kelfi.posterior.predictive_log_density(X[None])):
        with pytest.raises(ValueError, match="density of the 2 learnt statistics and not of the output"):
            refused()
    beside = lambda x: (model(x), numpyro.sample("y", dist.Normal(0.0, 1.0), obs=0.5))  # noqa: E731
    further = dataclasses.replace(kelfi.posterior, problem=kme.Problem.read(beside, X))
    with pytest.raises(ValueError, match="density of the 2 learnt statistics and not of the output"):
        further.log_marginal_likelihood()
    assert "log marginal likelihood" not in kelfi.info
    assert np.isfinite(kelfi.posterior.log_density(kelfi.get_samples())).all()


def test_missing_entries_and_settings_that_do_not_go_together_are_refused(kelfi):
    missing = np.where(np.arange(30) == 4, np.nan, X)
    with pytest.raises(ValueError, match=r"at 'x' has 1 entries that are NaN.*SelectedStatistics"):
        kelfi.condition(KEY, x=missing)
    with pytest.raises(ValueError, match=r"`statistics` names \['z'\]"):
        kme.KELFI(model, 100, statistics={"z": kme.SemiAutomaticStatistics()}, **SETTINGS).run(KEY, x=X)
    with pytest.raises(TypeError, match="`statistics` must be SemiAutomaticStatistics"):
        kme.KELFI(model, 100, statistics="auto", **SETTINGS).run(KEY, x=X)
    with pytest.raises(ValueError, match=r"at least 50 whole outputs.*20 simulations in the first round"):
        kme.KELFI(model, 100, statistics=kme.SelectedStatistics(), num_rounds=5, **SETTINGS).run(KEY, x=X)
    assert kme.KELFI(model, 300, statistics=kme.SelectedStatistics()).resolved_rounds == 2
    both = dict(statistics=kme.SelectedStatistics(), missing=kme.SimulatedMissing())
    with pytest.raises(ValueError, match="leave `missing` out"):
        kme.KELFI(model, 100, **both, **SETTINGS).run(KEY, x=X)


def black_box(rng, level, slope):
    return level + slope * TIMES + 2.0 * rng.normal(size=30)


def two_sites(x=None, y=None):
    """A black box of which statistics are learnt, and three numbers of which one says something."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(black_box, level, slope, shape=(30,), dtype=np.float32), obs=x)
    numpyro.sample("y", kme.Simulator(three, level), obs=y)


def three(rng_key, level):
    first, second, third = jax.random.normal(rng_key, (3,)) + jnp.array([0.0, level, 0.0])
    return {"noise": jnp.stack([first, third]), "level": second}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The posterior mean of level may be off")  # of 300 simulations
def test_rounds_black_boxes_and_statistics_by_site():
    statistics = {"x": kme.SemiAutomaticStatistics(), "y": kme.SelectedStatistics()}
    engine = kme.KELFI(two_sites, 300, statistics=statistics, num_rounds=2, **SETTINGS)
    engine.run(KEY, x=X, y={"noise": np.array([0.3, -0.2]), "level": 0.5})
    assert engine.info["y: statistics"].startswith("1 of 3 kept: level")
    names = [label.get_text() for label in plots.informativeness(engine).axes[0].get_yticklabels()]
    assert names == ["mean of level", "mean of slope", "level"]
    assert engine.info["x: statistics"].startswith("learnt, 2")
    mean, sd = exact(X)
    precision = 1.0 / sd[0] ** 2 + 1.0
    assert abs(engine.get_samples()["level"].mean() - (mean[0] / sd[0] ** 2 + 0.5) / precision) < 0.6 * sd[0]
