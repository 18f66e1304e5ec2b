"""The trace kernel on rotations."""

import jax.numpy as jnp

from numpyro_kme import _checks
from numpyro_kme.kernels.base import Signed, products, register


@register
class RotationTrace(Signed):
    r"""Trace kernel `k(A, B) = tr(A B^T)` on rotation matrices `(size, size)`.

    In three dimensions `k = 1 + 2 cos(angle between A and B)`, from -1 to 3; it has no length scale. Its
    features are the matrix entries, so an embedding is a mean matrix.

    References: Fukumizu, Song & Gretton (2013), JMLR 14, section 5.3.
    """

    def points(self, x):
        """Read arrays `(n, *event)` as they are."""
        return x

    def pair(self, a, b):
        """Trace of `A B^T` for two matrices."""
        return jnp.sum(a * b)

    def gram(self, x, y=None):
        """Matrix of traces between `(n, size, size)` and `(m, size, size)`, as one matrix product."""
        x, y = _flat("x", x), _flat("y", x if y is None else y)
        return products(x, y)


def _flat(name, rotations):
    shape = jnp.shape(rotations)
    _checks.require(
        len(shape) == 3 and shape[1] == shape[2],
        f"`{name}` must hold rotation matrices with shape (count, size, size); got {shape}.",
    )
    return jnp.reshape(rotations, (shape[0], -1))
