"""Farthest-point designs: a few points that cover many."""

import jax
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks


def farthest_point_design(rng_key: jax.Array, x: ArrayLike, number: int) -> np.ndarray:
    """A farthest-point (maximin) design, `(number, D)`: each row of `x` is the farthest from those before it.

    Args:
        rng_key: Chooses the first row.
        x: `(n, D)`.
        number: How many rows; all `n` if there are fewer.
    Cost: `n number` distances.
    References: Gonzalez (1985), Theoretical Computer Science 38.
    """
    checks.concrete(rng_key=rng_key, x=x)
    checks.key(rng_key)
    checks.matrix("x", x)
    checks.sound("x", x)
    checks.whole("number", number, 1)
    x = np.asarray(x)
    first = int(jax.random.randint(rng_key, (), 0, len(x)))
    chosen, distance = [first], np.sum(np.square(x - x[first]), axis=1)
    while len(chosen) < min(number, len(x)):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.sum(np.square(x - x[chosen[-1]]), axis=1))
    return x[chosen]
