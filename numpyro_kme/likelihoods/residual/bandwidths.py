r"""Learning the bandwidths of the residuals' density by its held-out log score.

For each simulation $j$ the density without it, with the weights of a kernel ridge regression that is refitted without
$j$ and made positive: $\bar a_{ji} \propto (W_{ji})_+$ and $W_{ji} = -P_{ji} / P_{jj}$, where
$P = B - B 1 1' B / 1' B 1$ and $B = (K + m \lambda I)^{-1}$.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from math import log
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack
from scipy.special import expit, logit

from numpyro_kme.kernels.gram import squared_distances_on_host
from numpyro_kme.likelihoods.base import positive_part
from numpyro_kme.likelihoods.residual.mixture import SOFTNESS, exponentials, log_heavy_tailed, log_kernels

DEFENSIVE = 0.02
"""Weight `w` of the heavy-tailed component while bandwidths are learnt: bounds the loss of one simulation."""

PRIOR_COUNT, LARGEST_WEIGHT = 0.05, 0.2
"""The heavy-tailed weight follows the held-out simulations, and this many more of that component, so that it falls as
`1 / m` where the embedding explains all; its bound."""

PILOTS, ROWS = 4000, 1000
"""Pilot densities are of at most this many simulations, computed for this many at a time."""


class Bandwidths(NamedTuple):
    """Length scale `beta` and regularisation `lam` of the weights; bandwidth `eps` of the residuals in their standard
    deviations, and the `sensitivity` `alpha` with which it follows the pilot density."""

    beta: float
    lam: float
    eps: float
    sensitivity: float


CANDIDATES = {
    "eps": (0.05, 0.1, 0.17, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97),
    "sensitivity": (0.0, 0.12, 0.25, 0.5),
    "beta": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    "lam": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
}
"""Values that are tried in turn; `beta` in units of the root of the number of coordinates."""

BEGIN, SWEEPS = Bandwidths(2.0, 0.1, 0.5, 0.25), 2
"""Where the search begins; turns in which each hyperparameter climbs, value by value, given the others."""


class LearntBandwidths(NamedTuple):
    """The best bandwidths of `b` blocks of residuals, held-out log densities, with heavy-tailed components of weight
    `DEFENSIVE`, `(m,)`, and the weights `w` that held-out simulations ask for, `(b,)`."""

    bandwidths: Bandwidths
    log_densities: np.ndarray
    heavy_tailed_weights: np.ndarray


def learn(z: np.ndarray, blocks: list[np.ndarray]) -> LearntBandwidths:
    """Maximise the held-out log density of blocks of residuals, `(m, k)` each, all of the same bandwidths.

    Cost: `m^3` for each of about twenty pairs of `beta` and `lam`, `b m^2` kernels for each of twenty-eight of the
    others.
    """
    now, root = BEGIN, float(np.sqrt(z.shape[1]))
    weights_of = cache(lambda beta, lam: held_out_weights(z, root * beta, lam))
    kernels_of = lru_cache(1)(lambda eps, sensitivity: [_Kernels.of(block, eps, sensitivity) for block in blocks])

    def log_densities(at: Bandwidths) -> np.ndarray:
        weights = weights_of(at.beta, at.lam)
        return np.sum([kernels.log_density(weights) for kernels in kernels_of(at.eps, at.sensitivity)], axis=0)

    score = cache(lambda at: float(np.mean(log_densities(at))))
    for _ in range(SWEEPS):
        for name, values in CANDIDATES.items():
            now = _climb(now, name, values, score)
    kernels, weights = kernels_of(now.eps, now.sensitivity), weights_of(now.beta, now.lam)
    gaps = [part.log_tails - part.log_mixture(weights) for part in kernels]
    tail_weights = np.minimum([mixing_proportion(gap, (PRIOR_COUNT, 0.0)) for gap in gaps], LARGEST_WEIGHT)
    return LearntBandwidths(now._replace(beta=root * now.beta), log_densities(now), tail_weights)


def _climb(now: Bandwidths, name: str, values: tuple, score: Callable[[Bandwidths], float]) -> Bandwidths:
    """Move one hyperparameter to the next of its candidates while that raises the score."""
    best = None
    while best != now:
        best, place = now, values.index(getattr(now, name))
        now = max((now._replace(**{name: value}) for value in values[max(place - 1, 0) : place + 2]), key=score)
    return now


class _Kernels(NamedTuple):
    """Kernels of each residual at the others, `(m, m)`, over their largest, the logarithms of these, `(m,)`, and log
    densities of the heavy-tailed component, `(m,)`."""

    over: np.ndarray
    log_largest: np.ndarray
    log_tails: np.ndarray

    @classmethod
    def of(cls, residuals: np.ndarray, eps: float, sensitivity: float) -> "_Kernels":
        """Evaluate at residuals `(m, k)`, in their precision."""
        logs = _log_kernels(residuals, residuals, eps, adapted(residuals, eps, sensitivity))
        np.fill_diagonal(logs, -np.inf)
        return cls(*over_largest(logs), log_heavy_tailed(residuals))

    def log_mixture(self, weights: np.ndarray) -> np.ndarray:
        """Log of their sum with weights `(m, m)`."""
        return self.log_largest + np.log(np.einsum("ij,ij->i", self.over, weights))

    def log_density(self, weights: np.ndarray) -> np.ndarray:
        """Log of the mixture with a heavy-tailed component of weight `DEFENSIVE`."""
        return np.logaddexp(log(1.0 - DEFENSIVE) + self.log_mixture(weights), log(DEFENSIVE) + self.log_tails)


def log_densities_at(z: np.ndarray, blocks: list[np.ndarray], at: Bandwidths) -> np.ndarray:
    """Held-out log densities of `b` blocks of residuals, `(m, k)` each, at given bandwidths, `(m, b)`."""
    weights = held_out_weights(z, np.sqrt(z.shape[1]) * at.beta, at.lam)
    return np.stack([_Kernels.of(block, at.eps, at.sensitivity).log_density(weights) for block in blocks], axis=1)


def held_out_weights(z: np.ndarray, beta: float, lam: float) -> np.ndarray:
    """Positive weights of the others without each of the simulations at `z` `(m, D)`, rows that add up to 1, `(m, m)`.

    Memory takes longer than arithmetic here: operations are in place wherever they can be.
    """
    scaled = z / z.dtype.type(beta)
    gram = squared_distances_on_host(scaled, scaled)
    gram *= -0.5
    signed = _inverse(exponentials(gram, np), len(z) * lam)
    row = signed.sum(axis=1)
    signed -= np.outer(row, row / row.sum())
    signed /= -np.diagonal(signed)[:, None].copy()
    np.fill_diagonal(signed, 0.0)
    weights = positive_part(signed, SOFTNESS / len(z), np)
    np.fill_diagonal(weights, 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def _inverse(gram: np.ndarray, ridge: float) -> np.ndarray:
    """`(K + ridge I)^-1`, in the place of `K`."""
    np.fill_diagonal(gram, 1.0 + ridge)
    factorise, invert = lapack.get_lapack_funcs(("potrf", "potri"), (gram,))
    lower = invert(factorise(gram.T, lower=1, overwrite_a=1)[0], lower=1, overwrite_c=1)[0]
    lower += np.tril(lower, -1).T
    return lower.T


def log_pilots(residuals: np.ndarray, eps: float) -> np.ndarray:
    """Log pilot densities of residuals `(m, k)`, each without itself, less their mean, `(m,)`.

    Kernels are around at most `PILOTS` residuals at random.
    """
    m = len(residuals)
    chosen, pilot = np.sort(np.random.default_rng(1).permutation(m)[:PILOTS]), np.empty(m)
    for rows in np.array_split(np.arange(m), -(-m // ROWS)):
        logs = _log_kernels(residuals[rows], residuals[chosen], eps, np.ones(len(chosen)))
        logs[rows[:, None] == chosen] = -np.inf
        over, log_largest = over_largest(logs)
        pilot[rows] = log_largest + np.log(over.sum(axis=1) / (len(chosen) - np.isin(rows, chosen)))
    pilot = np.logaddexp(pilot, log(DEFENSIVE) + log_heavy_tailed(residuals))
    return pilot - pilot.mean()


def adapted(residuals: np.ndarray, eps: float, sensitivity: float) -> np.ndarray:
    """Local bandwidth factors `s` of residuals `(m, k)`, `(m,)`."""
    return np.exp(-sensitivity * log_pilots(residuals, eps)) if sensitivity else np.ones(len(residuals))


def _log_kernels(at, around, eps, factors):
    """`log_kernels` in the precision of the residuals."""
    return log_kernels(at, around, np.full(at.shape[1], eps, at.dtype), factors.astype(at.dtype), np)


def over_largest(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exponentials over the largest of each row, in place of the logarithms, and the logarithms of these."""
    largest = logs.max(axis=1)
    logs -= largest[:, None]
    return exponentials(logs, np), largest


def mixing_proportion(gap: np.ndarray, before: tuple[float, float] = (0.5, 0.5)) -> float:
    """Proportion of a density in a mixture with another, whose log is less by `gap`, `(m,)`, by
    expectation-maximisation; the prior is worth so many simulations of the one and of the other."""
    proportion, gap = 0.5, gap.astype(np.float64)
    for _ in range(100):
        proportion = (expit(gap + logit(proportion)).sum() + before[0]) / (len(gap) + sum(before))
    return float(proportion)
