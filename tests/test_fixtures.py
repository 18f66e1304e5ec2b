"""Stores and result files of every release since the first are read by this one."""

import gzip
import shutil
import warnings

import make_fixtures
import numpy as np
import pytest

import numpyro_kme as kme
from numpyro_kme.simulations import Store

pytest.importorskip("zarr")
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
    """Its settings, every simulation, and the failures."""
    store = Store.read(release / "bank.zarr")
    x, errors = store.load("x")
    failed = np.array([error is not None for error in errors])
    assert store.count == len(x) == 100 and 0 < failed.sum() < 10
    assert {error.kind for error in errors[failed]} == {"ArithmeticError"}
    problem = kme.Problem.read(make_fixtures.model)
    bank = kme.Simulations.from_arviz(problem, release / "bank.zarr")
    np.testing.assert_array_equal(bank.x["x"], x[~failed])
    np.testing.assert_array_equal(bank.arguments["x"][:, 0], store.arguments("x")[~failed, 0])
    np.testing.assert_allclose(x[~failed], _again(store, failed), rtol=1e-12)


def _again(store, failed):
    """What the simulator gives now for the stored key."""
    assert store.settings["key"] == [0, 8]
    found = kme.simulate(make_fixtures.KEY, make_fixtures.model, 100, on_failure="skip", progress_bar=False)
    np.testing.assert_array_equal(found.index, np.flatnonzero(~failed))
    return found.x["x"]


def test_a_result_of_each_release(release):
    data = az.from_netcdf(str(release / "result.nc"))
    assert data["posterior"]["drift"].shape == (1, 100)
    np.testing.assert_allclose(data["posterior"]["twice"], 2 * data["posterior"]["drift"], rtol=1e-12)
    np.testing.assert_array_equal(data["observed_data"]["x"], [0.5, 0.7])
    problem = kme.Problem.read(make_fixtures.model)
    bank = kme.Simulations.from_arviz(problem, release / "result.nc")
    assert len(bank) > 90 and bank.x["x"].shape[1:] == (2,)
