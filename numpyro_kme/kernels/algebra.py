"""Kernels made of kernels: sums, products, multiples, mixtures over length scales; inner products and their powers."""

import functools
from collections.abc import Callable
from dataclasses import field
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels.base import Kernel, OverLengthScale, Signed, check_fields, register
from numpyro_kme.kernels.gram import products, scaled, squared_distances
from numpyro_kme.kernels.stationary import Gaussian


@register
class _Joined(Kernel):
    """Kernels on the same points joined by one operation, which has its counterpart for their logarithms."""

    kernels: tuple[Kernel, ...]
    join: ClassVar[Callable]
    join_logs: ClassVar[Callable]

    def __post_init__(self):
        checks.require(
            isinstance(self.kernels, tuple)
            and len(self.kernels) > 0
            and all(isinstance(k, Kernel) for k in self.kernels),
            f"`kernels` of {type(self).__name__} must be a tuple of at least one kernel; got {self.kernels!r}.",
            TypeError,
        )

    @property
    def any_length(self) -> bool:  # type: ignore[override]
        """Whether all members take arrays of any length."""
        return all(k.any_length for k in self.kernels)

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        """Whether all parts are."""
        return all(k.symmetric for k in self.kernels)

    def points(self, x):
        """As the first member reads arrays; all members get the same points."""
        return self.kernels[0].points(x)

    def pair(self, a, b):
        """The members' values, joined."""
        return functools.reduce(self.join, [k.pair(a, b) for k in self.kernels])

    def log_pair(self, a, b):
        """The members' logarithms, joined."""
        return functools.reduce(self.join_logs, [k.log_pair(a, b) for k in self.kernels])

    def gram(self, x, y=None):
        """The members' Gram matrices, joined."""
        return functools.reduce(self.join, [k.gram(x, y) for k in self.kernels])

    def log_gram(self, x, y=None):
        """The members' log Gram matrices, joined."""
        return functools.reduce(self.join_logs, [k.log_gram(x, y) for k in self.kernels])

    def diagonal(self, x):
        """The members' diagonals, joined."""
        return functools.reduce(self.join, [k.diagonal(x) for k in self.kernels])


@register
class Sum(_Joined):
    r"""Sum `k(a, b) = sum_i k_i(a, b)`; also written `k1 + k2`.

    Args:
        kernels: A tuple of kernels on the same points.
    """

    join = staticmethod(jnp.add)
    join_logs = staticmethod(jnp.logaddexp)

    def log_integral(self, dim):
        """Logarithm of the sum of the members' integrals."""
        return functools.reduce(jnp.logaddexp, [k.log_integral(dim) for k in self.kernels])


@register
class Product(_Joined):
    r"""Product `k(a, b) = prod_i k_i(a, b)`; also written `k1 * k2`.

    Args:
        kernels: A tuple of kernels on the same points.
    """

    join = staticmethod(jnp.multiply)
    join_logs = staticmethod(jnp.add)

    def log_integral(self, dim):
        """For Gaussian members that of the kernel with `1 / l^2 = sum_i 1 / l_i^2`; otherwise raises."""
        if not all(isinstance(k, Gaussian) for k in self.kernels):
            return super().log_integral(dim)
        precisions = [jnp.square(1.0 / jnp.asarray(k.length_scale)) for k in self.kernels]
        return Gaussian(jax.lax.rsqrt(functools.reduce(jnp.add, precisions))).log_integral(dim)


@register
class Scaled(Kernel):
    r"""Multiple `k(a, b) = c k_1(a, b)`; also written `c * k1`.

    Args:
        kernel: `k_1`.
        scale: `c`, positive.
    """

    kernel: Kernel
    scale: ArrayLike

    def __post_init__(self):
        check_fields(self, checks.positive, "scale")

    @property
    def any_length(self) -> bool:  # type: ignore[override]
        """Whether `k_1` takes arrays of any length."""
        return self.kernel.any_length

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        """Whether the kernel is."""
        return self.kernel.symmetric

    def points(self, x):
        """As `k_1` reads arrays."""
        return self.kernel.points(x)

    def pair(self, a, b):
        """Scaled value."""
        return self.scale * self.kernel.pair(a, b)

    def log_pair(self, a, b):
        """`log c + log k_1(a, b)`."""
        return jnp.log(self.scale) + self.kernel.log_pair(a, b)

    def gram(self, x, y=None):
        """Scaled Gram matrix."""
        return self.scale * self.kernel.gram(x, y)

    def log_gram(self, x, y=None):
        """`log c` plus the log Gram matrix."""
        return jnp.log(self.scale) + self.kernel.log_gram(x, y)

    def diagonal(self, x):
        """Scaled diagonal."""
        return self.scale * self.kernel.diagonal(x)

    def log_integral(self, dim):
        """`log c` plus that of `k_1`."""
        return jnp.log(self.scale) + self.kernel.log_integral(dim)


@register
class GaussianScaleMixture(Kernel):
    r"""Sum of Gaussian kernels over length scales, `k(a, b) = sum_i w_i exp(-|a - b|^2 / (2 l_i^2))`.

    It sees differences at every scale listed, where one length scale would miss those far below and above it.
    With the default weights, all 1, `k(a, a)` is the number of length scales. One pass computes the distances
    for all of them.

    Args:
        length_scales: `(count,)`, `l_i`, each shared by all dimensions, in the units of the data.
        weights: `(count,)`, `w_i`, positive; all 1 when left out.
    """

    length_scales: ArrayLike
    weights: ArrayLike | None = None

    def __post_init__(self):
        check_fields(self, checks.positive, "length_scales")
        shape = jnp.shape(self.length_scales)
        checks.require(
            len(shape) == 1 and shape[0] > 0,
            f"`length_scales` must have shape (count,); got shape {shape}. Add Gaussian kernels for length "
            "scales per dimension.",
        )
        if self.weights is not None:
            check_fields(self, checks.positive, "weights")
            checks.shaped("weights", self.weights, shape, "per length scale")

    def _members(self) -> list[tuple[jax.Array, jax.Array]]:
        scales = jnp.asarray(self.length_scales)
        weights = jnp.ones_like(scales) if self.weights is None else jnp.asarray(self.weights)
        return [(weights[i], scales[i]) for i in range(scales.shape[0])]

    def _values(self, s):
        return functools.reduce(jnp.add, [w * jnp.exp(-0.5 * s / jnp.square(l)) for w, l in self._members()])

    def _log_values(self, s):
        return functools.reduce(jnp.logaddexp, [jnp.log(w) - 0.5 * s / jnp.square(l) for w, l in self._members()])

    def pair(self, a, b):
        """Sum of the Gaussian kernels' values for one pair of vectors `(dim,)`."""
        return self._values(jnp.sum(jnp.square(a - b)))

    def log_pair(self, a, b):
        """Logarithm of the sum, that does not underflow."""
        return self._log_values(jnp.sum(jnp.square(a - b)))

    def gram(self, x, y=None):
        """Matrix of kernel values between `(n, dim)` and `(m, dim)`."""
        return self._values(squared_distances(*scaled(x, y, 1.0)))

    def log_gram(self, x, y=None):
        """Matrix of log kernel values between `(n, dim)` and `(m, dim)`."""
        return self._log_values(squared_distances(*scaled(x, y, 1.0)))

    def log_integral(self, dim):
        """`log sum_i w_i (2 pi)^(dim/2) l_i^dim`."""
        return functools.reduce(jnp.logaddexp, [jnp.log(w) + Gaussian(l).log_integral(dim) for w, l in self._members()])


@register
class Linear(OverLengthScale, Signed):
    r"""Linear kernel `k(a, b) = sum_d a_d b_d / l_d^2`; its mean embeddings are means.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    """

    length_scale: ArrayLike = 1.0

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
