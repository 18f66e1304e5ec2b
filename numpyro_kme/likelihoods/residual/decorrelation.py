r"""Triangular decorrelation that may change with the coordinates: each residual given those before it.

$v_i = (u_i - \sum_{k<i} c_{ik}(z) h(u_k)) e^{-\rho_i}$ with $c_{ik}(z) = C_{ik} + \sum_d G_{ikd} z_d$ and the soft
clipping $h(u) = 5 \tanh(u / 5)$: a triangular map, as the Knothe-Rosenblatt rearrangement is, with slopes $e^{-\rho_i}$
on the diagonal, so that the Jacobian is exact whatever the coefficients are.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core.threads import in_parallel
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.descent import descend
from numpyro_kme.likelihoods.residual.autoregression import Autoregression, soft_clip
from numpyro_kme.likelihoods.residual.location_scale import winsorised_rms
from numpyro_kme.likelihoods.residual.ridge import Adjoint, Ridge
from numpyro_kme.likelihoods.residual.smoothness import JITTER

DEGREES = 8.0
"""Degrees of freedom of the held-out Student score of a residual."""


@register
class DecorrelationHyperparameters:
    """Logarithms of the hyperparameters of one residual's regression on the others.

    Attributes:
        others: Amplitude of each residual before this one, `(i,)`.
        change: Amplitude of the change of all coefficients along each coordinate, `(D,)`, relative to `others`.
        noise: Standard deviation of what is left, a scalar.
    """

    others: Any
    change: Any
    noise: Any

    def ridge(self, z: np.ndarray, h: np.ndarray) -> Ridge:
        """Columns `a_k h_k` and `a_k h_k b_d z_d`: covariance `sum_k a_k^2 h_k h_k' (1 + sum_d b_d^2 z_d z_d')`."""
        change = np.concatenate([np.ones((len(z), 1)), z * np.exp(self.change)], axis=1)
        factor = (h * np.exp(self.others))[:, :, None] * change[:, None, :]
        return Ridge.of(factor.reshape(len(z), -1), np.full(len(z), np.exp(2.0 * self.noise) + JITTER))

    def gradient(self, derivatives: Adjoint) -> "DecorrelationHyperparameters":
        """Chain rule: from derivatives by the columns and the noise variances."""
        amplitudes = np.diagonal(derivatives.products).reshape(len(self.others), -1)
        variance = np.exp(2.0 * self.noise)
        own = 2.0 * derivatives.of_noise * variance / (variance + JITTER)
        return DecorrelationHyperparameters(amplitudes.sum(axis=1), amplitudes[:, 1:].sum(axis=0), own)

    def penalty(self, size: int) -> tuple[float, "DecorrelationHyperparameters"]:
        """Minus the log of exponential priors on the amplitudes of `size` residuals, and its gradient.

        Residuals are independent unless held-out ones say more.
        """
        others = 2.0 * np.sqrt(size) * np.exp(self.others)
        change = 2.0 * np.sqrt(len(self.change)) * np.exp(self.change)
        return others.sum() + change.sum(), DecorrelationHyperparameters(others, change, 0.0)


@register
class TriangularMap:
    """The fitted map from residuals to decorrelated ones.

    Attributes:
        constant: Coefficients `C`, strictly lower triangular, `(n, n)`.
        change: Their change with each coordinate, `G`, `(n, n, D)`.
        log_scale: Log standard deviations `rho` of what is left, `(n,)`.
        curved: Location and scale of what is left given the residuals before it, where straight lines do not suffice.
    """

    constant: ArrayLike
    change: ArrayLike
    log_scale: ArrayLike
    curved: Autoregression | None = None

    def __call__(self, u: Any, z: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """Residuals `(..., n)` at `z` `(..., D)` to decorrelated ones, and log scales `(..., n)` or `(n,)`.

        The log Jacobian is minus the sum of the log scales.
        """
        v, log_scale = self.straight(u, z, xp), xp.asarray(self.log_scale)
        if self.curved is None:
            return v, log_scale
        location, curved = self.curved(u, z, xp)
        return (v - location) * xp.exp(-curved), xp.broadcast_to(log_scale, curved.shape) + curved

    def trimmed(self) -> "TriangularMap":
        """The same without kernels of weight 0, for NumPy."""
        return replace(self, curved=self.curved and self.curved.trimmed())

    def straight(self, u: Any, z: Any, xp: Any = jnp) -> Any:
        """`v`, without the functions `m` and `s`."""
        coefficients = xp.concatenate([xp.asarray(self.constant)[:, :, None], xp.asarray(self.change)], axis=2)
        # one product of matrices, where a product for each point takes XLA longer than the whole density
        change = xp.concatenate([xp.ones((*z.shape[:-1], 1), z.dtype), z], axis=-1)
        before = soft_clip(u, xp)[..., :, None] * change[..., None, :]
        before = before.reshape(*before.shape[:-2], -1)
        return (u - before @ coefficients.reshape(u.shape[-1], -1).T) * xp.exp(-xp.asarray(self.log_scale))

    def given(self, u: Any, z: Any, i: int, xp: Any = jnp) -> tuple[Any, Any]:
        """Location and log scale, `(...)`, of residual `i` given those before it, `u`, a list of `(...)`."""
        location, log_scale = xp.zeros_like(z[..., 0]), xp.asarray(self.log_scale)[i]
        for k in range(i):
            slope = xp.asarray(self.constant)[i, k] + z @ xp.asarray(self.change)[i, k]
            location = location + slope * soft_clip(u[k], xp)
        if self.curved is None:
            return location, log_scale
        known = xp.stack([*u[:i], *[xp.zeros_like(location)] * (np.size(self.log_scale) - i)], axis=-1)
        moved, curved = (part[..., i] for part in self.curved(known, z, xp))
        return location + xp.exp(log_scale) * moved, log_scale + curved


def fit_triangular_map(
    z: np.ndarray, u: np.ndarray, rows: np.ndarray, steps: int, chosen: np.ndarray
) -> tuple[TriangularMap, np.ndarray]:
    """Fit the map, one regression after another; return it with the held-out decorrelated residuals, `(m, n)`.

    A residual that the others do not make smaller, held out, stays as it is.

    Args:
        z: Coordinates, `(m, D)`.
        u: Standardised residuals, `(m, n)`.
        rows: Simulations that hyperparameters are learnt from.
        steps: Iterations for each residual.
        chosen: Numbers of the residuals that are decorrelated; the others stay, and no other depends on them.
    """
    n, dim = u.shape[1], z.shape[1]
    constant, change, log_scale, rest = np.zeros((n, n)), np.zeros((n, n, dim)), np.zeros(n), np.array(u)

    last = range(len(chosen) - 1, 0, -1)  # those of many others take longest
    for k, found in zip(last, in_parallel(partial(_decorrelated, z, u, rows, steps, chosen), last), strict=True):
        if found is not None:
            i, others = chosen[k], chosen[:k]
            constant[i, others], change[i, others], log_scale[i], rest[:, i] = found
    return TriangularMap(constant, change, log_scale), rest


def _decorrelated(z, u, rows, steps, chosen, k):
    """Coefficients, their change, the log scale and what is left of the residual that is `k`th among those `chosen`, or
    None where those before it do not make it smaller."""
    i, others, dim = chosen[k], chosen[:k], z.shape[1]
    before = soft_clip(u[:, others])
    numbers = (np.log(0.2), np.log(0.1), 0.0), (-9.0, -9.0, -7.0), (3.0, 3.0, 1.5), (1.0, 1.0, 2.0 * len(rows))
    hyper, low, high, curvature = (
        DecorrelationHyperparameters(np.full(k, a), np.full(dim, b), np.array(noise)) for a, b, noise in numbers
    )
    args = z[rows], before[rows], u[rows, i], u.shape[1]
    hyper = descend(loss, hyper, (low, high), steps, *args, curvature=curvature)
    found = hyper.ridge(z, before).held_out(u[:, i])
    size = winsorised_rms(found.residual)
    if size >= 1.0:
        return None
    weights = np.exp(2.0 * hyper.others)
    change = weights[:, None] * np.exp(2.0 * hyper.change) * ((before * found.alpha[:, None]).T @ z)
    return weights * (found.alpha @ before), change, np.log(size), found.residual / size


def loss(
    hyper: DecorrelationHyperparameters, z: np.ndarray, before: np.ndarray, target: np.ndarray, size: int
) -> tuple[float, DecorrelationHyperparameters]:
    """Minus the held-out Student log density and the log prior, and its gradient, for one of `size` residuals."""
    found = hyper.ridge(z, before).held_out(target)
    residual, variance = found.residual, found.variance
    squares = np.square(residual) / variance
    value = 0.5 * np.sum((DEGREES + 1.0) * np.log1p(squares / DEGREES) + np.log(variance))
    weight = (DEGREES + 1.0) / (DEGREES + squares)
    nothing = np.zeros((0, 0))
    derivatives = found.adjoint(weight * residual / variance, 0.5 * (1.0 - weight * squares) / variance, nothing)
    penalty, slope = hyper.penalty(size)
    gradient = hyper.gradient(derivatives)
    return penalty + value, jax.tree.map(np.add, slope, gradient)
