"""Names of NumPyro and JAX that are not documented as public, in one place.

Three of NumPyro's are private. They are looked up where they are used: a NumPyro without one raises an error there that
says so, and everything else works.

- `primitives._PYRO_STACK`, the handlers around: sites that a handler makes (`handlers.surrogate`, `soft_abc`), and
  plates around a learnt likelihood;
- `MaskedDistribution._mask`: masks on the site of a simulator;
- `ops.provenance.eval_provenance`: whether weights in a model depend on its latents.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from numpyro import primitives
from numpyro.distributions.distribution import Distribution, ExpandedDistribution, Independent, MaskedDistribution
from numpyro.ops import provenance
from numpyro.primitives import Messenger, plate

from numpyro_kme._core import checks


def _private(owner: Any, name: str) -> Any:
    """Look up a private name of NumPyro."""
    if not hasattr(owner, name):
        where = getattr(owner, "__name__", type(owner).__name__)
        raise checks.explained(
            f"NumPyro {numpyro.__version__} has no {where}.{name}, which this model needs here. Install NumPyro 0.22.",
            NotImplementedError,
        )
    return getattr(owner, name)


WRAPPERS = (ExpandedDistribution, Independent, MaskedDistribution)


def innermost(fn: Distribution) -> Distribution:
    """The distribution inside any number of expanded, independent and masked wrappers."""
    while isinstance(fn, WRAPPERS):
        fn = fn.base_dist
    return fn


def rewrapped(fn: Distribution, replace: Callable[[Distribution], Distribution]) -> Distribution:
    """`fn` with its innermost distribution replaced and the same wrappers put back around it."""
    if isinstance(fn, MaskedDistribution):
        return rewrapped(fn.base_dist, replace).mask(_private(fn, "_mask"))
    if isinstance(fn, Independent):
        return rewrapped(fn.base_dist, replace).to_event(fn.reinterpreted_batch_ndims)
    if isinstance(fn, ExpandedDistribution):
        return rewrapped(fn.base_dist, replace).expand(fn.batch_shape)
    return replace(fn)


def fields(value: Any) -> dict[str, Any] | None:
    """Arguments of a distribution of NumPyro by name, without what it caches; None for anything else."""
    if not isinstance(value, Distribution):
        return None
    kind = type(value)
    names = sorted({*kind.gather_pytree_data_fields(), *kind.gather_pytree_aux_fields()})
    return {name: vars(value).get(name) for name in names}


def loses_attributes(value: Any) -> bool:
    """Tell whether it is a distribution which JAX would take apart and put together without some of its attributes: a
    user's, that declares no `pytree_data_fields`. NumPyro never does so outside of `scan`."""
    known = fields(value)
    return known is not None and not vars(value).keys() <= {*known, *dir(type(value))}


def mask(fn: Distribution) -> np.ndarray | jax.Array:
    """Mark the elements of the innermost distribution's batch that count under all masks around it; NumPy unless a mask
    is traced."""
    event_dim = innermost(fn).event_dim
    batch_shape = fn.shape()[: len(fn.shape()) - event_dim]
    found: np.ndarray | jax.Array = np.ones(batch_shape, bool)
    while isinstance(fn, WRAPPERS):
        if isinstance(fn, MaskedDistribution):
            own = _private(fn, "_mask")
            traced = isinstance(own, jax.core.Tracer)
            own = own if traced else np.asarray(own)
            inside_event = (1,) * (fn.event_dim - event_dim)
            found = found & (jnp if traced else np).broadcast_to(own.reshape(own.shape + inside_event), batch_shape)
        fn = fn.base_dist
    return found


def scale(site) -> float | jax.Array:
    """The power that `numpyro.handlers.scale` raises the density of a site of a trace to."""
    return 1.0 if site["scale"] is None else site["scale"]


def log_prob(site) -> jax.Array:
    """Log density of a site of a trace, summed, with its mask and its scale."""
    return jnp.sum(scale(site) * site["fn"].log_prob(site["value"]))


@contextmanager
def outside(handler: Messenger) -> Iterator[None]:
    """While a handler makes a site of its own: as if it were made outside of the handler, so that no mask, scale, plate
    or scope inside has a part in it."""
    stack = _private(primitives, "_PYRO_STACK")
    place = next(i for i, known in enumerate(stack) if known is handler)
    inside = stack[place:]
    del stack[place:]
    try:
        yield
    finally:
        stack.extend(inside)


def plate_shape() -> tuple[int, ...]:
    """Batch shape of the plates around."""
    sizes = {-one.dim: one.subsample_size for one in _private(primitives, "_PYRO_STACK") if isinstance(one, plate)}
    return tuple(sizes.get(depth, 1) for depth in range(max(sizes, default=0), 0, -1))


class shielded(Messenger):
    """While a simulator runs: no handler around it sees its sites, as of a NumPyro model of its own, or gives them
    keys."""

    def process_message(self, msg):
        """Keep a message from the handlers around."""
        msg["stop"] = True


def depends_on(function: Callable, latents: dict[str, jax.Array]) -> tuple[str, ...]:
    """The latents that a pytree of arrays `function(latents)` depends on."""
    found = _private(provenance, "eval_provenance")(lambda **given: function(given), **latents)
    behind = frozenset().union(*jax.tree.leaves(found, is_leaf=lambda leaf: isinstance(leaf, frozenset)))
    return tuple(name for name in latents if name in behind)


def valueless(name: str) -> Callable[..., jax.Array]:
    """A JAX operation that has a shape and dependencies but no value.

    Returns `bind(*operands, shape, dtype, message)`: abstract evaluation gives `shape` and `dtype`;
    evaluating, differentiating, batching or compiling it raises `NotImplementedError(message)`.
    """
    primitive = Primitive(name)

    def refuse(*_, message: str, **__):
        raise NotImplementedError(message)

    primitive.def_impl(refuse)
    primitive.def_abstract_eval(lambda *_, shape, dtype, message: ShapedArray(shape, dtype))
    ad.primitive_jvps[primitive] = refuse
    batching.primitive_batchers[primitive] = refuse
    mlir.register_lowering(primitive, refuse)
    return primitive.bind


def without_derivative(tree: Any, error: Exception) -> Any:
    """A pytree of arrays as it is, whose derivative raises `error`."""

    @jax.custom_jvp
    def same(tree):
        return tree

    @same.defjvp
    def _(primals, tangents):
        raise error

    return same(tree)
