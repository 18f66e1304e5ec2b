"""Whether an observation is like what the model simulates: from the prior, and at draws of the posterior."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from numpyro.infer import Predictive

from numpyro_kme._core import arviz, checks
from numpyro_kme.engines.base import Engine, posterior_of
from numpyro_kme.engines.posterior import Posterior, problem_of
from numpyro_kme.likelihoods.statistics import StatisticsTransform
from numpyro_kme.models import tracing
from numpyro_kme.models.problem import Arrays

NEIGHBOURS = 5


@dataclass(frozen=True)
class MisspecificationTest:
    """A test of the model by one observation.

    Attributes:
        p_value: Fraction of the simulations, the observation counted among them, that are at least as far from the
            others. Under the model it is at most `a` with a probability of at most `a`, whatever the distance: the
            observation is one more simulation.
        score: Log distance of the observation to its nearest simulations.
        scores: The same for each simulation, `(m,)`.
        witness: The same p-value for each statistic by itself, by its distance from the median, `(n,)`: where it
            differs. With many statistics some are small by chance.
    """

    p_value: float
    score: float
    scores: np.ndarray = field(repr=False)
    witness: np.ndarray


def misspecification_test(x: Any, y: Any) -> MisspecificationTest:
    """Test whether `y` can be another row of the simulations `x`.

    The distance is Euclidean, to the fifth nearest other simulation, after robust z-scores and arcsinh of each
    statistic, and whitening of their correlations.

    Args:
        x: Simulated outputs from the prior, `(m, *event)`, such as `kelfi.simulations.x["x"]`.
        y: The observation, `(*event)`.
    Cost: `m^2 n`.
    """
    checks.real("x", np.asarray(x))
    checks.real("y", np.asarray(y))
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    checks.require(
        x.ndim >= 1 and x.shape[1:] == y.shape and len(x) > NEIGHBOURS,
        f"`x` must hold more than {NEIGHBOURS} simulations of the shape of `y`; got shapes {x.shape} and {y.shape}.",
    )
    checks.finite("y", y)
    table, seen = x.reshape(len(x), -1), y.reshape(-1)
    transform = StatisticsTransform.fit(table)
    transform.check(seen)
    together = np.asarray(transform.forward(np.concatenate([table, seen[None]])), np.float64)
    centred = together - together.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    white = centred @ (vectors / np.sqrt(np.maximum(values, 1e-10)))
    scores = np.log(np.maximum(_to_neighbours(white), 1e-300))
    tails = np.abs(together - np.median(together, axis=0))
    witness = np.ones(table.shape[1])
    witness[list(transform.kept)] = np.mean(tails >= tails[-1:], axis=0)
    return MisspecificationTest(float(np.mean(scores >= scores[-1])), float(scores[-1]), scores[:-1], witness)


def _to_neighbours(points: np.ndarray) -> np.ndarray:
    """Distance of each row to its fifth nearest other row, in blocks; the nearest of all is the row itself."""
    squares, found = np.sum(points * points, axis=1), []
    for rows in np.array_split(np.arange(len(points)), 1 + len(points) // 512):
        distances = squares[rows, None] + squares - 2.0 * points[rows] @ points.T
        found.append(np.partition(distances, NEIGHBOURS, axis=1)[:, NEIGHBOURS])
    return np.sqrt(np.maximum(np.concatenate(found), 0.0))


@dataclass(frozen=True)
class PredictiveCheck:
    """The observation beside data simulated at posterior draws.

    Attributes:
        predicted: `{site: (draws, *batch, *event)}`; without masked outputs, which make it `(draws, outputs, *event)`.
        observed: `{site: (*batch, *event)}`, of the same outputs.
    """

    predicted: Arrays = field(repr=False)
    observed: Arrays = field(repr=False)

    def tail_probabilities(self) -> dict[str, np.ndarray]:
        """Two-sided: twice the smaller fraction of predictions on either side of each observed number, ties
        counted half.

        Not a p-value of a test: the data were used twice, so that it is rarely small even where the model is wrong.
        """
        found = {}
        for site, value in self.observed.items():
            below = np.mean(self.predicted[site] < value[None], axis=0)
            ties = np.mean(self.predicted[site] == value[None], axis=0)
            below += 0.5 * ties
            found[site] = 2 * np.minimum(below, 1 - below)
        return found

    def to_inference_data(self):
        """An ArviZ object with the groups `posterior_predictive` and `observed_data`, for `az.plot_ppc` and others."""
        predicted = {site: value[None] for site, value in self.predicted.items()}
        return arviz.to_inference_data({"posterior_predictive": predicted, "observed_data": self.observed})


def predictive_check(rng_key: jax.Array, posterior: Posterior | Engine, num_draws: int = 200) -> PredictiveCheck:
    """Simulate at posterior draws.

    Args:
        rng_key: The only source of randomness.
        posterior: Of an engine that works from simulations, or that engine.
        num_draws: How many draws, each simulated once.
    """
    checks.key(rng_key)
    checks.whole("num_draws", num_draws, 1)
    posterior = posterior_of(posterior)
    problem, samples = problem_of(posterior), posterior.samples
    choose_key, simulate_key = jax.random.split(rng_key)
    total = len(next(iter(samples.values())))
    rows = np.asarray(jax.random.permutation(choose_key, total))[:num_draws]
    latents = {name: np.asarray(samples[name])[rows] for name in problem.latents}
    observed = problem.observations
    unseen = {name: None if name in observed else value for name, value in problem.kwargs.items()}
    with tracing.one_model_at_a_time(), tracing.as_numpyro_does():
        predictive = Predictive(problem.model, latents, return_sites=list(observed), parallel=True)
        predicted = predictive(simulate_key, *problem.args, **unseen)
    for site, value in observed.items():
        checks.require(
            not np.array_equal(np.asarray(predicted[site])[0], value) or len(rows) == 1,
            f"The model keeps the observation at {site!r}: let it take it as a keyword argument of that name, so that "
            "leaving it out simulates.",
        )
    sites = {site: found for site, found in problem.simulators.items() if found.mask.any()}
    return PredictiveCheck(
        {site: found.counted(np.asarray(predicted[site]), 1) for site, found in sites.items()},
        {site: found.counted(observed[site]) for site, found in sites.items()},
    )
