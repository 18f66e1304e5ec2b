"""The published form at one observation: a signed sum of kernels, and a positive version of it."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

from numpyro_kme._core.solves import Array
from numpyro_kme.likelihoods.base import KernelExpansion, LikelihoodAt
from numpyro_kme.likelihoods.published.solves import Solved
from numpyro_kme.likelihoods.signed import log_positive_part, to_signed_log

FLOOR = 0.01
"""Height of the floor of the positive version, as a fraction of the largest value of `q(y | .)` at the simulations."""

DEGREES = 4.0
"""Degrees of freedom of the floor's shape."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KernelMeansAt(LikelihoodAt):
    """The published form at one observation.

    Attributes:
        terms: `q(y | .)` as a weighted sum of kernels; the largest fitted value at the simulations has log
            `terms.log_scale + log_largest`.
        log_largest: See `terms`.
        centre: Mean of the simulated coordinates, weighted by how alike their data are to `y`, `(D,)`.
        cholesky_factor: Lower Cholesky factor of their weighted covariance, widened by the length scales, `(D, D)`.
        log_nearest: Log data kernel at the nearest simulation, relative to the observation itself.
        amplitude: Fitted variance of the Gaussian process, `v' kappa / m`, in units of `exp(2 log_scale)`.
        y: The observation.
    """

    terms: KernelExpansion
    log_largest: Array
    centre: Array
    cholesky_factor: Array
    log_nearest: Array
    amplitude: Array
    y: Any

    @property
    def data(self):
        """The observation."""
        return self.y

    def expansion(self):
        """The weighted sum of kernels that `q(y | .)` is."""
        return self.terms

    def values(self, points: ArrayLike) -> jax.Array:
        """`q(y | z) exp(-log_scale)` at points `(r, D)`, `(r,)`; 0 where every kernel underflows."""
        terms = self.terms
        return terms.kernel.gram(jnp.asarray(points), jnp.asarray(terms.points)) @ jnp.asarray(terms.weights)

    def signed_log(self, z):
        """Sign and log absolute value at one point `(D,)`; nothing underflows, however far the point."""
        terms = self.terms
        log_kernel = terms.kernel.log_gram(jnp.asarray(terms.points), jnp.asarray(z)[None, :])[:, 0]
        largest = jax.lax.stop_gradient(jnp.max(log_kernel))
        return to_signed_log(jnp.asarray(terms.weights) @ jnp.exp(log_kernel - largest), largest + terms.log_scale)

    def log_density(self, z):
        r"""`log (q + sqrt(q^2 + c^2)) / 2`, with a floor `c(z)` that falls off around the simulations like `y`.

        `c(z) = 0.01 max_j q(y | z_j) (1 + r(z)^2 / 4)^{-(4 + D) / 2}`, where `r` is the Mahalanobis distance from the
        simulated coordinates weighted by how alike their data are to `y`. Where `q` is above a tenth of its maximum,
        the error of `log q` is below `0.003`; where `q` vanishes or is negative, the gradient is that of the floor,
        finite, and leads back. The floor's tails are those of a Student distribution with 4 degrees of freedom.
        """
        z = jnp.asarray(z)
        log_floor = self.log_largest + jnp.log(FLOOR) + self._log_shape(z)
        return log_positive_part(self.values(z[None, :])[0], log_floor) + self.terms.log_scale

    def _log_shape(self, z):
        white = solve_triangular(jnp.asarray(self.cholesky_factor), z - jnp.asarray(self.centre), lower=True)
        return -0.5 * (DEGREES + z.shape[0]) * jnp.log1p(jnp.sum(white * white) / DEGREES)


def describe_weights(
    z: ArrayLike, log_kappa: jax.Array, solved: Solved, length_scale: ArrayLike
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """What `KernelMeansAt` needs beside its terms: `log_largest`, `centre`, `cholesky_factor` and `amplitude`.

    Args:
        z: The simulations, `(m, D)`.
        log_kappa: Log data kernel at the simulations, `(m,)`.
        solved: The solve for this observation.
        length_scale: `beta`.
    Cost: `m D^2`.
    """
    z, (size, dim) = jnp.asarray(z), jnp.shape(z)
    kappa = jnp.exp(log_kappa - jnp.max(log_kappa))
    weights = kappa / jnp.sum(kappa)
    centre = weights @ z
    centred = z - centre[None, :]
    effective = 1.0 / jnp.sum(weights * weights)
    reach = jnp.minimum(jnp.broadcast_to(jnp.asarray(length_scale), (dim,)), 1.0)
    covariance = (centred * weights[:, None]).T @ centred + dim / (dim + effective) * jnp.diag(jnp.square(reach))
    amplitude = jnp.maximum(solved.energy, 0.0) / size
    return jnp.log(jnp.maximum(jnp.max(solved.fitted), 1e-12)), centre, jnp.linalg.cholesky(covariance), amplitude
