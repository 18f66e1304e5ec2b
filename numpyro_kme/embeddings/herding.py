"""Kernel herding: samples that follow an embedding, of a probability or of a signed measure."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels import by_numpy, gram
from numpyro_kme.kernels.base import Kernel, PointSet, num_points

ROWS = 64
"""Rows of the two-stage argmax: the best score of each column first, then the row in the best column."""

FEW = 2**22
"""Values of the kernel that NumPy computes sooner than a program is compiled for them."""


def herd(kernel: Kernel, embedding_values: ArrayLike, candidates: PointSet, num_samples: int) -> jax.Array:
    r"""Choose super-samples greedily: `theta^(s) = argmax_t mu(t) - (1/s) sum_{i < s} l(theta^(i), t)`.

    The equally weighted samples approach `mu` at a rate of about `1/S` instead of `S^-1/2` for functions in
    the space of the kernel; averages of functions outside it (tail probabilities, for one) can be worse than
    those of random draws. A candidate can be chosen more than once. `mu` may embed a signed measure.

    Args:
        kernel: `l`, the kernel of the embedding.
        embedding_values: `(R,)`, `mu` at the candidates, on the scale of a measure of total mass one.
        candidates: `(R, dim)`, `t`, or any pytree of points along its leading axis; dense where `mu` has
            mass.
        num_samples: `S`.
    Returns:
        `(S,)` indices into the candidates, in the order chosen: the first `s` are the herded set of size `s`.
    Cost: `R S` kernel evaluations; scores are in float32, whose ties can change the path but not the distance
        reached.
    References: Chen, Welling & Smola (2010), UAI.
    """
    r = num_points(candidates)
    checks.shaped("embedding_values", embedding_values, (r,), "per candidate")
    checks.whole("num_samples", num_samples, 1)
    checks.sound("candidates", candidates)
    checks.sound("embedding_values", embedding_values, "Check the kernel and the weights of the embedding.")
    given = kernel, candidates, embedding_values
    if kernel.in_numpy and r * r <= FEW and checks.is_concrete(given):
        kernel, candidates, values = jax.tree.map(partial(np.asarray, dtype=np.float32), given)
        return jnp.asarray(_herd_by_numpy(kernel, values, candidates, num_samples))
    kernel, candidates, values = jax.tree.map(_single, (kernel, candidates, jnp.asarray(embedding_values)))
    return _herd(kernel, values, candidates, num_samples)


def _herd_by_numpy(kernel, values, candidates, num_samples):
    total, matrix = np.zeros_like(values), by_numpy.gram(kernel, candidates)
    chosen = np.empty(num_samples, np.int32)
    for i in range(num_samples):
        chosen[i] = np.argmax(values - total / np.float32(i + 1))
        total += matrix[chosen[i]]
    return chosen


def _single(leaf):
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


@partial(jax.jit, static_argnames="num_samples")
def _herd(kernel, values, candidates, num_samples):
    columns = -(-num_points(candidates) // ROWS)
    padding = ROWS * columns - num_points(candidates)
    values = jnp.pad(values, (0, padding), constant_values=-jnp.inf).reshape(ROWS, columns)
    candidates = jax.tree.map(lambda leaf: leaf[0], gram.split(candidates, ROWS * columns))

    def choose(total, size):
        scores = values - total / size
        column = jnp.argmax(jnp.max(scores, axis=0))
        chosen = jnp.argmax(scores[:, column]) * columns + column
        point = jax.tree.map(lambda leaf: leaf[chosen][None], candidates)
        row = kernel.gram(point, candidates).astype(total.dtype)
        return total + row.reshape(total.shape), chosen

    sizes = jnp.arange(1, num_samples + 1, dtype=values.dtype)
    return jax.lax.scan(choose, jnp.zeros_like(values), sizes)[1]
