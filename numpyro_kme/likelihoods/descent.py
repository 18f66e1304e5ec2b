"""Minimising functions of a small pytree: BFGS in a box, from curvatures that are known about."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from numpyro_kme._core import pieces

ENOUGH = 0.2
"""Decrease of the value, in nats, below which the search ends, and of what the next step promises."""

Tree = TypeVar("Tree")


def descend_all(
    value_and_gradient: Callable[[Tree, np.ndarray], tuple[Any, Tree]],
    starts: Tree,
    bounds: tuple[Tree, Tree],
    steps: int,
    inverses: np.ndarray,
) -> tuple[Tree, np.ndarray]:
    """Minimise `k` functions, each over its own variables, with one call for the next point of all of them.

    BFGS with backtracking in a box; variables at a bound that would leave it stay.

    Args:
        value_and_gradient: Values `(a,)` of the functions with numbers `rows` `(a,)` at points, and the gradients;
            leaves of both trees have a leading axis `a`.
        starts: Where to begin; leaves have a leading axis `k`.
        bounds: Lowest and highest values, with that axis or without.
        steps: Number of iterations of each, those of which steps are shortened among them.
        inverses: First inverse Hessians, `(k, p, p)` for `p` variables, in the order of the leaves.
    Returns:
        Minima, with the leading axis, and the last inverse Hessians.
    """
    lower, upper = (ravel(jax.tree.map(lambda a, b: np.broadcast_to(a, np.shape(b)), end, starts), 1) for end in bounds)

    def evaluated(x, rows):
        """Values and gradients; infinite, and level, where there is no value."""
        values, gradients = value_and_gradient(unravel(x, starts, 1), rows)
        values, slopes = np.asarray(values, np.float64), ravel(gradients, 1)
        sound = np.isfinite(values) & np.isfinite(slopes).all(axis=1)
        return np.where(sound, values, np.inf), np.where(sound[:, None], slopes, 0.0)

    x, inverses = np.clip(ravel(starts, 1), lower, upper), np.array(inverses)
    (value, slope), fraction, left = evaluated(x, np.arange(len(x))), np.ones(len(x)), np.full(len(x), steps)
    while True:
        free = ((x > lower) | (slope < 0.0)) & ((x < upper) | (slope > 0.0))
        move = -np.where(free, np.einsum("kij,kj->ki", inverses, np.where(free, slope, 0.0)), 0.0)
        rows = np.flatnonzero((left > 0) & (-0.5 * np.sum(slope * move, axis=1) >= ENOUGH))
        if not len(rows):
            return unravel(x, starts, 1), inverses
        # longest step along any variable: one of logarithms by more leaves what its slope says anything about
        move *= (fraction / np.maximum(1.0, np.max(np.abs(move), axis=1)))[:, None]
        there = np.clip(x + move, lower, upper)[rows]
        for i, at, new, turned in zip(rows, there, *evaluated(there, rows), strict=True):
            promised = slope[i] @ (at - x[i])
            if new <= value[i] + 1e-4 * promised:
                inverses[i] = _updated(inverses[i], at - x[i], turned - slope[i])
                left[i] = left[i] - 1 if value[i] - new >= ENOUGH else 0
                x[i], value[i], slope[i], fraction[i] = at, new, turned, 1.0
            else:
                left[i] -= 1
                fraction[i] *= np.clip(-0.5 * promised / (new - value[i] - promised), 0.1, 0.5)


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
    rows = [np.reshape(leaf, (*np.shape(leaf)[:axes], -1)) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(rows, axis=axes, dtype=np.float64) if rows else np.zeros(0)  # a kernel without numbers


def unravel(values: Any, like: Tree, axes: int = 0) -> Tree:
    """Pytree of the structure and shapes of `like` that `ravel` gives these numbers of; traceable."""
    structure: Any
    leaves, structure = jax.tree.flatten(like)
    shapes = [np.shape(leaf)[axes:] for leaf in leaves]
    return structure.unflatten(pieces(values, shapes))
