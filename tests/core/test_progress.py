"""Bars and phases: what is said, and when nothing is."""

import inspect
import re
import time
from contextlib import suppress

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_kme as kme
from numpyro_kme._core import progress
from numpyro_kme.simulators import g_and_k


@pytest.fixture
def terminal(monkeypatch, capsys):
    """What is written to the standard error, with bars allowed."""
    for name in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    monkeypatch.setattr(progress, "_moves", lambda: True)
    return lambda: capsys.readouterr().err


def test_a_long_phase_is_shown_with_its_time_and_a_short_one_is_not(terminal):
    with progress.phase("short", True):
        pass
    with progress.phase("learning", True):
        time.sleep(0.4)
    said = terminal()
    assert "short" not in said and re.search(r"learning:? *\[00:0\d\]", said), said
    with progress.phase("learning", True):
        assert list(progress.counted("abc", 3)) == ["a", "b", "c"]
        time.sleep(0.4)
    assert "learning, 3 of 3 [00:0" in terminal()


@pytest.mark.parametrize("moves", [True, False])
def test_a_phase_says_what_is_left_of_many_parts(terminal, monkeypatch, moves):
    """As of 500 statistics: a fifth of a second for two of 400 leaves 39.8 s."""
    monkeypatch.setattr(progress, "_moves", lambda: moves)
    with progress.phase("learning", True):
        parts = progress.counted(range(400), 400)
        next(parts), time.sleep(0.2), next(parts), time.sleep(0.4)
    left = re.search(r"learning, [12] of 400, about (\d+) s left", terminal())
    assert left and 20 < int(left[1]) < 250
    with progress.phase("learning", True):
        assert list(progress.counted(range(3), 3)) == [0, 1, 2]
        time.sleep(0.2)
    assert "left" not in terminal()


def test_bars_are_shown_unless_they_are_switched_off():
    """By every public class and function that has one."""
    found = 0
    rooms = [kme, *(getattr(kme, name) for name in kme.__all__ if inspect.ismodule(getattr(kme, name)))]
    for value in {id(one): one for room in rooms for one in vars(room).values() if callable(one)}.values():
        with suppress(ValueError):  # of classes whose signature Python does not know
            given = inspect.signature(value).parameters.get("progress_bar")
            found += given is not None
            assert given is None or given.default is True, value
    assert found > 10


def test_in_a_file_each_bar_and_phase_is_one_line(terminal, monkeypatch):
    monkeypatch.undo()
    for name in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    assert not progress._moves()
    with progress.phase("learning", True):
        time.sleep(0.2)
    with progress.phase("short", True), progress.progress(None, "simulating", True, 3) as bar:
        bar.update(3)
    assert list(progress.progress(iter(range(3)), "conditioning", True)) == [0, 1, 2]
    assert terminal() == "learning\nsimulating: 3\nconditioning\n"


@pytest.mark.filterwarnings("ignore:.*beyond the simulated parameters")
def test_an_engine_says_beforehand_what_it_will_do(terminal, monkeypatch):
    monkeypatch.setattr(progress, "_moves", lambda: False)
    kme.KELFI(g_and_k.model, 20, num_rounds=2, standard_errors=False).run(jax.random.key(0), x=np.arange(3.0))
    assert terminal().startswith("KELFI: 20 simulations of 3 calls of 'x', in up to 2 rounds\nsimulating: 10\n")


def test_the_bootstrap_says_beforehand_what_it_will_do(terminal, monkeypatch):
    def model(x=None):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", 5):
            numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)

    monkeypatch.setattr(progress, "_moves", lambda: False)
    engine = kme.PosteriorBootstrap(model, kme.losses.NegativeLogLikelihood(), num_samples=4)
    engine.run(jax.random.key(0), x=np.arange(5.0))
    assert terminal().startswith("PosteriorBootstrap: 4 minima of NegativeLogLikelihood, by L-BFGS\n")
