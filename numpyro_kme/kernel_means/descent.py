"""Minimising a function of a small pytree: BFGS in a box, from curvatures that are known about."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from numpyro_kme import _linalg

ENOUGH = 0.03
"""Decrease of the value, in nats, below which the search ends, and of what the next step promises."""

LONGEST = 1.0
"""Longest step along any variable: one of logarithms by more leaves what its slope says anything about."""

Tree = TypeVar("Tree")


def descend(
    value_and_gradient: Callable[..., tuple[Any, Any]],
    start: Tree,
    bounds: tuple[Tree, Tree],
    steps: int,
    *args: Any,
    curvature: Tree,
    enough: float = ENOUGH,
) -> Tree:
    """Minimise `value_and_gradient(tree, *args)[0]` over a pytree of NumPy arrays, from `start`, in float64.

    Args:
        value_and_gradient: The gradient has the structure of `start`.
        start: Where to begin; moved inside the bounds.
        bounds: Lowest and highest values, of the same structure.
        steps: Number of iterations.
        *args: Further arguments.
        curvature: Rough second derivative by each variable, positive, of the same structure: it gives the first steps their length.
        enough: See `ENOUGH`.
    """
    return _search(value_and_gradient, start, bounds, steps, args, np.diag(1.0 / ravel(curvature)), enough)[0]


def descend_again(
    value_and_gradient: Callable[..., tuple[Any, Any]],
    start: Tree,
    bounds: tuple[Tree, Tree],
    steps: int,
    *args: Any,
    inverse: np.ndarray,
) -> tuple[Tree, np.ndarray]:
    """`descend` for one of several functions that are nearly the same: also returns the inverse Hessian, which the next one begins with.

    Args:
        value_and_gradient, start, bounds, steps, *args: As in `descend`.
        inverse: Inverse Hessian of the search before, or of a rough one, `(k, k)`.
    """
    return _search(value_and_gradient, start, bounds, steps, args, inverse, ENOUGH)


def _search(value_and_gradient, start, bounds, steps, args, inverse, enough):
    _, structure = jax.tree.flatten(start)
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(start)]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def unpack(vector):
        pieces = np.split(vector, ends[:-1])
        return structure.unflatten([piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)])

    def loss(vector):
        value, gradient = value_and_gradient(unpack(vector), *args)
        value, slope = float(value), ravel(gradient)
        return (value, slope) if np.isfinite(value) and np.isfinite(slope).all() else (np.inf, np.zeros_like(slope))

    lower, upper = ravel(bounds[0]), ravel(bounds[1])
    with _linalg.float64():
        end, inverse = minimise(loss, np.clip(ravel(start), lower, upper), lower, upper, steps, inverse, enough)
    return unpack(end), inverse


def minimise(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]],
    x: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    steps: int,
    inverse: np.ndarray,
    enough: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise a function in a box by BFGS with backtracking; variables at a bound that want to leave the box stay there.

    Args:
        loss: Value, infinite where there is none, and gradient at a point `(k,)`.
        x: Where to begin, inside the box.
        lower, upper: The box.
        steps: Number of iterations.
        inverse: First inverse Hessian, `(k, k)`; after a failure its diagonal.
        enough: See `ENOUGH`.
    Returns:
        The point, and the last inverse Hessian.
    """
    plain = np.diag(np.diagonal(inverse))
    value, slope = loss(x)
    for _ in range(steps):
        free = ((x > lower) | (slope < 0.0)) & ((x < upper) | (slope > 0.0))
        move = -np.where(free, inverse @ np.where(free, slope, 0.0), 0.0)
        if -0.5 * (slope @ move) < enough:
            break
        found = _backtrack(loss, x, value, slope, move * min(1.0, LONGEST / np.max(np.abs(move))), lower, upper)
        if found is None:
            if inverse is plain:
                break
            inverse = plain
            continue
        there, new, turned = found
        inverse = _updated(inverse, there - x, turned - slope)
        gain, x, value, slope = value - new, there, new, turned
        if gain < enough:
            break
    return x, inverse


def _backtrack(loss, x, value, slope, move, lower, upper):
    """Point, value and gradient of the first sufficient decrease along `move`, or None."""
    share = 1.0
    for _ in range(8):
        there = np.clip(x + share * move, lower, upper)
        new, turned = loss(there)
        promised = slope @ (there - x)
        if new <= value + 1e-4 * promised:
            return there, new, turned
        share *= np.clip(-0.5 * promised / (new - value - promised), 0.1, 0.5)
    return None


def _updated(inverse, step, turned):
    """The BFGS update of an inverse Hessian; unchanged where the function does not curve upwards."""
    along = step @ turned
    if along <= 1e-8 * np.sqrt((step @ step) * (turned @ turned)):
        return inverse
    left = inverse @ turned
    crossed = np.outer(left, step)
    return inverse + (1.0 + turned @ left / along) / along * np.outer(step, step) - (crossed + crossed.T) / along


def ravel(tree: Any) -> np.ndarray:
    """All numbers of a pytree as one float64 vector."""
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])
