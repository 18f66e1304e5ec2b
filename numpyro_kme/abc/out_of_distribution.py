"""The out-of-distribution check of an observation: how far it lies from simulations, whatever the distance."""

from typing import NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.embeddings.mmd import Estimator


class OutOfDistributionCheck(NamedTuple):
    """How far an observation lies from simulations.

    Attributes:
        nearest: Distance of the observation from the nearest of the simulations, a proportion `proportion` of all.
        threshold: Distance that three in four pairs of simulations do not exceed, or that every simulation has a
            neighbour within, whichever is larger.
        proportion: `1 / 2k` for `k` simulations that were compared with one another.
    """

    nearest: float
    threshold: float
    proportion: float

    @property
    def is_out_of_distribution(self) -> bool:
        """Whether the nearest simulations are farther from the observation than simulations are from one another."""
        return self.nearest > self.threshold


def out_of_distribution_check(to_observation: ArrayLike, between: ArrayLike) -> OutOfDistributionCheck:
    """Whether an observation lies outside the distribution of simulations, by any distance or discrepancy.

    Weights of the simulations that are nearest to an observation say nothing of how near those are. This compares the
    distance of the nearest `1 / 2k` of the simulations with the distances of `k` simulations from one another. The
    observation is out of distribution if the first exceeds three in four of the others, and the distance of every one
    of the `k` from its nearest neighbour. An observation that the prior and the simulator explain is no farther from
    its neighbours than a simulation is, so the check is wrong about it once in `k + 1` times at most, about, whatever
    the distribution; where tails are light, hardly ever.

    Args:
        to_observation: Distances of the simulations from the observation, `(m,)`.
        between: Distances of some of the simulations from one another, `(k, k)`, `k >= 2`; the diagonal is passed over.
    Raises:
        ValueError: If shapes disagree, or distances are not finite.
    """
    checks.concrete(to_observation=to_observation, between=between)
    for name, value in {"to_observation": to_observation, "between": between}.items():
        checks.sound(name, value)
    distance, between = np.asarray(to_observation, np.float64), np.asarray(between, np.float64)
    k = len(between)
    checks.require(
        distance.ndim == 1 and len(distance) >= k >= 2 and between.shape == (k, k),
        f"`to_observation` must have shape (m,) and `between` (k, k), k from 2 to m; got {distance.shape} and "
        f"{between.shape}.",
    )
    off = ~np.eye(k, dtype=bool)
    nearest_other = np.min(between, axis=1, initial=np.inf, where=off)
    threshold = max(float(np.quantile(between[off], 0.75)), float(nearest_other.max()))
    nearest = float(np.sort(distance)[max(1, len(distance) // (2 * k)) - 1])
    return OutOfDistributionCheck(nearest, threshold, 0.5 / k)


@on_host
def dissimilarities(estimator: Estimator, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Minus the log of the cosine between mean embeddings of data sets `(k, n, d)` and `(s, n, d)`, `(s, k)`.

    $-\log E k(X_i, Y_j) + \tfrac12 \log E k(X_i, X_i') + \tfrac12 \log E k(Y_j, Y_j')$: about 0 for samples of one
    distribution, however wide it is, and bounded: beyond the length scale of the kernel all samples are equally far.
    """
    least = np.finfo(np.float64).tiny
    found = _similarities(estimator, x, y)
    alike, of_x, of_y = (np.maximum(part, least) for part in found)
    return np.where(alike > least, 0.5 * (np.log(of_x) + np.log(of_y)[:, None]), 0.0) - np.log(alike)


@jax.jit
def _similarities(estimator, x, y):
    def own(sets):
        return jax.lax.map(lambda one: estimator.similarity(one, one), sets)

    return jax.lax.map(lambda b: jax.lax.map(lambda a: estimator.similarity(a, b), x), y), own(x), own(y)
