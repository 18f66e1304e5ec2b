"""KELFI with and without statistics that may be shifted, on data that its model does not make.

    python -m benchmarks misfit [--problems NAME ...] [--keys 10]

Root mean squared error of posterior draws about the true parameters, and coverage of central 90% intervals, at 1,000
simulations, by the share of contaminated data. Ricker and Ornstein-Uhlenbeck: models, priors, 100 series a data set and
contamination of Huang et al. (2023), where a share of the series is made with other parameters; their statistics are
learnt by a network, and those here are means and medians over the series of five of each; of Ricker the medians alone
too, as its means and medians agree on different parameters. Normal: mean and variance of 100 draws, a fifth of which
have another standard deviation (Frazier and Drovandi, 2021). Weibull: of ten statistics of 200 draws the mean and the
largest are wrong. Takes an hour.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_kme as kme
from benchmarks.helpers import report


class Case(NamedTuple):
    """A problem: prior `(d,)`, statistics of a data set, and one of which a share is contaminated."""

    prior: Any
    simulate: Any
    truth: np.ndarray
    contaminated: Any
    shares: tuple[float, ...] = (0.0, 0.1, 0.2)


def summarised(series, medians=False):
    """Five statistics of each of the series `(n, T)`, by their mean and by their median over the series, or by these
    medians alone."""

    def each(x):
        centred, changes = x - x.mean(), jnp.abs(jnp.diff(x))
        lag = jnp.mean(centred[1:] * centred[:-1]) / (x.var() + 0.01)
        logs = jnp.log(0.1 + jnp.stack([jnp.abs(x.mean()), x.std(), jnp.median(jnp.abs(x)), changes.mean()]))
        return jnp.append(logs, lag)

    found = jax.vmap(each)(series)
    middle = jnp.median(found, axis=0)
    return middle if medians else jnp.concatenate([found.mean(axis=0), middle])


def ricker(key, theta):
    noise_key, key = jax.random.split(key)

    def step(n, e):
        n = jnp.exp(theta[0] - n + 0.3 * e) * n
        return n, n

    populations = jax.lax.scan(step, 1.0, jax.random.normal(noise_key, (100,)))[1]
    return jax.random.poisson(key, theta[1] * populations).astype(float)


def ornstein_uhlenbeck(key, theta):
    def step(x, w):
        x = x + theta[0] * (jnp.exp(theta[1]) - x) * 0.2 + 0.5 * w
        return x, x

    return jax.lax.scan(step, 10.0, jnp.sqrt(0.2) * jax.random.normal(key, (25,)))[1]


def of_series(one, medians, number=100):
    """Simulators of statistics of many series, and of those of which a share has other parameters."""

    def all_series(key, theta):
        return jax.vmap(lambda k: one(k, theta))(jax.random.split(key, number))

    def simulate(key, theta):
        return summarised(all_series(key, theta), medians)

    def contaminated(key, theta, other, share):
        keys = jax.random.split(key)
        own, wrong = all_series(keys[0], theta), all_series(keys[1], other)
        return summarised(jnp.where(jnp.arange(number)[:, None] < share * number, wrong, own), medians)

    return simulate, contaminated


def box(low, high):
    return dist.Uniform(jnp.array(low), jnp.array(high)).to_event(1)


def series_case(one, prior, truth, other, medians=False):
    simulate, mixed = of_series(one, medians)
    return Case(
        prior, simulate, np.array(truth), lambda key, share: mixed(key, jnp.array(truth), jnp.array(other), share)
    )


def moments(x):
    return jnp.stack([x.mean(), x.var()])


def normal_data(key, share):
    keys = jax.random.split(key)
    sd = jnp.where(jax.random.uniform(keys[0], (100,)) < share, 4.0, 1.0)
    return moments(1.0 + sd * jax.random.normal(keys[1], (100,)))


def weibull(key, theta):
    """Log deciles, and the logs of the mean and the largest."""
    x = jnp.exp(theta[0]) * jax.random.exponential(key, (200,)) ** jnp.exp(-theta[1])
    return deciles(x)


def deciles(x):
    return jnp.log(jnp.append(jnp.quantile(x, jnp.linspace(0.1, 0.9, 8)), jnp.stack([x.mean(), x.max()])))


def weibull_data(key, share):
    """The mean and the largest are of data of which some are ten times as large, the quantiles of others."""
    x = deciles(jnp.exp(0.5) * jax.random.exponential(key, (200,)) ** (1 / 1.5))
    return x.at[8:].add(5.0 * share * jnp.array([1.0, 2.0]))


SERIES = {
    "Ricker": (ricker, box([2.0, 0.0], [8.0, 20.0]), [4.0, 10.0], [4.0, 100.0]),
    "Ornstein-Uhlenbeck": (ornstein_uhlenbeck, box([0.0, -2.0], [2.0, 2.0]), [0.5, 1.0], [-0.5, 1.0]),
}
CASES = {
    **{name: series_case(*parts) for name, parts in SERIES.items()},
    "Ricker, medians": series_case(*SERIES["Ricker"], medians=True),
    "normal": Case(
        dist.Normal(0.0, 10.0).expand([1]).to_event(1),
        lambda key, theta: moments(theta[0] + jax.random.normal(key, (100,))),
        np.array([1.0]),
        normal_data,
        (0.0, 0.2),
    ),
    "Weibull, two of ten wrong": Case(
        dist.Normal(0.0, 1.0).expand([2]).to_event(1), weibull, np.array([0.5, np.log(1.5)]), weibull_data, (0.0, 0.2)
    ),
}


def measured(problem, share, key, adjust):
    """Errors of draws, whether intervals hold the truth, and probabilities of shifts."""
    case = CASES[problem]

    def model(x=None):
        theta = numpyro.sample("theta", case.prior)
        numpyro.sample("x", kme.Simulator(case.simulate, theta), obs=x)

    x = np.asarray(case.contaminated(jax.random.key(1000 + key), share))
    engine = kme.KELFI(model, 1000, adjust=adjust, progress_bar=False)
    engine.run(jax.random.key(key), x=x)
    theta = np.asarray(engine.get_samples()["theta"], np.float64)
    low, high = np.quantile(theta, [0.05, 0.95], axis=0)
    found = {"rmse": np.sqrt(np.mean(np.sum(np.square(theta - case.truth), axis=1)))}
    found |= {"mean": np.sqrt(np.sum(np.square(theta.mean(axis=0) - case.truth)))}
    found |= {"covered": np.mean((low <= case.truth) & (case.truth <= high))}
    shifted = np.mean(engine.posterior.shifts()["x"] != 0.0, axis=0).max() if adjust else 0.0
    return found | {"shifted": shifted}


def main(rows, problems=(), keys=10):
    lines = []
    for problem in tuple(problems) or tuple(CASES):
        for share in CASES[problem].shares:
            for adjust in (None, 0.1):
                rows.fill(measured, problem=[problem], share=[share], key=range(keys), adjust=[adjust])
                own = rows.of(problem=problem, share=share, adjust=adjust)  # of more data sets, where there are some
                rmse, mean, covered, shifted = (
                    np.array([row[n] for row in own]) for n in ("rmse", "mean", "covered", "shifted")
                )
                name = "adjusted" if adjust else "plain"
                lines.append(
                    [
                        problem,
                        f"{share:.0%}",
                        name,
                        len(own),
                        float(rmse.mean()),
                        float(mean.mean()),
                        f"{covered.mean():.0%}",
                        float(np.median(shifted)),
                    ]
                )
    header = [
        "problem",
        "contaminated",
        "KELFI",
        "data sets",
        "RMSE of draws",
        "error of the mean",
        "90% intervals hold",
        "largest probability of a shift",
    ]
    return "Misfit", [("1,000 simulations", report.table(header, lines))]
