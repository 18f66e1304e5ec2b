"""Names of NumPyro and JAX that are not documented as public, in one place."""

import inspect
import os
from collections.abc import Callable
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from numpyro.distributions.distribution import (
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
)
from numpyro.primitives import Messenger

from numpyro_kme._linalg import in_present_precision

WRAPPERS = (ExpandedDistribution, Independent, MaskedDistribution)


def innermost(fn: Distribution) -> Distribution:
    """The distribution inside any number of expanded, independent and masked wrappers."""
    while isinstance(fn, WRAPPERS):
        fn = fn.base_dist
    return fn


def rewrapped(fn: Distribution, replace: Callable[[Distribution], Distribution]) -> Distribution:
    """`fn` with its innermost distribution replaced and the same wrappers put back around it."""
    if isinstance(fn, MaskedDistribution):
        return rewrapped(fn.base_dist, replace).mask(fn._mask)
    if isinstance(fn, Independent):
        return rewrapped(fn.base_dist, replace).to_event(fn.reinterpreted_batch_ndims)
    if isinstance(fn, ExpandedDistribution):
        return rewrapped(fn.base_dist, replace).expand(fn.batch_shape)
    return replace(fn)


def fields(value: Any) -> dict[str, Any] | None:
    """What a distribution of NumPyro was made with, by name, without what it caches; None for anything else."""
    if not isinstance(value, Distribution):
        return None
    kind = type(value)
    names = sorted({*kind.gather_pytree_data_fields(), *kind.gather_pytree_aux_fields()})
    return {name: vars(value).get(name) for name in names}


def evaluated_site(fn: Distribution) -> str | None:
    """Name of the sample site whose density NumPyro is evaluating with `fn`; None outside NumPyro.

    Densities are evaluated after the model has run, with no message in flight. Every place that does so
    (log densities, potentials, ELBOs, log likelihoods) keeps the site it works on in a local variable `site`
    of a calling frame, which is where it is read.
    """
    frame = inspect.currentframe()
    while frame is not None:
        site = frame.f_locals.get("site")
        if isinstance(site, dict) and isinstance(site.get("fn"), Distribution) and innermost(site["fn"]) is fn:
            return site.get("name")
        frame = frame.f_back
    return None


def valueless(name: str) -> Callable[..., jax.Array]:
    """A JAX operation that has a shape and dependencies but no value.

    Returns `bind(*operands, shape, dtype, sentence)`: abstract evaluation gives `shape` and `dtype`;
    evaluating, differentiating, batching or compiling it raises `NotImplementedError(sentence)`.
    """
    primitive = Primitive(name)

    def refuse(*_, sentence: str, **__):
        raise NotImplementedError(sentence)

    primitive.def_impl(refuse)
    primitive.def_abstract_eval(lambda *_, shape, dtype, sentence: ShapedArray(shape, dtype))
    ad.primitive_jvps[primitive] = refuse
    batching.primitive_batchers[primitive] = refuse
    mlir.register_lowering(primitive, refuse)
    return primitive.bind


class PresentPrecision(Messenger):
    """Use the NumPy arrays in a model's distributions and observations in the precision in force."""

    def process_message(self, msg):
        """Replace them before the site is drawn or scored."""
        if msg["type"] == "sample":
            msg["fn"], msg["value"] = in_present_precision((msg["fn"], msg["value"]))


def progress_bars_allowed() -> bool:
    """Whether a progress bar may be drawn: not under continuous integration, as in NumPyro."""
    return "CI" not in os.environ and "PYTEST_XDIST_WORKER" not in os.environ
