r"""The residual form at one observation, of which some statistics may be known to lie in intervals.

Of these the density is integrated. With the statistics in the order observed, then interval-valued, and decorrelated
residuals $v_i$ that are increasing in $y_i$ given those before,

$$ q(y_O, y_C \in [a, b] \mid z) = J_O \int_{v_C \in [v(a), v(b)]} p(v_O, v_C \mid z) \, dv_C
   \approx J_O \, \frac{1}{K} \sum_k p(v_O, v_C^k \mid z) \prod_{i \in C} \frac{F(v_i(b)) - F(v_i(a))}{f(v_i^k)}, $$

where $J_O$ is the Jacobian of the observed ones. Nodes $v_i^k$ are quantiles, of a Cauchy distribution $F$ within the
interval, at fixed points of the unit cube, one statistic after another: the ends of an interval depend on the nodes of
those before it. Its tails are heavier than those of `p`, so that no node has a large weight; as points are fixed the
sum is smooth in `z`.

References: Genz (1992), J. Comp. Graph. Stat. 1; Geweke, Hajivassiliou and Keane's simulator.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from scipy.special import logsumexp as logsumexp_on_host

from numpyro_kme._core.host import full_precision
from numpyro_kme.kernels.base import namespace, register
from numpyro_kme.likelihoods.base import LikelihoodAt

if TYPE_CHECKING:
    from numpyro_kme.likelihoods.residual.surrogate import ResidualSurrogate

NODES, MORE_NODES = 32, 128
"""Nodes for one interval, and for several."""

FAR = 1e5
"""Stands for an infinite residual: a Cauchy distribution leaves `3e-6` beyond."""


@register
class ResidualAt(LikelihoodAt):
    r"""The location-scale kernel means likelihood at one observation; by JAX and by NumPy from the same lines.

    Outside the simulated region it is that of the nearest point of the region.

    Cost: about `(D + n + 2 r) m` operations for `r` columns of the density's basis, and the exponentials of the
    kernels that location and scale need; products of matrices under `vmap`. In brief the `m` exponentials and `2 r m`
    operations of the weights are `r m` with `r` pivots, where few suffice. With intervals, 32 or 128 times as much.

    Attributes:
        surrogate: What was learnt; interval-valued statistics come last.
        standard: Observed statistics that vary, in robust standard deviations, `(n - c,)`.
        low, high: Ends of the intervals, likewise, perhaps infinite, `(c,)`.
        log_jacobian: What does not depend on the coordinates.
        data: The observation `y`, with NaN where it is in an interval.
    """

    surrogate: "ResidualSurrogate"
    standard: ArrayLike
    low: ArrayLike
    high: ArrayLike
    log_jacobian: ArrayLike
    data: Any

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
        """Implement `ResidualSurrogate.brief`, which is made once for all observations."""
        return replace(self, surrogate=self.surrogate.brief)

    def _log_density(self, given, xp):
        """At points `(..., D)`."""
        learnt, first = self.surrogate, np.shape(self.standard)[-1]
        z = learnt.region.nearest(given, xp)
        if np.shape(self.low)[-1] == 0:
            u, log_slope = learnt.standardisation(xp.asarray(self.standard), z, xp)
            return self._of_residuals(u, z, first, xp) + xp.sum(log_slope, axis=-1) + self.log_jacobian
        u, log_slope, log_weights = self._nodes(z, xp)
        logs = self._of_residuals(u, z[..., None, :], first, xp)
        add = logsumexp if xp is jnp else logsumexp_on_host
        return add(logs + log_weights, axis=-1) + xp.sum(log_slope[..., :first], axis=-1) + self.log_jacobian

    def _of_residuals(self, u, z, first, xp):
        """Log density of residuals `(..., n)`, with the Jacobian of the first so many."""
        density = self.surrogate.density
        precision = xp.asarray(density.together.centres).dtype
        v, log_scale = self.surrogate.decorrelation(u, z, xp)
        log_density = density.log_density(v.astype(precision), z.astype(precision), xp)
        return log_density.astype(v.dtype) - xp.sum(log_scale[..., :first], axis=-1)

    def _nodes(self, z, xp):
        """Residuals at the nodes, `(..., K, n)`, log slopes of the statistics, `(..., n)`, and the log of what is
        summed over, `(..., K)`."""
        learnt, number, first = self.surrogate, np.shape(self.low)[-1], np.shape(self.standard)[-1]
        lead = np.broadcast_shapes(*(np.shape(part)[:-1] for part in (self.standard, self.low, self.high)))
        known, ends = xp.broadcast_to(xp.asarray(self.standard), (*lead, first)), []
        for end, far in ((self.low, -FAR), (self.high, FAR)):
            end = xp.broadcast_to(xp.asarray(end), (*lead, number))
            # an infinite end is put in place at the end, as derivatives by way of infinity are NaN
            whole = xp.concatenate([known, xp.where(xp.isfinite(end), end, 0.0)], axis=-1)
            residuals, log_slope = learnt.standardisation(whole, z, xp)
            ends.append(xp.where(xp.isfinite(end), xp.clip(residuals[..., first:], -FAR, FAR), far))
        points, total = (xp.asarray(part) for part in cube(number))
        nodes, z = (*residuals.shape[:-1], len(total)), z[..., None, :]
        u = [xp.broadcast_to(residuals[..., None, i], nodes) for i in range(first)]
        for i in range(number):
            # a residual of 0 is mapped to minus the location of residuals given those before, over their scale
            unknown = xp.stack([*u, *[xp.zeros(nodes)] * (number - i)], axis=-1)
            v, rho = learnt.decorrelation(unknown, z, xp)
            before, rho = v[..., first + i], rho[..., first + i]
            low, high = (end[..., None, i] * xp.exp(-rho) + before for end in ends)
            start, size = xp.arctan(low), xp.arctan2(high - low, 1.0 + low * high)
            v = xp.tan(xp.clip(start + points[:, i] * size, -np.pi / 2 + 1e-6, np.pi / 2 - 1e-6))
            total = total + xp.log(size + 1e-30) + xp.log1p(xp.square(v))  # log of (F(b) - F(a)) / f(v)
            u.append(xp.broadcast_to((v - before) * xp.exp(rho), nodes))
        return xp.stack(u, axis=-1), log_slope, total


def cube(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of the unit cube `(K, dim)` and log weights `(K,)`: of Gauss and Legendre in one dimension, above it a
    Kronecker sequence with the generalised golden ratio."""
    if dim == 1:
        points, weights = np.polynomial.legendre.leggauss(NODES)
        return 0.5 + 0.5 * points[:, None], np.log(0.5 * weights)
    ratio = 2.0
    for _ in range(50):
        ratio = (1.0 + ratio) ** (1.0 / (dim + 1.0))
    steps = ratio ** -np.arange(1.0, dim + 1.0)
    points = (0.5 + np.arange(1, MORE_NODES + 1)[:, None] * steps) % 1.0
    return points, np.full(MORE_NODES, -np.log(MORE_NODES))
