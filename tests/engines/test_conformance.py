"""What every engine must do, on the engines themselves: a new engine is one row of `ROWS`.

The models are conjugate, so that posteriors are known. Each row is fitted once; what is `slow` here is a combination
whose parts are both in the default suite.
"""

import copy
import dataclasses
import inspect
import os
import pickle
import re
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import numpyro_kme as kme
from numpyro_kme import diagnostics, plots
from numpyro_kme.engines import BootstrapPosterior, Engine, LearntPosterior, Posterior, WeightedPosterior

matplotlib.use("Agg")
import matplotlib.pyplot as plt

pytestmark = [
    pytest.mark.filterwarnings("ignore:Under the signed weights the variance"),
    pytest.mark.filterwarnings("ignore:.*the posterior is (coarse|too narrow)"),  # with few simulations
]
KEY, AGAIN, OTHER = (jax.random.key(number) for number in (1, 2, 3))
DRAWS, SIZE = 150, 16
SD = 1.0 / np.sqrt(SIZE)


def averages(rng_key, theta):
    """Means of both halves of 16 normal draws."""
    return theta + np.sqrt(2.0) * SD * jax.random.normal(rng_key, (2,))


def averages_by_numpy(rng, theta):
    return theta + np.sqrt(2.0) * SD * rng.normal(size=2)


def draw(noise, theta):
    return theta + noise


from_noise = kme.FromNoise(draw, dist.Normal(0.0, 1.0))


def draw_by_numpy(rng, theta):
    return theta + rng.normal()


def latent():
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.deterministic("double", 2.0 * theta)
    return theta


def statistics(x=None):
    """Two statistics, one event."""
    numpyro.sample("x", kme.Simulator(averages, latent()), obs=x)


def statistics_by_numpy(x=None):
    numpyro.sample("x", kme.Simulator(averages_by_numpy, latent(), shape=2, dtype=float), obs=x)


def data_set(x=None):
    """Sixteen draws under a plate."""
    theta = latent()
    with numpyro.plate("draws", SIZE):
        numpyro.sample("x", kme.Simulator(from_noise, theta), obs=x)


def data_set_by_numpy(x=None):
    theta = latent()
    with numpyro.plate("draws", SIZE):
        numpyro.sample("x", kme.Simulator(draw_by_numpy, theta, shape=(), dtype=float), obs=x)


def two_sites(x=None, y=None):
    """The two statistics as two simulator sites."""
    theta = latent()
    numpyro.sample("x", kme.Simulator(averages, theta), obs=x)
    numpyro.sample("y", kme.Simulator(averages, theta), obs=y)


OBSERVED = {
    statistics: {"x": np.array([0.5, 0.6], np.float32)},
    data_set: {"x": np.linspace(-1.0, 2.0, SIZE).astype(np.float32)},
    two_sites: {"x": np.array([0.5, 0.6], np.float32), "y": np.array([0.2, 0.3], np.float32)},
}
NUMPY = {statistics: statistics_by_numpy, data_set: data_set_by_numpy}
GRID = {"theta": np.linspace(-1.0, 1.0, 5).astype(np.float32)}
FURTHER = np.array([[0.1, 0.2], [0.4, 0.9]], np.float32)


def square(latents):
    return latents["theta"] ** 2


SHARED = {
    "get_samples": lambda e: e.get_samples(),
    "get_samples by chain": lambda e: e.get_samples(group_by_chain=True),
    "get_extra_fields": lambda e: e.get_extra_fields(),
    "info": lambda e: e.info,
    "to_inference_data": lambda e: {
        group: {name: np.asarray(value) for name, value in found.items()} for group, found in e.posterior.groups.items()
    },
}
POINT = {"mode": lambda e: e.posterior.mode()}
WEIGHTED = POINT | {"weights": lambda e: e.posterior.get_weights(), "square": lambda e: e.posterior.expectation(square)}
LEARNT = {
    "log_density": lambda e: e.posterior.log_density(GRID),
    "mode": lambda e: e.posterior.mode(),
    "log_marginal_likelihood": lambda e: e.posterior.log_marginal_likelihood(),
    "informativeness": lambda e: e.posterior.informativeness(),
}
PLAIN = LEARNT | {
    "posterior": lambda e: (e.posterior.in_coordinates.moments, e.posterior.in_coordinates.log_marginal()),
    "predictive_log_density": lambda e: e.posterior.predictive_log_density(FURTHER),
    "herd": lambda e: e.posterior.herd(OTHER, 5).samples,
}
PUBLISHED = PLAIN | {"surrogate_variance": lambda e: e.posterior.surrogate_variance(GRID)}
FEW = {"rng_key": OTHER, "num_datasets": 2, "num_draws": 20, "progress_bar": False}


def on_an_engine(function):
    """A call of a diagnostic with an engine, small numbers for those of `FEW` that it takes, and its defaults."""
    parameters = inspect.signature(function).parameters.values()
    names, every = {p.name for p in parameters}, any(p.kind is p.VAR_KEYWORD for p in parameters)
    few = {name: value for name, value in FEW.items() if every or name in names}
    (place,) = (p.name for p in parameters if takes_an_engine(p))

    def call(engine):
        found = function(**few | {place: engine})
        if hasattr(found, "print_summary"):
            found.print_summary()

    return call


def takes_an_engine(parameter):
    kinds = parameter.annotation
    kinds = typing.get_args(kinds) if isinstance(kinds, types.UnionType) else (kinds,)
    return Engine in kinds or Posterior in kinds


DIAGNOSTICS = {
    name: on_an_engine(function)
    for name, function in vars(diagnostics).items()
    if inspect.isfunction(function) and any(map(takes_an_engine, inspect.signature(function).parameters.values()))
}
"""Every public diagnostic of an engine or a posterior, which every engine must serve."""
CHECK = {name: call for name, call in DIAGNOSTICS.items() if name not in ("calibrate", "predictive_check")}
"""For an engine that keeps its simulations: `check` has the other two as parts."""
PARTS = {name: call for name, call in DIAGNOSTICS.items() if name != "check"}
"""For an engine that keeps none, which `check` needs."""
PLOTS = {"marginals": lambda e: plots.marginals({"engine": e})}
PLOTS_OF_LEARNT = {"surrogate": lambda e: plots.surrogate(e), "informativeness": lambda e: plots.informativeness(e)}
QUIET = dict(num_samples=DRAWS, progress_bar=False)


@dataclass(frozen=True)
class Row:
    """What to know of an engine.

    Attributes:
        make: The engine for a model, `(model, **settings)`.
        model: A model it can infer from.
        accessors: Everything that reads its result, beside `SHARED`.
        uses: Diagnostics and plots that it serves.
        bank: Whether it keeps its simulations, and takes them as `simulations` for another run.
        lacks: Settings of a plan that it does not take, for which its docstring has the reason.
        error: Of its posterior mean, in posterior standard deviations: 5 Monte Carlo standard errors and its bias at
            so few simulations.
    """

    make: Callable
    model: Callable
    accessors: Mapping[str, Callable] = field(default_factory=dict)
    uses: Mapping[str, Callable] = field(default_factory=lambda: CHECK | PLOTS)
    bank: bool = True
    error: float = 1.0
    lacks: frozenset[str] = frozenset()

    def fitted(self, model=None, key=KEY, **settings):
        engine = self.make(model or self.model, **settings)
        engine.run(key, **OBSERVED[self.model])
        return engine

    def elsewhere(self):
        return {name: value + 0.25 for name, value in OBSERVED[self.model].items()}

    def glance(self, engine):
        """What is read of any engine."""
        return {name: read(engine) for name, read in SHARED.items()}

    def state(self, engine):
        """All that can be read of it."""
        return {name: read(engine) for name, read in (SHARED | dict(self.accessors)).items()}


def kelfi(**own):
    return lambda model, **settings: kme.KELFI(model, 200, **QUIET | own | settings)


SHIFTED: dict = {"shifts": lambda e: e.posterior.shifts()["x"]}

ROWS = {
    "KELFI": Row(kelfi(num_rounds=1), statistics, PLAIN, CHECK | PLOTS | PLOTS_OF_LEARNT),
    "KELFI, published form": Row(kelfi(form=kme.KernelMeans()), statistics, PUBLISHED, CHECK | PLOTS | PLOTS_OF_LEARNT),
    "KELFI, learnt prior": Row(
        kelfi(form=kme.KernelMeans(), learn_prior=True),
        statistics,
        PUBLISHED | {"measures": lambda e: e.posterior.drawn.measures["x"].means},
        error=2.0,  # another posterior: its prior has the mode at the observation
    ),
    "KELFI, adjusted": Row(kelfi(num_rounds=1, adjust=0.1), statistics, SHIFTED, CHECK),
    "KELFI, two sites": Row(kelfi(num_rounds=1), two_sites, LEARNT, CHECK),
    "kernel ABC": Row(lambda m, **s: kme.KernelABC(m, 200, **QUIET | s), statistics, WEIGHTED),
    "kernel Bayes": Row(lambda m, **s: kme.KernelBayes(m, 200, **QUIET | s), statistics, WEIGHTED),
    "rejection ABC": Row(lambda m, **s: kme.RejectionABC(m, 300, quantile=0.1, **QUIET | s), statistics, WEIGHTED),
    "K2-ABC": Row(lambda m, **s: kme.K2ABC(m, 300, **QUIET | s), data_set, WEIGHTED, error=1.5),
    "DR-ABC": Row(lambda m, **s: kme.DistributionRegressionABC(m, 200, **QUIET | s), data_set, WEIGHTED),
    "kernel recursive ABC": Row(
        lambda m, **s: kme.KernelRecursiveABC(m, 100, num_iterations=3, **QUIET | s),
        statistics,
        POINT,
        PARTS | PLOTS,
        bank=False,
        error=1.5,
    ),
    "posterior bootstrap": Row(
        lambda m, **s: kme.PosteriorBootstrap(m, num_samples=40, **{"progress_bar": False} | s),
        data_set,
        POINT | {"landscape": lambda e: e.posterior.landscape("theta", [0.0, 0.5, 1.0])},
        PARTS | PLOTS,
        bank=False,
        error=1.5,
        lacks=frozenset({"num_simulations", "on_failure", "store", "version", "simulations"}),
    ),
}


def test_every_public_engine_has_a_row():
    public = [getattr(kme.engines, name) for name in kme.engines.__all__]
    engines = {kind for kind in public if isinstance(kind, type) and issubclass(kind, Engine)}
    engines = {kind for kind in engines if not inspect.isabstract(kind)}
    assert engines <= {type(row.make(row.model)) for row in ROWS.values()}


PLAN = dict(num_simulations=500, on_failure="skip", store="sims", version="2", timeout=9.0, progress_bar=True)
PLAN["executor"] = ThreadPoolExecutor(1)
"""Settings of a plan, beside `simulations` and the number of draws, `num_samples`."""


@pytest.mark.parametrize("name", ROWS)
def test_an_engine_takes_the_whole_plan_or_says_what_it_lacks(name):
    row = ROWS[name]
    engine = row.make(row.model)
    settings = {field.name for field in dataclasses.fields(engine) if field.init}
    assert {*PLAN, "simulations", "num_samples"} - settings == row.lacks
    assert all(f"`{setting}`" in type(engine).__doc__ for setting in row.lacks)
    if not row.lacks:
        found = dataclasses.replace(engine, **PLAN).plan
        assert {setting: getattr(found, setting) for setting in PLAN} == PLAN
        given = kme.Simulations({}, {"x": np.zeros(9)})
        assert dataclasses.replace(engine, simulations=given).plan.simulations is given
    else:
        assert engine.plan.executor is engine.plan.timeout is engine.plan.store is engine.plan.simulations is None


VARIANTS = ("KELFI, published form", "KELFI, learnt prior", "KELFI, two sites")
"""Slow: test_kelfi has the published form, a learnt prior and several sites."""
PICKLED = ("KELFI", "kernel ABC", "kernel recursive ABC")
"""One of each kind of result: learnt, weighted, points."""
OTHERS = tuple(name for name in ROWS if name not in (*VARIANTS, *PICKLED))


def rows(*default):
    """All rows, but only these in the default suite."""
    names = [n if n in default else pytest.param(n, marks=pytest.mark.slow) for n in ROWS]
    return pytest.mark.parametrize("name", names)


LIGHT = tuple(name for name in ROWS if name not in (*VARIANTS, "posterior bootstrap"))
every_engine = rows(*(name for name in ROWS if name not in VARIANTS))


@pytest.fixture(scope="module")
def fitted():
    """`fitted(name)`: the engine of a row, run once; tests that change one take a copy."""
    engines: dict[str, Any] = {}

    def get(name):
        if name not in engines:
            with jax.enable_x64(False):
                engines[name] = ROWS[name].fitted()
        return engines[name]

    return get


@pytest.fixture(scope="module")
def states(fitted):
    """`states(name)`: what that engine says."""
    found: dict[str, Any] = {}

    def get(name):
        if name not in found:
            found[name] = ROWS[name].state(fitted(name))
        return found[name]

    return get


def assert_same(one, other):
    (ours, structure), (theirs, others) = jax.tree.flatten(one), jax.tree.flatten(other)
    assert structure == others
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_near_the_posterior(row, draws):
    """Of sixteen draws with the mean .5 (.55 of the two statistics, .4 of four of them under two sites)."""
    total = {statistics: 0.55 * SIZE, data_set: 0.5 * SIZE, two_sites: 0.4 * 2 * SIZE}[row.model]
    precision = 1.0 + (2 * SIZE if row.model is two_sites else SIZE)
    assert abs(draws.mean() - total / precision) < row.error / np.sqrt(precision)


@every_engine
def test_a_posterior_is_found_and_one_key_gives_it_again(name, fitted, states):
    row, draws = ROWS[name], fitted(name).get_samples()
    assert_near_the_posterior(row, draws["theta"])
    np.testing.assert_allclose(draws["double"], 2.0 * draws["theta"], rtol=1e-6)
    again = row.fitted()
    assert_same(row.state(again), states(name))
    again.run(KEY, **OBSERVED[row.model])
    assert_same(again.get_samples(), draws)


@rows("KELFI", "kernel ABC")  # the others run anew
def test_there_and_back(name, fitted):
    """What is read at an observation does not depend on where the engine was before, and the engine stays."""
    row, engine = ROWS[name], fitted(name)
    own = engine.posterior
    here, there, again = (
        engine.condition(key, **data).get_samples()
        for key, data in ((AGAIN, OBSERVED[row.model]), (OTHER, row.elsewhere()), (AGAIN, OBSERVED[row.model]))
    )
    assert not np.array_equal(here["theta"], there["theta"])
    assert_same(here, again)
    assert engine.posterior is own


@rows(*PICKLED, "posterior bootstrap")
def test_diagnostics_and_plots_leave_the_engine_as_it_was(name, fitted):
    row, engine = ROWS[name], fitted(name)
    before, attributes = copy.deepcopy(row.glance(engine)), dict(vars(engine))
    for use in row.uses.values():
        use(engine)
        plt.close("all")
        assert vars(engine).keys() == attributes.keys()
        assert all(vars(engine)[key] is attributes[key] for key in attributes)
    assert_same(row.glance(engine), before)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "check" not in row.uses])
def test_engines_without_simulations_are_not_checked(name, fitted):
    """At once, before any data set is simulated."""
    engine = copy.copy(fitted(name))
    object.__setattr__(engine, "run", None)
    object.__setattr__(engine, "condition", None)
    with pytest.raises(TypeError, match="keeps no simulations"):
        diagnostics.check(OTHER, engine)


@rows(*PICKLED)
def test_what_fails_leaves_the_engine_as_it_was(name, fitted, states, monkeypatch):
    """Early, by what is observed, and late, when everything but the result is made."""
    row, engine = ROWS[name], copy.copy(fitted(name))
    unlike = {site: np.full_like(value, np.nan) for site, value in OBSERVED[row.model].items()}
    new = row.make(row.model)
    for attempt in (engine.run, engine.condition, new.run):
        with pytest.raises(ValueError, match=r"Nothing was observed|points of the observation at .x. have NaN"):
            attempt(OTHER, **unlike)

    def out_of_memory(*args, **kwargs):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Posterior, "__init__", out_of_memory)
        for kind in (LearntPosterior, WeightedPosterior, kme.engines.PointPosterior, BootstrapPosterior):
            patch.setattr(kind, "__init__", out_of_memory)
        for attempt in (engine.run, engine.condition, new.run):
            with pytest.raises(MemoryError):
                attempt(OTHER, **row.elsewhere())
    assert_same(row.state(engine), states(name))
    with pytest.raises(RuntimeError, match="should be called first"):
        new.get_samples()


@every_engine
def test_another_setting_makes_another_engine_and_run_checks_it(name, fitted):
    settings = {field.name for field in dataclasses.fields(fitted(name))}
    number = "num_samples" if "num_samples" in settings else "num_iterations"
    engine = dataclasses.replace(fitted(name), **{number: 7})
    assert getattr(engine, number) == 7 and getattr(engine, "simulations", None) is None  # those that it makes itself
    with pytest.raises(RuntimeError, match="should be called first"):
        engine.get_samples()
    setattr(engine, number, 0)
    with pytest.raises(ValueError, match=f"`{number}` must be"):
        engine.run(KEY, **OBSERVED[ROWS[name].model])


def in_a_new_process(path):
    found = {}
    for name, engine in pickle.loads(Path(path).read_bytes()).items():
        found[name] = ROWS[name].glance(engine), engine.condition(OTHER, **ROWS[name].elsewhere()).get_samples()
    Path(path).with_suffix(".out").write_bytes(pickle.dumps(found))


@pytest.mark.parametrize("names", [PICKLED, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["kinds", "others"])
def test_pickled_engines_go_on_in_a_new_process(names, fitted, tmp_path):
    """What they say there, as they were and after `condition`."""
    path = tmp_path / "engines"
    path.write_bytes(pickle.dumps({name: fitted(name) for name in names}))
    code = f"import test_conformance; test_conformance.in_a_new_process({str(path)!r})"
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(kme.__file__).parents[1])])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": paths}, timeout=500)
    for name, (before, after) in pickle.loads(path.with_suffix(".out").read_bytes()).items():
        assert_same(ROWS[name].glance(fitted(name)), before)
        assert_same(fitted(name).condition(OTHER, **ROWS[name].elsewhere()).get_samples(), after)


@every_engine
def test_the_summary_fits_80_columns_and_speaks_of_no_chain(name, fitted, capsys):
    engine = fitted(name)
    engine.print_summary(verbose=True)
    lines = capsys.readouterr().out.splitlines()
    engine.print_summary()
    brief = capsys.readouterr().out.splitlines()
    more = "more: print_summary(verbose=True)" in "\n".join(brief)
    assert max(map(len, lines)) <= 80 and len(brief) <= len(lines) and {*brief[:4]} <= {*lines}
    assert more == (len(brief) < len(lines)) and (more or not name.startswith("KELFI"))
    assert {*lines[3:5]} <= {*repr(engine).splitlines()}  # the same table
    size, simulations = len(engine.get_samples()["theta"]), engine.posterior.simulations
    made = f" from {len(simulations):,} simulations" if simulations else ""
    assert brief[1] == f"{engine.posterior.engine}: {size:,} draws{made}"
    told = [" ".join(f"warned of: {one}".split()) for one in engine.posterior.warned or ["nothing"]]
    assert all(one in " ".join(" ".join(brief).split()) for one in told)
    (header,) = (line for line in lines if "median" in line)
    titles, errors = ["mean", "error", "std", "error", "median", "5.0%", "95.0%"], fitted(name).posterior.errors
    titles = titles if errors else [title for title in titles if title != "error"]
    assert header.split() == titles and (errors is not None) == name.startswith("KELFI")
    row = next(line for line in lines if line.split()[:1] == ["theta"]).split()[1:]
    theta = [number for title, number in zip(titles, row) if title != "error"]
    draws = fitted(name).get_samples()["theta"]
    expected = [draws.mean(), draws.std(), *np.quantile(draws, [0.5, 0.05, 0.95])]
    np.testing.assert_allclose([float(n) for n in theta], expected, rtol=0.02)
    assert all(check.ok for check in engine.checks) == (not engine.posterior.warned)
    weighs = name not in ("kernel recursive ABC", "posterior bootstrap")
    assert sum("effective sample size" in line for line in lines) == weighs
    assert not [line for line in lines if re.search(r"\d\.$|-0\.0+\b(?!\d)|\b1 \w+s\b", line)]


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        ("KELFI", "KELFI: "),
        ("kernel ABC", "simulating"),
        ("kernel recursive ABC", "iterations"),
        pytest.param("posterior bootstrap", "moving to the minima", marks=pytest.mark.slow),
    ],
)
def test_progress_is_shown_where_it_is_wanted(name, bar, fitted, capsys, monkeypatch):
    for variable in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)
    engine = copy.copy(fitted(name))
    for wanted in (True, False):
        engine.progress_bar = wanted
        engine.run(KEY, **OBSERVED[ROWS[name].model])
        assert (bar in capsys.readouterr().err) == wanted


@rows("KELFI", "kernel ABC")
def test_64_bits_give_the_same_posterior(name, fitted):
    """From the same simulations, where the engine takes some."""
    row, engine = ROWS[name], fitted(name)
    with jax.enable_x64(True):
        precise = row.fitted(**({"simulations": engine.posterior.simulations} if row.bank else {}))
    ours, theirs = (e.get_samples()["theta"] for e in (engine, precise))
    effective = float(engine.info.get("effective sample size", 30.0))
    assert abs(ours.mean() - theirs.mean()) < 5 * np.sqrt(2.0 / effective) * ours.std()
    assert_near_the_posterior(row, theirs)


@pytest.mark.filterwarnings(r"ignore:\d+ of \d+ replicates did not converge")  # with drawn noise, of so few nodes
@rows("kernel ABC", "kernel recursive ABC")
def test_simulators_in_numpy(name):
    row = ROWS[name]
    if row.model is two_sites:
        pytest.skip("KELFI in one site has it")
    assert_near_the_posterior(row, row.fitted(NUMPY[row.model]).get_samples()["theta"])


@rows("kernel ABC", "kernel recursive ABC")
def test_scopes_rename(name):
    """`numpyro.handlers.scope` changes names, and with them the keys of simulators."""
    row = ROWS[name]
    draws = row.fitted(handlers.scope(row.model, prefix="group")).get_samples()
    shifts = {"group/x_shift"} if "adjusted" in name else set()
    assert set(draws) == {"group/theta", "group/double"} | shifts
    assert_near_the_posterior(row, draws["group/theta"])


@rows(*LIGHT, "posterior bootstrap")
def test_two_simulator_sites_are_inferred_from_or_refused(name, fitted):
    row = ROWS[name]
    if row.model is two_sites:
        return assert_near_the_posterior(row, fitted(name).get_samples()["theta"])
    if name in ("KELFI", "KELFI, published form", "KELFI, adjusted"):
        pytest.skip("the row of two sites has it")
    with pytest.raises(ValueError, match=r"one simulator site|one observed site"):
        row.make(two_sites).run(KEY, **OBSERVED[two_sites])
