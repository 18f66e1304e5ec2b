r"""The simulated region: the parameters that a likelihood was learnt from, in its coordinates, and distances from it.

The region is the box of the simulated coordinates. A point `z` is outside by a distance in which each coordinate
counts as much as the likelihood depends on it,

$$ r(z) = \Big( \sum_d g_d (z_d - \tilde z_d)^2 \Big)^{1/2}, $$

with the nearest point `z~` of the box and weights `g`, such as the information of the statistics about the coordinates.
A point is beyond the simulated parameters where `r` is larger than that of every simulation outside the box of the
others: with probability of about `1 / (m + 1)` for a further simulation, in any number of dimensions.
"""

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register

SOFT = 0.02
"""Beyond the box points are followed by no more than this fraction of its width."""


@register
class Region:
    """Which coordinates were simulated, a value.

    Attributes:
        low, high: Smallest and largest coordinates, `(D,)`.
        weights: `g`, `(D,)`.
        limit: Largest `r` of a simulation outside the box of the others.
    """

    low: Array
    high: Array
    weights: Array
    limit: Array

    @classmethod
    def of(cls, z: np.ndarray, weights: np.ndarray) -> "Region":
        """The region of coordinates `(m, D)`."""
        ranked = np.sort(z, axis=0)
        outside = np.maximum(z - ranked[-2], 0.0) + np.maximum(ranked[1] - z, 0.0)
        limit = np.sqrt(np.max(np.square(outside) @ weights))
        return cls(ranked[0], ranked[-1], np.asarray(weights), limit)

    def distance(self, z: np.ndarray) -> np.ndarray:
        """`r(z)` of points `(..., D)`, on the host."""
        return np.sqrt(np.square(z - np.clip(z, self.low, self.high)) @ self.weights)

    def beyond(self, z: np.ndarray) -> np.ndarray:
        """Whether points `(..., D)` are farther outside than every simulation is of the others."""
        return self.distance(z) > self.limit

    def nearest(self, z: jax.Array) -> jax.Array:
        """`z~` for one point `(D,)`: itself in the box, and smoothly about the nearest point of the box outside."""
        low, high = (jnp.asarray(end).astype(z.dtype) for end in (self.low, self.high))
        inside, step = jnp.clip(z, low, high), SOFT * (high - low)
        return inside + step * jnp.tanh((z - inside) / step)
