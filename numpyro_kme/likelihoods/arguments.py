"""Arguments and outputs of a simulator's calls: which axes are of calls, and which hold the numbers of one call."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from numpyro_kme._core import checks, compat


def join(params: tuple[ArrayLike, ...], expected: int) -> tuple[jax.Array, tuple[tuple[int, ...], ...]]:
    """All numbers that one call takes, flattened and joined, `batch_shape + (expected,)`, and the other batch shapes
    that they may have: axes of length 1 are of calls as far as the plates around reach."""
    arrays = [jnp.asarray(p) for p in params]
    shapes = [a.shape for a in arrays]

    def fits(k):
        return len({shape[:k] for shape in shapes}) == 1 and sum(math.prod(shape[k:]) for shape in shapes) == expected

    found = [k for k in range(min((a.ndim for a in arrays), default=0) + 1) if arrays and fits(k)]
    if found:
        depth = compat.plate_depth()
        k = max((k for k in found if k <= depth), default=found[0])
        dtype = jnp.result_type(float, *arrays)
        joined = jnp.concatenate([a.reshape(*a.shape[:k], -1).astype(dtype) for a in arrays], axis=-1)
        return joined, () if depth else tuple(shapes[0][:other] for other in found if other > k)
    raise checks.explained(
        f"The likelihood was learnt from {expected} arguments for each simulation, and parameters of the shapes "
        f"{shapes} do not hold that many after common leading batch dimensions. Pass the arguments of the simulator in "
        "its order, broadcast against each other."
    )


def require_array(value: Any, event_shape: tuple[int, ...], surrogate: Any) -> None:
    """Raise for an output by name: a learnt likelihood has the numbers of a simulator's dictionary in its order."""
    names = getattr(getattr(surrogate, "transform", None), "names", ())
    checks.require(
        not isinstance(value, Mapping),
        f"`value` must be an array (..., *{event_shape}), and it is a dictionary. Join its numbers in the order of the "
        f"simulator's dictionary{f', {list(names)}' if names else ''}: "
        "jnp.concatenate([jnp.ravel(value[name]) for name in names]).",
        TypeError,
    )
