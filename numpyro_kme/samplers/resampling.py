"""Systematic resampling: equally many copies of each particle as its weight asks for, rounded up or down."""

import jax
import jax.numpy as jnp
import numpy as np


def systematic(rng_key: jax.Array, weights: jax.Array, n: int) -> jax.Array:
    r"""`n` indices by systematic resampling, in ascending order, `(n,)`; traceable.

    With one offset $u \sim U(0, 1)$, index `i` comes once for each $k = 0, \ldots, n - 1$ with
    $w_1 + \cdots + w_{i-1} < (k + u) / n \le w_1 + \cdots + w_i$: $n w_i$ times, rounded up or down.

    Args:
        rng_key: The only source of randomness.
        weights: `w`, `(m,)`, none negative, with sum one.
        n: Number of indices.
    References: Kitagawa (1996), JCGS 5.
    """
    return _indices(jax.random.uniform(rng_key), weights, n, jnp)


def systematic_shuffled(rng_key: jax.Array, weights: np.ndarray, n: int) -> np.ndarray:
    """The same on the host, in the precision of `weights`, and in random order, so that any part is a sample too.

    Args:
        rng_key, weights, n: As in `systematic`.
    """
    key_offset, key_order = jax.random.split(rng_key)
    indices = _indices(float(jax.random.uniform(key_offset)), weights, n, np)
    return indices[np.asarray(jax.random.permutation(key_order, n))]


def _indices(offset, weights, n, xp):
    return xp.clip(xp.searchsorted(xp.cumsum(weights), (xp.arange(n) + offset) / n), 0, len(weights) - 1)
