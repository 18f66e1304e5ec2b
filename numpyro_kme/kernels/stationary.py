"""Kernels that are functions of the scaled distance `r = |(a - b) / length_scale|_2`: stationary, energy."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels.base import Kernel, OverLengthScale, Signed, check_fields, register
from numpyro_kme.kernels.gram import distances, safe_sqrt, scaled, scaled_difference, squared_distances


@register
class Stationary(OverLengthScale, Kernel):
    """A kernel `exp(g(s))` of the squared scaled distance `s = |(a - b) / length_scale|_2^2`.

    `length_scale` is a scalar, or `(dim,)` for one length scale per dimension, in the units of the data.
    A family implements `log_profile`, the function `g`, with finite gradients at `s = 0`.
    """

    length_scale: ArrayLike

    def log_profile(self, s: jax.Array) -> jax.Array:
        """Logarithm of the kernel as a function of the squared scaled distance."""
        raise NotImplementedError

    def log_pair(self, a, b):
        """Logarithm of the kernel for one pair of vectors `(dim,)`."""
        return self.log_profile(_finite(jnp.sum(jnp.square(scaled_difference(a, b, self.length_scale)))))

    def log_gram(self, x, y=None):
        """Matrix of log kernel values between `(n, dim)` and `(m, dim)`; no `(n, m, dim)` temporary."""
        return self.log_profile(_finite(squared_distances(*scaled(x, y, self.length_scale))))

    def log_volume(self, dim: int) -> jax.Array:
        """Logarithm of the product of the `dim` length scales."""
        return jnp.sum(jnp.log(jnp.broadcast_to(jnp.asarray(self.length_scale), (dim,))))


@register
class Gaussian(Stationary):
    r"""Gaussian kernel `k(a, b) = exp(-1/2 sum_d (a_d - b_d)^2 / l_d^2)`.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    """

    def log_profile(self, s):
        """`g(s) = -s / 2`."""
        return -0.5 * s

    def log_integral(self, dim):
        """`dim/2 log(2 pi) + sum_d log l_d`."""
        return 0.5 * dim * jnp.log(2.0 * jnp.pi) + self.log_volume(dim)


class _Matern(Stationary):
    """A Matern kernel, whose integral is its spectral density at frequency 0."""

    order: ClassVar[float]

    def log_integral(self, dim):
        """`dim log 2 + dim/2 log(pi / (2 nu)) + log Gamma(nu + dim/2) - log Gamma(nu) + sum_d log l_d`, order `nu`."""
        nu = self.order
        of_unit = dim * jnp.log(2.0) + 0.5 * dim * jnp.log(jnp.pi / (2.0 * nu)) + gammaln(nu + 0.5 * dim) - gammaln(nu)
        return of_unit + self.log_volume(dim)


@register
class Laplace(_Matern):
    r"""Laplace kernel `k(a, b) = exp(-r)`, `r = |(a - b) / l|_2`.

    The Matern kernel of order 1/2, also named `Matern12`. The distance is Euclidean, as in every kernel here
    (some libraries give this name to the city-block distance). The kernel has a kink at `r = 0`; its gradient
    there is taken to be 0.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    """

    order = 0.5

    def log_profile(self, s):
        """`g(s) = -sqrt(s)`."""
        return -safe_sqrt(s)


Matern12 = Laplace


@register
class Matern32(_Matern):
    r"""Matern kernel of order 3/2, `k(a, b) = (1 + sqrt(3) r) exp(-sqrt(3) r)`, `r = |(a - b) / l|_2`.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    """

    order = 1.5

    def log_profile(self, s):
        """`g(s) = log(1 + u) - u`, `u = sqrt(3 s)`."""
        return _log_matern32(s)


@register
class Matern52(_Matern):
    r"""Matern kernel of order 5/2, `k(a, b) = (1 + u + u^2 / 3) exp(-u)`, `u = sqrt(5) |(a - b) / l|_2`.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    """

    order = 2.5

    def log_profile(self, s):
        """`g(s) = log(1 + u + u^2 / 3) - u`, `u = sqrt(5 s)`."""
        return _log_matern52(s)


@register
class InverseMultiquadric(Stationary):
    r"""Inverse multiquadric kernel `k(a, b) = (1 + |(a - b) / l|_2^2)^(-1/2)`.

    Heavy tails, without a finite integral.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    """

    def log_profile(self, s):
        """`g(s) = -log(1 + s) / 2`."""
        return -0.5 * jnp.log1p(s)


@register
class RationalQuadratic(Stationary):
    r"""Rational quadratic kernel `k(a, b) = (1 + s / (2 alpha))^-alpha`, `s = |(a - b) / l|_2^2`.

    A mixture of Gaussian kernels over length scales; the Gaussian kernel as `alpha` grows.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
        alpha: Shape, positive; smaller is heavier-tailed.
    """

    alpha: ArrayLike = 1.0

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, checks.positive, "alpha")

    def log_profile(self, s):
        """`g(s) = -alpha log(1 + s / (2 alpha))`."""
        return -self.alpha * jnp.log1p(s / (2.0 * self.alpha))

    def log_integral(self, dim):
        """`dim/2 log(2 pi alpha) + log Gamma(alpha - dim/2) - log Gamma(alpha) + sum_d log l_d`.

        Finite for `alpha > dim/2`. A traced `alpha` that is too small gives infinity, the value of the
        integral.
        """
        if checks.is_concrete(self.alpha):
            checks.require(
                bool(np.all(np.asarray(self.alpha) > dim / 2)),
                f"RationalQuadratic is a density over {dim} dimensions only for `alpha` above {dim / 2}; "
                f"got {self.alpha}. Raise `alpha`.",
            )
        alpha = jnp.asarray(self.alpha)
        excess = alpha - dim / 2
        safe = jnp.where(excess > 0, excess, 1.0)
        value = 0.5 * dim * jnp.log(2.0 * jnp.pi * alpha) + gammaln(safe) - gammaln(alpha) + self.log_volume(dim)
        return jnp.where(excess > 0, value, jnp.inf)


@register
class Energy(OverLengthScale, Signed):
    r"""Energy kernel `k(a, b) = -|(a - b) / l|_2`, the negative distance.

    Conditionally positive definite: `sum_ij w_i w_j k(x_i, x_j) >= 0` only for weights that sum to 0. That is
    all a squared MMD needs, which is then the energy distance `2 E|X - Y| - E|X - X'| - E|Y - Y'|` over `l`.
    Regression, embeddings of one measure and Cholesky factors need `DistanceInduced`.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    References: Szekely & Rizzo (2013), J. Stat. Plan. Inference 143.
    """

    length_scale: ArrayLike = 1.0

    def pair(self, a, b):
        """Negative scaled distance between two vectors `(dim,)`."""
        return -safe_sqrt(jnp.sum(jnp.square(scaled_difference(a, b, self.length_scale))))

    def gram(self, x, y=None):
        """Matrix of negative scaled distances between `(n, dim)` and `(m, dim)`."""
        return -distances(*scaled(x, y, self.length_scale))


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


def _finite(s: jax.Array) -> jax.Array:
    """Squared distances that a profile can take: where they overflow, points are as far apart as can be."""
    return jnp.minimum(s, 0.1 * jnp.finfo(s.dtype).max)


@jax.custom_jvp
def _log_matern32(s: jax.Array) -> jax.Array:
    u = safe_sqrt(3.0 * s)
    return jnp.log1p(u) - u


@jax.custom_jvp
def _log_matern52(s: jax.Array) -> jax.Array:
    u = safe_sqrt(5.0 * s)
    return jnp.log1p(u + 5.0 / 3.0 * s) - u


def _slope_of_log_matern52(s: jax.Array) -> jax.Array:
    u = safe_sqrt(5.0 * s)
    return -5.0 / 6.0 * (1.0 + u) / (1.0 + u + 5.0 / 3.0 * s)


# exact at s = 0, where the chain rule is 0 / 0
_log_matern32.defjvps(lambda ds, value, s: -1.5 / (1.0 + safe_sqrt(3.0 * s)) * ds)
_log_matern52.defjvps(lambda ds, value, s: _slope_of_log_matern52(s) * ds)
