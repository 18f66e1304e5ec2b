r"""The residual form where some statistics are known to lie in intervals: the integral of its density over these.

With the statistics in the order observed, then interval-valued, and decorrelated residuals $v_i$ that are increasing in
$y_i$ given those before,

$$ q(y_O, y_C \in [a, b] \mid z) = J_O \int_{v_C \in [v(a), v(b)]} p(v_O, v_C \mid z) \, dv_C
   \approx J_O \, \frac{1}{K} \sum_k p(v_O, v_C^k \mid z) \prod_{i \in C} \frac{F(v_i(b)) - F(v_i(a))}{f(v_i^k)}, $$

where $J_O$ is the Jacobian of the observed ones. Nodes $v_i^k$ are quantiles, of a Cauchy distribution $F$ within the
interval, at fixed points of the unit cube, one statistic after another: the ends of an interval depend on the nodes of
those before it. Its tails are heavier than those of `p`, so that no node has a large weight; as points are fixed the
sum is smooth in `z`.

References: Genz (1992), J. Comp. Graph. Stat. 1; Geweke, Hajivassiliou and Keane's simulator.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from scipy.special import logsumexp as logsumexp_on_host

from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.evaluation import PositiveLikelihoodAt

NODES, MORE_NODES = 32, 128
"""Nodes for one interval, and for several."""

FAR = 1e5
"""Stands for an infinite residual: a Cauchy distribution leaves `3e-6` beyond."""


@register
class ResidualWithinAt(PositiveLikelihoodAt):
    """The location-scale kernel means likelihood of observed statistics and of intervals, by 32 or 128 densities.

    Attributes:
        surrogate: What was learnt, a `ResidualSurrogate`, with interval-valued statistics last.
        standard: Observed statistics, in robust standard deviations, `(n - c,)`.
        low, high: Ends of the intervals, likewise, perhaps infinite, `(c,)`.
        log_jacobian: What does not depend on the coordinates.
        data: The observation, with NaN where it is in an interval.
    """

    surrogate: Any
    standard: ArrayLike
    low: ArrayLike
    high: ArrayLike
    log_jacobian: ArrayLike
    data: Any

    def _log_density(self, given, xp):
        learnt, number = self.surrogate, np.shape(self.low)[-1]
        first = len(learnt.transform.kept) - number
        lead = np.broadcast_shapes(*(np.shape(part)[:-1] for part in (self.standard, self.low, self.high)))
        known, ends = xp.broadcast_to(xp.asarray(self.standard), (*lead, first)), []
        for end, far in ((self.low, -FAR), (self.high, FAR)):
            end = xp.broadcast_to(xp.asarray(end), (*lead, number))
            # an infinite end is put in place at the end, as derivatives by way of infinity are NaN
            whole = xp.concatenate([known, xp.where(xp.isfinite(end), end, 0.0)], axis=-1)
            found = learnt.standardised(whole, given, xp)
            ends.append(xp.where(xp.isfinite(end), xp.clip(found.residuals[..., first:], -FAR, FAR), far))
        z = found.z[..., None, :]
        points, log_weights = cube(number)
        points, log_weights = xp.asarray(points), xp.asarray(log_weights)
        nodes = (*found.residuals.shape[:-1], len(log_weights))
        u = [xp.broadcast_to(found.residuals[..., None, i], nodes) for i in range(first)]
        total = log_weights
        for i in range(number):
            before, rho = learnt.decorrelation.given(u, z, first + i, xp)
            low, high = ((end[..., None, i] - before) * xp.exp(-rho) for end in ends)
            start, size = xp.arctan(low), xp.arctan2(high - low, 1.0 + low * high)
            v = xp.tan(xp.clip(start + points[:, i] * size, -np.pi / 2 + 1e-6, np.pi / 2 - 1e-6))
            total = total + xp.log(size + 1e-30) + xp.log1p(xp.square(v))  # log of (F(b) - F(a)) / f(v)
            u.append(xp.broadcast_to(before + v * xp.exp(rho), nodes))
        precision = xp.asarray(learnt.density.together.residuals).dtype

        def log_density(u, z):
            v, log_scale = learnt.decorrelation(u, z, xp)
            log_density = learnt.density.log_density(v.astype(precision), z.astype(precision), xp)
            return log_density.astype(v.dtype) - xp.sum(log_scale[..., :first], axis=-1)

        logs, add = log_density(xp.stack(u, axis=-1), z), logsumexp if xp is jnp else logsumexp_on_host
        integral = add(logs.astype(total.dtype) + total, axis=-1)
        return integral + xp.sum(found.log_slope[..., :first], axis=-1) + self.log_jacobian


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
