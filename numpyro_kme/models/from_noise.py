"""Simulators written as functions of their noise."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
from numpyro.distributions import Distribution

from numpyro_kme._core import checks


@dataclass(frozen=True, eq=False)
class FromNoise:
    """A simulator `fn(noise, *params)` whose noise has a declared distribution.

    It is a simulator `fn(rng_key, *params)` like any other: `Simulator(FromNoise(fn, dist.Normal(0, 1)),
    *params)`. Methods that average over the noise, such as `PosteriorBootstrap`, replace independent draws
    by quadrature (one number) or low-discrepancy points, which reach with hundreds of nodes what
    independent draws reach with hundreds of thousands.

    Define it once, outside the model: JAX compares functions by identity.

    Args:
        fn: `(noise, *params) -> one event`, traceable.
        noise: Distribution of the noise of one event, with an inverse CDF (`icdf`), for instance
            `dist.Normal(0, 1).expand([3]).to_event(1)`.
    """

    fn: Callable
    noise: Distribution

    def __post_init__(self):
        checks.require(
            isinstance(self.noise, Distribution),
            f"`noise` must be a NumPyro distribution; got {self.noise!r}.",
            TypeError,
        )

    @property
    def __name__(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def __call__(self, rng_key: jax.Array, *params):
        """Draw the noise and simulate one event."""
        return self.fn(self.noise.sample(rng_key), *params)
