r"""The embedding of residuals: a density of decorrelated residuals whose weights depend on the coordinates.

$p(v \mid z) = (1 - w) \sum_j a_j(z) N(v \mid \sqrt{1 - \epsilon^2} r_j, (\epsilon s_j)^2) + w\, p_0(v)$, with the
weights `a` of a conditional mean embedding, in a defensive mixture with a heavy-tailed density $p_0$. The shrinkage
keeps the variance of the residuals: at $\epsilon = 1$ the density is normal, as $\epsilon \to 0$ it is the residuals'
own. Bandwidths adapt by the factors $s_j = (\tilde p(r_j) / g)^{-\alpha}$ of Abramson and Silverman, where $\tilde p$
is a pilot density, a defensive mixture of kernels of fixed bandwidth and a heavy-tailed density, and $g$ its geometric
mean over the residuals. The density integrates to 1 in $v$ for every $z$.

Kernels around vectors of many residuals have to be wide. Where a product of densities of single residuals says more of
held-out simulations, it is mixed in.

References: Abramson (1982), Annals of Statistics; Silverman (1986), section 5.3.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.bandwidths import LearntBandwidths, adapted
from numpyro_kme.likelihoods.residual.mixture import EmbeddingWeights, log_defended, log_kernels
from numpyro_kme.likelihoods.residual.tabulated import Tabulated


@register
class KernelMixture:
    """A product over `b` blocks of `k` residuals each: all together, or each by itself.

    Attributes:
        weights: `a`, of `m` simulations.
        residuals: Held-out decorrelated residuals of these, `(b, m, k)`.
        eps: Bandwidth of the residuals, a scalar.
        factors: Local bandwidth factors `s`, `(b, m)`.
        heavy_tailed_weights: `w`, `(b,)`; the heavy-tailed components keep `p` positive and lead samplers back.
    """

    weights: EmbeddingWeights
    residuals: Array
    eps: Array
    factors: Array
    heavy_tailed_weights: Array

    @classmethod
    def fit(cls, z: np.ndarray, blocks: list[np.ndarray], learnt: LearntBandwidths) -> "KernelMixture":
        """From all residuals, `(m, k)` each, with what some of them taught. Cost: `b m min(m, 4000)` kernels."""
        beta, lam, eps, sensitivity = learnt.bandwidths
        factors = np.stack([adapted(block, eps, sensitivity) for block in blocks])
        tails = learnt.heavy_tailed_weights
        return cls(EmbeddingWeights.fit(z, beta, lam), np.stack(blocks), np.array(eps), factors, tails)

    def log_density(self, v: Any, z: Any, xp: Any = jnp) -> Any:
        """`log p(v | z)` for residual vectors `(..., n)` and points `(..., D)`, by JAX or NumPy."""
        weights, (number, _, size) = self.weights(z, xp), np.shape(self.residuals)

        def of_block(v, residuals, factors, tails):
            logs = log_kernels(v, residuals, xp.broadcast_to(xp.asarray(self.eps), size), factors, xp)
            return log_defended(logs, weights, v, tails, xp)

        blocks = xp.moveaxis(v.reshape(*v.shape[:-1], number, size), -2, 0)
        parts = blocks, self.residuals, self.factors, self.heavy_tailed_weights
        if xp is np or number == 1:
            return sum(of_block(*(part[i] for part in parts)) for i in range(number))
        return jnp.sum(jax.vmap(of_block)(*map(jnp.asarray, parts)), axis=0)


@register
class ResidualDensity:
    """The fitted density of decorrelated residuals `(n,)` given coordinates `(D,)`.

    Attributes:
        together: Of kernels around vectors of residuals.
        apart: A product of densities of single residuals, with which it is mixed; None where that adds nothing.
        proportion: Mixing proportion of the product, a scalar.
        table: Kernels of single residuals on a grid, for many residuals at a point by NumPy, or None.
    """

    together: KernelMixture
    apart: KernelMixture | None
    proportion: Array
    table: Tabulated | None = None

    def tabulated(self) -> "ResidualDensity":
        """Add a table where it pays, for NumPy."""
        return replace(self, table=Tabulated.of(self.together))

    def log_density(self, v: Any, z: Any, xp: Any = jnp) -> Any:
        """`log p(v | z)` for residual vectors `(..., n)` and points `(..., D)`, by JAX or NumPy."""
        if xp is np and self.table is not None and self.table.serves(v, z):
            together = self.together
            return self.table.log_density(together.weights(z, np), v, together.heavy_tailed_weights[0])
        found = self.together.log_density(v, z, xp)
        if self.apart is None:
            return found
        proportion, apart = xp.asarray(self.proportion), self.apart.log_density(v, z, xp)
        return xp.logaddexp(xp.log1p(-proportion) + found, xp.log(proportion) + apart)
