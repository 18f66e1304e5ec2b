"""A loss with a prior: a parabola about a point of the prior, which decides where the loss is flat."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_kme.losses.base import Expansion, Objective
from numpyro_kme.losses.generator import Generator


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pulled(Objective):
    r"""An objective plus `sum_a precision_a (u_a - z_a)^2 / 2`, `z` a point that each task brings.

    With `z` drawn from the prior anew for each replicate, and the loss counted as a log-likelihood, this is the method of
    "randomise, then optimise": what the loss determines hardly feels the pull, what it leaves open spreads as the prior
    does. For a linear model with normal noise and a normal prior the minimisers are exact posterior draws.

    Args:
        inner: The loss.
        precision: `(p,)`, in units of the loss.
        centre: `(p,)`: the point `z` of tasks that bring none.

    References: Bardsley, Solonen, Haario and Laine (2014), SIAM J. Sci. Comput.; Newton, Polson and Xu (2021), Canadian J. Stat.
    """

    inner: Objective
    precision: Any
    centre: Any

    @property
    def has_cheap_hessian(self) -> bool:  # type: ignore[override]
        """As the inner objective."""
        return self.inner.has_cheap_hessian

    @property
    def generator(self) -> Generator:  # type: ignore[override]
        """The family of laws of the inner objective."""
        return self.inner.generator

    @property
    def data(self):
        """The data of the inner objective."""
        return self.inner.data

    def reduce(self, weights, extra=None):
        """As the inner objective; `extra`, if given, is a pair of extra points and the task's `z (p,)`."""
        points, towards = (None, self.centre) if extra is None else extra
        return self.inner.reduce(weights, points), towards

    def value(self, facts, u, nodes):
        """Loss and parabola."""
        return self.inner.value(facts[0], u, nodes) + self.pull(facts[1], u)

    def slope(self, facts, u, nodes):
        """Both with their gradients."""
        value, gradient = self.inner.slope(facts[0], u, nodes)
        return value + self.pull(facts[1], u), gradient + self.precision * (u - facts[1])

    def expand(self, facts, u, nodes):
        """Both to second order."""
        value, gradient, hessian = self.inner.expand(facts[0], u, nodes)
        force = self.precision * (u - facts[1])
        return Expansion(value + self.pull(facts[1], u), gradient + force, hessian + jnp.diag(self.precision))

    def pull(self, towards, u):
        """The parabola about `towards (p,)`."""
        return 0.5 * jnp.sum(self.precision * jnp.square(u - towards))

    def report(self, facts, u, nodes):
        """As the inner objective."""
        return self.inner.report(facts[0], u, nodes)

    def offsets(self, weights, extra=None):
        """As the inner objective."""
        return self.inner.offsets(weights, None if extra is None else extra[0])

    def place(self, u, least):
        """As the inner objective."""
        return self.inner.place(u, least)

    def smoothed(self):
        """The inner objective smoothed, with the same parabola."""
        return replace(self, inner=self.inner.smoothed())

    def refined(self):
        """The inner objective refined, with the same parabola."""
        return replace(self, inner=self.inner.refined())
