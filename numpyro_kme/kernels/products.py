"""Kernels of inner products, of vectors and of rotation matrices, whose mean embeddings are means and moments."""

from dataclasses import field

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels.base import Batched, OfArrays, OverLengthScale, Signed, check_fields, register
from numpyro_kme.kernels.gram import products, scaled, squared_distances


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
        checks.whole("degree", self.degree, 1)
        check_fields(self, checks.positive, "length_scale")
        check_fields(self, checks.non_negative, "offset")

    def gram(self, x, y=None):
        """Matrix of powers of inner products between `(n, dim)` and `(m, dim)`."""
        return (products(*scaled(x, y, self.length_scale)) + self.offset) ** self.degree


@register
class RotationTrace(OfArrays, Signed):
    r"""Trace kernel `k(A, B) = tr(A B^T)` on rotation matrices `(size, size)`.

    In three dimensions `k = 1 + 2 cos(angle between A and B)`, from -1 to 3; it has no length scale. Its features are
    the matrix entries, so an embedding is a mean matrix.

    References: Fukumizu, Song & Gretton (2013), JMLR 14, section 5.3.
    """

    def gram(self, x, y=None):
        """Matrix of traces between `(n, size, size)` and `(m, size, size)`, as one matrix product."""
        return products(_flat("x", x), _flat("y", x if y is None else y))


@register
class RotationGaussian(OverLengthScale, OfArrays, Batched):
    r"""Gaussian kernel `k(A, B) = exp(-|A - B|_F^2 / (2 l^2))` on rotation matrices `(size, size)`.

    `|A - B|_F^2 = 2 (size - tr(A B^T))`, at most 8 in three dimensions. Unlike `RotationTrace` it is characteristic.

    Args:
        length_scale: `l`, a scalar, in units of the Frobenius norm.
    """

    length_scale: ArrayLike

    def log_gram(self, x, y=None):
        """Matrix of log kernel values between `(n, size, size)` and `(m, size, size)`."""
        apart = squared_distances(_flat("x", x), _flat("y", x if y is None else y))
        return -0.5 * apart / self.length_scale / self.length_scale


def nearest_rotation(matrix: ArrayLike) -> np.ndarray:
    r"""The rotation with the largest `tr(R M^T)`, the nearest to `M` in the Frobenius norm, `(*batch, size, size)`.

    $R = U\, \mathrm{diag}(1, \ldots, 1, \det U V^\top)\, V^\top$ with $M = U S V^\top$; one of several where
    the two least singular values of `M` are equal and its determinant is negative.

    Args:
        matrix: `M`, `(*batch, size, size)`.
    References: Kabsch (1976), Acta Crystallographica A 32.
    """
    shape = np.shape(matrix)
    fits = len(shape) >= 2 and shape[-1] == shape[-2] >= 1
    checks.require(fits, f"`matrix` must have shape (..., size, size); got {shape}.")
    checks.sound("matrix", matrix)
    left, _, right = np.linalg.svd(np.asarray(matrix, np.float64))
    turned = np.sign(np.linalg.det(left @ right))
    left[..., -1] *= turned[..., None]
    return left @ right


def _flat(name, rotations):
    checks.real(name, rotations)
    shape = jnp.shape(rotations)
    fits = len(shape) == 3 and shape[1] == shape[2]
    checks.require(fits, f"`{name}` must hold rotation matrices with shape (count, size, size); got {shape}.")
    return rotations.reshape(shape[0], -1)
