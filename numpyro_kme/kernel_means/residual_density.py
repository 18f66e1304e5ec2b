r"""The embedding of residuals: a density of decorrelated residuals whose weights depend on the coordinates.

$p(v \mid z) = (1 - w) \sum_j a_j(z) N(v \mid \sqrt{1 - \epsilon^2} r_j, (\epsilon s_j)^2) + w\, p_0(v)$, with the weights of the conditional
mean embedding with an intercept, $a(z) = (K + m \lambda I)^{-1} k(z) + \ldots$, made positive and summing to 1. The shrinkage keeps
the variance of the residuals: at $\epsilon = 1$ the density is normal, as $\epsilon \to 0$ it is the residuals' own. The widths $s_j$ are
larger where residuals are rare. It integrates to 1 in $v$ for every $z$.
"""

from math import lgamma, log, pi
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from numpyro_kme._linalg import Array
from numpyro_kme.kernel_means import adjoint
from numpyro_kme.kernel_means.descent import ENOUGH, descend
from numpyro_kme.kernel_means.ridge import padded
from numpyro_kme.kernel_means.signed import positive_part
from numpyro_kme.kernels.base import register, squared_distances
from numpyro_kme.low_rank import blocked

DEFENSIVE = 0.02
"""Share `w` of the broad density while bandwidths are learnt: bounds the loss of one simulation."""

PRIOR_COUNT, LARGEST_SHARE = 0.05, 0.2
"""The share that is kept follows the held-out simulations, and this many more that are the broad density's; its bound."""

BROAD_SCALE, BROAD_DEGREES = 2.0, 3.0
"""Scale, in residual standard deviations, and degrees of freedom of the broad Student density `p_0`."""

SOFTNESS = 0.1
"""Weights below this share of `1 / m` count as about zero, smoothly."""

NEGLIGIBLE = 0.01
"""Eigenvalues of `K` below this share of `m lam` are left out of the weights."""


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

    def penalty(self) -> jax.Array:
        """Minus the log prior: normals on the logarithms, about .5 (sd 1), 5 (sd 1.5) and .1 (sd 1.5)."""
        parts = [
            (self.eps - jnp.log(0.5)) / 1.0,
            (self.beta - jnp.log(5.0)) / 1.5,
            (self.lam - jnp.log(0.1)) / 1.5,
        ]
        return 0.5 * jnp.sum(jnp.array([jnp.sum(jnp.square(part)) for part in parts]))


def log_broad(v: jax.Array) -> jax.Array:
    """`log p_0`: Student density of residuals `(..., n)`."""
    n = v.shape[-1]
    size = jnp.sum(jnp.square(v / BROAD_SCALE), axis=-1)
    constant = lgamma(0.5 * (BROAD_DEGREES + n)) - lgamma(0.5 * BROAD_DEGREES)
    constant -= 0.5 * n * log(BROAD_DEGREES * pi) + n * log(BROAD_SCALE)
    return constant - 0.5 * (BROAD_DEGREES + n) * jnp.log1p(size / BROAD_DEGREES)


def log_kernels(v: jax.Array, residuals: jax.Array, eps: jax.Array, sizes: jax.Array) -> jax.Array:
    """`log N(v_a | sqrt(1 - eps^2) r_j, (eps s_j)^2)`, `(a, j)`, for `v` `(a, n)` and residuals `(j, n)`."""
    n = v.shape[1]
    eps = eps[None, :]
    squares = squared_distances(v / eps, residuals * jnp.sqrt(1.0 - jnp.square(eps)) / eps)
    log_size = jnp.log(sizes)[None, :]
    return (
        -0.5 * squares * jnp.exp(-2.0 * log_size)
        - n * log_size
        - jnp.sum(jnp.log(eps))
        - 0.5 * n * jnp.log(2.0 * jnp.pi)
    )


@jax.jit
def kernel_sizes(residuals: jax.Array, eps: jax.Array, adapt: jax.Array) -> jax.Array:
    """Relative bandwidths `s_j`, `(m,)`, of geometric mean 1, from a held-out pilot density with the broad share."""
    size = len(residuals)
    pilot = log_kernels(residuals, residuals, eps, jnp.ones(size, residuals.dtype))
    pilot = logsumexp(jnp.where(jnp.eye(size, dtype=bool), -jnp.inf, pilot), axis=1) - jnp.log(size - 1.0)
    pilot = jnp.logaddexp(pilot, jnp.log(DEFENSIVE) + log_broad(residuals))
    return jnp.exp(-adapt * (pilot - jnp.mean(pilot)))


def held_out_weights(inverse: jax.Array) -> jax.Array:
    r"""Weights of every other simulation at each one, `(m, m)`, rows summing to 1, from `B = (K + m lam I)^{-1}`.

    With an intercept that is not penalised, `P = B - B 1 1' B / 1' B 1`, and the prediction at `z_j` without simulation `j` is
    `-sum_{i != j} P_ji f_i / P_jj`. Weights may be negative.
    """
    row = jnp.sum(inverse, axis=1)
    matrix = inverse - jnp.outer(row, row) / jnp.sum(row)
    weights = -matrix / jnp.diagonal(matrix)[:, None]
    return jnp.where(jnp.eye(len(matrix), dtype=bool), 0.0, weights)


@register
class ResidualDensity:
    """The fitted density of decorrelated residuals `(n,)` given coordinates `(D,)`.

    Attributes:
        points: Coordinates of the simulations, `(m, D)`.
        residuals: Their held-out decorrelated residuals, `(m, n)`.
        eps: `(n,)`.
        sizes: `s`, `(m,)`.
        beta: Scalar.
        basis: `U`, `(m, r)`, with `m lam (K + m lam I)^-1 = I - U U'` up to negligible eigenvalues; columns of zeros
            round `r` up.
        intercept: `(K + m lam I)^-1 1 / 1' (K + m lam I)^-1 1`, `(m,)`.
        ridge: `m lam`.
        share: `w` of the broad density, which keeps `p` positive and leads samplers back.
    """

    points: Array
    residuals: Array
    eps: Array
    sizes: Array
    beta: Array
    basis: Array
    intercept: Array
    ridge: Array
    share: Array

    def weights(self, z: jax.Array) -> jax.Array:
        """`a(z)`, `(m,)`, positive, summing to 1."""
        positive = self._positive(z)
        return positive / jnp.sum(positive)

    def _positive(self, z):
        basis, points = jnp.asarray(self.basis), jnp.asarray(self.points) / self.beta
        z = z / self.beta
        size = jnp.sum(jnp.square(points), axis=1, keepdims=True)
        factor = jnp.concatenate([points, -0.5 * size, -0.5 * jnp.ones_like(size)], axis=1)
        kernel = jnp.exp(jnp.concatenate([z, jnp.ones(1, z.dtype), (z @ z)[None]]) @ factor.T)
        local = (kernel - (kernel @ basis) @ basis.T) / self.ridge
        signed = local + (1.0 - jnp.sum(local)) * jnp.asarray(self.intercept)
        return positive_part(signed, SOFTNESS / len(kernel))

    def _log_kernels(self, v):
        """As `log_kernels` for one `v` `(n,)`: one product of matrices under `vmap`, exact enough as residuals are of size 1 and `eps > .01`."""
        eps, narrow = jnp.asarray(self.eps), 1.0 / jnp.square(jnp.asarray(self.sizes))[:, None]
        centres = jnp.asarray(self.residuals) * (jnp.sqrt(1.0 - jnp.square(eps)) / eps)[None, :]
        constant = 0.5 * len(eps) * jnp.log(2.0 * jnp.pi / narrow) + jnp.sum(jnp.log(eps))
        own = -0.5 * narrow * jnp.sum(jnp.square(centres), axis=1, keepdims=True) - constant
        factor = jnp.concatenate([narrow * centres, -0.5 * narrow, own], axis=1)
        v = v / eps
        return jnp.concatenate([v, (v @ v)[None], jnp.ones(1, v.dtype)]) @ factor.T

    def log_density(self, v: jax.Array, z: jax.Array) -> jax.Array:
        """`log p(v | z)` for one residual vector `(n,)` and one point `(D,)`."""
        logs, weights = self._log_kernels(v), self._positive(z)
        broad = jnp.log(self.share) + log_broad(v)
        # no less than the broad density: XLA may compute `logs` twice, and far out, where they are -1e12, they differ by more than
        # the largest exponent of float32
        peak = jax.lax.stop_gradient(jnp.maximum(jnp.max(logs), jnp.maximum(broad, jnp.finfo(logs.dtype).min)))
        mixture = (1.0 - self.share) * jnp.sum(jnp.exp(logs - peak) * weights) / jnp.sum(weights)
        return peak + jnp.log(mixture + jnp.exp(broad - peak))


def _chosen(z: np.ndarray, residuals: np.ndarray, subset: int) -> tuple[np.ndarray, np.ndarray]:
    """The simulations that are learnt from, in float32: kernels and their sums need no more, and the ridge is a thousandth of `m`."""
    rows = np.random.default_rng(0).permutation(len(z))[:subset]
    return z[rows].astype(np.float32), residuals[rows].astype(np.float32)


def learn_bandwidths(z: np.ndarray, residuals: np.ndarray, subset: int, steps: int) -> Bandwidths:
    """Maximise the held-out log density of the residuals, plus log priors, on at most `subset` simulations."""
    n, given = residuals.shape[1], _chosen(z, residuals, subset)
    start, low, high = Bandwidths.around(n, (0.5, 0.02, 0.98), (5.0, 0.3, 200.0), (0.1, 1e-3, 10.0), (0.1, 0.0, 0.5))
    size = float(len(given[0]))
    curvature = Bandwidths(np.full(n, size), 5.0, 5.0, 4.0 * size)
    return descend(_loss_and_gradient, start, (low, high), steps, *given, curvature=curvature, enough=ENOUGH * n)


class HeldOutScores(NamedTuple):
    """Log densities of the residuals that were learnt from, `(m,)` each: of the embedding of all others, broad, and standard normal."""

    mixture: np.ndarray
    broad: np.ndarray
    normal: np.ndarray

    @classmethod
    def of(cls, bandwidths: Bandwidths, z: np.ndarray, residuals: np.ndarray, subset: int) -> "HeldOutScores":
        """With the bandwidths that were learnt."""
        z, residuals = _chosen(z, residuals, subset)
        (_, found), _ = _value_and_gradient(_as(bandwidths, z.dtype), z, residuals)
        mixture, broad = (np.asarray(each, np.float64) for each in found)
        return cls(mixture, broad, -0.5 * np.sum(np.square(residuals) + log(2.0 * pi), axis=1))

    def gain(self) -> float:
        """Mean held-out log density, with the share `DEFENSIVE`, over that of independent standard normals."""
        return float(np.mean(_defended(self.mixture, self.broad, np) - self.normal))

    def share(self) -> float:
        """Share `w` of the broad density that held-out simulations ask for, by expectation-maximisation.

        The prior is worth `PRIOR_COUNT` simulations that the broad density explains, so that `w` is positive and falls as `1 / m`
        where the embedding explains all.
        """
        gap, share = self.broad - self.mixture, DEFENSIVE
        for _ in range(100):
            broad = 1.0 / (1.0 + np.exp(np.minimum(np.log1p(-share) - np.log(share) - gap, 700.0)))
            share = min((broad.sum() + PRIOR_COUNT) / (len(gap) + PRIOR_COUNT), LARGEST_SHARE)
        return float(share)


def fit_residual_density(
    z: np.ndarray, residuals: np.ndarray, bandwidths: Bandwidths, share: float = DEFENSIVE
) -> ResidualDensity:
    """The density from all residuals at given bandwidths. Cost: `m r^2` where `K` has numerical rank `r`."""
    beta, ridge = float(np.exp(bandwidths.beta)), len(z) * float(np.exp(bandwidths.lam))
    basis = _basis(np.asarray(_gram(z, beta)), ridge)
    basis = np.pad(basis, ((0, 0), (0, padded(basis.shape[1], 16) - basis.shape[1])))
    ones = 1.0 - basis @ basis.sum(axis=0)
    eps = np.exp(bandwidths.eps)
    sizes = np.asarray(kernel_sizes(jnp.asarray(residuals), jnp.asarray(eps), bandwidths.adapt))
    return ResidualDensity(
        z, residuals, eps, sizes, np.array(beta), basis, ones / ones.sum(), np.array(ridge), np.array(share)
    )


def _basis(gram: np.ndarray, ridge: float) -> np.ndarray:
    """`U`, `(m, r)`, with `K (K + ridge I)^-1 = U U'` up to negligible eigenvalues.

    They are those of `F'F` for a pivoted Cholesky factor `F` of low rank, which leaves out no more than they do; where its rank is large,
    of `K` itself.
    """
    factor, _ = blocked(gram, NEGLIGIBLE * ridge / len(gram), len(gram))
    if 2 * factor.shape[1] > len(gram):
        values, vectors = np.linalg.eigh(gram)
        vectors = vectors * np.sqrt(np.maximum(values, 0.0))
    else:
        values, vectors = np.linalg.eigh(factor.T @ factor)
        vectors = factor @ vectors
    kept = values > NEGLIGIBLE * ridge
    return vectors[:, kept] / np.sqrt(values[kept] + ridge)


def held_out_log_density(bandwidths: Bandwidths, z: jax.Array, residuals: jax.Array) -> jax.Array:
    """`log p_{-j}(r_j | z_j)` of each simulation, `(m,)`, with the share `DEFENSIVE`; the bandwidths `s_j` stay those of all residuals."""
    return _defended(_held_out_mixture(bandwidths, z, residuals), log_broad(residuals))


def _defended(mixture, broad, xp=jnp):
    return xp.logaddexp(log(1.0 - DEFENSIVE) + mixture, log(DEFENSIVE) + broad)


def _held_out_mixture(bandwidths, z, residuals):
    size = len(z)
    ridge = size * jnp.exp(bandwidths.lam) * jnp.eye(size, dtype=z.dtype)
    signed = held_out_weights(adjoint.inverse(_gram(z, jnp.exp(bandwidths.beta)) + ridge))
    own = jnp.eye(size, dtype=bool)
    weights = jnp.where(own, 0.0, positive_part(signed, SOFTNESS / size))
    weights = weights / jnp.sum(weights, axis=1, keepdims=True)
    eps = jnp.exp(bandwidths.eps)
    logs = log_kernels(residuals, residuals, eps, kernel_sizes(residuals, eps, bandwidths.adapt))
    return logsumexp(jnp.where(own, -jnp.inf, logs), axis=1, b=weights)


@jax.jit
def _gram(z, beta):
    return jnp.exp(-0.5 * squared_distances(z / beta, z / beta))


def _loss(bandwidths, z, residuals):
    scores = _held_out_mixture(bandwidths, z, residuals), log_broad(residuals)
    return bandwidths.penalty() - jnp.sum(_defended(*scores)), scores


_value_and_gradient = jax.jit(jax.value_and_grad(_loss, has_aux=True))


def _as(bandwidths, dtype):
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype), bandwidths)


def _loss_and_gradient(bandwidths, z, residuals):
    (value, _), gradient = _value_and_gradient(_as(bandwidths, z.dtype), z, residuals)
    return value, gradient
