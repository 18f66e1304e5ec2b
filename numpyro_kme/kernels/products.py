"""Kernels of inner products, whose mean embeddings are means and moments."""

from dataclasses import field

from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels.base import OverLengthScale, Signed, check_fields, register
from numpyro_kme.kernels.gram import products, scaled


@register
class Linear(OverLengthScale, Signed):
    r"""Linear kernel `k(a, b) = sum_d a_d b_d / l_d^2`; its mean embeddings are means.

    Args:
        length_scale: `l`, a scalar or `(dim,)`, in the units of the data.
    """

    length_scale: ArrayLike = 1.0

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

    def gram(self, x, y=None):
        """Matrix of powers of inner products between `(n, dim)` and `(m, dim)`."""
        return (products(*scaled(x, y, self.length_scale)) + self.offset) ** self.degree
