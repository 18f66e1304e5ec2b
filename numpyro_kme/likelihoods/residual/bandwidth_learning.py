r"""Learning the hyperparameters of the residuals' density by its held-out log score, with the gradient by hand.

For each simulation $j$ the `ResidualDensity` without it,

$$ \log p_{-j} = \log \Big( (1 - w) \sum_{i \ne j} \bar a_{ji} N(r_j \mid \sqrt{1 - \epsilon^2} r_i, (\epsilon s_i)^2)
   + w\, p_0(r_j) \Big), $$

with the weights of a kernel ridge regression that is refitted without $j$, made positive:
$\bar a_{ji} \propto (W_{ji})_+$ and $W_{ji} = -P_{ji} / P_{jj}$, where $P = B - B 1 1' B / 1' B 1$ and
$B = (K + m \lambda I)^{-1}$. Nothing is compiled.
"""

from dataclasses import replace
from math import log, pi
from typing import NamedTuple

import jax
import numpy as np
from scipy.linalg import lapack
from scipy.special import expit, logit

from numpyro_kme.kernels.gram import squared_distances_on_host
from numpyro_kme.likelihoods.base import positive_part
from numpyro_kme.likelihoods.descent import ENOUGH, descend
from numpyro_kme.likelihoods.residual import density
from numpyro_kme.likelihoods.residual.density import DEFENSIVE, Bandwidths, LocalFactors
from numpyro_kme.likelihoods.residual.mixture import exponentials, log_heavy_tailed
from numpyro_kme.likelihoods.residual.weights import SOFTNESS


class HeldOutWeights(NamedTuple):
    """Weights of the embedding without each of `m` simulations, matrices `(m, m)` with a row for each held out.

    Memory takes longer than arithmetic here: operations are in place wherever they can be.

    Attributes:
        squares: Squared distances of the coordinates over `beta`.
        gram: `K`.
        inverse: `B`.
        signed: `W`, 0 on the diagonal.
        positive: Its positive part; rows divided by their sums, to 1.
        sums: The sums, `(m, 1)`.
    """

    squares: np.ndarray
    gram: np.ndarray
    inverse: np.ndarray
    signed: np.ndarray
    positive: np.ndarray
    sums: np.ndarray

    @classmethod
    def of(cls, bandwidths: Bandwidths, z: np.ndarray) -> "HeldOutWeights":
        """From coordinates `(m, D)`, in their precision."""
        size = len(z)
        scaled = z / np.exp(bandwidths.beta).astype(z.dtype)
        squares = squared_distances_on_host(scaled, scaled)
        gram = squares * -0.5
        exponentials(gram, np)
        inverse = _inverse(gram, size * float(np.exp(bandwidths.lam)))
        row = inverse.sum(axis=1)
        signed = np.outer(row, -row / row.sum())
        signed += inverse
        signed /= -np.diagonal(signed)[:, None].copy()
        np.fill_diagonal(signed, 0.0)
        weights = positive_part(signed, SOFTNESS / size, np)
        np.fill_diagonal(weights, 0.0)
        sums = weights.sum(axis=1, keepdims=True)
        weights /= sums
        return cls(squares, gram, inverse, signed, weights, sums)

    def gradient(self, of_positive: np.ndarray, lam: float) -> tuple[float, float]:
        """By `beta` and `lam`, from derivatives by the logarithms of the positive weights `(m, m)`, which it uses up.

        These are of a function that does not change with a common factor of a row's weights.
        """
        size, inverse, row, found = len(self.gram), self.inverse, self.inverse.sum(axis=1), of_positive
        root = self.positive * (2.0 * self.sums)
        root -= self.signed
        np.fill_diagonal(root, 1.0)
        found /= root
        pivot = np.diagonal(inverse) - np.square(row) / row.sum()
        of_pivot = -np.einsum("ij,ij->i", found, self.signed) / pivot
        found /= -pivot[:, None]
        np.fill_diagonal(found, of_pivot)
        right, left = found @ row, row @ found
        found -= (right + left)[:, None] / row.sum() - (row @ right) / row.sum() ** 2
        of_matrix = inverse @ (found @ inverse)
        trace = np.trace(of_matrix)
        of_matrix *= self.gram
        return -np.vdot(of_matrix, self.squares), -size * np.exp(lam) * trace


class HeldOutDensities(NamedTuple):
    """The parts of the held-out densities of `m` residuals, matrices `(m, m)` with a row for each that is held out.

    Attributes:
        bandwidths: The hyperparameters.
        weights: The weights of the others.
        pairs: Residuals over `eps`, and shrunk ones over `eps`, `(m, n)` each.
        squares: Squared distances between these.
        factors: Local bandwidth factors.
        ratios: Kernels over the mixture of kernels.
        mixture: Log densities of the mixture of kernels, `(m,)`.
        heavy_tailed: Log densities of the heavy-tailed component, `(m,)`.
    """

    bandwidths: Bandwidths
    weights: HeldOutWeights
    pairs: tuple[np.ndarray, np.ndarray]
    squares: np.ndarray
    factors: LocalFactors
    ratios: np.ndarray
    mixture: np.ndarray
    heavy_tailed: np.ndarray

    @classmethod
    def of(cls, bandwidths: Bandwidths, weights: HeldOutWeights, residuals: np.ndarray) -> "HeldOutDensities":
        """From residuals `(m, n)`, in their precision, and weights of these bandwidths."""
        log_tails, pairs = log_heavy_tailed(residuals), density.scaled_pairs(residuals, bandwidths)
        near = squared_distances_on_host(*pairs)
        factors = LocalFactors.of(near, log_tails, bandwidths)
        ratios = density.log_kernels(near, factors.log_factor, bandwidths)
        np.fill_diagonal(ratios, -np.inf)
        mixture, _ = density.log_mixture(ratios, weights.positive)
        return cls(bandwidths, weights, pairs, near, factors, ratios, mixture, log_tails)

    def log_densities(self) -> np.ndarray:
        """Held-out log densities, with the heavy-tailed component of weight `DEFENSIVE`, `(m,)`."""
        return log_defensive_mixture(self.mixture, self.heavy_tailed)

    def improvement(self, residuals: np.ndarray) -> float:
        """Mean held-out log density of the residuals `(m, n)` over that of independent standard normals."""
        normal = -0.5 * np.sum(np.square(residuals) + log(2.0 * pi), axis=1)
        return float(np.mean(self.log_densities() - normal))

    def heavy_tailed_weight(self) -> float:
        """Weight `w` of the heavy-tailed component that held-out simulations ask for, by expectation-maximisation.

        The prior is worth `PRIOR_COUNT` simulations that the heavy-tailed component explains, so that `w` is positive
        and falls as `1 / m` where the embedding explains all.
        """
        gap, weight = self.heavy_tailed.astype(np.float64) - self.mixture, DEFENSIVE
        for _ in range(100):
            explained = expit(gap + logit(weight)).sum()
            weight = min((explained + PRIOR_COUNT) / (len(gap) + PRIOR_COUNT), LARGEST_WEIGHT)
        return float(weight)

    def gradient(self) -> Bandwidths:
        """Gradient of the sum of `log_densities`."""
        responsibility = np.exp(log(1.0 - DEFENSIVE) + self.mixture - self.log_densities())[:, None]
        of_logs = self.ratios * self.weights.positive
        of_logs *= responsibility
        sums, narrow, n = of_logs.sum(axis=0), np.exp(-2.0 * self.factors.log_factor), self.pairs[0].shape[1]
        of_log_factor = narrow * np.einsum("ij,ij->j", of_logs, self.squares) - n * sums
        of_kernels, sensitivity = self.factors.gradient(of_log_factor, self.bandwidths)
        total = sums.sum() + of_kernels.sum()
        of_logs *= narrow
        of_logs += of_kernels
        eps = density.gradient_of_eps(of_logs, self.pairs, self.bandwidths)
        of_weights = self.ratios - 1.0
        of_weights *= responsibility
        of_weights *= self.weights.positive
        beta, lam = self.weights.gradient(of_weights, self.bandwidths.lam)
        return Bandwidths(-0.5 * eps - total, beta, lam, sensitivity)


def log_defensive_mixture(log_density: np.ndarray, log_tails: np.ndarray) -> np.ndarray:
    """Log of the mixture of a density and a heavy-tailed component of weight `DEFENSIVE`."""
    return np.logaddexp(log(1.0 - DEFENSIVE) + log_density, log(DEFENSIVE) + log_tails)


def _inverse(gram, ridge):
    """`(K + ridge I)^-1`; NaN where it is not positive definite."""
    matrix = gram.copy()
    np.fill_diagonal(matrix, 1.0 + ridge)
    factorise, invert = lapack.get_lapack_funcs(("potrf", "potri"), (matrix,))
    factor, failed = factorise(matrix.T, lower=1, overwrite_a=1)
    if failed or not np.isfinite(np.diagonal(factor)).all():
        return np.full_like(gram, np.nan)
    lower = invert(factor, lower=1, overwrite_c=1)[0]
    lower += np.tril(lower, -1).T
    return lower.T


PRIOR_COUNT, LARGEST_WEIGHT = 0.05, 0.2
"""The heavy-tailed weight follows the held-out simulations, and so many more that are of that component; its bound."""


def learn_bandwidths(z: np.ndarray, residuals: np.ndarray, steps: int) -> Bandwidths:
    """Maximise the held-out log density of residuals `(m, n)`, plus log priors.

    The search begins with the best of a few `eps`: kernels that are too narrow for so many statistics leave held-out
    residuals to the heavy-tailed component, whose slope says nothing.
    """
    size, n = residuals.shape
    begun, low, high = Bandwidths.around(n, (0.5, 0.02, 0.98), (5.0, 0.3, 200.0), (0.1, 1e-3, 10.0), (0.1, 0.0, 0.5))
    weights = HeldOutWeights.of(begun, z)
    starts = [replace(begun, eps=np.full(n, np.log(eps))) for eps in (0.25, 0.5, 0.8, 0.95)]
    start = min(starts, key=lambda one: _value(HeldOutDensities.of(one, weights, residuals)))
    curvature = Bandwidths(np.full(n, float(size)), 5.0, 5.0, 4.0 * size)
    return descend(loss, start, (low, high), steps, z, residuals, curvature=curvature, enough=ENOUGH * n)


def loss(bandwidths: Bandwidths, z: np.ndarray, residuals: np.ndarray) -> tuple[float, Bandwidths]:
    """Minus the held-out log density and the log prior, and its gradient; NaN where `K + m lam I` has no factor."""
    found = HeldOutDensities.of(bandwidths, HeldOutWeights.of(bandwidths, z), residuals)
    return _value(found), jax.tree.map(np.subtract, bandwidths.penalty()[1], found.gradient())


def _value(found: HeldOutDensities) -> float:
    return found.bandwidths.penalty()[0] - float(np.sum(found.log_densities()))
