"""Files of posteriors, learnt likelihoods and simulations: round trips of every kind, and what is refused."""

import json
import os
import pickle
import subprocess
import sys
import warnings
import zipfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import one_draw

import numpyro_kme as kme
from numpyro_kme._core import saving
from numpyro_kme.engines import Posterior, Posteriors
from numpyro_kme.kernels import EmpiricalMeasureRule, Gaussian
from numpyro_kme.likelihoods import FittedLikelihood, KernelStatistics

KEY = jax.random.key(0)
Y = np.array([0.3, -0.2, 0.1])
SavedFileError = saving.SavedFileError


def three(rng_key, theta):
    return theta + jax.random.normal(rng_key, (3,))


def two(rng_key, theta, scale):
    return theta + scale * jax.random.normal(rng_key, (3,))


def losing(rng_key, theta):
    x = three(rng_key, theta)
    return jnp.where(x > 1.5, jnp.nan, x)


def normal(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.deterministic("twice", 2.0 * theta)
    numpyro.sample("x", kme.Simulator(three, theta), obs=x)


def dependent(x=None):
    """Priors that depend on one another: the map to coordinates runs the model."""
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    theta = numpyro.sample("theta", dist.Normal(0.0, scale))
    numpyro.sample("x", kme.Simulator(two, theta, scale), obs=x)


def iid(x):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", kme.Simulator(one_draw, theta), obs=x)


def unsure(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(losing, theta), obs=x)


QUIET = dict(progress_bar=False)
ENGINES = {
    "residual": lambda: kme.KELFI(normal, 60, num_samples=100, **QUIET),
    "published": lambda: kme.KELFI(normal, 40, form=kme.KernelMeans(), num_samples=100, **QUIET),
    "data kernel": lambda: kme.KELFI(
        normal, 40, form=kme.KernelMeans(data_kernel=Gaussian(1.0) + Gaussian(2.0)), num_samples=100, **QUIET
    ),
    "low rank": lambda: kme.KELFI(
        normal, 40, form=kme.KernelMeans(solve=kme.likelihoods.LowRankSolve()), num_samples=100, **QUIET
    ),
    "recorded": lambda: kme.KELFI(unsure, 200, num_rounds=1, missing=kme.SimulatedMissing(), num_samples=100, **QUIET),
    "dependent": lambda: kme.KELFI(dependent, 60, num_samples=100, **QUIET),
    "KernelABC": lambda: kme.KernelABC(normal, num_simulations=300, **QUIET),
    "KernelBayes": lambda: kme.KernelBayes(normal, num_simulations=200, num_samples=50, **QUIET),
    "RejectionABC": lambda: kme.RejectionABC(normal, num_simulations=1000, **QUIET),
    "bootstrap": lambda: kme.PosteriorBootstrap(iid, num_samples=20, **QUIET),
    "recursive": lambda: kme.KernelRecursiveABC(normal, num_simulations=30, num_iterations=2, **QUIET),
}


@pytest.fixture(scope="module")
def engines():
    """Each engine, run once."""
    return {}


QUICK = ("residual", "published", "KernelABC")
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ENGINES]


@pytest.fixture(params=EACH)
def engine(request, engines):
    return ran(engines, request.param)


def ran(engines, name):
    if name not in engines:
        engines[name] = ENGINES[name]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            engines[name].run(KEY, x=Y)
    return engines[name]


def same(one, other):
    """Whether trees of dictionaries, arrays and texts are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")


def test_posteriors_come_back(engine, tmp_path):
    posterior, path = engine.posterior, tmp_path / "posterior.kme"
    posterior.save(path)
    found = Posterior.load(path)
    assert type(found) is type(posterior._to_save()) and found.problem is None
    assert same(found.get_samples(), posterior.get_samples()) and same(dict(found.info), dict(posterior.info))
    assert same(found.get_extra_fields(True), posterior.get_extra_fields(True))
    ours, theirs = posterior.to_inference_data(), found.to_inference_data()
    for name, group in posterior.groups.items():
        assert all(np.array_equal(ours[name][key], theirs[name][key], equal_nan=True) for key in group), name
    found.print_summary()
    if not hasattr(posterior, "likelihoods"):
        return
    whole = Posterior.load(path, problem=kme.Problem.read(engine.model, x=Y))
    latents = {name: posterior.samples[name][:5] for name in posterior.latents}
    np.testing.assert_array_equal(whole.log_density(latents), posterior.log_density(latents))
    with pytest.raises(TypeError, match=r"needs the model.*problem=Problem.read"):
        found.log_density(latents)


def test_likelihoods_come_back_without_the_model(engine, tmp_path):
    posterior, path = engine.posterior, tmp_path / "likelihood.kme"
    if not hasattr(posterior, "likelihoods"):
        return
    fitted = posterior.likelihoods["x"]
    fitted.save(path)
    found = FittedLikelihood.load(path)
    z = np.random.default_rng(0).normal(size=(5, fitted.coordinates.dim))
    for y in (Y, np.array([np.nan, 0.1, 0.4])):
        if engine.form is None or getattr(engine.form, "data_kernel", None) is None or not np.isnan(y).any():
            ours, theirs = (one.at(y).log_density(z) for one in (fitted, found))
            np.testing.assert_array_equal(ours, theirs)
    arguments = engine.posterior.simulations.arguments["x"][:4]
    np.testing.assert_array_equal(found(arguments).log_prob(Y), fitted(arguments).log_prob(Y))


def test_simulations_come_back_and_serve_an_engine(engines, tmp_path):
    engine, path = ran(engines, "residual"), tmp_path / "simulations.kme"
    engine.posterior.simulations.save(path)
    found = kme.Simulations.load(path)
    assert vars(found).keys() == vars(engine.posterior.simulations).keys()
    assert all(same(value, getattr(found, name)) for name, value in vars(engine.posterior.simulations).items())
    again = kme.KELFI(normal, 60, num_samples=100, simulations=found, **QUIET)
    again.run(KEY, x=Y)
    assert same(again.get_samples(), engine.get_samples())


def test_many_posteriors_come_back_and_share_what_they_share(engines, tmp_path):
    engine = ran(engines, "residual")
    many = engine.condition_many(KEY, {"x": np.stack([Y, np.where(Y < 0, np.nan, Y), Y])})
    many.save(tmp_path / "many.kme")
    engine.posterior.save(tmp_path / "one.kme")
    found = Posteriors.load(tmp_path / "many.kme")
    assert same(found.get_samples(), many.get_samples()) and found.refused == many.refused
    with zipfile.ZipFile(tmp_path / "many.kme") as several, zipfile.ZipFile(tmp_path / "one.kme") as one:
        assert len(several.namelist()) < 2 * len(one.namelist())


def changed(path, change):
    """A file with another header."""
    with np.load(path) as file:
        parts = dict(file)
    header = json.loads(str(parts["header"]))
    change(header)
    with path.open("wb") as file:
        np.savez(file, **parts | {"header": np.array(json.dumps(header))})


def other_array(path, array):
    with np.load(path) as file:
        parts = dict(file)
    with path.open("wb") as file:
        np.savez_compressed(file, **parts | {"0": array})


def other_bytes(path):
    data = bytearray(path.read_bytes())
    at = data.index(b"0.npy") + 40
    data[at : at + 20] = bytes(20)
    path.write_bytes(bytes(data))


def numpys(path):
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(3))


BAD = {
    "no file": (lambda path: path.unlink(), "There is no file"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is damaged .BadZipFile"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "no file that `save` wrote"),
    "npz": (numpys, "no file that `save` wrote"),
    "changed bytes": (other_bytes, "is damaged"),
    "later format": (
        lambda path: changed(path, lambda h: h["numpyro_kme"].update(format=99, version="9.0")),
        "has format 99, written by numpyro_kme 9.0; this release reads format 1",
    ),
    "unknown class": (
        lambda path: changed(path, lambda h: h["value"].update(object="os.system")),
        r"simulations.kme, written by numpyro_kme 0.*class os.system, which numpyro_kme 0",
    ),
    "other fields": (
        lambda path: changed(path, lambda h: (h["value"]["fields"].pop("x"), h["numpyro_kme"].update(version="0.9"))),
        r"simulations.kme, written by numpyro_kme 0\.9, holds a Simulations with the fields",
    ),
    "text in place of an array": (
        lambda path: changed(path, lambda h: h["value"]["fields"].update(x={"dict": [["x", "a"]]})),
        r"\['x'\] of Simulations should be numbers, and hold text",
    ),
    "array of text": (lambda path: other_array(path, np.array(["a", "b"])), "array 0 should be what its header says"),
    "longer array": (lambda path: other_array(path, np.zeros(10**6)), "cannot reshape array"),
    "no array": (lambda path: changed(path, lambda h: h["value"]["fields"].update(x={"array": 99})), "is damaged"),
}


@pytest.mark.parametrize("how", BAD)
def test_what_cannot_be_read(engines, how, tmp_path):
    path = tmp_path / "simulations.kme"
    ran(engines, "residual").posterior.simulations.save(path)
    change, message = BAD[how]
    change(path)
    with pytest.raises(SavedFileError, match=message):
        kme.Simulations.load(path)


def test_a_small_file_does_not_unpack_to_a_large_value(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "UNPACKED", 10_000)
    path, ones = tmp_path / "ones.kme", Gaussian(np.ones(200_000))
    saving.write(path, ones)
    assert np.shape(saving.read(path).length_scale) == (200_000,)
    other_array(path, np.ones(200_000))
    with pytest.raises(SavedFileError, match=r"its [\d,]+ bytes must not unpack to 1,60\d,\d\d\d"):
        saving.read(path)


def test_a_value_of_another_kind(engines, tmp_path):
    ran(engines, "residual").posterior.simulations.save(tmp_path / "simulations.kme")
    with pytest.raises(SavedFileError, match=r"holds a Simulations and not a Posterior: use Simulations\.load"):
        Posterior.load(tmp_path / "simulations.kme")


def test_a_model_with_another_observation_is_refused(engines, tmp_path):
    ran(engines, "residual").posterior.save(tmp_path / "posterior.kme")
    with pytest.raises(ValueError, match=r"other observations at \['x'\]"):
        Posterior.load(tmp_path / "posterior.kme", problem=kme.Problem.read(normal, x=Y + 1.0))


class OwnNormal(dist.Normal):
    """A class that no other session has to know."""


def full(*_):
    raise OSError("No space left on device")


def test_what_cannot_be_written_leaves_the_file_as_it_was(engines, tmp_path, monkeypatch):
    path = tmp_path / "simulations.kme"
    simulations = ran(engines, "residual").posterior.simulations
    simulations.save(path)
    before = path.read_bytes()
    odd = kme.Simulations({"x": np.zeros((2, 1))}, {"x": np.array([print, len])})
    with pytest.raises(TypeError, match=r"Simulations.x\['x'\] cannot be saved: an array of object"):
        odd.save(path)
    for value, kind in ((print, "builtins.builtin_function_or_method"), (OwnNormal(), "test_saving.OwnNormal")):
        with pytest.raises(TypeError, match=rf"failures\['x'\] cannot be saved: it is a (tests\.core\.)?{kind}"):
            kme.Simulations({"x": np.zeros((2, 1))}, {"x": np.zeros(2)}, failures={"x": value}).save(path)
    with pytest.raises(ValueError, match="There is no folder"):
        simulations.save(tmp_path / "nowhere" / "simulations.kme")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        simulations.save(path)
    assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == [path.name]


def elsewhere(python, tmp_path):
    """What another interpreter reads, in a process without this session's settings."""
    files = [str(tmp_path / name) for name in ("likelihood.kme", "posterior.kme", "points.npz")]
    environment = {"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [python, str(Path(__file__).with_name("saved_elsewhere.py")), *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def of_any_length(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(some, theta, shape=3, dtype=float, ragged=True), obs=x)


def some(rng, theta):
    return rng.normal(theta, 1.0, size=rng.integers(1, 4))


def raw(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(series, theta), obs=x)


def series(rng_key, theta):
    return theta * jnp.linspace(-1.0, 1.0, 30) + jax.random.normal(rng_key, (30,))


def discrete(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    state = numpyro.sample("state", dist.Categorical(jnp.array([0.3, 0.7])))
    numpyro.sample("x", kme.Simulator(two, theta, 1.0 + state), obs=x)


DOSES = np.array([0.2, 0.5, 1.0], np.float32)


def with_doses(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("trials", 3):
        numpyro.sample("x", kme.Simulator(trial, theta, DOSES, event_dims=0), obs=x)


def trial(rng_key, theta, dose):
    return theta * dose + jax.random.normal(rng_key)


KELFI = partial(kme.KELFI, num_samples=100, num_rounds=1, **QUIET)
SERIES = np.linspace(-1.0, 0.5, 30)
FORMS = {
    **{name: (ENGINES[name], Y, Y) for name in ("residual", "published", "low rank", "recorded")},
    "not observed": (ENGINES["residual"], Y, np.array([np.nan, 0.1, 0.4])),
    "any length": (lambda: KELFI(of_any_length, 60, form=KernelStatistics(EmpiricalMeasureRule())), Y, Y),
    "learnt statistics": (lambda: KELFI(raw, 100, statistics=kme.SemiAutomaticStatistics()), SERIES, SERIES),
    "selected": (lambda: KELFI(raw, 100, statistics=kme.SelectedStatistics()), SERIES, SERIES),
    "discrete": (lambda: KELFI(discrete, 60), Y, Y),
    "covariates": (lambda: KELFI(with_doses, 60), Y, Y[0]),
}
"""An engine, what it is run with, and the output at which densities are compared."""

OTHER = os.environ.get("OTHER_PYTHON", "")
"""A Python that has this package's dependencies in other versions."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("python", [sys.executable, OTHER], ids=["same", "other"])
def test_other_processes_and_versions_give_the_same_densities(tmp_path, name, python):
    if not python:
        pytest.skip("set OTHER_PYTHON to an interpreter with other versions of JAX and NumPy")
    make, x, value = FORMS[name]
    engine = make()
    engine.run(KEY, x=x)
    likelihood = engine.likelihoods["x"]
    likelihood.save(tmp_path / "likelihood.kme")
    engine.posterior.save(tmp_path / "posterior.kme")
    arguments = np.asarray(engine.posterior.simulations.arguments["x"])
    arguments = arguments.reshape(-1, arguments.shape[-1])[:7]
    np.savez(tmp_path / "points.npz", arguments=arguments, value=value)
    found = elsewhere(python, tmp_path)
    expected = kme.KernelMeansLikelihood(likelihood, *arguments.T).log_prob(value)
    # the published form is a sum with signs, in float32: rounding is to 1e-7 of its largest terms, not of the density
    tolerance = 1e-3 if name in ("published", "low rank") else 1e-5
    np.testing.assert_allclose(found["log_prob"], expected, rtol=tolerance, atol=tolerance)
    mean = engine.get_samples()["theta"].mean()
    np.testing.assert_allclose([found["mean"], found["arviz"]], mean, rtol=1e-6)
