"""Minimising functions of a small pytree: BFGS in a box, from curvatures that are known about."""

from collections.abc import Callable, Generator
from math import prod
from typing import Any, TypeVar

import jax
import numpy as np

ENOUGH = 0.2
"""Decrease of the value, in nats, below which the search ends, and of what the next step promises."""


Tree = TypeVar("Tree")


def descend_all(
    value_and_gradient: Callable[[Tree, np.ndarray], tuple[Any, Tree]],
    starts: Tree,
    bounds: tuple[Tree, Tree],
    steps: int,
    inverses: np.ndarray,
    enough: float = ENOUGH,
) -> tuple[Tree, np.ndarray]:
    """Minimise `k` functions, each over its own variables, with one call for the next point of all of them.

    Args:
        value_and_gradient: Values `(a,)` of the functions with numbers `rows` `(a,)` at points, and the gradients;
            leaves of both trees have a leading axis `a`.
        starts: Where to begin; leaves have a leading axis `k`.
        bounds: Lowest and highest values, with that axis or without.
        steps: Number of iterations of each.
        inverses: First inverse Hessians, `(k, p, p)` for `p` variables, in the order of the leaves.
        enough: See `ENOUGH`.
    Returns:
        Minima, with the leading axis, and the last inverse Hessians.
    """
    lower, upper = (ravel(jax.tree.map(lambda a, b: np.broadcast_to(a, np.shape(b)), end, starts), 1) for end in bounds)
    begun = np.clip(ravel(starts, 1), lower, upper)
    starting = zip(begun, lower, upper, inverses, strict=True)
    searches = [minimise(x, low, high, steps, inverse, enough) for x, low, high, inverse in starting]
    asked, found = {i: next(search) for i, search in enumerate(searches)}, dict[int, tuple[np.ndarray, np.ndarray]]()
    while asked:
        rows = np.array(list(asked))
        values, gradients = value_and_gradient(unravel(np.stack(list(asked.values())), starts, 1), rows)
        for i, value, slope in zip(rows, np.asarray(values, np.float64), ravel(gradients, 1), strict=True):
            try:
                asked[i] = searches[i].send((value, slope))
            except StopIteration as end:
                found[i] = end.value
                del asked[i]
    x, inverses = (np.stack(parts) for parts in zip(*(found[i] for i in range(len(begun)))))
    return unravel(x, starts, 1), inverses


def minimise(
    x: np.ndarray, lower: np.ndarray, upper: np.ndarray, steps: int, inverse: np.ndarray, enough: float
) -> Generator[np.ndarray, tuple[float, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Minimise a function in a box by BFGS with backtracking; variables at a bound that would leave the box stay.

    A generator: it yields points `(p,)`, is sent values and gradients there, and returns the last point and inverse
    Hessian.

    Args:
        x: Where to begin, inside the box.
        lower, upper: The box.
        steps: Number of iterations.
        inverse: First inverse Hessian, `(p, p)`; after a failure its diagonal.
        enough: See `ENOUGH`.
    """
    plain = np.diag(np.diagonal(inverse))
    value, slope = _sound(*(yield x))
    for _ in range(steps):
        free = ((x > lower) | (slope < 0.0)) & ((x < upper) | (slope > 0.0))
        move = -np.where(free, inverse @ np.where(free, slope, 0.0), 0.0)
        if -0.5 * (slope @ move) < enough:
            break
        # longest step along any variable: one of logarithms by more leaves what its slope says anything about
        move *= 1.0 / max(1.0, np.max(np.abs(move)))
        found = yield from _backtrack(x, value, slope, move, lower, upper)
        if found is None:
            if inverse is plain:
                break
            inverse = plain
            continue
        there, new, turned = found
        inverse = _updated(inverse, there - x, turned - slope)
        decrease, x, value, slope = value - new, there, new, turned
        if decrease < enough:
            break
    return x, inverse


def _backtrack(x, value, slope, move, lower, upper):
    """Point, value and gradient of the first sufficient decrease along `move`, or None."""
    fraction = 1.0
    for _ in range(8):
        there = np.clip(x + fraction * move, lower, upper)
        new, turned = _sound(*(yield there))
        promised = slope @ (there - x)
        if new <= value + 1e-4 * promised:
            return there, new, turned
        fraction *= np.clip(-0.5 * promised / (new - value - promised), 0.1, 0.5)
    return None


def _sound(value, slope):
    """Infinite, and level, where there is no value."""
    return (value, slope) if np.isfinite(value) and np.isfinite(slope).all() else (np.inf, np.zeros_like(slope))


def _updated(inverse, step, turned):
    """The BFGS update of an inverse Hessian; unchanged where the function does not curve upwards."""
    along = step @ turned
    if along <= 1e-8 * np.sqrt((step @ step) * (turned @ turned)):
        return inverse
    left = inverse @ turned
    crossed = np.outer(left, step)
    return inverse + (1.0 + turned @ left / along) / along * np.outer(step, step) - (crossed + crossed.T) / along


def ravel(tree: Any, axes: int = 0) -> np.ndarray:
    """All numbers of a pytree as one float64 vector, or, after so many leading axes, vectors."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    rows = [leaf.reshape(*leaf.shape[:axes], -1) for leaf in leaves]
    return np.concatenate(rows, axis=axes) if rows else np.zeros(0)  # a kernel without numbers


def unravel(values: Any, like: Tree, axes: int = 0) -> Tree:
    """Pytree of the structure and shapes of `like` that `ravel` gives these numbers of; traceable."""
    structure: Any
    leaves, structure = jax.tree.flatten(like)
    shapes = [np.shape(leaf)[axes:] for leaf in leaves]
    ends = np.cumsum([prod(shape) for shape in shapes])
    pieces = (values[..., end - prod(shape) : end] for end, shape in zip(ends, shapes))
    return structure.unflatten([piece.reshape((*values.shape[:axes], *shape)) for piece, shape in zip(pieces, shapes)])
