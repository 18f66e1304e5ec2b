"""Kernels that grow without bound: the negative distance and what it induces, inner products and their powers."""

from dataclasses import field

import jax.numpy as jnp
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels.base import Kernel, Signed, check_fields, register
from numpyro_kme.kernels.gram import products, safe_sqrt, scaled, scaled_difference, squared_distances


@register
class Energy(Signed):
    r"""Energy kernel `k(a, b) = -|(a - b) / l|_2`, the negative distance.

    Conditionally positive definite: `sum_ij w_i w_j k(x_i, x_j) >= 0` only for weights that sum to 0. That is
    all a squared MMD needs, which is then the energy distance `2 E|X - Y| - E|X - X'| - E|Y - Y'|` over `l`.
    Regression, embeddings of one measure and Cholesky factors need `DistanceInduced`.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    References: Szekely & Rizzo (2013), J. Stat. Plan. Inference 143.
    """

    length_scale: ArrayLike = 1.0

    def __post_init__(self):
        check_fields(self, checks.positive, "length_scale")

    def pair(self, a, b):
        """Negative scaled distance between two vectors `(dim,)`."""
        return -safe_sqrt(jnp.sum(jnp.square(scaled_difference(a, b, self.length_scale))))

    def gram(self, x, y=None):
        """Matrix of negative scaled distances between `(n, dim)` and `(m, dim)`."""
        return -safe_sqrt(squared_distances(*scaled(x, y, self.length_scale)))


@register
class DistanceInduced(Kernel):
    r"""Distance-induced kernel `k(a, b) = |(a - o) / l|_2 + |(b - o) / l|_2 - |(a - b) / l|_2`, not negative.

    The positive definite form of `Energy`. Squared MMDs do not depend on the origin `o` and equal those of
    `Energy` (some texts put 1/2 in front). In one dimension with `o = 0` it is twice the covariance of a
    two-sided Brownian motion.

    Args:
        origin: `o`, `(dim,)` or a scalar, in the units of the data; best near the data.
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    References: Sejdinovic et al. (2013), Ann. Stat. 41.
    """

    origin: ArrayLike = 0.0
    length_scale: ArrayLike = 1.0

    def __post_init__(self):
        check_fields(self, checks.positive, "length_scale")
        check_fields(self, checks.finite, "origin")

    def pair(self, a, b):
        """Kernel value for two vectors `(dim,)`."""
        energy = Energy(self.length_scale).pair
        return jnp.maximum(energy(a, b) - energy(a, self.origin) - energy(b, self.origin), 0.0)

    def gram(self, x, y=None):
        """Matrix of kernel values between `(n, dim)` and `(m, dim)`."""
        y = x if y is None else y
        energy = Energy(self.length_scale)
        origin = jnp.broadcast_to(jnp.asarray(self.origin), (1, jnp.shape(x)[-1]))
        return jnp.maximum(energy.gram(x, y) - energy.gram(x, origin) - energy.gram(origin, y), 0.0)


@register
class Linear(Signed):
    r"""Linear kernel `k(a, b) = sum_d a_d b_d / l_d^2`; its mean embeddings are means.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    """

    length_scale: ArrayLike = 1.0

    def __post_init__(self):
        check_fields(self, checks.positive, "length_scale")

    def pair(self, a, b):
        """Inner product of two scaled vectors `(dim,)`."""
        return jnp.sum((a / self.length_scale) * (b / self.length_scale))

    def gram(self, x, y=None):
        """Matrix of inner products between `(n, dim)` and `(m, dim)`, as one matrix product."""
        return products(*scaled(x, y, self.length_scale))


@register
class Polynomial(Signed):
    r"""Polynomial kernel `k(a, b) = (sum_d a_d b_d / l_d^2 + c)^p`.

    Its mean embeddings are moments up to order `p`.

    Args:
        degree: `p`, a positive integer.
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
        offset: `c >= 0`; 0 keeps the moments of order `p` alone.
    """

    degree: int = field(metadata=dict(static=True))
    length_scale: ArrayLike = 1.0
    offset: ArrayLike = 1.0

    def __post_init__(self):
        checks.require(
            isinstance(self.degree, int) and self.degree >= 1,
            f"`degree` must be a positive integer; got {self.degree!r}.",
        )
        check_fields(self, checks.positive, "length_scale")
        check_fields(self, checks.non_negative, "offset")

    def pair(self, a, b):
        """Power of the inner product of two scaled vectors `(dim,)`."""
        return (jnp.sum((a / self.length_scale) * (b / self.length_scale)) + self.offset) ** self.degree

    def gram(self, x, y=None):
        """Matrix of powers of inner products between `(n, dim)` and `(m, dim)`."""
        return (products(*scaled(x, y, self.length_scale)) + self.offset) ** self.degree
