"""The negative log likelihood as a loss: the weighted likelihood bootstrap."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme.losses.base import Loss, WeightedObjective, join, num_points
from numpyro_kme.losses.generator import Generator


@dataclass(frozen=True)
class NegativeLogLikelihood(Loss):
    """Weighted negative log likelihood `-sum_i w_i log p(x_i | u)`, for models that have a density.

    Efficient where the model is right, and not robust: one far point moves the estimate without bound.

    References: Newton and Raftery (1994), JRSS B 56; Lyddon, Walker and Holmes (2018), NeurIPS.
    """

    def objective(self, data: Any, generator: Generator, extra: Any = None) -> WeightedObjective:
        """Bind to data `(n, ...)`; raises an error if the model has no density."""
        checks.require(
            generator.log_density is not None,
            "NegativeLogLikelihood needs a model with a density; this one can only simulate. Use MMD or Wasserstein.",
        )
        checks.require(num_points(data) >= 2, f"`data` must hold at least two points; got {num_points(data)}.")
        for leaf in jax.tree.leaves(data):
            checks.finite("data", leaf)
        return LikelihoodObjective(generator, jax.tree.map(np.asarray, data))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LikelihoodObjective(WeightedObjective):
    """A weighted negative log likelihood, bound to data."""

    generator: Generator
    data: Any

    def reduce(self, weights, extra=None):
        """Join the points and keep the weights."""
        return join(self.data, extra), weights

    def value(self, reduced, u, nodes):
        """Weighted negative log likelihood at `u`; the nodes play no part."""
        data, weights = reduced
        assert self.generator.log_density is not None
        return -jnp.vdot(weights, self.generator.log_density(u, data))
