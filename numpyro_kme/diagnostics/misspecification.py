"""Whether an observation is like anything that the model simulates."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.likelihoods.statistics import StatisticsTransform

NEIGHBOURS = 5


@dataclass(frozen=True)
class MisspecificationTest:
    """A test of the model by one observation.

    Attributes:
        p_value: Share of the simulations, the observation counted among them, that are at least as far from the
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
    white = centred @ (vectors / np.sqrt(np.maximum(values, 1e-10 * values.max())))
    scores = np.log(np.maximum(_to_neighbours(white), 1e-300))
    tails = np.abs(together - np.median(together, axis=0))
    witness = np.ones(table.shape[1])
    witness[list(transform.kept)] = np.mean(tails >= tails[-1:], axis=0)
    return MisspecificationTest(float(np.mean(scores >= scores[-1])), float(scores[-1]), scores[:-1], witness)


def _to_neighbours(points: np.ndarray) -> np.ndarray:
    """Distance of each row to its fifth nearest other row, in blocks."""
    found = []
    squares = np.sum(points * points, axis=1)
    for start in range(0, len(points), 512):
        block = points[start : start + 512]
        distances = squares[start : start + 512, None] + squares[None] - 2.0 * block @ points.T
        distances[np.arange(len(block)), start + np.arange(len(block))] = np.inf
        found.append(np.sqrt(np.maximum(np.partition(distances, NEIGHBOURS - 1, axis=1)[:, NEIGHBOURS - 1], 0.0)))
    return np.concatenate(found)
