"""What a store's fingerprint sees: pairs of simulators that are the same or differ, in this process and in others."""

import importlib
import itertools
import json
import linecache
import os
import subprocess
import sys

import pytest

from numpyro_kme.simulations.fingerprint import UnreadableError, fingerprint

NUMBERS = itertools.count()
PRELUDE = """
import collections, dataclasses, enum, functools, io, pathlib, random, re, threading
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
import scipy.stats
from scipy.stats import norm
from numpyro import handlers
"""
PLAIN = "def simulator(rng, theta):\n    return theta + rng.normal(size=2)"
HELD = """
class Walk:
    __slots__ = ("sd", "steps")
    factor = 2.0
    def __init__(self, sd, steps=3):
        self.sd, self.steps = sd, steps
    def draw(self, rng, theta):
        return theta + self.sd * self.factor * rng.normal(size=self.steps)
simulator = Walk({sd}).draw
"""
DATACLASS = """
@dataclasses.dataclass(frozen=True)
class Walk:
    sd: float
    shape: tuple = (2,)
    def __call__(self, rng, theta):
        '''{doc}'''
        return theta {sign} self.sd * rng.normal(size=self.shape)
simulator = Walk({sd})
"""
CLOSURE = """
def make(sd):
    def simulator(rng, theta):
        return theta + sd * rng.normal(size=2)
    return simulator
simulator = make({})
"""
GLOBAL = """
{}
def helper(rng):
    return SCALE * rng.normal(size=2)
def simulator(rng, theta):
    return theta + helper(rng)
"""
WRAPPED = """
def logged(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn(*args)
    return call
@logged
def simulator(rng, theta):
    return theta + {} * rng.normal(size=2)
"""
RECURSIVE = """
def odd(rng, n): return 0.0 if n == 0 else even(rng, n - 1)
def even(rng, n): return {} if n == 0 else odd(rng, n - 1)
def simulator(rng, theta): return theta + even(rng, 4) + (simulator(rng, theta - 1) if theta > 0 else 0.0)
"""
REGISTERED = """
class Model:
    def __init__(self, sd):
        self.sd, self.own = sd, self
    def __call__(self, rng, theta):
        return theta + self.sd * rng.normal(size=2)
simulator = Model({})
"""
HOLDS = "held = {}\ndef simulator(rng, theta):\n    return theta + use(held, rng)\ndef use(held, rng): return held"

SAME = {
    "comments": (PLAIN, "def simulator(rng, theta):\n    # a walk\n\n    return theta + rng.normal(size=2)  # steps"),
    "brackets": (PLAIN, PLAIN.replace("theta + rng.normal(size=2)", "(\n        theta\n        + rng.normal(size=2))")),
    "another line": (PLAIN, "\n\n\nunused = 3\n" + PLAIN),
    "the order of a dictionary": (HOLDS.format("{'a': 1, 'b': 2}"), HOLDS.format("{'b': 2, 'a': 1}")),
    "an array anew": (HOLDS.format("np.arange(3.0)"), HOLDS.format("np.linspace(0.0, 2.0, 3)")),
    "a global that it does not name": (PLAIN, "SCALE = 2.0\n" + PLAIN),
    "what a distribution caches": (
        HOLDS.format("dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2))"),
        HOLDS.format("dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)); held.precision_matrix"),
    ),
}
PARTIAL = "def f(sd, rng, theta): return sd\nsimulator = functools.partial(f, {})"
CACHED = "@functools.lru_cache\ndef f(t): return {}t\ndef simulator(rng, theta): return f(theta)"
LAMBDA = "simulator = {}lambda rng, theta: theta + {} * rng.normal(size=2)"
DIFFERENT = {
    "code": (PLAIN, PLAIN.replace("+", "-")),
    "a constant": (PLAIN, PLAIN.replace("2", "3")),
    "an attribute": (PLAIN, PLAIN.replace("normal", "gumbel")),
    "a lambda": (LAMBDA.format("", 1.0), LAMBDA.format("", 10.0)),
    "a closure variable": (CLOSURE.format("1.0"), CLOSURE.format("10.0")),
    "an integer for a number": (CLOSURE.format("1.0"), CLOSURE.format("1")),
    "a default": (PLAIN.replace("ta)", "ta, sd=1)"), PLAIN.replace("ta)", "ta, sd=2)")),
    "a named default": (PLAIN.replace("ta)", "ta, *, sd=1)"), PLAIN.replace("ta)", "ta, *, sd=2)")),
    "an attribute of the function": (PLAIN + "\nsimulator.sd = 1", PLAIN + "\nsimulator.sd = 2"),
    "a global of a helper": (GLOBAL.format("SCALE = 1.0"), GLOBAL.format("SCALE = 10.0")),
    "an array": (GLOBAL.format("SCALE = np.ones(2)"), GLOBAL.format("SCALE = np.array([1.0, 1.0 + 2**-50])")),
    "a dtype": (GLOBAL.format("SCALE = np.zeros(2)"), GLOBAL.format("SCALE = np.zeros(2, int)")),
    "a shape": (GLOBAL.format("SCALE = np.ones((1, 2))"), GLOBAL.format("SCALE = np.ones(2)")),
    "an array of objects": (GLOBAL.format("SCALE = np.array([1, None])"), GLOBAL.format("SCALE = np.array([2, None])")),
    "what partial holds": (PARTIAL.format("np.ones(2)"), PARTIAL.format("np.zeros(2)")),
    "what partial holds by name": (PARTIAL.format("sd=1"), PARTIAL.format("sd=2")),
    "the state behind a method": (HELD.format(sd=1), HELD.format(sd=10)),
    "a constant of its class": (HELD.format(sd=1), HELD.format(sd=1).replace("2.0", "3.0")),
    "a dataclass": (DATACLASS.format(sd=1.0, sign="+", doc=""), DATACLASS.format(sd=10.0, sign="+", doc="")),
    "a method": (DATACLASS.format(sd=1.0, sign="+", doc=""), DATACLASS.format(sd=1.0, sign="-", doc="")),
    "behind functools.wraps": (WRAPPED.format(1), WRAPPED.format(10)),
    "behind jit": (LAMBDA.format("jax.jit(", "1.0") + ")", LAMBDA.format("jax.jit(", "2.0") + ")"),
    "behind a cache": (CACHED.format(""), CACHED.format("-")),
    "functions that call each other": (RECURSIVE.format(1.0), RECURSIVE.format(2.0)),
    "an object in a circle": (REGISTERED.format(1.0), REGISTERED.format(10.0)),
    "a generator": (HOLDS.format("np.random.default_rng(1)"), HOLDS.format("np.random.default_rng(2)")),
    "a RandomState": (HOLDS.format("np.random.RandomState(1)"), HOLDS.format("np.random.RandomState(2)")),
    "a key": (HOLDS.format("jax.random.key(1)"), HOLDS.format("jax.random.key(2)")),
    "functions in a list": tuple(f"def f(x): return {n} * x\n" + HOLDS.format("[abs, f]") for n in (2, 3)),
    "a distribution": (HOLDS.format("dist.Normal(1.0, 2.0)"), HOLDS.format("dist.Normal(1.0, 3.0)")),
    "a distribution of SciPy": (HOLDS.format("norm(0.0, 1.0)"), HOLDS.format("norm(0.0, 10.0)")),
    "an order": (HOLDS.format("[1, 2]"), HOLDS.format("[2, 1]")),
    "a dictionary": (HOLDS.format("{'sd': 1}"), HOLDS.format("{'sd': 10}")),
    "a set": (HOLDS.format("{'a', 'b', 'c'}"), HOLDS.format("{'a', 'b', 'd'}")),
    "the prefix of a handler": tuple(f"def f(): pass\nsimulator = handlers.scope(f, prefix={p!r})" for p in "ab"),
    "a function of a package": tuple(PLAIN.replace("theta +", f"norm.{name}(theta) +") for name in ("pdf", "cdf")),
}
STABLE = {  # nothing but that they are the same in every process
    "objects of packages": HOLDS.format(
        "[norm, random.random, np.random.normal, np.sin, jnp.sin, jax.nn.relu, re.compile('a')]"
    ),
    "containers": HOLDS.format(
        "[{'a', 'b', 'c'}, frozenset({1, 'x'}), collections.Counter('abc'), pathlib.Path('a'), io.StringIO()]"
    ),
    "strings in a set constant": PLAIN.replace("return", "assert theta not in {'a', 'b', 'c', 'd'}\n    return"),
    "an enumeration": "class E(enum.Enum):\n    A = 1\n    B = 2\n" + HOLDS.format("E.B"),
    "a transformed distribution": HOLDS.format(
        "dist.TransformedDistribution(dist.Normal(0, 1), [dist.transforms.AffineTransform(0.0, 2.0), "
        "dist.transforms.ExpTransform()])"
    ),
    "a command": "from numpyro_kme import Command\nsimulator = Command(('ls', '-l'), environment={'A': 'b'})",
}


def made(source):
    """The simulator of a source, as a notebook makes it: from no file."""
    names, file, text = {"__name__": "notebook"}, f"<cell {next(NUMBERS)}>", PRELUDE + source
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), names)
    return names["simulator"]


def digest(source):
    return fingerprint(made(source))


def all_digests():
    sources = {source for pair in (*SAME.values(), *DIFFERENT.values()) for source in pair}
    return {source: digest(source) for source in sources | set(STABLE.values())}


@pytest.mark.parametrize("what", SAME)
def test_what_is_the_same(what):
    first, second = SAME[what]
    assert first != second or "lock" in what
    assert digest(first) == digest(second)


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs(what):
    first, second = DIFFERENT[what]
    assert digest(first) == digest(first) != digest(second)


@pytest.mark.parametrize(
    "source, sentence",
    [
        (HOLDS.format("threading.Lock()"), "has no fingerprint: .*lock.*Say by `version=`"),
        ("first, simulator = (lambda rng, t: t), (lambda rng, t: t + 1)", "cannot be told apart"),
        ("exec('def simulator(rng, theta): return theta')", "source of `simulator` cannot be read"),
    ],
)
def test_what_has_no_fingerprint_asks_for_a_version(source, sentence):
    with pytest.raises(UnreadableError, match=sentence):
        digest(source)


@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_another_process_finds_the_same(seed):
    command, env = [os.environ.get("OTHER_PYTHON", sys.executable), __file__], {**os.environ, "PYTHONHASHSEED": seed}
    run = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert run.returncode == 0, run.stderr
    found, here = json.loads(run.stdout), all_digests()
    assert found == here


def test_the_users_own_modules(tmp_path, monkeypatch):
    """Functions and constants of modules that a function names, and no installed module."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_steps").mkdir()
    (tmp_path / "my_steps" / "__init__.py").write_text("from . import inner\nSIZE = 2\ndef unused(): return 1\n")
    (tmp_path / "my_steps" / "inner.py").write_text("SD = 1.0\ndef step(rng): return SD * rng.normal()\n")
    source = "import my_steps\ndef simulator(rng, theta): return my_steps.inner.step(rng) + my_steps.SIZE"
    before = digest(source)
    monkeypatch.setattr(sys.modules["my_steps"], "unused", None)
    assert digest(source) == before
    for module, name in (("my_steps.inner", "SD"), ("my_steps", "SIZE")):
        monkeypatch.setattr(sys.modules[module], name, 10.0)
        assert digest(source) != before
        before = digest(source)


def test_source_that_is_edited_while_it_runs_counts_as_it_was(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited.py"
    file.write_text("def simulator(rng, theta):\n    return theta\n")
    simulator = importlib.import_module("edited").simulator
    before = fingerprint(simulator)
    file.write_text("def simulator(rng, theta):\n    return theta + 1.0\n")
    assert fingerprint(simulator) == before


if __name__ == "__main__":
    print(json.dumps(all_digests()))
