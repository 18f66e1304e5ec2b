"""Doors name the argument that does not fit, and leave everything else as it is."""

import jax
import numpy as np
import pytest

from numpyro_kme._core import door


@door
def halved(x: float, kind: "Missing" = None):  # noqa: F821
    """Has an annotation that nobody can read."""
    return x / 2


@door
def doubled(x: int, by: np.ndarray | None = None):
    return np.asarray(x + by)


def test_an_annotation_that_cannot_be_read_leaves_the_error_as_it_is():
    assert halved(3.0) == 1.5
    with pytest.raises(TypeError, match="unsupported operand"):
        halved("a")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        halved()


def test_the_argument_that_does_not_fit_is_named_and_tracers_pass():
    with pytest.raises(TypeError, match="`by` must be an array of real numbers or None; got 'a'"):
        doubled(1, "a")
    with pytest.raises(TypeError, match="unsupported operand"):  # all fit
        doubled(1, None)
    np.testing.assert_array_equal(jax.jit(halved)(3.0), 1.5)
