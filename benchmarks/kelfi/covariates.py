"""Logistic growth of eight units at times of their own: NUTS on the learnt likelihood against NUTS on the exact one.

    python -m benchmarks covariates

Eight growth rates with a common mean and deviation, and the error, from 40 log sizes. The likelihood of one measurement
is learnt as a function of rate, error and time, all calls at prior draws, or half of them and then half at draws of the
posterior that these gave. Shifts are of posterior means, in exact posterior standard deviations. They come from exact
draws by NUTS, reweighted by the learnt density, so that they have no noise of a second chain. Takes twenty minutes.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, init_to_median
from scipy import stats

from benchmarks.helpers import report
from numpyro_kme.likelihoods import fit_likelihood

UNITS, TIMES, DRAWS = 8, 5, 1000


def log_size(log_rate, time):
    return jnp.log(20.0 / (1.0 + jnp.exp(3.0 - jnp.exp(log_rate) * time)))


def growth(unit, time, y=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 0.5))
    between = numpyro.sample("between", dist.HalfNormal(0.5))
    log_sd = numpyro.sample("log_sd", dist.Normal(-1.5, 0.5))
    with numpyro.plate("units", UNITS):
        log_rate = numpyro.sample("log_rate", dist.Normal(mean, between))
    with numpyro.plate("trials", len(time)):
        numpyro.sample("y", dist.Normal(log_size(log_rate[unit], time), jnp.exp(log_sd)), obs=y)


def data(seed):
    """Units, times and log sizes."""
    rng = np.random.default_rng(seed)
    unit, time = np.repeat(np.arange(UNITS), TIMES), rng.uniform(0.0, 8.0, UNITS * TIMES)
    y = log_size(0.3 * rng.normal(size=UNITS)[unit], time) + 0.2 * rng.normal(size=len(time))
    return unit, time, np.asarray(y)


def exact_draws(seed, unit, time, y):
    """Posterior draws of every latent."""
    kernel = NUTS(growth, init_strategy=init_to_median)
    mcmc = MCMC(kernel, num_warmup=1000, num_samples=4 * DRAWS, thinning=4, progress_bar=False)
    mcmc.run(jax.random.key(seed), unit, time, y=y)
    return {name: np.asarray(value, np.float64) for name, value in mcmc.get_samples().items()}


def calls(rng, latents, unit, time, number):
    """Arguments and outputs of single calls at latents, each of another trial."""
    row, trial = rng.integers(len(latents["log_sd"]), size=number), rng.integers(len(time), size=number)
    arguments = np.column_stack([latents["log_rate"][row, unit[trial]], latents["log_sd"][row], time[trial]])
    means = np.asarray(log_size(arguments[:, 0], arguments[:, 2]))
    return arguments, means + np.exp(arguments[:, 1]) * rng.normal(size=number)


def prior_draws(rng, number):
    mean, between = 0.5 * rng.normal(size=number), np.abs(0.5 * rng.normal(size=number))
    rates = mean[:, None] + between[:, None] * rng.normal(size=(number, UNITS))
    return {"log_rate": rates, "log_sd": -1.5 + 0.5 * rng.normal(size=number)}


def weights(likelihood, draws, unit, time, y):
    """Of exact draws, for the posterior under a learnt likelihood."""
    rates, log_sd = draws["log_rate"][:, unit], draws["log_sd"]
    logs = -stats.norm.logpdf(y, np.asarray(log_size(rates, time)), np.exp(log_sd)[:, None]).sum(axis=1)
    for j, one in enumerate(y):
        z = likelihood.coordinates.table(np.column_stack([rates[:, j], log_sd, np.full(len(log_sd), time[j])]))
        logs += likelihood.at(one).log_density(z)
    found = np.exp(logs - logs.max())
    return found / found.sum()


def shifts(draws, own):
    """Shifts of means in exact standard deviations, and ratios of standard deviations, of all latents."""
    theta = np.concatenate([value.reshape(len(own), -1) for value in draws.values()], axis=1)
    mean, sd, other = theta.mean(axis=0), theta.std(axis=0), own @ theta
    return (other - mean) / sd, np.sqrt(own @ np.square(theta - other)) / sd


def scores(seed, number):
    """Both ways, of one data set."""
    rng, (unit, time, y) = np.random.default_rng([seed, number]), data(seed)
    draws = exact_draws(seed, unit, time, y)
    at_prior = calls(rng, prior_draws(rng, 4000), unit, time, number)
    half = [part[: number // 2] for part in at_prior]
    first = weights(fit_likelihood(*half), draws, unit, time, y)
    near = {name: value[rng.choice(len(first), 4000, p=first)] for name, value in draws.items()}
    both = [np.concatenate(parts) for parts in zip(half, calls(rng, near, unit, time, number // 2))]
    for where, table in (("prior", at_prior), ("prior, then its posterior", both)):
        own = weights(fit_likelihood(*table), draws, unit, time, y)
        shift, ratio = shifts(draws, own)
        yield {"where": where, "shifts": shift, "ratios": ratio, "effective size": 1.0 / np.sum(own**2)}


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--calls", type=int, nargs="+", default=[8000, 60_000])
    parser.add_argument("--seeds", type=int, default=3)
    options, lines = parser.parse_args(), []
    for calls, seed in itertools.product(options.calls, range(options.seeds)):
        if not options.rows.has(calls=calls, seed=seed):
            for row in scores(seed, calls):
                options.rows.add(calls=calls, seed=seed, **row)
    for calls, where in itertools.product(options.calls, dict.fromkeys(options.rows.values("where"))):
        key = dict(calls=calls, where=where)
        shift, ratio = (np.array(options.rows.values(name, **key)) for name in ("shifts", "ratios"))
        found = np.sqrt(np.mean(shift**2)), np.abs(shift).max(), np.mean(np.abs(shift) > 0.15), ratio.min(), ratio.max()
        lines.append([where, calls, len(shift), *map(float, found)])
    header = ["simulated at", "calls", "data sets", "rms shift", "largest", "above 0.15", "least sd ratio", "most"]
    title = f"{UNITS + 3} parameters, {UNITS * TIMES} trials"
    print(report.write("covariates", "Covariates that differ by trial", [(title, report.table(header, lines))]))
