"""A density of residuals that is a product: of each by itself, given the coordinates."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.mixture import log_defended, log_kernels_at
from numpyro_kme.likelihoods.residual.weights import EmbeddingWeights


@register
class ProductDensity:
    r"""Densities of single residuals given coordinates `(D,)`, each a mixture as `ResidualDensity` is of all together.

    $\prod_i \big( (1 - w_i) \sum_j a_j(z) N(v_i \mid \sqrt{1 - \epsilon_i^2} r_{ji}, (\epsilon_i s_{ji})^2) + w_i
    p_0(v_i) \big)$: kernels around single residuals can be narrow where those around vectors of many have to be wide.
    They share the weights.

    Attributes:
        weights: `a`, of `m` simulations.
        residuals: Their held-out decorrelated residuals, `(m, n)`.
        eps: Bandwidths, `(n,)`.
        factors: Local bandwidth factors `s`, `(m, n)`.
        heavy_tailed_weights: `w`, `(n,)`.
        proportion: Mixing proportion `pi` of the product, beside the density of all together, a scalar.
    """

    weights: EmbeddingWeights
    residuals: Array
    eps: Array
    factors: Array
    heavy_tailed_weights: Array
    proportion: Array

    @property
    def told(self) -> str:
        """What a person reads."""
        weight = f"{float(self.proportion):.0%}"
        return f"each by itself, a product of their densities, in a mixture with weight {weight}"

    def trimmed(self) -> "ProductDensity":
        """For NumPy: with weights that it evaluates fast."""
        return replace(self, weights=self.weights.trimmed())

    def log_density(self, v: Any, z: Any, xp: Any) -> Any:
        """As `ResidualDensity.log_density`. Cost: `n` kernels and exponentials for each simulation."""
        weights = self.weights(z, xp)

        def alone(v, residuals, eps, factors, tail_weight):
            v = v[..., None]
            logs = log_kernels_at(v, residuals[:, None], eps[None], factors, xp)
            return log_defended(logs, weights, v, tail_weight, xp)

        parts = xp.moveaxis(v, -1, 0), self.residuals.T, self.eps, self.factors.T, self.heavy_tailed_weights
        if xp is np:
            return np.sum([alone(*part) for part in zip(*parts)], axis=0)
        return jnp.sum(jax.vmap(alone)(*map(jnp.asarray, parts)), axis=0)

    def beside(self, together: Any, v: Any, z: Any, xp: Any) -> Any:
        """Log of the mixture with a density of all residuals together, of which the log density is given."""
        proportion, alone = xp.asarray(self.proportion), self.log_density(v, z, xp)
        return xp.logaddexp(xp.log1p(-proportion) + together, xp.log(proportion) + alone)
