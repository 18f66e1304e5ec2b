"""Calibration of KELFI on models whose posterior is known to be right: ranks, coverage, TARP.

    python benchmarks/calibration.py [--datasets 200] [--simulations 300]

Two conjugate models: a normal mean in two dimensions, and an exponential rate by the mean of 15 draws. One run learns the likelihood;
`condition` serves every data set. Intervals that cover more than their level say that posteriors are too wide, which a learnt
likelihood's blur makes them. Writes `results/calibration.md` and `.json`.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import report

import numpyro_kme as kme
from numpyro_kme import diagnostics


def noisy(rng_key, theta):
    """A normal draw around theta."""
    return theta + 0.7 * jax.random.normal(rng_key, theta.shape)


def normal(x=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("x", kme.Simulator(noisy, theta), obs=x)


def mean_of_15(rng_key, rate):
    """The mean of 15 exponential draws."""
    return jax.random.gamma(rng_key, 15.0, (1,)) / (15.0 * rate)


def exponential(x=None):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    numpyro.sample("x", kme.Simulator(mean_of_15, rate), obs=x)


MODELS = {
    "normal, 2 dimensions": (normal, jnp.zeros(2)),
    "exponential-gamma, raw mean": (exponential, jnp.array([0.25])),
}
FORMS = {"residual form": kme.ResidualKernelMeans(), "published form": kme.KernelMeans()}


def main(datasets, simulations):
    rows = []
    for model_name, (model, x) in MODELS.items():
        for form_name, form in FORMS.items():
            begun = time.perf_counter()
            kelfi = kme.KELFI(model, simulations, form=form, num_samples=300, progress_bar=False)
            kelfi.run(jax.random.key(0), x=x)
            found = diagnostics.calibrate(jax.random.key(1), kelfi, datasets, progress_bar=False)
            coverage = list(found.coverage(0.9).values())
            rows.append(
                [
                    model_name,
                    form_name,
                    datasets,
                    np.min(coverage),
                    np.max(coverage),
                    found.p_value,
                    time.perf_counter() - begun,
                ]
            )
            print(*rows[-1], flush=True)
            header = ["model", "form", "data sets", "least coverage of 90%", "most", "p-value of all ranks", "seconds"]
            text = (
                report.table(header, rows)
                + f"\n\n{simulations} simulations; one run and one learnt likelihood for each row."
            )
            report.write(
                "calibration", "Calibration of KELFI", [("Simulation-based calibration", text)], {"rows": rows}
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--simulations", type=int, default=300)
    options = parser.parse_args()
    main(options.datasets, options.simulations)
