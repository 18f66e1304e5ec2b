r"""Learning the bandwidths of the residuals' density by its held-out log score.

For each simulation $j$ the density without it, with the weights of a kernel ridge regression that is refitted without
$j$ and made positive: $\bar a_{ji} \propto (W_{ji})_+$ and $W_{ji} = -P_{ji} / P_{jj}$, where
$P = B - B 1 1' B / 1' B 1$ and $B = (K + m \lambda I)^{-1}$.
"""

from collections.abc import Callable
from functools import cache, lru_cache, partial
from math import lgamma, log, pi
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import lapack
from scipy.special import expit, logit

from numpyro_kme.kernels.gram import squared_distances_on_host
from numpyro_kme.likelihoods.base import positive_part
from numpyro_kme.likelihoods.residual.ridge import log_gaussians

DEFENSIVE = 0.02
"""Weight `w` of the heavy-tailed component while locations and bandwidths are learnt: one outlier teaches nothing."""

PRIOR_COUNT = 0.05
"""The heavy-tailed weight follows the held-out simulations, and this many more of that component, so that it falls as
`1 / m` where the embedding explains all."""

SOFTNESS = 0.1
"""Weights below this fraction of `1 / m` count as about zero, smoothly."""

DEGREES = 3.0
"""Degrees of freedom of the heavy-tailed component. Its variance has to be finite: with one degree, narrow posteriors
under a wide prior get too wide."""


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
    "beta": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
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
    weights_of = cache(partial(held_out_weights, z))
    kernels_of = lru_cache(1)(lambda eps, sensitivity: [_Kernels.of(block, eps, sensitivity) for block in blocks])

    def log_densities(at: Bandwidths) -> np.ndarray:
        weights = weights_of(root * at.beta, at.lam)
        return np.sum([kernels.log_density(weights) for kernels in kernels_of(at.eps, at.sensitivity)], axis=0)

    score = cache(lambda at: float(np.mean(log_densities(at))))
    for _ in range(SWEEPS):
        for name, values in CANDIDATES.items():
            now = _climb(now, name, values, score)
    kernels, weights = kernels_of(now.eps, now.sensitivity), weights_of(root * now.beta, now.lam)
    tails = [mixing_proportion(part.log_tails - part.log_mixture(weights), (PRIOR_COUNT, 0.0)) for part in kernels]
    return LearntBandwidths(now._replace(beta=root * now.beta), log_densities(now), np.array(tails))


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
        logs = log_kernels(residuals, residuals, eps, adapted(residuals, eps, sensitivity, np.ones(len(residuals))))
        np.fill_diagonal(logs, -np.inf)
        return cls(*over_largest(logs), log_heavy_tailed(residuals, DEFENSIVE))

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


def adapted(residuals: np.ndarray, eps: float, sensitivity: float, counts: np.ndarray) -> np.ndarray:
    """Local bandwidth factors `s` of residuals `(K, k)` that stand for so many simulations, `(K,)`, each.

    They follow a pilot density of the others, over its geometric mean.
    """
    if not sensitivity:
        return np.ones(len(residuals))
    logs = log_kernels(residuals, residuals, eps, np.ones(len(residuals))) + np.log(counts).astype(residuals.dtype)
    np.fill_diagonal(logs, np.diagonal(logs) + np.log(np.maximum(1.0 - 1.0 / counts, 1e-300)))
    over, log_largest = over_largest(logs)
    pilot = log_largest + np.log(over.sum(axis=1) / (counts.sum() - 1.0))
    pilot = np.logaddexp(pilot, log(DEFENSIVE) + log_heavy_tailed(residuals, DEFENSIVE))
    logs = -sensitivity * (pilot - np.average(pilot, weights=counts))
    return np.exp(np.clip(logs, -10.0, 10.0))  # whose squares, times those of far residuals, float32 holds


def log_heavy_tailed(v: Any, weight: Any, xp: Any = np) -> Any:
    """`log p_0` of residuals `(..., n)`: a product of Student densities, so that what the others say stays the same
    where some are far out, as of statistics that the model cannot make. With a weight to the power of `n` it is a joint
    Student density, by which all then say less: it leads samplers back from where all are far out."""

    def student(square, n):
        constant = lgamma(0.5 * (DEGREES + n)) - lgamma(0.5 * DEGREES) - 0.5 * n * log(DEGREES * pi)
        return constant - 0.5 * (DEGREES + n) * xp.log1p(square / DEGREES)

    each, joint = student(xp.square(v), 1).sum(axis=-1), student(xp.square(v).sum(axis=-1), v.shape[-1])
    log_weight = v.shape[-1] * xp.log(weight)
    return xp.logaddexp(xp.log1p(-xp.exp(log_weight)) + each, log_weight + joint)


def exponentials(logs: Any, xp: Any) -> Any:
    """Exponentials; by NumPy in place, and none so small that processors take their time over it in float32."""
    if xp is jnp:
        return jnp.exp(logs)
    # log of the smallest kernel in a density, relative to the largest; a row: with a number NumPy takes twice as long
    smallest = np.full(logs.shape[-1], -60.0, logs.dtype)
    return np.exp(np.maximum(logs, smallest, out=logs), out=logs)


def log_kernels(v: Any, residuals: Any, eps: Any, factors: Any, xp: Any = np) -> Any:
    """`log N(v | sqrt(1 - eps^2) r_j, (eps s_j)^2)`, `(..., m)`, of residuals `r` `(m, k)`, with a bandwidth and
    factors `s` `(m,)`, in the precision of `v`."""
    eps, narrow = xp.full(v.shape[-1], eps, v.dtype), 1.0 / xp.square(xp.asarray(factors).astype(v.dtype))[:, None]
    centres = xp.asarray(residuals) * (xp.sqrt(1.0 - xp.square(eps)) / eps)[None, :]
    constant = 0.5 * len(eps) * xp.log(2.0 * pi / narrow[:, 0]) + xp.sum(xp.log(eps))
    return log_gaussians(v / eps, centres, narrow, xp) - constant


def log_mixture(v: Any, weights: Any, centres: Any, eps: Any, factors: Any, tail_weight: Any, xp: Any) -> Any:
    """Log of the mixture of kernels (`log_kernels`) with weights `(..., m)`, and the heavy-tailed density at `v`
    `(..., n)`, which has the weight `w`."""
    logs = log_kernels(v, centres, eps, factors, xp)
    tails = xp.log(tail_weight) + log_heavy_tailed(v, tail_weight, xp)
    # no less than the heavy-tailed component: XLA may compute `logs` twice, and far out, where they are -1e12, they
    # differ by more than the largest exponent of float32
    peak = xp.maximum(xp.max(logs, axis=-1), xp.maximum(tails, xp.finfo(logs.dtype).min))
    peak = peak if xp is np else jax.lax.stop_gradient(peak)
    logs -= peak[..., None]  # in place by NumPy
    near, every = exponentials(logs, xp), xp.ones(logs.shape[-1], logs.dtype)
    mixture = (1.0 - tail_weight) * xp.einsum("...m,...m->...", near, weights) / (weights @ every)
    return peak + xp.log(mixture + xp.exp(tails - peak))


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
