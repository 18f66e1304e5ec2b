"""Seconds that the residual form takes to learn and to draw 1,000 samples, beside neural posterior estimation.

    python benchmarks/residual_time.py [--simulations 300 1000] [--problems linear curved ...] [--repeats 2] [--neural]

Each row is one `KELFI.run` on other simulations than those before, and one `condition` on another observation. Seconds that JAX
spent on tracing and compiling are given apart and taken off the others; the first call of each size has most of them. Two problems
have ten statistics and ten parameters: `linear`, where statistics are shifted normals, and `curved`, where locations bend and scales
change. Three are tasks of `sbi_tasks.py`. All have standard normal priors, of which uniform and log-normal parameters are functions.
Simulating costs next to nothing. CPU seconds add up all threads.

With --neural, neural posterior estimation by `sbi` (its defaults: a masked autoregressive flow, trained until it stops by itself)
learns from the same simulations and draws as many samples, after each row. It runs in a virtual environment of its own, which
is made at the first call (torch, a gigabyte or more). Writes `results/residual_time.md` and `.json`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import report
from jax.scipy.special import ndtr
from sbi_tasks import epidemic, mixture
from sbi_tasks import linear as linear_task

import numpyro_kme as kme
from numpyro_kme.kernel_means.residual import ResidualKernelMeans


def linear(rng_key, theta):
    """`theta` and noise of variance 0.1."""
    return theta + jnp.sqrt(0.1) * jax.random.normal(rng_key, theta.shape)


def curved(rng_key, theta):
    """A bent location, and noise whose scale follows the next parameter."""
    after = jnp.roll(theta, -1)
    return theta + 0.4 * jnp.sin(2.0 * after) + 0.3 * jnp.exp(0.3 * after) * jax.random.normal(rng_key, theta.shape)


def sir(rng_key, z):
    """The epidemic; both rates log-normal."""
    return epidemic(rng_key, jnp.array([0.4, 0.125]) * jnp.exp(jnp.array([0.5, 0.2]) * z))


def gaussian_mixture(rng_key, z):
    """The mixture, around a uniform point of a square."""
    return mixture(rng_key, 20.0 * ndtr(z) - 10.0)


def gaussian_linear_uniform(rng_key, z):
    """Shifted normals with uniform parameters."""
    return linear_task(rng_key, 2.0 * ndtr(z) - 1.0)


PARAMETERS = {linear: 10, curved: 10, gaussian_mixture: 2, sir: 2, gaussian_linear_uniform: 10}
SIMULATORS = {simulator.__name__: simulator for simulator in PARAMETERS}


def model_of(simulator):
    """Standard normal parameters and one simulator."""

    def model(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([PARAMETERS[simulator]]).to_event(1))
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)

    return model


NEURAL = Path(tempfile.gettempdir()) / "npe"
WORKER = Path(__file__).with_name("npe_worker.py")


class Clock:
    """Seconds `(wall, CPU)` of calls without compilation, and the wall seconds of compilation."""

    def __init__(self):
        self.compiling = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event, seconds, **_):
        if event.startswith("/jax/core/compile/"):
            self.compiling += seconds

    def time(self, function, *args, **kwargs):
        """Seconds `(wall, CPU)` of one call, the wall seconds of its compilations, and its result."""
        before = self.compiling
        begun = np.array([time.perf_counter(), time.process_time()])
        result = function(*args, **kwargs)
        return np.array([time.perf_counter(), time.process_time()]) - begun, self.compiling - before, result


CLOCK = Clock()


class Timed(ResidualKernelMeans):
    """The residual form, with the seconds of its last fit kept."""

    seconds, compiling = np.zeros(2), 0.0

    def fit(self, *args, **kwargs):
        """As `ResidualKernelMeans.fit`."""
        Timed.seconds, Timed.compiling, surrogate = CLOCK.time(super().fit, *args, **kwargs)
        return surrogate


def measure(problem, size, seed):
    """Seconds of one run and one `condition`; compilation apart."""
    rng_key = jax.random.key(seed)
    kelfi = kme.KELFI(model_of(SIMULATORS[problem]), size, num_samples=1000, form=Timed(), progress_bar=False)
    theta = jax.random.normal(rng_key, (2, PARAMETERS[SIMULATORS[problem]]))
    first, second = (np.asarray(SIMULATORS[problem](rng_key, row), np.float64) for row in theta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        whole, compiling, _ = CLOCK.time(kelfi.run, rng_key, x=first)
        info = kelfi.info
        again, again_compiling, _ = CLOCK.time(kelfi.condition, rng_key, x=second)
    row = {
        "problem": problem,
        "simulations": size,
        "call": "first" if seed == 0 else "later",
        "learning": Timed.seconds[0] - Timed.compiling,
        "drawing": whole[0] - compiling - Timed.seconds[0] + Timed.compiling,
        "both": whole[0] - compiling,
        "both, CPU": whole[1] - compiling,
        "compiling": compiling,
        "condition": again[0] - again_compiling,
        "sampler": info["sampler"],
        "effective size": float(info["effective sample size"]),
    }
    return row, (kelfi.simulations.arguments["x"], kelfi.simulations.x["x"], first)


def neural(theta, x, y):
    """Seconds of neural posterior estimation on the same simulations."""
    if not (NEURAL / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", NEURAL], check=True)
        subprocess.run([NEURAL / "bin" / "pip", "install", "-q", "torch==2.13.0"], check=True)
        subprocess.run([NEURAL / "bin" / "pip", "install", "-q", "sbi"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "bank.npz", theta=theta, x=x, y=y)
        command = [NEURAL / "bin" / "python", WORKER, Path(folder) / "bank.npz"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--problems", nargs="+", default=list(SIMULATORS), choices=SIMULATORS)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--neural", action="store_true")
    options = parser.parse_args()
    rows, text = [], ""
    for problem in options.problems:
        for size in options.simulations:
            for seed in range(options.repeats + 1):
                row, bank = measure(problem, size, seed)
                if options.neural:
                    found = neural(*bank)
                    row |= {"NPE": found["wall"], "NPE, CPU": found["cpu"], "NPE / both": found["wall"] / row["both"]}
                rows.append(row)
                print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
                table = report.table(list(rows[0]), [list(each.values()) for each in rows])
                text = report.write("residual_time", "Time of the residual form", [("Seconds", table)], {"rows": rows})
    print(text)


if __name__ == "__main__":
    main()
