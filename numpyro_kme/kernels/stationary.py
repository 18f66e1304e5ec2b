"""Kernels that are functions of the scaled distance `r = |(a - b) / length_scale|_2`: stationary, energy."""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy.special import gammaln

from numpyro_kme._core import checks
from numpyro_kme.kernels.base import Batched, OverLengthScale, Scaled, Signed, Sum, check_fields, namespace, register
from numpyro_kme.kernels.gram import safe_sqrt, scaled, squared_distances


@register
class Stationary(OverLengthScale, Batched):
    """A kernel `exp(g(s))` of the squared scaled distance `s = |(a - b) / length_scale|_2^2`.

    `length_scale` is a scalar, or `(dim,)` for one length scale per dimension, in the units of the data.
    A family implements `log_profile`, the function `g`, with finite gradients at `s = 0`.
    """

    length_scale: ArrayLike

    def log_profile(self, s: jax.Array) -> jax.Array:
        """Logarithm of the kernel as a function of the squared scaled distance."""
        raise NotImplementedError

    def log_gram(self, x, y=None):
        """Matrix of log kernel values between `(n, dim)` and `(m, dim)`; no `(n, m, dim)` temporary."""
        return self.log_profile(_finite(squared_distances(*scaled(x, y, self.length_scale))))

    def diagonal(self, x):
        """Values at distance 0, `(n,)`."""
        xp = namespace(self, x)
        return xp.exp(self.log_profile(xp.zeros(len(x), xp.result_type(x, 1.0))))

    def log_volume(self, dim: int) -> jax.Array:
        """Logarithm of the product of the `dim` length scales."""
        xp = namespace(self.length_scale)
        return xp.sum(xp.log(xp.broadcast_to(xp.asarray(self.length_scale), (dim,))))


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
        return 0.5 * dim * np.log(2.0 * np.pi) + self.log_volume(dim)


class _Matern(Stationary):
    """A Matern kernel, whose integral is its spectral density at frequency 0."""

    order: ClassVar[float]

    def log_integral(self, dim):
        """`dim log 2 + dim/2 log(pi / (2 nu)) + log Gamma(nu + dim/2) - log Gamma(nu) + sum_d log l_d`, order `nu`."""
        nu = self.order
        of_unit = dim * np.log(2.0) + 0.5 * dim * np.log(np.pi / (2.0 * nu)) + gammaln(nu + 0.5 * dim) - gammaln(nu)
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


def _with_slope(slope: Callable) -> Callable:
    """Give a profile its derivative, which is exact at `s = 0`, where the chain rule is 0 / 0; a decorator."""

    def decorate(profile: Callable) -> Callable:
        known = jax.custom_jvp(profile)
        known.defjvps(lambda ds, value, s: slope(s) * ds)
        return lambda s: known(s) if isinstance(s, jax.Array) else profile(s)

    return decorate


@_with_slope(lambda s: -1.5 / (1.0 + safe_sqrt(3.0 * s)))
def _log_matern32(s):
    u = safe_sqrt(3.0 * s)
    return namespace(s).log1p(u) - u


@_with_slope(lambda s: -5.0 / 6.0 * (1.0 + safe_sqrt(5.0 * s)) / (1.0 + safe_sqrt(5.0 * s) + 5.0 / 3.0 * s))
def _log_matern52(s):
    u = safe_sqrt(5.0 * s)
    return namespace(s).log1p(u + 5.0 / 3.0 * s) - u


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
        return -0.5 * namespace(s).log1p(s)


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
        return -self.alpha * namespace(self, s).log1p(s / (2.0 * self.alpha))

    def log_integral(self, dim):
        """`dim/2 log(2 pi alpha) + log Gamma(alpha - dim/2) - log Gamma(alpha) + sum_d log l_d`.

        Finite for `alpha > dim/2`. A traced `alpha` that is too small gives infinity, the value of the
        integral.
        """
        if checks.is_concrete(self.alpha):
            checks.require(
                bool(np.all(np.asarray(self.alpha) > dim / 2)),
                f"RationalQuadratic has an integral only for `alpha` above {dim / 2}; got {self.alpha}. Raise `alpha`.",
            )
        alpha = jnp.asarray(self.alpha)
        excess = alpha - dim / 2
        log_ratio = jax.scipy.special.gammaln(jnp.where(excess > 0, excess, 1.0)) - jax.scipy.special.gammaln(alpha)
        value = 0.5 * dim * jnp.log(2.0 * jnp.pi * alpha) + log_ratio + self.log_volume(dim)
        return jnp.where(excess > 0, value, jnp.inf)


def GaussianScaleMixture(length_scales: ArrayLike, weights: ArrayLike | None = None) -> Sum:
    r"""Sum of Gaussian kernels over length scales, `k(a, b) = sum_i w_i exp(-|a - b|^2 / (2 l_i^2))`.

    It sees differences at every scale listed, where one length scale would miss those far below and above it.
    With the default weights, all 1, `k(a, a)` is the number of length scales.

    Args:
        length_scales: `(count,)`, `l_i`, each shared by all dimensions, in the units of the data.
        weights: `(count,)`, `w_i`, positive; all 1 when left out.
    """
    scales = length_scales if isinstance(length_scales, jax.Array) else np.asarray(length_scales, np.float64)
    weights = np.ones(scales.shape) if weights is None else weights
    weights = weights if isinstance(weights, jax.Array) else np.asarray(weights, np.float64)
    checks.positive("length_scales", scales)
    checks.require(
        scales.ndim == 1 and len(scales) > 0,
        f"`length_scales` must have shape (count,); got shape {scales.shape}. For one per dimension, add kernels.",
    )
    checks.shaped("weights", weights, scales.shape, "per length scale")
    return Sum(tuple(Scaled(Gaussian(scale), weight) for scale, weight in zip(scales, weights)))


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

    def gram(self, x, y=None):
        """Matrix of negative scaled distances between `(n, dim)` and `(m, dim)`."""
        return -safe_sqrt(_finite(squared_distances(*scaled(x, y, self.length_scale))))


@register
class DistanceInduced(Batched):
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
        check_fields(self, checks.sound, "origin")

    def gram(self, x, y=None):
        """Matrix of kernel values between `(n, dim)` and `(m, dim)`."""
        energy, xp = Energy(self.length_scale).gram, namespace(self, x, y)
        origin = xp.broadcast_to(xp.asarray(self.origin), (1, jnp.shape(x)[-1]))
        return xp.maximum(energy(x, y) - energy(x, origin) - energy(origin, x if y is None else y), 0.0)


def _finite(s: jax.Array) -> jax.Array:
    """Squared distances that a profile can take: where they overflow, points are as far apart as can be."""
    xp = namespace(s)
    return xp.minimum(s, 0.1 * xp.finfo(s.dtype).max)
