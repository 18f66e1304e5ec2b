"""Data sets of any length: KELFI's posterior given the observation's own length, against the exact one.

    python -m benchmarks lengths

Normal trials with an unknown mean, prior N(0, 1), 20 to 200 of them in a simulation, and `KernelStatistics` of each.
Observations of 20, 60 and 200 trials are drawn from the prior, and one fit serves them. Errors of means are in exact
posterior standard deviations. Takes ten minutes.
"""

import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from numpyro_kme.kernels import EmpiricalMeasureRule
from numpyro_kme.likelihoods import KernelStatistics

LONGEST = 200


def trials(rng, mean):
    return rng.normal(mean, 1.0, size=rng.integers(20, LONGEST + 1))


def model(x=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("x", kme.Simulator(trials, mean, shape=LONGEST, dtype=float, ragged=True), obs=x)


def scores(simulations, seed, observations):
    """Errors of means and ratios of standard deviations of one fit, a row for each observation."""
    form = KernelStatistics(EmpiricalMeasureRule())
    engine = kme.KELFI(model, simulations, form=form, num_rounds=1, progress_bar=False)
    engine.run(jax.random.key(seed), x=np.zeros(60) + np.linspace(-1.0, 1.0, 60))
    rng = np.random.default_rng(seed)
    for size in (20, 60, LONGEST):
        for number in range(observations):
            y = rng.normal(rng.normal(), 1.0, size=size)
            draws = engine.trained.condition(jax.random.key(number), x=y).get_samples()["mean"]
            mean, sd = y.sum() / (size + 1.0), (size + 1.0) ** -0.5
            yield dict(size=size, number=number, error=(draws.mean() - mean) / sd, ratio=draws.std() / sd)


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--observations", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--simulations", type=int, nargs="+", default=[300, 1000])
    options, lines = parser.parse_args(), []
    for simulations in options.simulations:
        for seed in range(options.seeds):
            if not options.rows.has(simulations=simulations, seed=seed):
                with warnings.catch_warnings(action="ignore", category=UserWarning):
                    for row in scores(simulations, seed, options.observations):
                        options.rows.add(simulations=simulations, seed=seed, **row)
        for size in (20, 60, LONGEST):
            key = dict(simulations=simulations, size=size)
            error, ratio = (np.array(options.rows.values(name, **key)) for name in ("error", "ratio"))
            row = [np.sqrt(np.mean(error**2)), *np.quantile(ratio, [0.1, 0.5, 0.9])]
            lines.append([simulations, size, *map(float, row)])
    header = ["simulations", "trials", "rms error of the mean", "sd ratio, 10 %", "median", "90 %"]
    title = f"{options.seeds} fits, {options.observations} observations of each, from the prior"
    print(report.write("lengths", "Data sets of any length", [(title, report.table(header, lines))]))


if __name__ == "__main__":
    main()
