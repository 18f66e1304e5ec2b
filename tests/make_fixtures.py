"""Files of this release that later releases must read: `python tests/make_fixtures.py`, once for each release."""

import gzip
import shutil
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme

FIXTURES = Path(__file__).parent / "fixtures"
KEY = jax.random.key(8)


def walk(rng, drift):
    """Two steps of a random walk; fails where the first is far below its mean."""
    x = drift + rng.normal(size=2).cumsum()
    if x[0] < drift - 2.0:
        raise ArithmeticError("left the grid")
    return x


def model(x=None):
    drift = numpyro.sample("drift", dist.Normal(0.0, 1.0))
    numpyro.deterministic("twice", 2 * drift)
    numpyro.sample("x", kme.Simulator(walk, drift, shape=(2,), dtype=float), obs=x)


def main():
    jax.config.update("jax_enable_x64", True)
    folder = FIXTURES / kme.__version__
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = dict(on_failure="skip", progress_bar=False)
    bank = kme.simulate(KEY, model, 100, store=folder / "bank", **settings)
    engine = kme.KELFI(model, simulations=bank, form=kme.KernelMeans(), num_samples=100)
    engine.run(KEY, x=np.array([0.5, 0.7]))
    result = folder / "result.nc"
    engine.to_inference_data().to_netcdf(str(result), engine="h5netcdf")
    (folder / "result.nc.gz").write_bytes(gzip.compress(result.read_bytes(), mtime=0))
    result.unlink()


if __name__ == "__main__":
    main()
