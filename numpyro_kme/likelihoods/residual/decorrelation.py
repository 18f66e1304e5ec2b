r"""Triangular decorrelation that may change with the coordinates: each residual given those before it.

$v_i = (u_i - \sum_{k<i} c_{ik}(z) h(u_k)) e^{-\rho_i}$ with $c_{ik}(z) = C_{ik} + \sum_d G_{ikd} z_d$ and the soft
clipping $h(u) = 5 \tanh(u / 5)$: a triangular map, as the Knothe-Rosenblatt rearrangement is, with slopes $e^{-\rho_i}$
on the diagonal, so that the Jacobian is exact whatever the coefficients are.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core.threads import in_parallel
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.autoregression import Autoregression, soft_clip
from numpyro_kme.likelihoods.residual.location_scale import winsorised_rms
from numpyro_kme.likelihoods.residual.ridge import Ridge

AMPLITUDES, CHANGES = (0.03, 0.1, 0.3, 1.0), (0.0, 0.1, 0.3)
"""Prior standard deviations of coefficients, in those of the noise, and of their change along a coordinate, relative to
these: the best, held out, is taken for each residual."""


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
    z: np.ndarray, u: np.ndarray, rows: np.ndarray, chosen: np.ndarray
) -> tuple[TriangularMap, np.ndarray]:
    """Fit the map, one ridge regression after another; return it with the held-out decorrelated residuals, `(m, n)`.

    A residual that the others do not make smaller, held out, stays as it is.

    Args:
        z: Coordinates, `(m, D)`.
        u: Standardised residuals, `(m, n)`.
        rows: Simulations that amplitudes are chosen on.
        chosen: Numbers of the residuals that are decorrelated; the others stay, and no other depends on them.
    """
    n, dim = u.shape[1], z.shape[1]
    constant, change, log_scale, rest = np.zeros((n, n)), np.zeros((n, n, dim)), np.zeros(n), np.array(u)
    last = range(len(chosen) - 1, 0, -1)  # those of many others take longest
    for k, found in zip(last, in_parallel(partial(_decorrelated, z, u, rows, chosen), last), strict=True):
        if found is not None:
            i, others = chosen[k], chosen[:k]
            constant[i, others], change[i, others], log_scale[i], rest[:, i] = found
    return TriangularMap(constant, change, log_scale), rest


def _decorrelated(z, u, rows, chosen, k):
    """Coefficients, their change, the log scale and what is left of the residual that is `k`th among those `chosen`, or
    None where those before it do not make it smaller."""
    before, target = soft_clip(u[:, chosen[:k]]), u[:, chosen[k]]

    def size(amplitude, change):
        return winsorised_rms(_ridge(z[rows], before[rows], amplitude, change).held_out(target[rows]).residual)

    amplitude = min(AMPLITUDES, key=lambda amplitude: size(amplitude, 0.0))
    change = min(CHANGES, key=lambda change: size(amplitude, change))
    found = _ridge(z, before, amplitude, change).held_out(target)
    left = winsorised_rms(found.residual)
    if left >= 1.0:
        return None
    moving = np.square(amplitude * change) * ((before * found.alpha[:, None]).T @ z)
    return amplitude**2 * (found.alpha @ before), moving, np.log(left), found.residual / left


def _ridge(z: np.ndarray, before: np.ndarray, amplitude: float, change: float) -> Ridge:
    """The regression on columns `a h_k` and `a b h_k z_d`, in units of the noise."""
    along = np.concatenate([np.ones((len(z), 1)), change * z], axis=1) if change else np.ones((len(z), 1))
    factor = amplitude * before[:, :, None] * along[:, None, :]
    return Ridge.of(factor.reshape(len(z), -1), np.ones(len(z)))
