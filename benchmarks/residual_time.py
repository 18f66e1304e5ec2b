"""Seconds that the residual form takes to learn and to draw 1,000 samples: ten statistics, ten parameters.

    python benchmarks/residual_time.py [--simulations 300 1000] [--problems linear curved] [--repeats 2]

Each row is one call in a process that has compiled: `KELFI.run` on other simulations than those before, or `condition` on another
observation. The first call, which compiles, is given apart. Two problems with normal priors: `linear`, where statistics are
shifted normals, and `curved`, where locations bend and scales change. Simulating costs next to nothing. CPU seconds add up all
threads. Writes `results/residual_time.md` and `.json`.
"""

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import report

import numpyro_kme as kme
from numpyro_kme.kernel_means.residual import ResidualKernelMeans

DIM = 10


def linear(rng_key, theta):
    """`theta` and noise of variance 0.1."""
    return theta + jnp.sqrt(0.1) * jax.random.normal(rng_key, theta.shape)


def curved(rng_key, theta):
    """A bent location, and noise whose scale follows the next parameter."""
    after = jnp.roll(theta, -1)
    return theta + 0.4 * jnp.sin(2.0 * after) + 0.3 * jnp.exp(0.3 * after) * jax.random.normal(rng_key, theta.shape)


SIMULATORS = {"linear": linear, "curved": curved}


def model_of(simulator):
    """Standard normal parameters and one simulator."""

    def model(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([DIM]).to_event(1))
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)

    return model


class Clock:
    """Wall and CPU seconds of a block, and of the calls of `fit` inside it."""

    def __init__(self):
        self.learning = np.zeros(2)

    def time(self, function, *args, **kwargs):
        """Seconds `(wall, CPU)` of one call."""
        begun = np.array([time.perf_counter(), time.process_time()])
        result = function(*args, **kwargs)
        return np.array([time.perf_counter(), time.process_time()]) - begun, result


class Timed(ResidualKernelMeans):
    """The residual form, with the seconds of its last fit kept."""

    seconds = np.zeros(2)

    def fit(self, *args, **kwargs):
        """As `ResidualKernelMeans.fit`."""
        Timed.seconds, surrogate = Clock().time(super().fit, *args, **kwargs)
        return surrogate


def measure(problem, size, seed, kelfi):
    """Seconds `(wall, CPU)` of learning, of the rest of `run`, and of one `condition`."""
    rng_key = jax.random.key(seed)
    theta = jax.random.normal(rng_key, (2, DIM))
    first, second = (np.asarray(SIMULATORS[problem](rng_key, row), np.float64) for row in theta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        whole, _ = Clock().time(kelfi.run, rng_key, x=first)
        again, _ = Clock().time(kelfi.condition, rng_key, x=second)
    return Timed.seconds, whole - Timed.seconds, again, kelfi.info


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--problems", nargs="+", default=list(SIMULATORS), choices=SIMULATORS)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    rows, text = [], ""
    for problem in options.problems:
        model = model_of(SIMULATORS[problem])
        for size in options.simulations:
            for seed in range(options.repeats + 1):
                kelfi = kme.KELFI(model, size, num_samples=1000, form=Timed(), progress_bar=False)
                learning, drawing, again, info = measure(problem, size, seed, kelfi)
                rows.append(
                    {
                        "problem": problem,
                        "simulations": size,
                        "call": "compiles" if seed == 0 else "compiled",
                        "learning, wall": learning[0],
                        "learning, CPU": learning[1],
                        "drawing, wall": drawing[0],
                        "drawing, CPU": drawing[1],
                        "both, wall": learning[0] + drawing[0],
                        "condition, wall": again[0],
                        "effective size": float(info["effective sample size"]),
                    }
                )
                print(
                    info["sampler"],
                    {k: round(v, 2) if isinstance(v, float) else v for k, v in rows[-1].items()},
                    flush=True,
                )
                table = report.table(list(rows[0]), [list(row.values()) for row in rows])
                text = report.write("residual_time", "Time of the residual form", [("Seconds", table)], {"rows": rows})
    print(text)


if __name__ == "__main__":
    main()
