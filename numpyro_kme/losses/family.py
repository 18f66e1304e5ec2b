"""A model of one data point as a family of distributions, and the nodes that stand for the noise of its simulator."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_kme._core.display import shown
from numpyro_kme.kernels.base import register


@shown
class Nodes(NamedTuple):
    """Noise values of simulated points, all with the same weight.

    Attributes:
        noise: Keys or noise values, `(M, ...)`.
        rows: With covariates, the data point whose covariates each node has, `(M,)`.
    """

    noise: Any
    rows: Any = None


@register
class Family:
    """The distributions `P_u` of one data point.

    Args:
        simulate: `(u, noise) -> one data point`, or with covariates `(u, noise, i) -> one response`, `i` the number of
            the data point whose covariates are used; traceable. `u` is a vector `(dim,)`.
        dim: Number of parameters.
        log_density: `(u, data points (m, ...)) -> log p(x_i | u), (m,)`, for `NegativeLogLikelihood`.
        covariates: Given values `(n, ...)`, one for each data point, or nothing. With covariates data points and
            simulated points are pairs `(covariate, response)`.
    """

    simulate: Callable = field(metadata=dict(static=True))
    dim: int = field(metadata=dict(static=True))
    log_density: Callable | None = field(default=None, metadata=dict(static=True))
    covariates: Any = None

    def points(self, u: Any, nodes: Nodes) -> Any:
        """Simulate `(M, ...)` points at the nodes; with covariates, pairs of a covariate and a response."""
        if self.covariates is None:
            return jax.vmap(lambda noise: self.simulate(u, noise))(nodes.noise)
        given = jax.tree.map(lambda leaf: jnp.asarray(leaf)[nodes.rows], self.covariates)
        return given, jax.vmap(lambda noise, row: self.simulate(u, noise, row))(nodes.noise, nodes.rows)

    def weights(self, nodes: Nodes, data_weights: Any) -> jax.Array:
        """Weights `(M,)` of the simulated points; with covariates, those of the data, divided among nodes."""
        num = len(jax.tree.leaves(nodes.noise)[0])
        if nodes.rows is None:
            return jnp.full(num, 1.0 / num, jnp.result_type(float))
        weights = jnp.asarray(data_weights)[nodes.rows]
        return weights / jnp.sum(weights)


def vectors(points: Any) -> Any:
    """Make points of scalars `(n,)` into vectors `(n, 1)`, leaf by leaf."""
    return jax.tree.map(lambda leaf: leaf[:, None] if leaf.ndim == 1 else leaf, points)
