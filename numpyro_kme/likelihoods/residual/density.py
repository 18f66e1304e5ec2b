r"""The embedding of residuals: a density of decorrelated residuals whose weights depend on the coordinates.

$p(v \mid z) = (1 - w) \sum_j a_j(z) N(v \mid \sqrt{1 - \epsilon^2} r_j, (\epsilon s_j)^2) + w\, p_0(v)$, with the
weights of the conditional mean embedding with an intercept, $a(z) = (K + m \lambda I)^{-1} k(z) + \ldots$, made
positive and summing to 1, in a defensive mixture with a heavy-tailed density $p_0$. The shrinkage keeps the variance of
the residuals: at $\epsilon = 1$ the density is normal, as $\epsilon \to 0$ it is the residuals' own. Bandwidths adapt
by the factors $s_j$, larger where the density of the residuals is low. It integrates to 1 in $v$ for every $z$.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy.spatial.distance import cdist

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.low_rank import blocked
from numpyro_kme.likelihoods.residual.bandwidths import DEFENSIVE, Bandwidths, local_factors, log_heavy_tailed
from numpyro_kme.likelihoods.residual.functions import padded
from numpyro_kme.likelihoods.residual.held_out_density import SOFTNESS
from numpyro_kme.likelihoods.signed import positive_part

NEGLIGIBLE = 0.03
"""Eigenvalues of `K` below this fraction of `m lam` are left out of the weights; log densities move by a thousandth."""


@register
class ResidualDensity:
    """The fitted density of decorrelated residuals `(n,)` given coordinates `(D,)`.

    Attributes:
        points: Coordinates of the simulations, `(m, D)`.
        residuals: Their held-out decorrelated residuals, `(m, n)`.
        eps: Bandwidths of the residuals, `(n,)`.
        factors: Local bandwidth factors `s`, `(m,)`.
        beta: Length scale of the weights, a scalar.
        basis: `U`, `(m, r)`, with `m lam (K + m lam I)^-1 = I - U U'` up to negligible eigenvalues; columns of zeros
            round `r` up.
        intercept: `(K + m lam I)^-1 1 / 1' (K + m lam I)^-1 1`, `(m,)`.
        ridge: `m lam`, a scalar.
        heavy_tailed_weight: `w`, a scalar; the heavy-tailed component keeps `p` positive and leads samplers back.
    """

    points: Array
    residuals: Array
    eps: Array
    factors: Array
    beta: Array
    basis: Array
    intercept: Array
    ridge: Array
    heavy_tailed_weight: Array

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
        """`log N(v | sqrt(1 - eps^2) r_j, (eps s_j)^2)`, `(m,)`.

        One product of matrices under `vmap`, exact enough as residuals are about 1.
        """
        eps, narrow = jnp.asarray(self.eps), 1.0 / jnp.square(jnp.asarray(self.factors))[:, None]
        centres = jnp.asarray(self.residuals) * (jnp.sqrt(1.0 - jnp.square(eps)) / eps)[None, :]
        constant = 0.5 * len(eps) * jnp.log(2.0 * jnp.pi / narrow) + jnp.sum(jnp.log(eps))
        own = -0.5 * narrow * jnp.sum(jnp.square(centres), axis=1, keepdims=True) - constant
        factor = jnp.concatenate([narrow * centres, -0.5 * narrow, own], axis=1)
        v = v / eps
        return jnp.concatenate([v, (v @ v)[None], jnp.ones(1, v.dtype)]) @ factor.T

    def log_density(self, v: jax.Array, z: jax.Array, known: ArrayLike = 1.0) -> jax.Array:
        """`log p(v | z)` for one residual vector `(n,)` and one point `(D,)`.

        The embedding has the weight `known (1 - w)`, the heavy-tailed component the rest.
        """
        logs, weights, tail_weight = self._log_kernels(v), self._positive(z), self.heavy_tailed_weight
        own = known * (1.0 - jnp.asarray(tail_weight))
        tails = jnp.log(tail_weight + (1.0 - known) * (1.0 - jnp.asarray(tail_weight))) + log_heavy_tailed(v, jnp)
        # no less than the heavy-tailed component: XLA may compute `logs` twice, and far out, where they are -1e12, they
        # differ by more than the largest exponent of float32
        peak = jax.lax.stop_gradient(jnp.maximum(jnp.max(logs), jnp.maximum(tails, jnp.finfo(logs.dtype).min)))
        mixture = own * jnp.sum(jnp.exp(logs - peak) * weights) / jnp.sum(weights)
        return peak + jnp.log(mixture + jnp.exp(tails - peak))


def fit_residual_density(
    z: np.ndarray, residuals: np.ndarray, bandwidths: Bandwidths, heavy_tailed_weight: float = DEFENSIVE
) -> ResidualDensity:
    """The density from all residuals at given bandwidths. Cost: `m r^2` where `K` has numerical rank `r`."""
    beta, ridge = float(np.exp(bandwidths.beta)), len(z) * float(np.exp(bandwidths.lam))
    basis = _basis(np.exp(-0.5 / beta**2 * cdist(z, z, "sqeuclidean")), ridge)
    basis = np.pad(basis, ((0, 0), (0, padded(basis.shape[1], 16, 64) - basis.shape[1])))
    ones = 1.0 - basis @ basis.sum(axis=0)
    return ResidualDensity(
        z,
        residuals,
        np.exp(bandwidths.eps),
        local_factors(residuals, bandwidths),
        np.array(beta),
        basis,
        ones / ones.sum(),
        np.array(ridge),
        np.array(heavy_tailed_weight),
    )


def _basis(gram: np.ndarray, ridge: float) -> np.ndarray:
    """`U`, `(m, r)`, with `K (K + ridge I)^-1 = U U'` up to negligible eigenvalues.

    They are those of `F'F` for a pivoted Cholesky factor `F` of low rank, which leaves out no more than they do; where
    its rank is large, of `K` itself.
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
