"""Bars and phases: what is said, when nothing is, and that JAX's compiling is said."""

import re
import time

import numpy as np
import pytest

from numpyro_kme._core import programs, progress


@pytest.fixture
def terminal(monkeypatch, capsys):
    """What is written to the standard error, with bars allowed."""
    for name in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    monkeypatch.setattr(progress, "EVERY", 0.05)
    return lambda: capsys.readouterr().err


def test_a_long_phase_is_shown_with_its_time_and_a_short_one_is_not(terminal):
    with progress.phase("short", True):
        pass
    with progress.phase("learning", True):
        time.sleep(0.4)
    said = terminal()
    assert "short" not in said and re.search(r"learning:? *\[00:0\d\]", said), said


def test_nothing_is_shown_where_it_is_switched_off(terminal, monkeypatch):
    with progress.phase("off", False):
        time.sleep(0.2)
    with progress.no_progress_bars(), progress.phase("inside a loop", True), progress.steps("inside", 3, True) as bar:
        time.sleep(0.2)
        bar.update(3)
    monkeypatch.setenv("CI", "1")
    with progress.phase("continuous integration", True):
        time.sleep(0.2)
    assert list(progress.progress(range(3), "on ci", True)) == [0, 1, 2]
    assert terminal() == ""


def test_compiling_is_said(terminal):
    with progress.steps("simulating", 2, True) as bar:
        programs.Program(lambda x: x + np.pi)(np.float32(3.0))
        bar.update(2)
    said = terminal()
    assert "simulating, compiling" in said and said.rstrip().rpartition("\r")[2].startswith("simulating: 100%"), said
    with progress.compiling():  # where nothing is shown
        pass


def test_an_error_inside_a_phase_ends_it(terminal):
    with pytest.raises(ZeroDivisionError), progress.phase("failing", True):
        raise ZeroDivisionError
    with progress.phase("next", True):
        time.sleep(0.3)
    said = terminal()
    assert "failing" not in said and "next" in said
