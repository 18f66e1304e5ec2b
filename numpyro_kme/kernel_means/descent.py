"""Minimising a function of a small pytree: L-BFGS-B with bounds, on a jitted value and gradient."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from scipy.optimize import minimize

from numpyro_kme import _linalg

ENOUGH = 1e-4
"""Relative decrease of the value below which the search ends."""

Tree = TypeVar("Tree")

FAILED = 1e10
"""Value given to points where a factorisation fails, so that the line search steps back."""


def descend(
    value_and_gradient: Callable[..., tuple[Any, Any]],
    start: Tree,
    bounds: tuple[Tree, Tree],
    steps: int,
    *args: Any,
) -> Tree:
    """Minimise `value_and_gradient(tree, *args)[0]` over a pytree of NumPy arrays, from `start`, in float64.

    Args:
        value_and_gradient: The gradient has the structure of `start`.
        start: Where to begin; moved inside the bounds.
        bounds: Lowest and highest values, of the same structure.
        steps: Number of iterations.
        *args: Further arguments.
    """
    _, structure = jax.tree.flatten(start)
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(start)]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def unpack(vector):
        pieces = np.split(vector, ends[:-1])
        return structure.unflatten([piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)])

    def loss(vector):
        value, gradient = value_and_gradient(unpack(vector), *args)
        value, slope = float(value), _pack(gradient)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return FAILED, np.zeros_like(slope)
        return value, slope

    lower, upper = _pack(bounds[0]), _pack(bounds[1])
    with _linalg.float64():
        found = minimize(
            loss,
            np.clip(_pack(start), lower, upper),
            jac=True,
            method="L-BFGS-B",
            bounds=np.stack([lower, upper], axis=1),
            options=dict(maxiter=steps, maxfun=steps + steps // 2 + 2, ftol=ENOUGH),
        )
    return unpack(found.x)


def _pack(tree) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])
