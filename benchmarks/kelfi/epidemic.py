"""Daily counts of a stochastic epidemic as they are: KELFI's posterior against that of a particle filter.

    python -m benchmarks epidemic

Twelve daily counts of new cases of a chain-binomial SIR model: three infected at first, contact and recovery rates with
log-normal priors. A count follows from the counts before it, so that the numbers of one output depend on one another by
curves. One round of simulations at prior draws serves 20 data sets from the prior. Moments of the learnt and of the
exact posterior are sums on a grid of log rates; the particle filter has 400 particles at each of 1,681 points. Takes
five minutes.
"""

import warnings
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats
from scipy.special import xlogy

import numpyro_kme as kme
from benchmarks.helpers import report

DAYS, INFECTED, PARTICLES = 12, 3, 400
CENTRE, SD = np.log([0.8, 0.25]), 0.4
AXIS = np.linspace(-3.25, 3.25, 41)
STANDARD = np.stack(np.meshgrid(AXIS, AXIS, indexing="ij"), axis=-1).reshape(-1, 2)
GRID = CENTRE + SD * STANDARD


def counts(rng, log_rates, population):
    """New cases of each day, `(..., DAYS)`."""
    contact, recovery = np.exp(np.moveaxis(log_rates, -1, 0))
    susceptible, infected = (np.full(contact.shape, n) for n in (population - INFECTED, INFECTED))
    cases = []
    for _ in range(DAYS):
        new = rng.binomial(susceptible, -np.expm1(-contact * infected / population))
        recovered = rng.binomial(infected, -np.expm1(-recovery))
        susceptible, infected = susceptible - new, infected + new - recovered
        cases.append(new)
    return np.stack(cases, axis=-1)


def log_likelihood(rng, x, population):
    """By a particle filter at each point of the grid; new cases are observed, recoveries are not."""
    contact, recovery = np.exp(GRID.T)[..., None]
    susceptible, infected = population - INFECTED, np.full((len(GRID), PARTICLES), INFECTED)
    total, lines = np.zeros(len(GRID)), np.arange(len(GRID))[:, None]
    for new in x.astype(int):
        hazard = contact * infected / population
        logs = xlogy(new, -np.expm1(-hazard)) - (susceptible - new) * hazard  # up to a constant
        most = np.maximum(logs.max(axis=1, keepdims=True), -1e300)
        weights = np.exp(logs - most)
        total += np.log(np.maximum(weights.mean(axis=1), 1e-300)) + most[:, 0]
        ends = np.cumsum(weights, axis=1) / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        places = (rng.random((len(GRID), 1)) + np.arange(PARTICLES)) / PARTICLES
        # one sorted search for all rows: those of a row lie between its number and the next
        chosen = np.searchsorted((ends + lines).ravel(), (places + lines).ravel()).reshape(places.shape)
        chosen = np.clip(chosen - PARTICLES * lines, 0, PARTICLES - 1)
        infected = np.take_along_axis(infected, chosen, axis=1)
        infected = infected + new - rng.binomial(infected, np.broadcast_to(-np.expm1(-recovery), infected.shape))
        susceptible -= new
    return total


def simulator(rng, log_rates, *, population):
    return counts(rng, np.asarray(log_rates), population).astype(np.float32)


def model(population, x=None):
    rates = numpyro.sample("log_rates", dist.Normal(jnp.asarray(CENTRE, jnp.float32), SD).to_event(1))
    numpyro.sample("x", kme.Simulator(POPULATIONS[population], rates, shape=(DAYS,), dtype=jnp.float32), obs=x)


POPULATIONS = {population: partial(simulator, population=population) for population in (500, 5000)}


def moments(log_density):
    """Means and standard deviations of the standardised log rates, `(2,)` each."""
    log_density = log_density - 0.5 * np.sum(np.square(STANDARD), axis=1)
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean = weights @ STANDARD
    return mean, np.sqrt(weights @ np.square(STANDARD - mean))


@cache
def exact(population, seed, data_sets):
    """Standardised log rates from the prior, their data sets, and moments of the exact posteriors."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(data_sets, 2))
    data = counts(rng, CENTRE + SD * truth, population).astype(np.float32)
    return truth, data, [moments(log_likelihood(rng, x, population)) for x in data]


def score(population, simulations, seed, data_sets):
    """Shifts, ratios of standard deviations and whether 90 % intervals hold the rates, `(data_sets, 2)` each, and how
    far half of the simulations move the posteriors."""
    truth, data, known = exact(population, seed, data_sets)
    engine = kme.KELFI(model, simulations, num_rounds=1, progress_bar=False)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine.run(jax.random.key(seed), population, x=data[0])
        for number, x in enumerate(data):
            posterior = engine.trained.condition(jax.random.key(number), population, x=x)
            (mean, sd), learnt = known[number], posterior.log_likelihood({"log_rates": GRID.astype(np.float32)})
            own, width = moments(learnt)
            held = np.abs(truth[number] - own) < stats.norm.ppf(0.95) * width
            found.append([(own - mean) / sd, width / sd, held.astype(float), np.full(2, posterior.moved_by_half)])
    return np.array(found).tolist()


def main():
    parser = report.parser(__doc__, resumes=True)
    parser.add_argument("--data-sets", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options, lines = parser.parse_args(), []
    for population in POPULATIONS:
        for simulations in (300, 1000, 3000):
            cells = [
                options.rows.get(
                    lambda key=(population, simulations, seed, options.data_sets): {"found": score(*key)},
                    population=population,
                    simulations=simulations,
                    seed=seed,
                    data_sets=options.data_sets,
                )["found"]
                for seed in range(options.seeds)
            ]
            shift, ratio, held, half = np.moveaxis(np.concatenate(cells), 1, 0)
            rms, widths = np.sqrt(np.mean(shift**2, axis=0)), np.exp(np.mean(np.log(ratio), axis=0))
            line = [population, simulations, *rms, np.abs(shift).max(), *widths, held.mean(), np.median(half)]
            lines.append([float(number) if isinstance(number, np.floating) else number for number in line])
    header = ["population", "simulations", "rms shift, contact", "recovery", "largest", "sd ratio, contact", "recovery"]
    header += ["90 % intervals hold", "half moves by, median"]
    title = (
        f"{options.data_sets} data sets for each of {options.seeds} keys; shifts in exact posterior standard deviations"
    )
    print(report.write("epidemic", "Daily counts of a stochastic epidemic", [(title, report.table(header, lines))]))


if __name__ == "__main__":
    main()
