r"""Decorrelation that may change with the coordinates: each residual given those before it.

$v_i = (u_i - \sum_{k<i} c_{ik}(z) h(u_k)) e^{-\rho_i}$ with $c_{ik}(z) = C_{ik} + \sum_d G_{ikd} z_d$ and $h(u) = 5 \tanh(u / 5)$:
triangular with slopes $e^{-\rho_i}$ on the diagonal, so the Jacobian is exact whatever the coefficients are.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme.kernel_means.descent import descend
from numpyro_kme.kernel_means.ridge import JITTER, held_out
from numpyro_kme.kernel_means.spread import robust_size
from numpyro_kme.kernels.base import register

REACH = 5.0
"""Residuals beyond this many standard deviations say no more about the next ones than this one does."""

DEGREES = 8.0
"""Degrees of freedom of the held-out Student score of a residual."""


def shortened(u: jax.Array) -> jax.Array:
    """`h(u) = 5 tanh(u / 5)`."""
    return REACH * jnp.tanh(u / REACH)


@register
class Coupling:
    """Logarithms of the hyperparameters of one residual's regression on the others.

    Attributes:
        others: Amplitude of each residual, `(n,)`.
        change: Amplitude of the change of all coefficients along each coordinate, `(D,)`, relative to `others`.
        noise: Standard deviation of what is left, a scalar.
    """

    others: ArrayLike
    change: ArrayLike
    noise: ArrayLike

    def regularised(self, z: jax.Array, h: jax.Array) -> jax.Array:
        """`sum_k a_k^2 h_k h_k' (1 + sum_d b_d^2 z_d z_d')` plus the noise, `(m, m)`."""
        plain = (h * jnp.exp(2.0 * self.others)[None, :]) @ h.T
        change = 1.0 + (z * jnp.exp(2.0 * self.change)[None, :]) @ z.T
        return plain * change + (jnp.exp(2.0 * self.noise) + JITTER) * jnp.eye(len(z))

    def penalty(self) -> jax.Array:
        """Minus the log of exponential priors on the amplitudes: residuals are independent unless held-out ones say more."""
        rates = [2.0 * np.sqrt(np.size(leaf)) for leaf in (self.others, self.change)]
        return rates[0] * jnp.sum(jnp.exp(self.others)) + rates[1] * jnp.sum(jnp.exp(self.change))


@register
class Chain:
    """The fitted map from residuals to decorrelated ones.

    Attributes:
        constant: `C`, strictly lower triangular, `(n, n)`.
        change: `G`, `(n, n, D)`.
        log_size: `rho`, `(n,)`.
    """

    constant: ArrayLike
    change: ArrayLike
    log_size: ArrayLike

    def __call__(self, u: jax.Array, z: jax.Array) -> jax.Array:
        """Residuals `(n,)` at `z` `(D,)` to decorrelated ones; the log Jacobian is `-sum(log_size)`."""
        coefficients = jnp.asarray(self.constant) + jnp.asarray(self.change) @ z
        return (u - coefficients @ shortened(u)) * jnp.exp(-jnp.asarray(self.log_size))

    @classmethod
    def identity(cls, n: int, dim: int) -> "Chain":
        """No decorrelation."""
        return cls(np.zeros((n, n)), np.zeros((n, n, dim)), np.zeros(n))


def fit_chain(z: np.ndarray, u: np.ndarray, rows: np.ndarray, steps: int) -> tuple[Chain, np.ndarray]:
    """Fit the chain to residuals and return it with the held-out decorrelated residuals, `(m, n)`.

    Args:
        z: Coordinates, `(m, D)`.
        u: Standardised residuals, `(m, n)`.
        rows: Simulations that hyperparameters are learnt from.
        steps: L-BFGS iterations for each residual.
    """
    n, dim = u.shape[1], z.shape[1]
    chain, rest = Chain.identity(n, dim), np.array(u)
    for i in range(1, n):
        before = np.where(np.arange(n)[None, :] < i, np.asarray(shortened(u)), 0.0)
        coupling = Coupling(np.full(n, np.log(0.2)), np.full(dim, np.log(0.1)), np.array(0.0))
        low = Coupling(np.full(n, -9.0), np.full(dim, -9.0), np.array(-7.0))
        high = Coupling(np.where(np.arange(n) < i, 3.0, -9.0), np.full(dim, 3.0), np.array(1.5))
        coupling = descend(_value_and_gradient, coupling, (low, high), steps, z[rows], before[rows], u[rows, i])
        alpha, rest[:, i] = map(np.asarray, _fit(coupling, z, before, u[:, i]))
        size = robust_size(rest[:, i])
        rest[:, i] /= size
        weights = np.exp(2.0 * coupling.others)
        chain.log_size[i] = np.log(size)
        chain.constant[i] = weights * (alpha @ before)
        chain.change[i] = weights[:, None] * np.exp(2.0 * coupling.change) * ((before * alpha[:, None]).T @ z)
    return chain, rest


@jax.jit
def _fit(coupling, z, before, target):
    alpha, diagonal = held_out(coupling.regularised(z, before), target)
    return alpha, alpha / diagonal


def _loss(coupling, z, before, target):
    alpha, diagonal = held_out(coupling.regularised(z, before), target)
    squares = jnp.square(alpha) / diagonal
    log_density = 0.5 * jnp.log(diagonal) - 0.5 * (DEGREES + 1.0) * jnp.log1p(squares / DEGREES)
    return coupling.penalty() - jnp.sum(log_density)


_value_and_gradient = jax.jit(jax.value_and_grad(_loss))
