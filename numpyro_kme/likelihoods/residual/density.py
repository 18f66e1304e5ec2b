r"""The embedding of residuals: a density of decorrelated residuals whose weights depend on the coordinates.

$p(v \mid z) = (1 - w) \sum_j a_j(z) N(v \mid \sqrt{1 - \epsilon^2} r_j, (\epsilon s_j)^2) + w\, p_0(v)$, with the
weights of the conditional mean embedding with an intercept, $a(z) = (K + m \lambda I)^{-1} k(z) + \ldots$, made
positive and summing to 1, in a defensive mixture with a heavy-tailed density $p_0$. The shrinkage keeps the variance of
the residuals: at $\epsilon = 1$ the density is normal, as $\epsilon \to 0$ it is the residuals' own. Bandwidths adapt
by the factors $s_j = (\tilde p(r_j) / g)^{-\alpha}$ of Abramson and Silverman, where $\tilde p$ is a pilot density, a
defensive mixture of kernels of fixed bandwidth and a heavy-tailed density, and $g$ its geometric mean over the
residuals. The density integrates to 1 in $v$ for every $z$.

Kernels around vectors of many residuals have to be wide. Where a product of densities of single residuals says more of
held-out simulations, it is mixed in (`ProductDensity`).

References: Abramson (1982), Annals of Statistics; Silverman (1986), section 5.3.
"""

from dataclasses import replace
from math import log, pi
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.repeats import Repeats
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import squared_distances_on_host
from numpyro_kme.likelihoods.residual.functions import padded
from numpyro_kme.likelihoods.residual.mixture import exponentials, log_defended, log_heavy_tailed, log_kernels_at
from numpyro_kme.likelihoods.residual.product import ProductDensity
from numpyro_kme.likelihoods.residual.tabulated import Tabulated
from numpyro_kme.likelihoods.residual.weights import EmbeddingWeights

DEFENSIVE = 0.02
"""Weight `w` of the heavy-tailed component while bandwidths are learnt: bounds the loss of one simulation."""

ROWS = 1000
"""Bandwidth factors of many residuals are computed for so many at a time."""

PRIOR_CENTRE = {"eps": 0.5, "beta": 5.0, "lam": 0.1}
PRIOR_SD = {"eps": 1.0, "beta": 1.5, "lam": 1.5}
"""Centres and standard deviations of the normal priors on the logarithms."""


@register
class Bandwidths:
    """Hyperparameters of the density, logarithms except `sensitivity`.

    Attributes:
        eps: Bandwidth of each residual in its standard deviations, `(n,)`.
        beta: Length scale of the weights in the coordinates, a scalar.
        lam: Regularisation of the weights, a scalar.
        sensitivity: `alpha`, how bandwidths follow the pilot density: from 0, not at all, to 1/2, a scalar.
    """

    eps: Any
    beta: Any
    lam: Any
    sensitivity: Any

    @classmethod
    def around(cls, n: int, eps: tuple, beta: tuple, lam: tuple, sensitivity: tuple) -> tuple["Bandwidths", ...]:
        """One object for each entry of the tuples, the values before logarithms."""
        rows = zip(eps, beta, lam, sensitivity, strict=True)
        return tuple(cls(np.full(n, np.log(e)), np.log(b), np.log(l), np.array(a)) for e, b, l, a in rows)

    def penalty(self) -> tuple[float, "Bandwidths"]:
        """Minus the log prior, normals on the logarithms, and its gradient."""
        parts = {name: (getattr(self, name) - log(PRIOR_CENTRE[name])) / PRIOR_SD[name] for name in PRIOR_SD}
        slopes = {name: part / PRIOR_SD[name] for name, part in parts.items()}
        value = 0.5 * sum(float(np.sum(np.square(part))) for part in parts.values())
        return value, Bandwidths(**slopes, sensitivity=0.0)


class LocalFactors(NamedTuple):
    """Local bandwidth factors `s_j` of geometric mean 1, from the pilot density of each residual without itself.

    Attributes:
        responsibilities: Posterior probability of each pilot kernel among the kernels, for each residual, `(m, m)`.
        kernel_responsibility: Posterior probability of all pilot kernels beside the heavy-tailed component, `(m,)`.
        log_pilot: Log pilot densities less their mean, `(m,)`.
        log_factor: `log s`, `(m,)`.
    """

    responsibilities: np.ndarray
    kernel_responsibility: np.ndarray
    log_pilot: np.ndarray
    log_factor: np.ndarray

    @classmethod
    def of(cls, squares: np.ndarray, log_tails: np.ndarray, bandwidths: Bandwidths) -> "LocalFactors":
        """From squared distances over `eps`, `(m, m)`, and log heavy-tailed densities, `(m,)`."""
        logs = log_kernels(squares, 0.0, bandwidths)
        np.fill_diagonal(logs, -np.inf)
        kernels, responsibilities = log_mixture(logs)
        kernels -= log(len(logs) - 1.0)
        pilot = np.logaddexp(kernels, log(DEFENSIVE) + log_tails)
        centred = pilot - pilot.mean()
        return cls(responsibilities, np.exp(kernels - pilot), centred, -float(bandwidths.sensitivity) * centred)

    def gradient(self, of_log_factor: np.ndarray, bandwidths: Bandwidths) -> tuple[np.ndarray, float]:
        """By the log pilot kernels, `(m, m)`, and by `sensitivity`."""
        of_log_pilot = -float(bandwidths.sensitivity) * of_log_factor
        of_kernels = (of_log_pilot - of_log_pilot.mean()) * self.kernel_responsibility
        return of_kernels[:, None] * self.responsibilities, -float(of_log_factor @ self.log_pilot)


def local_factors(residuals: np.ndarray, bandwidths: Bandwidths) -> np.ndarray:
    """Local bandwidth factors `s_j` of all residuals `(m, n)`, `(m,)`: as `LocalFactors`, some rows at a time.

    The pilot has kernels around at most `PILOTS` residuals at random.
    """
    left, right = scaled_pairs(residuals, bandwidths)
    chosen, pilot = np.sort(a_few(len(residuals))), np.empty(len(residuals))
    for first in range(0, len(residuals), ROWS):
        rows = np.arange(first, min(first + ROWS, len(residuals)))
        logs = log_kernels(squared_distances_on_host(left[rows], right[chosen]), 0.0, bandwidths)
        own = (chosen >= first) & (chosen < first + ROWS)
        logs[chosen[own] - first, own] = -np.inf
        others = len(chosen) - np.isin(rows, chosen, assume_unique=True)
        pilot[rows] = log_mixture(logs)[0] - np.log(others)
    pilot = np.logaddexp(pilot, log(DEFENSIVE) + log_heavy_tailed(residuals))
    return np.exp(-float(bandwidths.sensitivity) * (pilot - pilot.mean()))


def a_few(size: int) -> np.ndarray:
    """Numbers of at most `PILOTS` of so many simulations: all, or some at random."""
    return np.arange(size) if size <= PILOTS else np.random.default_rng(1).permutation(size)[:PILOTS]


def scaled_pairs(residuals: np.ndarray, bandwidths: Bandwidths) -> tuple[np.ndarray, np.ndarray]:
    """Residuals over `eps`, and residuals shrunk by `sqrt(1 - eps^2)` over `eps`, `(m, n)` each."""
    eps = np.exp(bandwidths.eps)
    narrow, shrunk = (factor.astype(residuals.dtype) for factor in (1.0 / eps, np.sqrt(1.0 - eps**2) / eps))
    return residuals * narrow, residuals * shrunk


def gradient_of_eps(of_squares: np.ndarray, pairs: tuple[np.ndarray, np.ndarray], bandwidths: Bandwidths) -> np.ndarray:
    """By the logarithms of `eps`, `(n,)`, from derivatives by the squared distances of `scaled_pairs`, `(m, m)`."""
    left, right = pairs
    more = 1.0 / (1.0 - np.exp(2.0 * bandwidths.eps))
    crossed = np.sum(left * (of_squares @ right), axis=0)
    own = of_squares.sum(axis=1) @ np.square(left) + more * (of_squares.sum(axis=0) @ np.square(right))
    return 2.0 * ((1.0 + more) * crossed - own)


def log_kernels(squares: np.ndarray, log_factor: Any, bandwidths: Bandwidths) -> np.ndarray:
    """`log N(r_i | sqrt(1 - eps^2) r_j, (eps s_j)^2)`, `(i, j)`, from squared distances over `eps`."""
    n = len(bandwidths.eps)
    constant = float(np.sum(bandwidths.eps)) + 0.5 * n * log(2.0 * pi)
    logs = squares * np.asarray(-0.5 * np.exp(-2.0 * log_factor), squares.dtype)
    logs -= n * log_factor + constant
    return logs


def log_mixture(logs: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Log of the weighted sum of each row's exponentials, and these over the sum, in place of the logarithms."""
    peak = logs.max(axis=1, keepdims=True)
    logs -= peak
    exponentials(logs, np)
    total = logs.sum(axis=1) if weights is None else np.einsum("ij,ij->i", logs, weights)
    logs /= total[:, None]
    return peak[:, 0] + np.log(total), logs


PILOTS = 4000
"""Pilot densities are of at most so many simulations."""


@register
class ResidualDensity:
    """The fitted density of decorrelated residuals `(n,)` given coordinates `(D,)`.

    Attributes:
        weights: `a`, of `m` simulations.
        residuals: Their held-out decorrelated residuals, `(m, n)`.
        eps: Bandwidths of the residuals, `(n,)`.
        factors: Local bandwidth factors `s`, `(m,)`.
        heavy_tailed_weight: `w`, a scalar; the heavy-tailed component keeps `p` positive and leads samplers back.
        product: A product of densities of single residuals, with which `p` is mixed; None where it adds nothing.
        table: Kernels of single residuals on a grid, for many residuals at a point by NumPy, or None.
    """

    weights: EmbeddingWeights
    residuals: Array
    eps: Array
    factors: Array
    heavy_tailed_weight: Array
    product: ProductDensity | None = None
    table: Tabulated | None = None

    def trimmed(self) -> "ResidualDensity":
        """For NumPy: with weights that it evaluates fast, and a table where it pays."""
        product = self.product and self.product.trimmed()
        return replace(self, weights=self.weights.trimmed(), product=product, table=Tabulated.of(self))

    def log_density(self, v: Any, z: Any, xp: Any = jnp) -> Any:
        """`log p(v | z)` for residual vectors `(..., n)` and points `(..., D)`, by JAX or NumPy."""
        weights = self.weights(z, xp)
        if xp is np and self.table is not None and self.table.serves(v, z):
            return self.table.log_density(weights, v, self.heavy_tailed_weight)
        logs = log_kernels_at(v, self.residuals, self.eps, self.factors, xp)
        found = log_defended(logs, weights, v, self.heavy_tailed_weight, xp)
        return found if self.product is None else self.product.beside(found, v, z, xp)


def fit_residual_density(
    z: np.ndarray, residuals: np.ndarray, bandwidths: Bandwidths, heavy_tailed_weight: float = DEFENSIVE
) -> ResidualDensity:
    """The density from all residuals at given bandwidths. Cost: `m r^2` where `K` has numerical rank `r`."""
    weights, factors = fit_weights(z, bandwidths), local_factors(residuals, bandwidths)
    return ResidualDensity(weights, residuals, np.exp(bandwidths.eps), factors, np.array(heavy_tailed_weight))


def fit_weights(z: np.ndarray, bandwidths: Bandwidths) -> EmbeddingWeights:
    """The weights of all simulations. Cost: as `fit_residual_density`."""
    return EmbeddingWeights.fit(z, float(np.exp(bandwidths.beta)), len(z) * float(np.exp(bandwidths.lam)))


CENTRES, CENTRES_EACH = 2000, 200
"""Kernels that a density of one residual needs, and for each function of the coordinates that its weights consist of:
with 2,000 of 6,000 errors of 20 log densities together grow by a sixth, and by a third where they are chosen at
random."""


def with_fewer_kernels(fitted: ResidualDensity, *how: Any) -> ResidualDensity:
    """The density of one residual with as many kernels as it needs, around every so many-th simulation in the order of
    the residual; any other as it is, and where simulations have many draws, over which its errors add up.

    Args:
        fitted: From all simulations.
        *how: The bandwidths and the weight of the heavy tails that it was fitted with.
    """
    z, (m, n) = np.asarray(fitted.weights.points), np.shape(fitted.residuals)
    number = padded(CENTRES_EACH * fitted.weights.rank, CENTRES)
    if n > 1 or m <= number or 2 * len(Repeats.of(z)) < m:
        return fitted
    rows = np.argsort(fitted.residuals[:, 0], kind="stable")[((np.arange(number) + 0.5) * m / number).astype(int)]
    return fit_residual_density(z[rows], np.asarray(fitted.residuals)[rows], *how)
