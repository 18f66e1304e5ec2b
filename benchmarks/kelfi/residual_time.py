"""Seconds that the residual form takes to learn and to draw 1,000 samples, beside neural posterior estimation.

    python -m benchmarks residual_time [--simulations 300 1000] [--problems NAME ...] [--repeats 5] [--neural]
    python -m benchmarks residual_time --rounds 5 --neural  # a table of its own

Each row is a `KELFI.run` on given simulations, other ones than those before, made twice, and a `condition` on another
observation, made twice: the second time nothing is left to compile, and that one is timed, with the reading of the
model, learning and 1,000 draws. `first run` has its compilation too; the first rows of each problem and size compile
most. Left out are imports, simulating, and the compilation of first runs, which `cold_start` times. Two problems have
ten statistics and ten parameters: `linear`, where statistics are shifted normals, and `curved`, where locations bend
and scales change. Three are tasks of `sbi_tasks.py`. All have standard normal priors, of which uniform and log-normal
parameters are functions. CPU seconds add up all threads.

With --neural, neural posterior estimation by `sbi` (its defaults: a masked autoregressive flow, trained until it stops
by itself) learns from the same simulations and draws as many samples, after each row. With --rounds, both make that
many, of the simulations in all; KELFI's seconds have the simulating, and `sbi`'s, in truncated rounds (TSNPE), not. It
runs in a virtual environment of its own, which is made at the first call (torch, a gigabyte or more). Takes ten
minutes, with it a quarter of an hour, in rounds an hour.
"""

import json
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import ndtr

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.simulators.gaussian_linear import gaussian_linear
from numpyro_kme.simulators.gaussian_mixture import gaussian_mixture as mixture
from numpyro_kme.simulators.sir import epidemic


def linear(rng_key, theta):
    """The same in standard normal parameters."""
    return gaussian_linear(rng_key, theta)


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
    return gaussian_linear(rng_key, 2.0 * ndtr(z) - 1.0)


PARAMETERS = {linear: 10, curved: 10, gaussian_mixture: 2, sir: 2, gaussian_linear_uniform: 10}
SIMULATORS = {simulator.__name__: simulator for simulator in PARAMETERS}


def model_of(simulator):
    """Standard normal parameters and one simulator."""

    def model(x=None):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([PARAMETERS[simulator]]).to_event(1))
        numpyro.sample("x", kme.Simulator(simulator, theta), obs=x)

    return model


def clocks():
    """Seconds by the wall and of CPU."""
    return np.array([time.perf_counter(), time.process_time()])


def seconds(function, *args, **kwargs):
    """Seconds `(wall, CPU)` of one call, and its result."""
    begun = clocks()
    result = function(*args, **kwargs)
    return clocks() - begun, result


class Timed(ResidualKernelMeans):
    """The residual form, with the seconds of its fits added up: of all simulations, and of a half where no
    other process learns from it."""

    spent = np.zeros(2)

    def fit(self, *args, **kwargs):
        """As `ResidualKernelMeans.fit`."""
        found, surrogate = seconds(super().fit, *args, **kwargs)
        Timed.spent = Timed.spent + found
        return surrogate


def in_rounds(problem, size, seed, rounds):
    """Seconds of one run in rounds, compiled, and of the first; simulations of a first round, and the observation."""
    rng_key, simulator = jax.random.key(seed), SIMULATORS[problem]
    theta_key, data_key = jax.random.split(rng_key)
    theta = jax.random.normal(theta_key, (size // rounds + 1, PARAMETERS[simulator]))
    x = simulated(problem, data_key, theta)
    kelfi = kme.KELFI(model_of(simulator), size, num_rounds=rounds, num_samples=1000, progress_bar=False)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        cold, _ = seconds(kelfi.run, rng_key, x=x[0])
        run, _ = seconds(kelfi.run, rng_key, x=x[0])
    row = {"problem": problem, "simulations": size, "rounds": rounds}
    row |= {"first run": cold[0], "run": run[0], "run, CPU": run[1]}
    return row, (theta[1:], x[1:], x[0])


def simulated(problem, rng_key, theta):
    """Outputs `(m, n)` at parameters `(m, D)`."""
    return np.asarray(jax.vmap(SIMULATORS[problem])(jax.random.split(rng_key, len(theta)), jnp.asarray(theta)))


def measure(problem, size, seed):
    """Seconds of one run and one `condition`, compiled, and of the first run; simulations `(theta, x)` and the
    observation."""
    rng_key = jax.random.key(seed)
    model = model_of(SIMULATORS[problem])
    simulations = kme.simulate(rng_key, model, size, progress_bar=False)
    kelfi = kme.KELFI(model, simulations=simulations, num_samples=1000, form=Timed(), progress_bar=False)
    theta = jax.random.normal(rng_key, (2, PARAMETERS[SIMULATORS[problem]]))
    first, second = (np.asarray(SIMULATORS[problem](rng_key, row), np.float64) for row in theta)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        cold, _ = seconds(kelfi.run, rng_key, x=first)
        Timed.spent = np.zeros(2)
        run, _ = seconds(kelfi.run, rng_key, x=first)
        info = kelfi.info
        for _ in range(2):
            further, _ = seconds(kelfi.condition, rng_key, x=second)
    row = {
        "problem": problem,
        "simulations": size,
        "first run": cold[0],
        "run": run[0],
        "run, CPU": run[1],
        "learning": Timed.spent[0],
        "condition": further[0],
        "effective size": float(info["effective sample size"]),
    }
    return row, (simulations.arguments["x"], simulations.x["x"], first)


def neural(problem, theta, x, y, rounds=1):
    """Seconds of neural posterior estimation on the same simulations, or from them in rounds."""
    python = report.environment("npe", "torch==2.13.0", "sbi")
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "simulations.npz", theta=theta, x=x, y=y)
        command = [python, report.__file__.replace("report", "npe_worker"), f"{folder}/simulations.npz", str(rounds)]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with subprocess.Popen(command, **pipes, text=True, cwd=folder) as worker:
            for number, line in enumerate(worker.stdout):
                if line.startswith("SIMULATE"):
                    path = line.split()[1]
                    np.save(f"{path}.x.npy", simulated(problem, jax.random.key(number), np.load(path)))
                    print(f"{path}.x.npy", file=worker.stdin, flush=True)
    if worker.returncode:
        raise subprocess.CalledProcessError(worker.returncode, command)
    return json.loads(line)


def means(rows, columns):
    """Means over the rows of each problem and size."""
    found = []
    for problem, size in dict.fromkeys((row["problem"], row["simulations"]) for row in rows):
        some = [row for row in rows if (row["problem"], row["simulations"]) == (problem, size)]
        kept = {name: np.mean([row[name] for row in some]) for name in columns if name in some[0]}
        found.append({"problem": problem, "simulations": size, "rows": len(some), **kept})
    return report.table_of(found)


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--simulations", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--problems", nargs="+", default=list(SIMULATORS), choices=SIMULATORS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--neural", action="store_true")
    options = parser.parse_args()
    rows, several = options.rows, options.rounds > 1
    rounds = {"rounds": options.rounds} if several else {}
    for problem in options.problems:
        for size in options.simulations:
            for seed in range(options.repeats + 1):
                if rows.has(problem=problem, simulations=size, seed=seed, **rounds):
                    continue
                row, data = in_rounds(problem, size, seed, options.rounds) if several else measure(problem, size, seed)
                if options.neural:
                    found = neural(problem, *data, rounds=options.rounds)
                    row |= {"NPE": found["wall"], "NPE, CPU": found["cpu"], "NPE / run": found["wall"] / row["run"]}
                rows.add(**row, seed=seed)
    columns = "run", "run, CPU", "learning", "condition", "NPE", "NPE, CPU", "NPE / run"
    shown = [row for row in rows if row.get("rounds", 1) == options.rounds]
    report.save(
        "residual_time_rounds" if several else "residual_time",
        f"Time of the residual form{', in rounds' * several}",
        [
            ("Means", means(shown, columns)),
            ("Seconds", report.table_of([{name: row[name] for name in row if name != "seed"} for row in shown])),
        ],
    )
