r"""Hyperparameters of the residuals' density: their held-out log density, its gradient by hand, and the search.

For each simulation $j$ the density of `residual_density` without it,

$$ \log p_{-j} = \log \Big( (1 - w) \sum_{i \ne j} \bar a_{ji} N(r_j \mid \sqrt{1 - \epsilon^2} r_i, (\epsilon s_i)^2) + w\, p_0(r_j) \Big), $$

with the weights of a kernel ridge regression that is refitted without $j$, made positive: $\bar a_{ji} \propto (W_{ji})_+$ and
$W_{ji} = -P_{ji} / P_{jj}$, where $P = B - B 1 1' B / 1' B 1$ and $B = (K + m \lambda I)^{-1}$. Nothing is compiled.
"""

from math import lgamma, log, pi
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import lapack

from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.descent import ENOUGH, descend

DEFENSIVE = 0.02
"""Share `w` of the broad density while bandwidths are learnt: bounds the loss of one simulation."""

PRIOR_COUNT, LARGEST_SHARE = 0.05, 0.2
"""The share that is kept follows the held-out simulations, and this many more that are the broad density's; its bound."""

BROAD_SCALE, BROAD_DEGREES = 2.0, 3.0
"""Scale, in residual standard deviations, and degrees of freedom of the broad Student density `p_0`."""

SOFTNESS = 0.1
"""Weights below this share of `1 / m` count as about zero, smoothly."""

SMALLEST = -60.0
"""Log of the least share of a kernel in a density."""

ROWS = 1000
"""Bandwidths of many residuals are computed for so many at a time."""

CENTRE, SPREAD = {"eps": 0.5, "beta": 5.0, "lam": 0.1}, {"eps": 1.0, "beta": 1.5, "lam": 1.5}
"""Of the normal priors of the logarithms."""


@register
class Bandwidths:
    """Hyperparameters of the density, logarithms except `adapt`.

    Attributes:
        eps: Bandwidth of each residual in its standard deviations, `(n,)`.
        beta: Length scale of the weights in the coordinates, a scalar.
        lam: Regularisation of the weights, a scalar.
        adapt: How bandwidths follow rarity: `s_j = (p(r_j) / mean)^-adapt`, between 0 and 1/2.
    """

    eps: Any
    beta: Any
    lam: Any
    adapt: Any

    @classmethod
    def around(cls, n: int, eps: tuple, beta: tuple, lam: tuple, adapt: tuple) -> tuple["Bandwidths", ...]:
        """One object for each entry of the tuples, the values before logarithms."""
        rows = zip(eps, beta, lam, adapt, strict=True)
        return tuple(cls(np.full(n, np.log(e)), np.log(b), np.log(l), np.array(a)) for e, b, l, a in rows)

    def penalty(self) -> tuple[float, "Bandwidths"]:
        """Minus the log prior, normals on the logarithms, and its gradient."""
        parts = {name: (getattr(self, name) - log(CENTRE[name])) / SPREAD[name] for name in CENTRE}
        slopes = {name: part / SPREAD[name] for name, part in parts.items()}
        return 0.5 * sum(float(np.sum(np.square(part))) for part in parts.values()), Bandwidths(**slopes, adapt=0.0)


def log_broad(v: Any, xp: Any = np) -> Any:
    """`log p_0`: Student density of residuals `(..., n)`."""
    n = v.shape[-1]
    size = xp.sum(xp.square(v / BROAD_SCALE), axis=-1)
    constant = lgamma(0.5 * (BROAD_DEGREES + n)) - lgamma(0.5 * BROAD_DEGREES)
    constant -= 0.5 * n * log(BROAD_DEGREES * pi) + n * log(BROAD_SCALE)
    return constant - 0.5 * (BROAD_DEGREES + n) * xp.log1p(size / BROAD_DEGREES)


def learn_bandwidths(z: np.ndarray, residuals: np.ndarray, subset: int, steps: int) -> Bandwidths:
    """Maximise the held-out log density of the residuals, plus log priors, on at most `subset` simulations."""
    n, given = residuals.shape[1], _chosen(z, residuals, subset)
    start, low, high = Bandwidths.around(n, (0.5, 0.02, 0.98), (5.0, 0.3, 200.0), (0.1, 1e-3, 10.0), (0.1, 0.0, 0.5))
    size = float(len(given[0]))
    curvature = Bandwidths(np.full(n, size), 5.0, 5.0, 4.0 * size)
    return descend(loss, start, (low, high), steps, *given, curvature=curvature, enough=ENOUGH * n)


def _chosen(z: np.ndarray, residuals: np.ndarray, subset: int) -> tuple[np.ndarray, np.ndarray]:
    """The simulations that are learnt from, in float32: kernels and their sums need no more, and the ridge is a thousandth of `m`."""
    rows = np.random.default_rng(0).permutation(len(z))[:subset]
    return z[rows].astype(np.float32), residuals[rows].astype(np.float32)


def loss(bandwidths: Bandwidths, z: np.ndarray, residuals: np.ndarray) -> tuple[float, Bandwidths]:
    """Minus the held-out log density and the log prior, and its gradient; NaN where `K + m lam I` cannot be factorised."""
    found = HeldOut.of(bandwidths, z, residuals)
    penalty, slope = bandwidths.penalty()
    gradient = found.gradient()
    value = penalty - float(np.sum(found.defended()))
    return value, Bandwidths(
        slope.eps - gradient.eps, slope.beta - gradient.beta, slope.lam - gradient.lam, -gradient.adapt
    )


class HeldOut(NamedTuple):
    """The parts of the held-out densities of `m` residuals, matrices `(m, m)` with a row for each residual that is held out.

    Memory takes longer than arithmetic here: operations are in place wherever they can be.

    Attributes:
        bandwidths: The hyperparameters.
        squares: Of the coordinates' distances over `beta`.
        gram: `K`.
        inverse: `B`.
        signed: `W`, 0 on the diagonal.
        weights: Its positive part; rows divided by their sums, to 1.
        sums: The sums, `(m, 1)`.
        shifts: Residuals over `eps`, and shrunk ones over `eps`, `(m, n)` each.
        near: Squared distances between these.
        sizes: Relative bandwidths.
        ratios: Kernels over the mixture.
        mixture: Log densities, `(m,)`.
        broad: Log of the broad density, `(m,)`.
    """

    bandwidths: Bandwidths
    squares: np.ndarray
    gram: np.ndarray
    inverse: np.ndarray
    signed: np.ndarray
    weights: np.ndarray
    sums: np.ndarray
    shifts: tuple[np.ndarray, np.ndarray]
    near: np.ndarray
    sizes: "Sizes"
    ratios: np.ndarray
    mixture: np.ndarray
    broad: np.ndarray

    @classmethod
    def of(cls, bandwidths: Bandwidths, z: np.ndarray, residuals: np.ndarray) -> "HeldOut":
        """From coordinates `(m, D)` and residuals `(m, n)`, in their precision."""
        size, broad = len(z), log_broad(residuals)
        scaled = z / np.exp(bandwidths.beta).astype(z.dtype)
        squares = _squares(scaled, scaled)
        gram = squares * -0.5
        _exp(gram)
        inverse = _inverse(gram, size * float(np.exp(bandwidths.lam)))
        row = inverse.sum(axis=1)
        signed = np.outer(row, -row / row.sum())
        signed += inverse
        signed /= -np.diagonal(signed)[:, None].copy()
        np.fill_diagonal(signed, 0.0)
        weights = np.square(signed)
        weights += (SOFTNESS / size) ** 2
        np.sqrt(weights, out=weights)
        weights += signed
        weights *= 0.5
        np.fill_diagonal(weights, 0.0)
        sums = weights.sum(axis=1, keepdims=True)
        weights /= sums
        shifts = _shifts(residuals, bandwidths)
        near = _squares(*shifts)
        sizes = Sizes.of(near, broad, bandwidths)
        ratios = _log_kernels(near, sizes.log_size, bandwidths)
        np.fill_diagonal(ratios, -np.inf)
        peak = ratios.max(axis=1, keepdims=True)
        ratios -= peak
        _exp(ratios)
        total = np.einsum("ij,ij->i", ratios, weights)[:, None]
        ratios /= total
        mixture = (peak + np.log(total))[:, 0]
        return cls(
            bandwidths, squares, gram, inverse, signed, weights, sums, shifts, near, sizes, ratios, mixture, broad
        )

    def defended(self) -> np.ndarray:
        """Held-out log densities with the share `DEFENSIVE` of the broad one, `(m,)`."""
        return _defended(self.mixture, self.broad)

    def gradient(self) -> Bandwidths:
        """Of the sum of `defended`."""
        share, n = np.exp(log(1.0 - DEFENSIVE) + self.mixture - self.defended())[:, None], self.shifts[0].shape[1]
        of_logs = self.ratios * self.weights
        of_logs *= share
        sums, narrow = of_logs.sum(axis=0), np.exp(-2.0 * self.sizes.log_size)
        of_log_size = narrow * np.einsum("ij,ij->j", of_logs, self.near) - n * sums
        of_pilot, adapt = self.sizes.gradient(of_log_size, self.bandwidths)
        total = sums.sum() + of_pilot.sum()
        of_logs *= narrow
        of_logs += of_pilot
        eps = _gradient_of_eps(of_logs, self.shifts, self.bandwidths)
        beta, lam = self._gradient_of_weights(share)
        return Bandwidths(-0.5 * eps - total, beta, lam, adapt)

    def _gradient_of_weights(self, share):
        """By `beta` and `lam`."""
        size, inverse, row = len(self.gram), self.inverse, self.inverse.sum(axis=1)
        root = self.weights * (2.0 * self.sums)
        root -= self.signed
        found = self.ratios - 1.0
        found *= share
        found *= self.weights
        np.fill_diagonal(root, 1.0)
        found /= root
        pivot = np.diagonal(inverse) - np.square(row) / row.sum()
        of_pivot = -np.einsum("ij,ij->i", found, self.signed) / pivot
        found /= -pivot[:, None]
        np.fill_diagonal(found, of_pivot)
        onto = found @ row, row @ found
        found -= (onto[0] + onto[1])[:, None] / row.sum() - (row @ onto[0]) / row.sum() ** 2
        of_matrix = inverse @ (found @ inverse)
        trace = np.trace(of_matrix)
        of_matrix *= self.gram
        return -np.vdot(of_matrix, self.squares), -size * np.exp(self.bandwidths.lam) * trace


class Sizes(NamedTuple):
    """Relative bandwidths `s_j` of geometric mean 1, from a held-out pilot density with the broad share.

    Attributes:
        shares: Of each pilot kernel in the density of each residual, rows summing to 1, `(m, m)`.
        owing: Share of the pilot kernels beside the broad density, `(m,)`.
        rarity: Log pilot densities less their mean, `(m,)`.
        log_size: `log s`, `(m,)`.
    """

    shares: np.ndarray
    owing: np.ndarray
    rarity: np.ndarray
    log_size: np.ndarray

    @classmethod
    def of(cls, near: np.ndarray, broad: np.ndarray, bandwidths: Bandwidths) -> "Sizes":
        """From squared distances `(m, m)`."""
        logs = _log_kernels(near, 0.0, bandwidths)
        np.fill_diagonal(logs, -np.inf)
        pilot, shares = _log_mean(logs, len(logs) - 1.0)
        defended = np.logaddexp(pilot, log(DEFENSIVE) + broad)
        rarity = defended - defended.mean()
        return cls(shares, np.exp(pilot - defended), rarity, -float(bandwidths.adapt) * rarity)

    def gradient(self, of_log_size: np.ndarray, bandwidths: Bandwidths) -> tuple[np.ndarray, float]:
        """By the log pilot kernels, `(m, m)`, and by `adapt`."""
        of_rarity = -float(bandwidths.adapt) * of_log_size
        of_pilot = (of_rarity - of_rarity.mean()) * self.owing
        return of_pilot[:, None] * self.shares, -float(of_log_size @ self.rarity)


def kernel_sizes(residuals: np.ndarray, bandwidths: Bandwidths) -> np.ndarray:
    """Relative bandwidths `s_j` of all residuals `(m, n)`, `(m,)`: as `Sizes`, some rows at a time."""
    left, right = _shifts(residuals, bandwidths)
    pilot = np.empty(len(residuals))
    for first in range(0, len(residuals), ROWS):
        rows = np.arange(first, min(first + ROWS, len(residuals)))
        logs = _log_kernels(_squares(left[rows], right), 0.0, bandwidths)
        logs[rows - first, rows] = -np.inf
        pilot[rows] = _log_mean(logs, len(residuals) - 1.0)[0]
    pilot = np.logaddexp(pilot, log(DEFENSIVE) + log_broad(residuals))
    return np.exp(-float(bandwidths.adapt) * (pilot - pilot.mean()))


class HeldOutScores(NamedTuple):
    """Log densities of the residuals that were learnt from, `(m,)` each: of the embedding of all others, broad, and standard normal."""

    mixture: np.ndarray
    broad: np.ndarray
    normal: np.ndarray

    @classmethod
    def of(cls, bandwidths: Bandwidths, z: np.ndarray, residuals: np.ndarray, subset: int) -> "HeldOutScores":
        """With the bandwidths that were learnt."""
        z, residuals = _chosen(z, residuals, subset)
        found = HeldOut.of(bandwidths, z, residuals)
        return cls(found.mixture, found.broad, -0.5 * np.sum(np.square(residuals) + log(2.0 * pi), axis=1))

    def gain(self) -> float:
        """Mean held-out log density, with the share `DEFENSIVE`, over that of independent standard normals."""
        return float(np.mean(_defended(self.mixture, self.broad) - self.normal))

    def share(self) -> float:
        """Share `w` of the broad density that held-out simulations ask for, by expectation-maximisation.

        The prior is worth `PRIOR_COUNT` simulations that the broad density explains, so that `w` is positive and falls as `1 / m`
        where the embedding explains all.
        """
        gap, share = self.broad.astype(np.float64) - self.mixture, DEFENSIVE
        for _ in range(100):
            broad = 1.0 / (1.0 + np.exp(np.minimum(np.log1p(-share) - np.log(share) - gap, 700.0)))
            share = min((broad.sum() + PRIOR_COUNT) / (len(gap) + PRIOR_COUNT), LARGEST_SHARE)
        return float(share)


def _defended(mixture, broad):
    """Log of the mixture of two log densities, with the share `DEFENSIVE` of the second."""
    return np.logaddexp(log(1.0 - DEFENSIVE) + mixture, log(DEFENSIVE) + broad)


def _shifts(residuals, bandwidths):
    """Residuals over `eps`, and shrunk by `sqrt(1 - eps^2)` over `eps`."""
    eps = np.exp(bandwidths.eps)
    narrow, shrunk = (factor.astype(residuals.dtype) for factor in (1.0 / eps, np.sqrt(1.0 - eps**2) / eps))
    return residuals * narrow, residuals * shrunk


def _gradient_of_eps(of_near, shifts, bandwidths):
    """By the logarithms of `eps`, `(n,)`, from derivatives by the squared distances of the shifts, `(m, m)`."""
    left, right = shifts
    more = 1.0 / (1.0 - np.exp(2.0 * bandwidths.eps))
    crossed = np.sum(left * (of_near @ right), axis=0)
    own = of_near.sum(axis=1) @ np.square(left) + more * (of_near.sum(axis=0) @ np.square(right))
    return 2.0 * ((1.0 + more) * crossed - own)


def _log_kernels(near, log_size, bandwidths):
    """`log N(r_i | sqrt(1 - eps^2) r_j, (eps s_j)^2)`, `(i, j)`, from squared distances over `eps`."""
    n = len(bandwidths.eps)
    constant = float(np.sum(bandwidths.eps)) + 0.5 * n * log(2.0 * pi)
    logs = near * np.asarray(-0.5 * np.exp(-2.0 * log_size), near.dtype)
    logs -= n * log_size + constant
    return logs


def _log_mean(logs, count):
    """Log of the sum of each row's exponentials over `count`, and the shares in it, in place."""
    peak = logs.max(axis=1, keepdims=True)
    logs -= peak
    _exp(logs)
    total = logs.sum(axis=1, keepdims=True)
    logs /= total
    return (peak + np.log(total))[:, 0] - log(count), logs


def _exp(logs):
    """Exponentials in place, none of them so small that float32 would lose digits, over which processors take their time."""
    np.exp(np.maximum(logs, SMALLEST, out=logs), out=logs)


def _squares(a, b):
    """Squared distances `(i, j)` between rows."""
    found = a @ (-2.0 * b.T)
    found += np.sum(a * a, axis=1)[:, None]
    found += np.sum(b * b, axis=1)[None, :]
    return np.maximum(found, 0.0, out=found)


def _inverse(gram, ridge):
    """`(K + ridge I)^-1`; NaN where it is not positive definite."""
    matrix = gram.copy()
    np.fill_diagonal(matrix, 1.0 + ridge)
    factorise, invert = lapack.get_lapack_funcs(("potrf", "potri"), (matrix,))
    factor, failed = factorise(matrix.T, lower=1, overwrite_a=1)
    if failed or not np.isfinite(factor[-1, -1]):
        return np.full_like(gram, np.nan)
    lower = invert(factor, lower=1, overwrite_c=1)[0]
    lower += np.tril(lower, -1).T
    return lower.T
