"""Twelve people who wait twenty times each: a likelihood learnt from single trials, NUTS, and doubling its simulations.

    python -m benchmarks mcmc_trials [--seeds 3]

Waiting times are gamma, so that the exact likelihood is known. Takes about ten minutes.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report
from benchmarks.helpers.posteriors import four_chains

PEOPLE, TRIALS, SHAPE = 12, 20, 3.0
SIZES = (500, 1000, 2000, 4000, 8000)


def wait(rng_key, log_mean):
    """Log of a waiting time."""
    return jnp.log(jax.random.gamma(rng_key, SHAPE)) - jnp.log(SHAPE) + log_mean


def hierarchy(x, exact=False):
    mean, sd = numpyro.sample("mean", dist.Normal(0.0, 2.0)), numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("people", PEOPLE, dim=-2):
        log_mean = numpyro.sample("log_mean", dist.Normal(mean, sd))
        with numpyro.plate("trials", TRIALS, dim=-1):
            if exact:
                scaled = jnp.asarray(x) - log_mean + jnp.log(SHAPE)
                numpyro.factor("x", SHAPE * scaled - jnp.exp(scaled))
            else:
                numpyro.sample("x", kme.Simulator(wait, log_mean, event_dims=0), obs=x)


def one_trial():
    numpyro.sample("x", kme.Simulator(wait, numpyro.sample("log_mean", dist.Normal(0.0, 2.0))))


def data():
    rng = np.random.default_rng(0)
    true = rng.normal(0.5, 0.6, (PEOPLE, 1))
    return np.log(rng.gamma(SHAPE, np.exp(true) / SHAPE, (PEOPLE, TRIALS)))


def people(model, key, **kwargs):
    """Means and standard deviations of the people's log means, and the draws."""
    mcmc = four_chains(model, 300, 700)
    mcmc.run(key, data(), **kwargs)
    draws = mcmc.get_samples()
    return [np.asarray(moment(draws["log_mean"], axis=0)).ravel().tolist() for moment in (np.mean, np.std)], draws


def run(simulations, seed):
    """A fit of one set of simulations."""
    simulated = kme.simulate(jax.random.key(100 * seed + simulations), one_trial, simulations, progress_bar=False)
    fitted = kme.fit_likelihood(simulated.arguments["x"], simulated.x["x"])
    model = kme.handlers.surrogate(hierarchy, {"x": fitted})
    found, draws = people(model, jax.random.key(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check = kme.mcmc.check_surrogate(model, draws, data())["x"]
    return {"people": found, "location error": float(np.max(check.location_error["log_mean"]))}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    exact = arguments.rows.get(lambda: {"people": people(hierarchy, jax.random.key(1), exact=True)[0]}, name="exact")
    mean, sd = map(np.array, exact["people"])
    rows, seeds = {}, range(arguments.seeds)
    for size in SIZES:
        for seed in seeds:
            key = {"simulations": size, "seed": seed}
            rows[size, seed] = arguments.rows.get(partial(run, **key), **key)
    errors = {key: (np.array(row["people"][0]) - mean) / sd for key, row in rows.items()}
    table = []
    for before, size in zip((None, *SIZES), SIZES):
        off, told = [errors[size, seed] for seed in seeds], [rows[size, seed]["location error"] for seed in seeds]
        moved = [errors[size, seed] - errors[before, seed] for seed in seeds if before]
        largest = [", ".join(f"{np.max(np.abs(one)):.2f}" for one in each) or "-" for each in (moved, off)]
        rms = ", ".join(f"{np.sqrt(np.mean(one**2)):.2f}" for one in off)
        table.append((size, *largest, rms, ", ".join(f"{one:.2f}" for one in told)))
    header = ("simulations", "largest move from half as many", "largest error", "root mean square", "`location_error`")
    how = (
        f"Of the {PEOPLE} posterior means, in exact posterior standard deviations, for {arguments.seeds} sets of "
        "simulations; NUTS, four vectorised chains of 300 + 700 draws, the exact posterior by the same."
    )
    sections = [("A learnt likelihood of one trial", report.table(header, table)), ("How", how)]
    print(report.write("mcmc_trials", "Groups of trials, and doubling the simulations", sections))
