r"""The embedding of residuals: a density of decorrelated residuals whose weights depend on the coordinates.

$p(v \mid z) = (1 - w) \sum_j a_j(z) N(v \mid \sqrt{1 - \epsilon^2} r_j, (\epsilon s_j)^2) + w\, p_0(v)$, with the
weights `a` of a conditional mean embedding, in a defensive mixture with a heavy-tailed density $p_0$: a product of
Student densities, and with weight $w^n$ a joint one. The shrinkage keeps the variance of the residuals: at
$\epsilon = 1$ the density is normal, as $\epsilon \to 0$ it is the residuals' own. Bandwidths adapt by the factors
$s_j = (\tilde p(r_j) / g)^{-\alpha}$ of Abramson and Silverman, where $\tilde p$ is a pilot density, a defensive
mixture of kernels of fixed bandwidth and a heavy-tailed density, and $g$ its geometric mean over the residuals. The
density integrates to 1 in $v$ for every $z$.

Kernels around vectors of many residuals have to be wide. Where a product of densities of single residuals says more of
held-out simulations, it is mixed in.

Kernels stand around centres, of which each simulation lends its weight to the nearest: as many as the bandwidth can
tell apart, and not as many as there are simulations. Weights follow the coordinates, a conditional mean embedding made
positive: $a(z) = (K + m \lambda I)^{-1} k(z) + b \big( 1 - \mathbf 1^\top (K + m \lambda I)^{-1} k(z) \big)$ with a
Gaussian kernel and the intercept $b \propto (K + m \lambda I)^{-1} \mathbf 1$, which sums to 1. The kernel at pivots
`P` tells that at all simulations, $k(z) \approx F F_P^{-1} k_P(z)$.

At one observation some statistics may be known to lie in intervals, over which the density is integrated. With the
statistics in the order observed, then interval-valued, and decorrelated residuals $v_i$ that are increasing in $y_i$
given those before,

$$ q(y_O, y_C \in [a, b] \mid z) = J_O \int_{v_C \in [v(a), v(b)]} p(v_O, v_C \mid z) \, dv_C
   \approx J_O \, \frac{1}{K} \sum_k p(v_O, v_C^k \mid z) \prod_{i \in C} \frac{F(v_i(b)) - F(v_i(a))}{f(v_i^k)}, $$

where $J_O$ is the Jacobian of the observed ones. Nodes $v_i^k$ are quantiles, of a Cauchy distribution $F$ within the
interval, at fixed points of the unit cube, one statistic after another: the ends of an interval depend on the nodes of
those before it. Its tails are heavier than those of `p`, so that no node has a large weight; as points are fixed the
sum is smooth in `z`.

References: Abramson (1982), Annals of Statistics; Silverman (1986), section 5.3; Genz (1992), J. Comp. Graph. Stat. 1,
and the simulator of Geweke, Hajivassiliou and Keane.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from scipy.special import logsumexp as logsumexp_on_host

from numpyro_kme._core import Array, by_columns, full_precision
from numpyro_kme.kernels.base import namespace, register
from numpyro_kme.kernels.gram import gaussian_gram, squared_distances_on_host
from numpyro_kme.likelihoods.base import LikelihoodAt, positive_part
from numpyro_kme.likelihoods.residual.bandwidths import SOFTNESS, LearntBandwidths, adapted, exponentials, log_mixture
from numpyro_kme.likelihoods.residual.ridge import log_gaussians

if TYPE_CHECKING:
    from numpyro_kme.likelihoods.residual.surrogate import ResidualSurrogate

UNEXPLAINED, MOST = 0.01, 500
"""Pivots are taken until this much of no kernel is unexplained (of coordinates, times `lam`), or there are `MOST`."""

APART = 0.5
"""Length, in bandwidths, of the kernel whose pivots are the centres: they are about as far apart."""

NODES, MORE_NODES = 32, 128
"""Nodes for one interval, and for several."""

FAR = 1e5
"""Stands for an infinite residual: a Cauchy distribution leaves `3e-6` beyond."""


@register
class KernelMixture:
    """A product over `b` blocks of `k` residuals each: all together, or each by itself.

    Attributes:
        pivots: `P`, `(r, D)`.
        beta: Length scale of the kernel of the coordinates, a scalar.
        matrix: What the weights of the centres are of `k_P(z)`, `(b, r, K)`.
        intercept: Their intercepts, `(b, K)`.
        softness: What weights count as about zero below, `(b, K)`.
        centres: Means of the held-out decorrelated residuals nearest to each, `(b, K, k)`.
        eps: Bandwidth of the residuals, a scalar.
        factors: Local bandwidth factors `s`, `(b, K)`.
        heavy_tailed_weights: `w`, `(b,)`; the heavy-tailed components keep `p` positive and lead samplers back.
    """

    pivots: Array
    beta: Array
    matrix: Array
    intercept: Array
    softness: Array
    centres: Array
    eps: Array
    factors: Array
    heavy_tailed_weights: Array

    @classmethod
    def fit(cls, z: np.ndarray, blocks: list[np.ndarray], learnt: LearntBandwidths) -> "KernelMixture":
        """From all residuals, `(m, k)` each, with what some of them taught. Cost: `m r^2` and `b m K^2`."""
        (beta, lam, eps, sensitivity), m = learnt.bandwidths, len(z)
        factor, pivots = _pivoted(z, beta, UNEXPLAINED * lam)
        inner = np.linalg.inv(factor.T @ factor + m * lam * np.eye(len(pivots)))
        matrix = np.linalg.solve(factor[pivots].T, inner @ factor.T)
        ones = 1.0 - factor @ (inner @ factor.sum(axis=0))
        intercept = ones / ones.sum()
        matrix -= np.outer(matrix.sum(axis=1), intercept)
        chosen = [_pivoted(block, APART * eps, UNEXPLAINED)[1] for block in blocks]
        number, parts = max(map(len, chosen)), []
        for block, some in zip(blocks, chosen):
            nearest = np.eye(number)[np.argmin(squared_distances_on_host(block, block[some]), axis=1)]
            counts = nearest.sum(axis=0)  # none where another block has more centres
            centres, factors = nearest.T @ block / np.maximum(counts, 1.0)[:, None], np.ones(number)
            factors[: len(some)] = adapted(centres[: len(some)], eps, sensitivity, counts[: len(some)])
            softness = SOFTNESS / m * np.maximum(counts, 1e-6)
            parts.append((matrix @ nearest, intercept @ nearest, softness, centres, factors))
        matrix, intercept, softness, centres, factors = map(np.stack, zip(*parts))
        tails = learnt.heavy_tailed_weights
        return cls(z[pivots], np.array(beta), matrix, intercept, softness, centres, np.array(eps), factors, tails)

    def log_density(self, v: Any, z: Any, xp: Any = jnp) -> Any:
        """`log p(v | z)` for residual vectors `(..., n)` and points `(..., D)`, by JAX or NumPy."""
        points, beta, eps = xp.asarray(self.pivots), xp.asarray(self.beta), xp.asarray(self.eps)
        near = exponentials(log_gaussians(z / beta, points / beta, xp.ones((len(points), 1), points.dtype), xp), xp)
        number, _, size = np.shape(self.centres)

        def of_block(v, matrix, intercept, softness, centres, factors, tails):
            weights = positive_part(near @ matrix + intercept, softness, xp)
            return log_mixture(v, weights, centres, eps, factors, tails, xp)

        blocks = xp.moveaxis(v.reshape(*v.shape[:-1], number, size), -2, 0)
        own = self.matrix, self.intercept, self.softness, self.centres, self.factors, self.heavy_tailed_weights
        parts: list[Any] = [blocks, *map(xp.asarray, own)]
        if xp is np or number == 1:
            return sum(map(of_block, *parts))
        return jnp.sum(jax.vmap(of_block)(*parts), axis=0)


def _pivoted(points: np.ndarray, length: float, unexplained: float) -> tuple[np.ndarray, np.ndarray]:
    """Factor of the Gram matrix of a Gaussian kernel at points `(m, k)`, `(m, r)`, and its pivots, `(r,)`."""
    columns = lambda some: gaussian_gram(points, points[some], length**2)  # noqa: E731
    return by_columns(columns, np.ones(len(points)), unexplained, min(len(points), MOST))


@register
class ResidualDensity:
    """The fitted density of decorrelated residuals `(n,)` given coordinates `(D,)`.

    Attributes:
        together: Of kernels around vectors of residuals.
        apart: A product of densities of single residuals, with which it is mixed; None where that adds nothing.
        proportion: Mixing proportion of the product, a scalar.
    """

    together: KernelMixture
    apart: KernelMixture | None
    proportion: Array

    def log_density(self, v: Any, z: Any, xp: Any = jnp) -> Any:
        """`log p(v | z)` for residual vectors `(..., n)` and points `(..., D)`, by JAX or NumPy."""
        found = self.together.log_density(v, z, xp)
        if self.apart is None:
            return found
        proportion, apart = xp.asarray(self.proportion), self.apart.log_density(v, z, xp)
        return xp.logaddexp(xp.log1p(-proportion) + found, xp.log(proportion) + apart)


@register
class ResidualAt(LikelihoodAt):
    r"""The location-scale kernel means likelihood at one observation; by JAX and by NumPy from the same lines.

    Outside the simulated region it is that of the nearest point of the region.

    Cost: for `r` pivots and `K` centres about `r (K + D) + n K` operations, `r + K` exponentials, and those of location
    and scale; products of matrices under `vmap`. With intervals, 32 or 128 times as much.

    Attributes:
        surrogate: What was learnt; interval-valued statistics come last.
        standard: Observed statistics that vary, in robust standard deviations, `(n - c,)`.
        low, high: Ends of the intervals, likewise, perhaps infinite, `(c,)`.
        log_jacobian: What does not depend on the coordinates.
    """

    surrogate: "ResidualSurrogate"
    standard: ArrayLike
    low: ArrayLike
    high: ArrayLike
    log_jacobian: ArrayLike

    @full_precision
    def log_density(self, z):
        """`log q(y | z)` at points `(..., D)`, smooth."""
        learnt, first, xp = self.surrogate, np.shape(self.standard)[-1], namespace(self, z)
        z = learnt.region.nearest(xp.asarray(z), xp)
        if np.shape(self.low)[-1] == 0:
            u, log_slope = learnt.standardisation(xp.asarray(self.standard), z, xp)
            return self._of_residuals(u, z, first, xp) + xp.sum(log_slope, axis=-1) + self.log_jacobian
        u, log_slope, log_weights = self._nodes(z, xp)
        logs = self._of_residuals(u, z[..., None, :], first, xp)
        add = logsumexp if xp is jnp else logsumexp_on_host
        return add(logs + log_weights, axis=-1) + xp.sum(log_slope[..., :first], axis=-1) + self.log_jacobian

    def brief(self):
        """Implement `ResidualSurrogate.brief`, which is made once for all observations."""
        return replace(self, surrogate=self.surrogate.brief)

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
    """Points of the unit cube `(K, dim)` and log weights `(K,)`: of Gauss and Legendre in one dimension, above it of
    Sobol."""
    if dim == 1:
        points, weights = np.polynomial.legendre.leggauss(NODES)
        return 0.5 + 0.5 * points[:, None], np.log(0.5 * weights)
    points = scipy.stats.qmc.Sobol(dim, rng=np.random.default_rng(0)).random(MORE_NODES)
    return points, np.full(MORE_NODES, -np.log(MORE_NODES))
