r"""Predators and prey by Gillespie's exact algorithm, summarised by nine statistics.

$X$ predators and $Y$ prey, from 50 and 100; four reactions with their rates:

$$X \to X+1:\ \theta_1 XY;\ \ X \to X-1:\ \theta_2 X;\ \ Y \to Y+1:\ \theta_3 Y;\ \  Y \to Y-1:\ \theta_4 XY$$

Recorded every 0.2 for 30 units of time. A run that needs more than 10,000 reactions is aborted and returns
NaN.

References: Papamakarios and Murray (2016), NeurIPS, whose set-up this is; Wilkinson (2011), Stochastic
Modelling for Systems Biology.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme._core import full_precision
from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("log theta_1", "log theta_2", "log theta_3", "log theta_4")
PRIOR_LOW, PRIOR_HIGH = -5.0, 2.0
"""Bounds of the uniform prior of each logarithm."""
TRUTH = np.log([0.01, 0.5, 1.0, 0.01])
"""At which the published observation was simulated."""

STATISTICS = (
    *(f"mean {name}" for name in "XY"),
    *(f"log(var {name} + 1)" for name in "XY"),
    *(f"autocorrelation of {name}, lag {lag}" for name in "XY" for lag in (1, 2)),
    "correlation of X and Y",
)
PUBLISHED = np.array([95.22517, 51.96689, 8.67365, 8.05150, 0.98000, 0.93499, 0.97729, 0.92692, 0.02292])
PILOT_MEAN = np.array([219.80177, 5.83081, 6.63661, 4.44470, 0.84088, 0.73799, 0.13502, 0.07475, 0.12484])
PILOT_SD = np.array([592.32611, 54.66500, 2.96936, 0.90187, 0.17981, 0.25679, 0.26621, 0.20300, 0.37575])
"""The observed statistics, and their mean and standard deviation over pilot runs from the prior, as printed."""
OBSERVED = (PUBLISHED - PILOT_MEAN) / PILOT_SD
"""The observation of `model`."""

START = (50, 100)
"""Predators and prey at first."""
TIMES = np.arange(151) * 0.2
"""At which both are recorded."""
MAX_REACTIONS = 10_000
"""A run that needs more is aborted."""
CHANGES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
"""Of predators and prey by each reaction."""


def model(x=None):
    """Four log rates `log_theta`, uniform a priori, and the nine normalised statistics `x`."""
    log_theta = numpyro.sample("log_theta", dist.Uniform(PRIOR_LOW, PRIOR_HIGH).expand([4]).to_event(1))
    numpyro.sample("x", Simulator(lotka_volterra_statistics, log_theta), obs=x)


def lotka_volterra_statistics(rng_key, log_theta):
    """Nine statistics, `(9,)`, normalised by the pilot runs, at `log_theta` `(4,)`; NaN if aborted."""
    return normalise(statistics(lotka_volterra(rng_key, log_theta)))


def lotka_volterra(rng_key, log_theta, *, times=TIMES, max_reactions=MAX_REACTIONS):
    """Predators and prey at `times`, `(len(times), 2)`; all NaN if more than `max_reactions` are needed.

    Waiting times have no memory, so a wait that passes the next time to record is cut there and drawn again.
    Each turn of the loop is then one reaction or one record, and runs that are batched by `vmap` never wait
    for each other's grid.
    """
    theta = jnp.exp(log_theta)
    times = jnp.asarray(times, theta.dtype)
    changes = jnp.asarray(CHANGES, theta.dtype)

    def unfinished(run):
        _, reactions, recorded, _, _, _ = run
        return (recorded < len(times)) & (reactions <= max_reactions)

    def turn(run):
        turns, reactions, recorded, time, state, records = run
        wait_draw, choice_draw = jax.random.uniform(jax.random.fold_in(rng_key, turns), (2,), theta.dtype)
        predators, prey = state
        rates = theta * jnp.stack([predators * prey, predators, prey, predators * prey])
        cumulative = jnp.cumsum(rates)
        after = time - jnp.log1p(-wait_draw) / cumulative[-1]
        grid = times[recorded]
        reacts = after < grid  # False if nothing can happen any more: the wait is then infinite or NaN
        reaction = jnp.sum(choice_draw * cumulative[-1] >= cumulative[:-1])
        records = records.at[recorded].set(state)
        state = jnp.where(reacts, state + changes[reaction], state)
        time = jnp.where(reacts, after, grid)
        return turns + 1, reactions + reacts, recorded + ~reacts, time, state, records

    begin = jnp.asarray(START, theta.dtype)
    records = jnp.zeros((len(times), 2), theta.dtype)
    run = jax.lax.while_loop(unfinished, turn, (0, 0, 0, times[0], begin, records))
    return jnp.where(run[2] == len(times), run[5], jnp.nan)


@full_precision
def statistics(series):
    """Nine statistics, `(9,)`, of a series `(n, 2)`, as in `STATISTICS`; correlations of a constant are 0."""
    n = series.shape[0]
    mean = jnp.mean(series, axis=0)
    variance = jnp.var(series, axis=0, ddof=1)
    x, y = ((series - mean[None]) / jnp.sqrt(jnp.where(variance == 0, 1.0, variance))[None]).T
    products = [x[:-1] @ x[1:], x[:-2] @ x[2:], y[:-1] @ y[1:], y[:-2] @ y[2:], x @ y]
    return jnp.concatenate([mean, jnp.log(variance + 1), jnp.stack(products) / (n - 1)])


def normalise(raw):
    """Subtract the pilot mean and divide by the pilot standard deviation, `(9,)`."""
    return (raw - PILOT_MEAN.astype(raw.dtype)) / PILOT_SD.astype(raw.dtype)
