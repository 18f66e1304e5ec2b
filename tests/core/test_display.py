"""What values print: every public class in at most 15 lines of 80 columns, without arrays."""

import dataclasses
import importlib
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme._core import display
from numpyro_kme._core.display import WIDTH

ROOMS = [room for room in kme.__all__ if inspect.ismodule(getattr(kme, room)) and room != "handlers"]


def public_classes():
    """Every public class whose values are made by users or given to them."""
    found = {}
    for room in ("numpyro_kme", *(f"numpyro_kme.{room}" for room in ROOMS), "numpyro_kme.embeddings.measures"):
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            abstract = inspect.isabstract(value) or value in (kme.kernels.Kernel, kme.losses.Loss)
            other = (Exception, numpyro.primitives.Messenger, dist.Distribution, numpyro.infer.mcmc.MCMCKernel)
            if inspect.isclass(value) and not abstract and not issubclass(value, other):
                found[name] = value
    return found


CLASSES = public_classes()


def check(value):
    """That what a value prints is short, and has no array."""
    found = repr(value)
    assert len(found.splitlines()) <= 15, found
    assert max(map(len, found.splitlines())) <= 80, found  # columns of a terminal
    assert not re.search(r"array\(|\[\s*-?\d+\.\d+[, ]+-?\d+\.\d+|<.*object at|0x[0-9a-f]{6}", found), found
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_class_prints_by_the_one_renderer(name):
    assert CLASSES[name].__repr__ is display.text, f"{name} prints in its own way: decorate it with `shown`"


def simulator(rng_key, shift, scale):
    x = shift + scale * jax.random.normal(rng_key, (30,))
    return {"mean": x.mean(), "log sd": jnp.log(x.std()), "quantiles": jnp.quantile(x, jnp.array([0.1, 0.9]))}


NAMES = ("mean", "log sd", "quantiles[0]", "quantiles[1]")


def model(x=None):
    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    numpyro.sample("x", kme.Simulator(simulator, shift, scale), obs=x)


OBSERVED = {"mean": 0.4, "log sd": 0.1, "quantiles": np.array([-0.9, 1.7])}
VECTOR = np.array([0.4, 0.1, -0.9, 1.7])


@pytest.fixture(scope="module")
def kelfi():
    engine = kme.KELFI(model, 300, num_rounds=1, num_samples=200, progress_bar=False)
    engine.run(jax.random.key(0), x=OBSERVED)
    return engine


@pytest.fixture(scope="module")
def used(kelfi):
    """Values after use, by what they are."""
    posterior, simulations = kelfi.posterior, kelfi.posterior.simulations
    x = simulations.x["x"]
    test = kme.diagnostics.misspecification_test(x, VECTOR, NAMES)
    predictive = kme.diagnostics.predictive_check(jax.random.key(1), posterior, 30)
    rng = np.random.default_rng(0)
    calibration = kme.diagnostics.Calibration({"shift": rng.uniform(size=50)}, rng.uniform(size=50), {}, {}, refused=2)
    fitted = posterior.likelihoods["x"]
    return {
        "engine": kelfi,
        "engine before": kme.KELFI(model, 100, form=kme.KernelMeans()),
        "posterior": posterior,
        "posteriors": kme.engines.Posteriors((posterior, None), {1: "why"}, {0: ("a", "b")}),
        "problem": posterior.problem,
        "draws": posterior.problem.draw(jax.random.key(0), 64),
        "simulations": simulations,
        "fitted": fitted,
        "surrogate": fitted.surrogate,
        "coordinates": fitted.coordinates,
        "in coordinates": posterior.in_coordinates,
        "misspecification": test,
        "predictive": predictive,
        "calibration": calibration,
        "check": kme.diagnostics.Check(calibration, {"x": test}, predictive),
        "weights": kme.abc.soft_abc_weights(np.arange(100.0)),
        "embedding": kme.embeddings.MeanEmbedding(kme.kernels.Gaussian(np.ones(4)), x),
        "sum": kme.kernels.Gaussian(np.ones(40)) + 0.5 * kme.kernels.Laplace(2.0),
        "permutations": kme.embeddings.PermutationTest(0.3, 0.01, np.arange(999.0)),
        "plan": kme.simulations.Plan(100, simulations),
        "weight": kme.diagnostics.WeightCalibration(1.0, 2.0, 0.9, 50),
        "chain": kme.mcmc.SurrogateCheck(0.02, 0.0),
        "rejection": kme.abc.rejection_weights(np.arange(100.0)),
    }


SETTINGS = ("embedding", "sum", "plan", "draws", "coordinates", "weights", "rejection", "chain")
SETTINGS += ("misspecification", "weight", "problem", "in coordinates", "permutations")
"""Values that print as they would be made."""


def test_values_after_use_print_in_five_to_fifteen_lines(used):
    for what, value in used.items():
        found = check(value)
        assert what in SETTINGS or len(found.splitlines()) >= 5, found
        assert what in SETTINGS or "next:" in found, found


def test_cards_say_how_big_and_what_next(used):
    assert "300 simulations" in repr(used["simulations"]) and "shift" in repr(used["simulations"])
    assert "not run yet" in repr(used["engine before"]) and "form=KernelMeans" in repr(used["engine before"])
    mean = used["posterior"].samples["shift"].mean()
    assert [*used["posterior"].samples] == ["shift", "scale"]  # as the model has them
    assert f"    shift {mean:>8.3g} " in repr(used["posterior"]) and "next:" in repr(used["posterior"])
    assert "of 2 observations" in repr(used["posteriors"])
    assert "Posterior by KELFI" in repr(used["posterior"])


def test_notebooks_show_what_is_printed_and_a_bar_beside_trouble(kelfi):
    """All of the table and of what was warned of; values that print as they are made have no HTML."""
    shown, posterior = kelfi._repr_html_(), kelfi.posterior
    for line in str(kelfi).splitlines()[:4]:
        assert all(word in shown for word in line.split())
    assert "overflow-x: auto" in shown and display.TROUBLE not in shown.replace("<b>warned of</b>: nothing", "")
    sentence = f"Use `a < b`{' more' * 99}."
    warned = dataclasses.replace(posterior, warned=(sentence, "Second."))._repr_html_()
    assert f'<div style="{display.TROUBLE}"><b>warned of</b>: Use <code>a &lt; b</code> more' in warned
    assert "more.<br>Second.</div>" in warned
    wide = dataclasses.replace(posterior, samples={"theta": np.zeros((9, 50))}, errors=None)
    assert wide._repr_html_().count("<tr>") == 41 and "and 10 numbers more" in wide._repr_html_()
    assert "theta[4]" in repr(wide) and "and 45 numbers more" in repr(wide) and "theta[5]" not in repr(wide)
    assert kme.kernels.Gaussian(1.0)._repr_html_() is None
    assert "more more..." in repr(dataclasses.replace(posterior, warned=(sentence,)))


def test_what_a_card_leaves_out_is_named(kelfi):
    """The rows that 15 lines do not hold."""
    printed = str(kelfi.likelihoods["x"]).splitlines()
    known = kelfi.likelihoods["x"]._card().rows
    (left,) = [line for line in printed if line.startswith("  ... ")]
    named = [name for name in known if f"  {name}  " in "\n".join(printed)]
    assert 3 < len(named) < len(known) and left == f"  ... {', '.join(name for name in known if name not in named)}"


def test_traced_values_print_too(kelfi):
    seen = []

    def look(fitted):
        seen.append(repr(fitted))
        return 0.0

    jax.jit(look)(kelfi.posterior.likelihoods["x"])
    jax.jit(lambda s: look(kme.kernels.Gaussian(s)))(1.0)
    assert "traces" in seen[0] and "traced ()" in seen[1]


# Names of statistics, from a simulator that returns a dictionary


def test_a_dictionary_of_outputs_is_a_vector_in_its_own_order():
    one = kme.Simulator(simulator, 0.5, 2.0)
    assert one.event_shape == (4,) and one.labels == NAMES
    found, x = one.sample(jax.random.key(3)), simulator(jax.random.key(3), 0.5, 2.0)
    expected = np.concatenate([np.ravel(value) for value in x.values()])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(one.vector(x), expected)
    assert one.vector(None) is None


def test_the_observation_as_a_dictionary_is_the_vector(kelfi):
    other = kme.Problem.read(model, x=VECTOR)
    np.testing.assert_allclose(kelfi.posterior.problem.observations["x"], other.observations["x"])
    learnt = kme.handlers.surrogate(model, kelfi.likelihoods)
    values = {"shift": jnp.array(0.3), "scale": jnp.array(1.1)}
    densities = [numpyro.infer.util.log_density(learnt, (), {"x": x}, values)[0] for x in (OBSERVED, VECTOR)]
    np.testing.assert_allclose(*densities, rtol=1e-5)
    kelfi.condition(jax.random.key(1), x=OBSERVED | {"mean": 0.2})


def test_entries_of_an_observation_are_checked():
    one = kme.Simulator(simulator, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"must have the entries \['mean', 'log sd', 'quantiles'\]; got \['mean'\]"):
        one.vector({"mean": 0.0})
    with pytest.raises(ValueError, match=r"Write NaN for what was not observed, \{'log sd': np.nan\}"):
        one.vector({"mean": 0.0, "quantiles": np.zeros(2)})
    for spoilt in (OBSERVED | {"mean": None}, [0.1, None, 0.2, 0.3]):
        with pytest.raises(TypeError, match="has dtype object; it must hold numbers, and NaN instead of None"):
            kme.Problem.read(model, x=spoilt)
    with pytest.raises(ValueError, match=r"'quantiles' .* must have shape \(2,\)"):
        one.vector(OBSERVED | {"quantiles": np.zeros(3)})


def test_dictionaries_under_a_plate():
    one = kme.Simulator(simulator, jnp.zeros(5), jnp.ones(5), event_dims=0)
    seen = {"mean": np.arange(5.0), "log sd": np.zeros(5), "quantiles": np.ones((5, 2))}
    assert one.vector(seen).shape == (5, 4) == one.sample(jax.random.key(0)).shape
    np.testing.assert_array_equal(one.vector(seen)[:, 0], np.arange(5.0))


def test_summaries_and_groups_have_the_names(kelfi, capsys):
    kelfi.print_summary(verbose=True)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= WIDTH
    assert "log sd" in printed and "quantiles[0]" in printed and "x[" not in printed
    idata = kelfi.to_inference_data()
    assert list(idata["prior_predictive"]["x_dim_0"].values) == list(NAMES)
    assert kelfi.posterior.statistics == {"x": NAMES}


def test_witness_has_names():
    x = np.random.default_rng(0).normal(size=(200, 3))
    found = kme.diagnostics.misspecification_test(x, np.array([0.1, 6.0, -0.3]), ("a", "b", "c"))
    assert next(iter(found.by_statistic)) == "b"
    assert "by_statistic=b: 0.00" in repr(found)
    assert list(kme.diagnostics.misspecification_test(x, np.zeros(3)).by_statistic) != ["a", "b", "c"]
    with pytest.raises(ValueError, match="must name the 3 statistics; got 1"):
        kme.diagnostics.misspecification_test(x, np.zeros(3), ("a",))


def row(rng, theta):
    return {"late": theta + rng.normal(), "early": 2 * theta}


def pandas_row(rng, theta):
    pandas = pytest.importorskip("pandas")
    return pandas.Series(row(rng, theta))


def pandas_table(rng, theta):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame([row(rng, theta)] * 2)


@pytest.mark.parametrize("fn", [row, pandas_row])
def test_black_boxes_that_return_names(fn):
    one = kme.Simulator(fn, 1.5, dtype=float, names=("early", "late"))
    assert one.event_shape == (2,) and one.labels == ("early", "late")
    assert one.sample(jax.random.key(0))[0] == 3.0
    np.testing.assert_array_equal(one.vector({"late": 1.0, "early": 2.0}), [2.0, 1.0])


def test_black_boxes_that_return_tables():
    one = kme.Simulator(pandas_table, 1.5, shape=(2, 2), dtype=float, names=("early", "late"))
    assert one.labels == ("early[0]", "late[0]", "early[1]", "late[1]")
    np.testing.assert_array_equal(one.sample(jax.random.key(0))[:, 0], [3.0, 3.0])


def test_names_are_checked():
    with pytest.raises(ValueError, match="`names` must name the 4 numbers"):
        kme.Simulator(simulator, 0.0, 1.0, names=("a", "b"))
    with pytest.raises(ValueError, match="must be strings"):
        kme.Simulator(simulator, 0.0, 1.0, names="mean")
    with pytest.raises(Exception, match=r"without \['wrong'\]"):
        kme.Simulator(row, 0.0, dtype=float, names=("early", "wrong")).sample(jax.random.key(0))
