"""The priors that most models have, by NumPy: draws and maps to normals for which nothing is compiled."""

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger
from scipy.special import ndtr, ndtri

from numpyro_kme._core import checks, compat

Function = Callable[[Any, Any, np.ndarray], np.ndarray]


def _uniform_to_normal(low, high, value):
    lower, upper = (value - low) / (high - low), (high - value) / (high - low)
    z = ndtri(np.clip(np.minimum(lower, upper), np.finfo(float).tiny, 1.0))
    return np.where(lower <= upper, z, -z)


KINDS: dict[type[dist.Distribution], tuple[tuple[str, str], Function, Function]] = {
    dist.Normal: (("loc", "scale"), lambda loc, scale, x: (x - loc) / scale, lambda loc, scale, z: loc + scale * z),
    dist.LogNormal: (
        ("loc", "scale"),
        lambda loc, scale, x: (np.log(x) - loc) / scale,
        lambda loc, scale, z: np.exp(loc + scale * z),
    ),
    dist.Uniform: (
        ("low", "high"),
        _uniform_to_normal,
        lambda low, high, z: np.where(z < 0, low + (high - low) * ndtr(z), high - (high - low) * ndtr(-z)),
    ),
}
"""By type: the names of two parameters, the map of values to normals, and back."""


class Prior:
    """A prior by NumPy, of one of the `KINDS`, with numbers for parameters; others are refused by `of`."""

    def __init__(self, fn: dist.Distribution):
        base = compat.innermost(fn)
        (first, second), self._to_normal, self._from_normal = KINDS[type(base)]
        self._a, self._b = (np.asarray(getattr(base, name), np.float64) for name in (first, second))

    @staticmethod
    def of(fn: dist.Distribution) -> "Prior | None":
        """The prior `fn`, expanded or not, or None where it is none of these or is being traced."""
        base = compat.innermost(fn)
        return Prior(fn) if type(base) in KINDS and checks.is_concrete(vars(base)) else None

    def to_normal(self, values: np.ndarray) -> np.ndarray:
        """Standard normals, elementwise, as `normalise.to_normal`."""
        with np.errstate(all="ignore"):
            return self._to_normal(self._a, self._b, values)

    def from_normal(self, z: np.ndarray) -> np.ndarray:
        """Values, elementwise, as `normalise.from_normal`."""
        with np.errstate(all="ignore"):
            return self._from_normal(self._a, self._b, z)


def priors(fns: Sequence[dist.Distribution]) -> list[Prior] | None:
    """All of them by NumPy, or None."""
    found = [Prior.of(fn) for fn in fns]
    return None if None in found else found  # type: ignore[return-value]


class ExampleValues(Messenger):
    """Give latents of such priors a value each, the same in every run, in place of a draw with a key."""

    def process_message(self, msg):
        """Answer, unless a closer handler has."""
        if msg["type"] != "sample" or msg["value"] is not None:
            return
        prior = Prior.of(msg["fn"]) if isinstance(msg["fn"], dist.Distribution) else None
        if prior is not None:
            shape = msg["fn"].shape(msg["kwargs"]["sample_shape"])
            z = np.random.default_rng(crc32(msg["name"].encode())).normal(size=shape)
            msg["value"] = jnp.asarray(prior.from_normal(z).astype(jnp.result_type(float)))
