r"""Learning the bandwidths of the residuals' density by its held-out log score.

For each simulation $j$ the density without it, with the weights of a kernel ridge regression that is refitted without
$j$ and made positive: $\bar a_{ji} \propto (W_{ji})_+$ and $W_{ji} = -P_{ji} / P_{jj}$, where
$P = B - B 1 1' B / 1' B 1$ and $B = (K + m \lambda I)^{-1}$.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial
from math import log, pi
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack
from scipy.special import expit, logit

from numpyro_kme.kernels.gram import squared_distances_on_host
from numpyro_kme.likelihoods.base import positive_part
from numpyro_kme.likelihoods.residual.mixture import exponentials, log_heavy_tailed
from numpyro_kme.likelihoods.residual.weights import SOFTNESS

DEFENSIVE = 0.02
"""Weight `w` of the heavy-tailed component while bandwidths are learnt: bounds the loss of one simulation."""

PRIOR_COUNT, LARGEST_WEIGHT = 0.05, 0.2
"""The heavy-tailed weight follows the held-out simulations, and this many more of that component; its bound."""

PILOTS, ROWS = 4000, 1000
"""Pilot densities are of at most this many simulations, computed for this many at a time."""


class Bandwidths(NamedTuple):
    """Hyperparameters of the density.

    Attributes:
        beta: Length scale of the weights in the coordinates.
        lam: Regularisation of the weights.
        eps: Bandwidth of the residuals in their standard deviations.
        sensitivity: `alpha`, how bandwidths follow the pilot density.
    """

    beta: float
    lam: float
    eps: float
    sensitivity: float


BETAS, LAMS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0), (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
EPSES, SENSITIVITIES = (0.05, 0.1, 0.17, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97), (0.0, 0.12, 0.25, 0.5)
"""What is tried; of `beta` times the root of the number of coordinates."""

BEGIN, SWEEPS = Bandwidths(2.0, 0.1, 0.5, 0.25), 2
"""Where the search begins; turns in which each hyperparameter is set to its best value given the others."""


class LearntBandwidths(NamedTuple):
    """What held-out simulations say of some blocks of residuals.

    Attributes:
        bandwidths: The best ones.
        log_densities: Held-out log densities, with heavy-tailed components of weight `DEFENSIVE`, `(m,)`.
        heavy_tailed_weights: Weights `w` that held-out simulations ask for, `(b,)`.
    """

    bandwidths: Bandwidths
    log_densities: np.ndarray
    heavy_tailed_weights: np.ndarray


class _Kernels(NamedTuple):
    """Kernels of each residual at the others, `(m, m)`, over their largest, and the logarithms of these, `(m,)`."""

    over: np.ndarray
    log_largest: np.ndarray

    @classmethod
    def of(cls, residuals: np.ndarray, eps: float, sensitivity: float) -> "_Kernels":
        """Of residuals `(m, k)`, in their precision."""
        logs = log_kernels(residuals, residuals, eps, -sensitivity * log_pilots(residuals, eps) if sensitivity else 0.0)
        np.fill_diagonal(logs, -np.inf)
        return cls(*over_largest(logs))

    def log_mixture(self, weights: np.ndarray) -> np.ndarray:
        """Log of their sum with weights `(m, m)`."""
        return self.log_largest + np.log(np.einsum("ij,ij->i", self.over, weights))


def learn(z: np.ndarray, blocks: list[np.ndarray]) -> LearntBandwidths:
    """Maximise the held-out log density of blocks of residuals, `(m, k)` each, all of the same bandwidths.

    Cost: `m^3` for each of about twenty pairs of `beta` and `lam`, `b m^2` kernels for each of twenty-eight of the
    others.
    """
    now, root, tails = BEGIN, float(np.sqrt(z.shape[1])), [log_heavy_tailed(block) for block in blocks]

    @cache
    def weights_of(beta: float, lam: float) -> np.ndarray:
        return held_out_weights(z, root * beta, lam)

    def kernels_of(found: Bandwidths) -> list[_Kernels]:
        return [_Kernels.of(block, found.eps, found.sensitivity) for block in blocks]

    def score(at: Bandwidths, kernels: list[_Kernels] | None = None, weights: np.ndarray | None = None) -> float:
        weights = weights_of(at.beta, at.lam) if weights is None else weights
        return float(np.mean(log_product(kernels or kernels_of(at), weights, tails)))

    for _ in range(SWEEPS):
        given = partial(score, weights=weights_of(now.beta, now.lam))
        now = _best(_best(now, "eps", EPSES, given), "sensitivity", SENSITIVITIES, given)
        kernels = kernels_of(now)
        given = partial(score, kernels=kernels)
        now = _best(_best(now, "beta", BETAS, given), "lam", LAMS, given)
    weights = weights_of(now.beta, now.lam)
    mixtures = [kernel.log_mixture(weights) for kernel in kernels]
    tail_weights = np.array([_heavy_tailed_weight(mixture, tail) for mixture, tail in zip(mixtures, tails)])
    return LearntBandwidths(now._replace(beta=root * now.beta), log_product(kernels, weights, tails), tail_weights)


def _best(now: Bandwidths, name: str, values: Iterable[float], score: Callable[[Bandwidths], float]) -> Bandwidths:
    """The same with the value of one hyperparameter that has the highest score."""
    return max((now._replace(**{name: value}) for value in values), key=score)


def log_product(kernels: list[_Kernels], weights: np.ndarray, tails: list[np.ndarray]) -> np.ndarray:
    """Log of the product of mixtures, each with a heavy-tailed component, `(m,)`."""
    logs = [log_defensive_mixture(kernel.log_mixture(weights), tail) for kernel, tail in zip(kernels, tails)]
    return np.sum(logs, axis=0)


def log_densities_alone(z: np.ndarray, columns: np.ndarray, bandwidths: Bandwidths) -> np.ndarray:
    """Held-out log densities of single residuals `(m, n)`, each by itself, at given bandwidths, `(m, n)`."""
    weights, found = held_out_weights(z, bandwidths.beta, bandwidths.lam), []
    for column in columns.T[:, :, None]:
        kernels = _Kernels.of(column, bandwidths.eps, bandwidths.sensitivity)
        found.append(log_defensive_mixture(kernels.log_mixture(weights), log_heavy_tailed(column)))
    return np.stack(found, axis=1)


def log_defensive_mixture(log_density: np.ndarray, log_tails: np.ndarray) -> np.ndarray:
    """Log of the mixture of a density and a heavy-tailed component of weight `DEFENSIVE`."""
    return np.logaddexp(log(1.0 - DEFENSIVE) + log_density, log(DEFENSIVE) + log_tails)


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
    chosen = np.arange(m) if m <= PILOTS else np.sort(np.random.default_rng(1).permutation(m)[:PILOTS])
    pilot = np.empty(m)
    for rows in np.array_split(np.arange(m), -(-m // ROWS)):
        logs = log_kernels(residuals[rows], residuals[chosen], eps)
        own = rows[:, None] == chosen
        logs[own] = -np.inf
        over, log_largest = over_largest(logs)
        pilot[rows] = log_largest + np.log(over.sum(axis=1) / np.sum(~own, axis=1))
    pilot = np.logaddexp(pilot, log(DEFENSIVE) + log_heavy_tailed(residuals))
    return pilot - pilot.mean()


def log_kernels(at: np.ndarray, around: np.ndarray, eps: float, log_factors: np.ndarray | float = 0.0) -> np.ndarray:
    """`log N(r_i | sqrt(1 - eps^2) r_j, (eps s_j)^2)`, `(i, j)`, of residuals `(i, k)` and `(j, k)`."""
    n, kind = at.shape[1], at.dtype.type
    logs = squared_distances_on_host(at / kind(eps), around * kind(np.sqrt(1.0 - eps**2) / eps))
    logs *= np.asarray(-0.5 * np.exp(-2.0 * np.asarray(log_factors)), at.dtype)
    logs -= np.asarray(n * (log_factors + log(eps) + 0.5 * log(2.0 * pi)), at.dtype)
    return logs


def over_largest(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exponentials over the largest of each row, in place of the logarithms, and the logarithms of these."""
    largest = logs.max(axis=1)
    logs -= largest[:, None]
    return exponentials(logs, np), largest


def _heavy_tailed_weight(log_density: np.ndarray, log_tails: np.ndarray) -> float:
    """Weight `w` of the heavy-tailed component that held-out simulations ask for, by expectation-maximisation.

    The prior is worth `PRIOR_COUNT` simulations that the heavy-tailed component explains, so that `w` is positive and
    falls as `1 / m` where the embedding explains all.
    """
    gap, weight = log_tails.astype(np.float64) - log_density, DEFENSIVE
    for _ in range(100):
        explained = expit(gap + logit(weight)).sum()
        weight = min((explained + PRIOR_COUNT) / (len(gap) + PRIOR_COUNT), LARGEST_WEIGHT)
    return float(weight)


def mixing_proportion(gap: np.ndarray) -> float:
    """Proportion of a density in a mixture with another, whose log is less by `gap`, `(m,)`, by
    expectation-maximisation; half a simulation each way is the prior."""
    proportion = 0.5
    for _ in range(100):
        proportion = (expit(gap + logit(proportion)).sum() + 0.5) / (len(gap) + 1.0)
    return float(proportion)
