"""Stores and result files of every release since the first are read by this one."""

import gzip
import shutil
import warnings

import make_fixtures
import numpy as np
import pytest

import numpyro_kme as kme

pytest.importorskip("h5netcdf")
RELEASES = sorted(path for path in make_fixtures.FIXTURES.iterdir() if path.is_dir())

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as az


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def release(request, tmp_path):
    """A copy, since reading should not write but could; the result unpacked."""
    copy = shutil.copytree(request.param, tmp_path / "release")
    (copy / "result.nc").write_bytes(gzip.decompress((copy / "result.nc.gz").read_bytes()))
    return copy


def test_there_is_a_small_one():
    sizes = [sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in RELEASES]
    assert sizes and max(sizes) < 100_000


@pytest.mark.x64
def test_a_store_of_each_release(release):
    """Every simulation, and the failures: what the simulator gives now for the same key."""
    bank = kme.Simulations.from_store(kme.Problem.read(make_fixtures.model), release / "bank")
    again = kme.simulate(make_fixtures.KEY, make_fixtures.model, 100, on_failure="skip", progress_bar=False)
    assert bank.attempted == 100 and bank.failures == again.failures == {"x: ArithmeticError": 100 - len(bank)}
    np.testing.assert_array_equal(bank.index, again.index)
    for one, other in ((bank.x, again.x), (bank.arguments, again.arguments), (bank.failed, again.failed)):
        np.testing.assert_allclose(*(next(iter(arrays.values())) for arrays in (one, other)), rtol=1e-12)


def test_a_result_of_each_release(release):
    data = az.from_netcdf(str(release / "result.nc"))
    assert data["posterior"]["drift"].shape == (1, 100)
    np.testing.assert_allclose(data["posterior"]["twice"], 2 * data["posterior"]["drift"], rtol=1e-12)
    np.testing.assert_array_equal(data["observed_data"]["x"], [0.5, 0.7])
    problem = kme.Problem.read(make_fixtures.model)
    bank = kme.Simulations.from_arviz(problem, data)
    assert len(bank) > 90 and bank.x["x"].shape[1:] == (2,)
