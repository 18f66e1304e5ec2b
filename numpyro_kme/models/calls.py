"""One call of a simulator as a traceable function of its arguments and its noise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_kme._core import compat
from numpyro_kme._core.programs import pieces
from numpyro_kme.models.simulator import Simulator


@dataclass(frozen=True)
class Call:
    """One call of a simulator.

    Attributes:
        fn: `(noise, *params) -> one event`; noise is a key, or a value of a declared distribution.
        shapes, dtypes: Of its parameters.
        declared: Shape and type of the output of a black box; None for a function in JAX.
    """

    fn: Callable
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    declared: tuple[tuple[int, ...], str] | None = None

    @classmethod
    def of(cls, simulator: Simulator) -> "Call":
        """A call of a simulator."""
        declared = (simulator.event_shape, str(simulator.dtype)) if simulator.black_box else None
        dtypes = tuple(str(param.dtype) for param in simulator.params)
        return cls(simulator.fn, simulator.call_shapes, dtypes, declared)

    def params(self, arguments: Any) -> list[Any]:
        """Parameters, from flattened arguments `(A,)`."""
        return [block.astype(dtype) for block, dtype in zip(pieces(arguments, self.shapes), self.dtypes)]

    @property
    def zeros(self) -> list[jax.Array]:
        """Parameters of the right shapes and types."""
        return [jnp.zeros(shape, dtype) for shape, dtype in zip(self.shapes, self.dtypes)]

    def __call__(self, arguments: Any, noise: Any) -> jax.Array:
        """Simulate one point."""
        params = self.params(arguments)
        if self.declared is not None:
            shape, dtype = self.declared
            point = Simulator(self.fn, *params, shape=shape, dtype=dtype).sample(noise)
        else:
            with compat.shielded():
                point = self.fn(noise, *params)
        return jnp.asarray(point, jnp.result_type(float))
