"""Nicholson's blowflies: a posterior over six parameters from 300 simulations of a population model.

    python examples/blowfly.py [--num-simulations 300] [--seed 0] [--output outputs/blowfly] [--series FILE]

Writes `blowfly.png` (a figure) and `blowfly.nc` (an ArviZ file) to the output folder. The statistics of the observed
series are in the package; a CSV file of the series itself, with a column `count`, puts it into the figure.
"""

import argparse
import csv
import time
from pathlib import Path

import jax
import numpy as np
from blowfly_figure import draw
from numpyro.infer import Predictive

import numpyro_kme as kme
from numpyro_kme.simulators.blowfly import OBSERVED, STATISTICS, blowfly, model, vector


def main(num_simulations, seed, output, series):
    infer_key, predict_key, prior_key, series_key = jax.random.split(jax.random.key(seed), 4)
    begun = time.perf_counter()
    kelfi = kme.KELFI(model, num_simulations=num_simulations)
    kelfi.run(infer_key, x=OBSERVED)
    kelfi.print_summary()

    posterior = kelfi.get_samples()
    predicted = Predictive(model, posterior, parallel=True)(predict_key)["x"]
    prior = Predictive(model, num_samples=len(predicted), parallel=True)(prior_key)
    print_statistics(np.asarray(prior["x"]), np.asarray(predicted))

    log_theta = vector(posterior)
    chosen = np.linspace(0, len(log_theta) - 1, 3).astype(int)
    simulated = jax.vmap(blowfly)(jax.random.split(series_key, 3), log_theta[chosen])

    output.mkdir(parents=True, exist_ok=True)
    idata = kelfi.to_inference_data(dims={"x": ["statistic"]}, coords={"statistic": STATISTICS})
    idata.to_netcdf(str(output / "blowfly.nc"), engine="h5netcdf")
    observed = None if series is None else counts(series)
    figure = draw(prior, log_theta, np.asarray(predicted), np.asarray(simulated), observed)
    figure.savefig(output / "blowfly.png", dpi=120)
    seconds = time.perf_counter() - begun
    print(f"\n{seconds:.0f} seconds. Wrote {output / 'blowfly.png'} and {output / 'blowfly.nc'}.")


def counts(path):
    """The column `count` of a CSV file, which may begin with comments."""
    with path.open() as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return np.array([float(row["count"]) for row in rows])


def print_statistics(prior, predicted):
    """Observed statistics beside the middle nine tenths of what prior and posterior predict."""
    print(f"\n{'statistic':<28}{'observed':>10}{'posterior predictive':>26}{'prior predictive':>26}")
    for i, name in enumerate(STATISTICS):
        low, middle, high = np.quantile(predicted[:, i], [0.05, 0.5, 0.95])
        prior_low, prior_middle, prior_high = np.quantile(prior[:, i], [0.05, 0.5, 0.95])
        print(
            f"{name:<28}{OBSERVED[i]:>10.2f}{middle:>10.2f} [{low:>6.2f}, {high:>5.2f}]"
            f"{prior_middle:>10.2f} [{prior_low:>6.2f}, {prior_high:>5.2f}]"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-simulations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("outputs/blowfly"))
    parser.add_argument("--series", type=Path)
    main(**vars(parser.parse_args()))
