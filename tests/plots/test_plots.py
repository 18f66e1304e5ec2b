"""What is drawn is what was computed. Nothing here compiles a posterior."""

import builtins
from itertools import pairwise
from types import SimpleNamespace

import jax
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import numpyro_kme as kme
from numpyro_kme import plots
from numpyro_kme.diagnostics import Calibration, PredictiveCheck
from numpyro_kme.engines import LearntPosterior
from numpyro_kme.plots._style import outline

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import StepPatch

BEYOND = "beyond the simulations"
OBSERVED = np.array([0.4, -0.2, 0.1])


def simulator(rng_key, a, b):
    return jax.numpy.stack([a, b[0], b[1]]) + jax.random.normal(rng_key, (3,))


def model(x=None):
    a = numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(simulator, a, b), obs=x)


class Known(LearntPosterior):
    """Draws from anywhere, with a likelihood of normals and an informativeness that are known."""

    def log_likelihood(self, latents):
        values = -0.5 * (latents["a"] - 1.0) ** 2 - 0.5 * np.sum((latents["b"] - [0.5, -0.5]) ** 2, axis=1)
        return np.where(np.asarray(latents["b"])[:, 0] > 2.0, -np.inf, values)

    def beyond(self, latents):
        return np.asarray(latents["b"])[:, 1] > 1.2

    def informativeness(self):
        return "mutual information", {"x": np.array([0.1, 2.0, 0.7])}


@pytest.fixture(scope="module")
def engine():
    rng = np.random.default_rng(0)
    problem = kme.Problem.read(model, x=OBSERVED)
    draws = {"a": np.exp(rng.normal(size=200)), "b": rng.normal(size=(200, 2)), "c": rng.normal(size=200)}
    simulations = kme.simulate(jax.random.key(0), problem, 40, progress_bar=False)
    none = dict(likelihoods={}, learn_prior=False, drawn=None, extrapolated={})
    return Known(engine="Known", samples=draws, problem=problem, simulations=simulations, **none)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def calibration():
    rng = np.random.default_rng(1)
    return Calibration({"a": rng.uniform(size=120), "b": rng.uniform(size=(120, 2))}, rng.uniform(size=120), {})


def drawn(figure):
    """Drawing it raises no error; its visible axes."""
    figure.canvas.draw()
    return [axis for axis in figure.axes if axis.axison]


def test_informativeness_draws_a_bar_for_each_statistic(engine):
    (axis,) = drawn(plots.informativeness(engine))
    assert [bar.get_width() for bar in axis.patches] == [0.1, 2.0, 0.7]
    assert axis.get_xlabel() == "mutual information, nats"
    assert [label.get_text() for label in axis.get_yticklabels()] == ["x[0]", "x[1]", "x[2]"]
    (named,) = drawn(plots.informativeness(engine, ["mean", "sd", "range"]))
    assert named.get_yticklabels()[1].get_text() == "sd"
    assert named.yaxis_inverted()
    bottom, top = named.get_ylim()
    assert [side for side, spine in named.spines.items() if spine.get_visible()] == ["left", "bottom"]
    assert bottom + top == pytest.approx(2.0) and 2.5 < bottom < 3.0  # as much room below the bars as above


def test_surrogate_surface_is_the_likelihood_in_a_slice(engine):
    """The grid's largest value sits at the normal's mean; outside the positive part nothing is drawn."""
    axis, bar = drawn(plots.surrogate(engine, ["b[0]", "b[1]"]))
    assert axis.get_xlabel() == "b[0]" and axis.get_ylabel() == "b[1]" and "log q" in bar.get_ylabel()
    assert bar.get_ylim() == (-8.0, 0.0) and axis.get_title() == "at the posterior median of a"
    points = np.array([[0.5, -0.5], [0.5, 1.5], [3.0, -0.5]])
    latents = {"a": engine.get_samples()["a"], "b": engine.get_samples()["b"]}
    tables = plots.posteriors._slice(latents, ["b[0]", "b[1]"], points)
    log_q = plots.posteriors._log_likelihood(engine, tables)
    np.testing.assert_allclose(log_q[:2], [0.0, -2.0], atol=1e-5)
    assert np.isnan(log_q[2])
    labels = [line.get_label() for line in axis.lines]
    assert labels == ["simulations", "posterior", BEYOND] and len(axis.lines[0].get_xdata()) == 40


def test_what_lies_beyond_the_simulations_is_hatched_and_crossed(engine):
    (axis, _), b = drawn(plots.surrogate(engine, ["b[0]", "b[1]"])), engine.get_samples()["b"]
    np.testing.assert_array_equal(axis.lines[-1].get_xydata(), b[b[:, 1] > 1.2])
    (hatched,) = [c for c in axis.collections if any(getattr(c, "hatches", None) or [])]
    edges = np.concatenate([path.vertices for path in hatched.get_paths()])[:, 1]
    assert abs(edges.min() - 1.2) < 0.1 and edges.max() > 2.0
    (axis,) = drawn(plots.surrogate(engine, ["b[1]"]))
    assert BEYOND in [text.get_text() for text in axis.figure.legends[0].get_texts()]


def test_surrogate_curve_of_one_number(engine):
    (axis,) = drawn(plots.surrogate(engine, ["a"]))
    curve = next(line for line in axis.lines if line.get_label() == "learnt likelihood")
    x, y = curve.get_data()
    assert x.min() > 0.0 and abs(x[np.argmax(y)] - 1.0) < 0.1 and y.max() == 1.0
    bars, edges, _ = next(patch for patch in axis.patches if isinstance(patch, StepPatch)).get_data()
    draws = engine.get_samples()["a"]
    counts = [np.sum((draws >= low) & (draws < high)) for low, high in pairwise(edges)]
    np.testing.assert_allclose(bars, np.array(counts) / max(counts))
    np.testing.assert_allclose(edges[[0, -1]], x[[0, -1]])
    assert [side for side, spine in axis.spines.items() if spine.get_visible()] == ["left", "bottom"]
    assert [axis.get_xlabel() for axis in drawn(plots.surrogate(engine))[:1]] == ["a"]


def test_ranks_draw_the_distribution_less_the_uniform_one(calibration):
    axes = drawn(plots.ranks(calibration))
    assert [axis.get_title() for axis in axes] == ["a", "b[0]", "b[1]", "TARP"]
    values = calibration.ranks["a"]
    _, y = axes[0].lines[-1].get_data()
    assert abs(np.max(np.abs(y)) - stats.kstest(values, "uniform").statistic) < 1e-12
    band = axes[0].collections[0].get_paths()[0].vertices
    reach = stats.kstwo.ppf(0.95, 120)
    np.testing.assert_allclose([band[:, 1].min(), band[:, 1].max()], [-reach, reach])
    assert len(drawn(plots.ranks(calibration, ["b", "TARP"]))) == 3


def test_coverage_draws_the_curves_and_a_band(calibration):
    axes = drawn(plots.coverage(calibration, ["a", "TARP"]))
    assert [axis.get_title() for axis in axes] == ["a", "TARP"]
    for axis, fraction in zip(axes, (lambda t: calibration.coverage(t)["a"], lambda t: np.mean(calibration.tarp <= t))):
        x, y = axis.lines[-1].get_data()
        inside = np.linspace(0.01, 0.99, 50)
        found = y[np.searchsorted(x, inside, side="right") - 1]
        np.testing.assert_allclose(found, [fraction(t) for t in inside])
        np.testing.assert_array_equal(*axis.lines[0].get_data())  # what is expected
    band = axes[0].collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(band[:, 1].max() - 1.0, stats.kstwo.ppf(0.95, 120))


def test_witness_is_the_difference_of_embeddings():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(50, 2)), rng.normal(np.array([0.0, 3.0]), size=(20, 2))
    first, second = drawn(plots.witness(x, y, ["left", "right"], length_scale=0.5))
    t, value = second.lines[0].get_data()
    slow = [
        sum(np.exp(-2.0 * (s - a) ** 2) for a in x[:, 1]) / 50 - sum(np.exp(-2.0 * (s - b) ** 2) for b in y[:, 1]) / 20
        for s in t[::50]
    ]
    np.testing.assert_allclose(value[::50], slow, atol=1e-12)
    assert first.get_xlabel() == "left" and value.min() < -0.3 and value.max() > 0.3
    (one,) = drawn(plots.witness(x[:, 0], 0.5))
    assert one.get_xlabel() == "x"


def test_marginals_of_one_engine_and_of_several(engine):
    axes = drawn(plots.marginals(engine, truth={"a": 1.0, "b": [0.5, -0.5]}))
    assert [axis.get_xlabel() for axis in axes] == ["a", "b[0]", "b[1]"]
    places = [line.get_xdata()[0] for line in axes[1].lines[1:]]
    draws = engine.get_samples()["b"][:, 0]
    np.testing.assert_allclose(places, [*np.quantile(draws, [0.5, 0.05, 0.95]), 0.5])
    said = [text.get_text() for text in axes[0].figure.legends[0].get_texts()]
    assert said == ["posterior", "median", "90% interval", "truth"]
    several = {"KELFI": engine, "NUTS": {"a": np.ones(30) + np.arange(30)}}
    axes = drawn(plots.marginals(several, ["a"]))
    assert [text.get_text() for text in axes[0].figure.legends[0].get_texts()] == ["KELFI", "NUTS"]


def test_the_prior_is_drawn_behind_the_posterior(engine):
    before = {"a": np.linspace(0.0, 9.0, 500)}
    (axis,) = drawn(plots.marginals(engine, ["a"], prior=before))
    assert "prior" in [text.get_text() for text in axis.figure.legends[0].get_texts()]
    assert axis.get_xlim()[1] > 8.0
    with pytest.raises(ValueError, match="keeps no draws from the prior"):
        plots.marginals({"one": {"a": np.arange(9.0)}}, prior=True)


def test_densities_of_draws():
    """That of normal draws is normal; a bound keeps its mass; whole numbers have their frequencies."""
    x, density = outline(stats.norm.ppf((np.arange(4000) + 0.5) / 4000), -3.0, 3.0)
    np.testing.assert_allclose(density, stats.norm.pdf(x), atol=0.01)
    for draws in (np.linspace(0.0, 1.0, 300), np.repeat(np.linspace(0.0, 1.0, 3001), 2)):
        x, density = outline(draws, -0.5, 1.5)
        np.testing.assert_allclose(density, (x >= 0.0) & (x <= 1.0), atol=0.02)
    x, density = outline(np.array([2.0, 2.0, 4.0, 5.0, np.nan]), 2.0, 5.0)
    np.testing.assert_allclose(np.interp([2.0, 3.0, 4.0, 5.0], x, density), [0.5, 0.0, 0.25, 0.25])
    assert np.isfinite(outline(np.full(9, 0.3), 0.1, 0.5)[1]).all()


def test_predictions_and_the_observation():
    rng = np.random.default_rng(3)
    x, seen = rng.normal(size=(80, 2)), np.array([0.5, np.nan])
    check = PredictiveCheck({"x": x}, {"x": seen}, {"x": ("mean", "max")})
    first, second = drawn(plots.predictive(check))
    assert [first.get_xlabel(), second.get_xlabel()] == ["mean", "max"]
    assert [line.get_xdata()[0] for line in first.lines] == [0.5] and not second.lines
    series = PredictiveCheck({"y": rng.normal(size=(50, 30))}, {"y": np.arange(30.0)})
    (axis,) = drawn(plots.predictive(series))
    np.testing.assert_array_equal(axis.lines[-1].get_ydata(), np.arange(30.0))
    np.testing.assert_allclose(axis.lines[0].get_ydata(), np.median(series.predicted["y"], axis=0))
    with pytest.raises(ValueError, match=r"`site` must be among \['y'\]; got 'x'"):
        plots.predictive(series, site="x")


def test_axes_size_and_style_are_the_users(engine, calibration):
    figure, axes = plt.subplots(1, 3)
    assert plots.marginals(engine, ax=axes, linewidth=3.0) is figure
    assert axes[0].lines[0].get_linewidth() == 3.0 and axes[0].get_legend() is not None and not figure.legends
    assert plots.coverage(calibration, ["a"], ax=axes[0], color="red").axes[0].lines[-1].get_color() == "red"
    with pytest.raises(ValueError, match="`ax` must hold 3 axes, one for each panel"):
        plots.marginals(engine, ax=axes[:2])


def test_truth_is_marked_on_the_learnt_likelihood(engine):
    (axis, _) = drawn(plots.surrogate(engine, ["b[0]", "b[1]"], truth={"b": [0.1, 0.2]}))
    star = next(line for line in axis.lines if line.get_label() == "truth")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (0.1, 0.2)


def test_names_below_small_figures_stay_inside(calibration):
    figure = plots.ranks(calibration)
    figure.canvas.draw()
    boxes = [axis.xaxis.label.get_window_extent() for axis in figure.axes]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0 and legend.x1 <= figure.bbox.x1


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda e, c: plots.informativeness(e, ["one"]), "must name 3 statistics; got 1"),
        (lambda e, c: plots.surrogate(e, ["a", "b"]), r"one or two numbers; got \['a', 'b\[0\]', 'b\[1\]'\]"),
        (lambda e, c: plots.ranks(c, ["d"]), r"among \['a', 'b', 'TARP'\]; got \['d'\]"),
        (lambda e, c: plots.witness(np.zeros((3, 2)), np.zeros((3, 4))), r"got \(3, 2\) and \(3, 4\)"),
        (lambda e, c: plots.witness(np.zeros((3, 2)), np.zeros(2), ["a"]), "must name 2 statistics; got 1"),
        (
            lambda e, c: plots.witness(np.zeros((3, 2)), np.zeros(2), length_scale=-1.0),
            "`length_scale` must be positive",
        ),
        (lambda e, c: plots.marginals(e, prob=1.0), "`prob` must be between 0 and 1; got 1.0"),
    ],
)
def test_bad_input_gets_a_sentence(engine, calibration, call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(engine, calibration)


def test_other_things_are_refused(engine):
    with pytest.raises(TypeError, match="must be a posterior, or an engine that has been run"):
        plots.marginals(SimpleNamespace())
    with pytest.raises(RuntimeError, match="run"):
        plots.marginals(kme.KELFI(model))


def test_without_matplotlib_a_sentence_says_what_to_install(engine, monkeypatch):
    def importing(name, *rest, __import__=builtins.__import__, **more):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return __import__(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", importing)
    for draw in (plots.informativeness, plots.marginals):
        with pytest.raises(ModuleNotFoundError, match=r"pip install matplotlib"):
            draw(engine)
