"""Derivatives by large finite differences with common random numbers, for simulators whose output jumps."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_kme.losses import mixing
from numpyro_kme.losses.base import EmbeddingObjective, TaylorExpansion, WeightedObjective
from numpyro_kme.losses.generator import Generator


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Differenced(WeightedObjective):
    r"""An objective whose derivatives are central differences with the same noise at every point.

    Where simulated points jump from one regime to another, or are counts, the derivative of a point is not that of the
    distribution; a difference over a step in which many points jump is. For embeddings, the derivative
    `J_a = (mu_{u + s_a} - mu_{u - s_a}) / (2 s_a)` lies in the kernel's space, and the Hessian is that of Gauss and
    Newton, `2 <J_a, J_b>`, plus the second differences on its diagonal. Other losses are differenced themselves.

    Args:
        inner: What to differentiate.
        steps: `(p,)`, of the order of a posterior standard deviation.

    Cost: `2 p + 1` simulations of all nodes a gradient.
    """

    inner: WeightedObjective
    steps: Any

    @property
    def generator(self) -> Generator:  # type: ignore[override]
        """The simulator of the inner objective."""
        return self.inner.generator

    @property
    def data(self):
        """The data of the inner objective."""
        return self.inner.data

    def reduce(self, weights, extra=None):
        """As the inner objective."""
        return self.inner.reduce(weights, extra)

    def value(self, reduced, u, nodes):
        """As the inner objective."""
        return self.inner.value(reduced, u, nodes)

    def report(self, reduced, u, nodes):
        """As the inner objective."""
        return self.inner.report(reduced, u, nodes)

    def offsets(self, weights, extra=None):
        """As the inner objective."""
        return self.inner.offsets(weights, extra)

    def adapt_nodes(self, u, least):
        """As the inner objective."""
        return self.inner.adapt_nodes(u, least)

    def smoothed(self):
        """The inner objective smoothed, with the same steps."""
        return Differenced(self.inner.smoothed(), self.steps)

    def refined(self):
        """The inner objective refined, with the same steps."""
        return Differenced(self.inner.refined(), self.steps)

    def slope(self, reduced, u, nodes):
        """Loss, and its central differences."""
        values = jax.lax.map(lambda t: self.inner.value(reduced, t, nodes), self._around(u))
        dim = len(self.steps)
        return values[0], (values[1 : 1 + dim] - values[1 + dim :]) / (2.0 * self.steps)

    def expand(self, reduced, u, nodes):
        """Loss, central differences, and an approximate Hessian."""
        if not isinstance(self.inner, EmbeddingObjective):
            return self._second_differences(reduced, u, nodes)
        points = jax.lax.map(lambda t: self.generator.points(t, nodes), self._around(u))
        own, cross, norm = self.inner.gram(reduced, points, nodes)
        dim = len(self.steps)
        pick = jnp.concatenate([jnp.zeros((dim, 1)), jnp.eye(dim), -jnp.eye(dim)], axis=1)
        first = pick / (2.0 * self.steps[:, None])
        second = jnp.abs(pick).at[:, 0].set(-2.0) / jnp.square(self.steps[:, None])
        value, by, by_by = mixing.derivatives(own[0, 0], cross[0], self.inner.fit_proportion)
        steps = jnp.stack([2.0 * first @ own[:, 0], first @ cross])
        curved = second @ (2.0 * by[0] * own[:, 0] + by[1] * cross)
        hessian = 2.0 * by[0] * first @ own @ first.T + steps.T @ by_by @ steps + jnp.diag(curved)
        return TaylorExpansion(value + norm, self.slope(reduced, u, nodes)[1], hessian)

    def _around(self, u):
        """Rows `u`, `u + s_a e_a`, `u - s_a e_a`."""
        return u[None] + jnp.concatenate([jnp.zeros((1, len(u))), jnp.diag(self.steps), -jnp.diag(self.steps)])

    def _second_differences(self, reduced, u, nodes):
        value, gradient = self.slope(reduced, u, nodes)
        sides = jax.lax.map(lambda t: self.slope(reduced, t, nodes)[1], self._around(u)[1:])
        dim = len(self.steps)
        hessian = (sides[:dim] - sides[dim:]) / (2.0 * self.steps[:, None])
        return TaylorExpansion(value, gradient, 0.5 * (hessian + hessian.T))
