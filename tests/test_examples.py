"""The score of the blowfly experiment at published points, and the main job."""

import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.helpers import nmse

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_published_point_scores_about_one_percent():
    """The published synthetic-likelihood point; a direct search reaches about a tenth of its score."""
    denominators = nmse.stored_denominators()
    with jax.enable_x64(False):
        published = nmse.nmse_at(jax.random.key(0), [3.765, -1.033, 5.466, -0.401, -0.963, np.log(7)], denominators)
        searched = nmse.nmse_at(jax.random.key(0), [3.7, -1.3, 5.3, -1.4, -1.5, 1.8], denominators)
    assert 0.006 < published < 0.012
    assert 0.0005 < searched < 0.002


@pytest.mark.slow
def test_the_main_job_writes_its_files(tmp_path):
    command = [sys.executable, "examples/blowfly.py", "--num-simulations", "60", "--output", str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "log tau" in printed and "maxima, threshold 1.5" in printed
    assert (tmp_path / "blowfly.png").stat().st_size > 10_000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz as az
    idata = az.from_netcdf(str(tmp_path / "blowfly.nc"))
    assert idata["posterior"]["log tau"].dims == ("chain", "draw")
    assert idata["prior_predictive"]["x"].sizes["statistic"] == 10
