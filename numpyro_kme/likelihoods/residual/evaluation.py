"""The residual form at one observation: evaluated by JAX or NumPy, in the precision of the caller or briefly."""

import abc
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from jax.typing import ArrayLike

from numpyro_kme._core.host import full_precision
from numpyro_kme.kernels.base import namespace, register
from numpyro_kme.likelihoods.base import LikelihoodAt

if TYPE_CHECKING:
    from numpyro_kme.likelihoods.residual.surrogate import ResidualSurrogate


class PositiveLikelihoodAt(LikelihoodAt):
    """A likelihood that is positive as it is, from the same lines by JAX and by NumPy, `_log_density`.

    Attributes:
        surrogate: What was learnt.
    """

    surrogate: "ResidualSurrogate"

    def signed_log(self, z):
        """Sign 1 and log of `q(y | z)` at points `(..., D)`."""
        value = self.log_density(z)
        return namespace(value).ones_like(value), value

    @full_precision
    def log_density(self, z):
        """`log q(y | z)` at points `(..., D)`, smooth."""
        xp = namespace(self, z)
        return self._log_density(xp.asarray(z), xp)

    def brief(self):
        """As `ResidualSurrogate.brief`, which is made once for all observations."""
        return replace(self, surrogate=self.surrogate.brief)

    @property
    def tabulated(self):
        """As `LikelihoodAt.tabulated`."""
        return self.surrogate.density.table is not None

    @abc.abstractmethod
    def _log_density(self, z: Any, xp: Any) -> Any:
        """At points `(..., D)`."""


@register
class ResidualAt(PositiveLikelihoodAt):
    r"""The location-scale kernel means likelihood at one observation.

    Outside the simulated region it is lower: `numpyro_kme.likelihoods.residual.outside`.

    Cost: about `(D + n + 2 r) m` operations for `r` columns of the density's basis, and the exponentials of the
    kernels that location and scale need; products of matrices under `vmap`. In brief the `m` exponentials and `2 r m`
    operations of the weights are `r m` with `r` pivots, where few suffice.

    Attributes:
        surrogate: What was learnt.
        standard: Statistics that vary, in robust standard deviations, `(n,)`.
        log_jacobian: What does not depend on the coordinates.
        data: The observation `y`.
    """

    surrogate: "ResidualSurrogate"
    standard: ArrayLike
    log_jacobian: ArrayLike
    data: Any

    def _log_density(self, given, xp):
        learnt = self.surrogate
        found = learnt.standardised(xp.asarray(self.standard), given, xp)
        precision = xp.asarray(learnt.density.together.residuals).dtype
        v, log_scale = learnt.decorrelation(found.residuals, found.z, xp)
        log_density = learnt.density.log_density(v.astype(precision), found.z.astype(precision), xp)
        return log_density.astype(v.dtype) + xp.sum(found.log_slope - log_scale, axis=-1) + self.log_jacobian


class Standardised(NamedTuple):
    """Statistics as residuals at coordinates.

    Attributes:
        residuals: `u`, `(..., n)`.
        log_slope: Logarithms of what their densities are multiplied by, `(..., n)`: derivatives by the statistics where
            there are simulations.
        z: The nearest simulated coordinates, `(..., D)`.
    """

    residuals: Any
    log_slope: Any
    z: Any
