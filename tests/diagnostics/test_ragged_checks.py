"""Predictions of outputs of any length beside an observation that ends as they do, or early."""

import jax
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme import plots
from numpyro_kme.diagnostics import check, predictive_check
from numpyro_kme.engines import Posterior
from numpyro_kme.kernels import EmpiricalMeasureRule, lengths, pad
from numpyro_kme.likelihoods import KernelStatistics

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LONGEST = 30
KEY = jax.random.key(0)


def trials(rng, mu):
    """Most have twenty rows and more; one in ten ends early."""
    n = rng.integers(4, 8) if rng.uniform() < 0.1 else rng.integers(20, LONGEST)
    return rng.normal(mu, 1.0, size=n)


def model(x=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(trials, mu, shape=LONGEST, dtype=float, ragged=True), obs=x)


@pytest.fixture(scope="module")
def kelfi():
    engine = kme.KELFI(model, 100, form=KernelStatistics(EmpiricalMeasureRule()), progress_bar=False)
    engine.run(KEY, x=np.random.default_rng(0).normal(0.5, 1.0, size=25))
    return engine


def by_hand(predicted, y):
    """Twice the smaller fraction on either side, among predictions that reach row `i`."""
    found = []
    for i, value in enumerate(y):
        column = [row[i] for row in predicted if not np.isnan(row[i])]
        below = np.mean([np.sign(value - other) / 2 + 0.5 for other in column]) if column else np.nan
        found.append(2 * min(below, 1 - below) if not np.isnan(value) else np.nan)
    return found


@pytest.mark.slow
def test_tails_are_among_the_predictions_that_reach_so_far(kelfi):
    found = predictive_check(KEY, kelfi)
    predicted, observed = found.predicted["x"], found.observed["x"]
    tails = found.tail_probabilities()
    np.testing.assert_allclose(tails["x"], by_hand(predicted, observed))
    assert np.isfinite(tails["x"][:25]).all() and np.isnan(tails["x"][25:]).all()
    size = lengths(predicted)
    assert 4 <= size.min() < 8 and size.max() < LONGEST
    below = np.mean(size < 25) + 0.5 * np.mean(size == 25)
    assert tails["length of x"] == pytest.approx(2 * min(below, 1 - below)) and tails["length of x"] > 0.3
    assert "smallest tail of length of x" in repr(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The posterior mean of .* may be off by")
def test_a_series_that_ends_early_or_late_shows(kelfi):
    early = predictive_check(KEY, kelfi.condition(KEY, x=np.array([0.1, 0.4, 0.5, 0.9, -0.3])))
    assert 0.02 < early.tail_probabilities()["length of x"] < 0.3
    with pytest.warns(UserWarning, match="has 30 rows, and the simulations have"):
        late = kelfi.condition(KEY, x=np.random.default_rng(1).normal(0.5, 1.0, size=30))
    tails = predictive_check(KEY, late).tail_probabilities()
    assert tails["length of x"] == 0.0
    assert np.isnan(tails["x"][29]) and np.isfinite(tails["x"][:29]).all()


def test_figures_and_groups_of_arviz():
    y = np.random.default_rng(0).normal(0.5, 1.0, size=25)
    problem, draws = kme.Problem.read(model, x=y), np.random.default_rng(1).normal(y.sum() / 26, 26**-0.5, size=50)
    simulations = kme.simulate(KEY, problem, 2, progress_bar=False)
    exact = Posterior(engine="none", samples={"mu": draws}, problem=problem, simulations=simulations)
    found = predictive_check(KEY, exact, num_draws=50)
    (axis,) = plots.predictive(found).axes
    median, observed = axis.lines[0], axis.lines[1]
    reached = int(lengths(found.predicted["x"]).max())
    np.testing.assert_array_equal(median.get_xdata(), np.arange(reached))
    np.testing.assert_allclose(median.get_ydata()[0], np.median(found.predicted["x"][:, 0]))
    np.testing.assert_array_equal(observed.get_ydata(), pad(found.observed["x"][:25], LONGEST))
    plt.close("all")
    groups = found.to_inference_data()
    assert groups.posterior_predictive["x"].shape[-2:] == (50, LONGEST)


@pytest.mark.slow
def test_every_diagnostic_takes_outputs_of_any_length(kelfi, capsys):
    engine = kme.KELFI(model, 100, form=kelfi.form, num_rounds=1, progress_bar=False)
    engine.run(KEY, x=np.random.default_rng(0).normal(0.5, 1.0, size=25))
    found = check(KEY, engine, 20)
    assert not found.flagged()
    found.print_summary()
    assert "smallest tail of length of x" in capsys.readouterr().out
