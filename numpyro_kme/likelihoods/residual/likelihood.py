"""The location-scale kernel means likelihood at one observation."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import LikelihoodAt
from numpyro_kme.likelihoods.region import Region
from numpyro_kme.likelihoods.residual.decorrelation import TriangularMap
from numpyro_kme.likelihoods.residual.density import ResidualDensity
from numpyro_kme.likelihoods.residual.functions import RidgeFunctions
from numpyro_kme.likelihoods.residual.marginals import MarginalTransform
from numpyro_kme.likelihoods.residual.support import SupportBounds

TINY = 1e-30
"""Keeps a logarithm finite."""

ROUNDING = 0.01
"""What float32 may move locations by, in residual standard deviations, and log scales, where it is used."""


@register
class ResidualAt(LikelihoodAt):
    """The location-scale kernel means likelihood at one observation.

    Attributes:
        region, squared_slopes, support, marginals, location, log_scale, decorrelation, density: As in
            `ResidualSurrogate`.
        standard: Statistics that vary, in robust standard deviations, `(n,)`.
        log_jacobian: What does not depend on the coordinates.
        y: The observation.
    """

    region: Region
    squared_slopes: ArrayLike
    support: SupportBounds
    marginals: MarginalTransform
    location: RidgeFunctions
    log_scale: RidgeFunctions
    decorrelation: TriangularMap
    density: ResidualDensity
    standard: ArrayLike
    log_jacobian: ArrayLike
    y: Any

    @property
    def data(self):
        """The observation."""
        return self.y

    def signed_log(self, z):
        """Sign 1 and log of `q(y | z)` at one point `(D,)`."""
        value = self.log_density(z)
        return jnp.ones_like(value), value

    def log_density(self, z):
        r"""`log q(y | z)` at one point `(D,)`: positive and smooth as it is.

        Outside the simulated region functions stay as they are at its nearest point $\tilde z$, and residuals are
        wider, $\sigma_i^2 \exp(2 \tau_i^2 / \sqrt{1 + \tau_i^2}) + \delta_i^2$: about the variance around
        $\mu_i(\tilde z)$ when location and log scale may have gone on at their usual slopes, either way, by
        $\delta_i^2 = \sum_d \overline{(\partial \mu_i / \partial z_d)^2} (z_d - \tilde z_d)^2$, and $\tau_i^2$
        likewise. The embedding keeps the least fraction of $\sigma_i^2$ in these; the rest goes to the heavy-tailed
        component.

        Cost: about `(D + n + 2 r) m` operations for `r` columns of the density's basis, and the exponentials of the
        kernels that location and scale need; products of matrices under `vmap`.
        """
        z, given = self.region.nearest(jnp.asarray(z)), jnp.asarray(z)
        bounded, log_slope = self.support(self.standard, z)
        of_location, of_scale = jnp.asarray(self.squared_slopes).astype(z.dtype) @ jnp.square(given - z)
        held = self.log_scale(z).astype(z.dtype)
        log_scale = 0.5 * jnp.logaddexp(2.0 * (held + of_scale / jnp.sqrt(1.0 + of_scale)), jnp.log(of_location + TINY))
        known = jnp.exp(2.0 * jnp.min(held - log_scale)).astype(jnp.asarray(self.density.points).dtype)
        u = (self.marginals(bounded) - self.location(z).astype(z.dtype)) * jnp.exp(-log_scale)
        v, precision = self.decorrelation(u, z), jnp.asarray(self.density.points).dtype
        log_density = self.density.log_density(v.astype(precision), z.astype(precision), known).astype(v.dtype)
        return log_density + jnp.sum(self.marginals.log_slope(bounded) + log_slope - log_scale) + self.log_jacobian

    def brief(self):
        """In float32, but for locations and scales that rounding would move by more than `ROUNDING`."""
        short = partial(jax.tree.map, lambda leaf: np.asarray(leaf, np.float32))
        found = replace(self, density=short(self.density))
        if self._rounding() <= ROUNDING:
            found = replace(found, location=short(self.location), log_scale=short(self.log_scale))
        return found

    def _rounding(self) -> float:
        """Largest error of locations, in residual standard deviations, and of log scales in float32.

        Over at most 300 simulations; NaN where float32 cannot hold them.
        """
        z = np.asarray(self.density.points)[:300]
        with np.errstate(all="ignore"):
            location, log_scale = (
                [part.on_host(z, kind) for kind in (np.float32, np.float64)] for part in (self.location, self.log_scale)
            )
            errors = (location[0] - location[1]) * np.exp(-log_scale[1]), log_scale[0] - log_scale[1]
            return float(np.max(np.abs(errors)))
