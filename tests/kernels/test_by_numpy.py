"""Kernels that NumPy evaluates: the values of their programs, in every number of dimensions, and none compiled."""

from functools import partial

import jax
import numpy as np
import pytest

from numpyro_kme import kernels as K
from numpyro_kme.kernels import by_numpy
from numpyro_kme.kernels.base import register

pytestmark = pytest.mark.x64


@register
class Narrower(K.Gaussian):
    def log_profile(self, s):
        return -2.0 * s


KERNELS = [K.Gaussian(0.7), K.Gaussian(0.2) + K.Polynomial(2, 3.0, 0.5)]


@pytest.mark.parametrize(("kernel", "dim"), [(KERNELS[0], 1), (KERNELS[1], 3), (KERNELS[0], 40), (Narrower(0.7), 3)])
def test_values_are_those_of_the_program(kernel, dim, rng, monkeypatch):
    """Far from the origin too, in several blocks, and with points that coincide."""
    monkeypatch.setattr(by_numpy, "ENTRIES", 20)
    x, y = (5000.0 + rng.normal(size=(n, dim)) / dim**0.5 for n in (12, 7))
    y[0] = x[3]
    vectors = rng.normal(size=(7, 2))
    expected, own = jax.jit(lambda k: (k.gram(x, y), k.gram(x)))(kernel)
    close = partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-11)
    close(by_numpy.gram(kernel, x, y), expected)
    close(by_numpy.gram(kernel, x), own)
    close(by_numpy.matvec(kernel, x, y, vectors), expected @ vectors)
    close(by_numpy.diagonal(kernel, x), np.diagonal(own))
    if isinstance(kernel, K.Gaussian):
        assert by_numpy.gram(kernel, x, y)[3, 0] == 1.0


def test_which_numpy_computes():
    assert all(kernel.in_numpy for kernel in (*KERNELS, K.Laplace(1.0), 2.0 * K.Gaussian(1.0) * K.Energy()))
    assert not any(kernel.in_numpy for kernel in (Narrower(1.0), K.Gaussian(1.0) + Narrower(1.0)))


def test_points_that_are_no_table_raise_as_in_the_program():
    with pytest.raises(ValueError, match="`y` must have 2 columns"):
        by_numpy.gram(K.Gaussian(1.0), np.zeros((3, 2)), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="cannot be held"):
        by_numpy.gram(K.Gaussian(1e-300), np.full((2, 1), 1e10))
