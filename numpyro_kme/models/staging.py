"""A simulator in two stages: what follows from its noise alone, computed once, and what parameters change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import compat
from numpyro_kme._core.programs import Recomputed

AT_NO_COST = {"add", "broadcast_in_dim", "convert_element_type", "mul", "reshape", "slice", "squeeze", "sub"}
"""Operations for which two stages are not worth it."""


@dataclass(frozen=True, eq=False)
class Stages(Recomputed):
    """`simulate(u, noise, *further)` as `rest(u, of_noise(noise), *further)`.

    A quantile function of fixed parameters, as that of a Student t of given degrees of freedom, is then evaluated once
    for each noise value, and not at every step of a minimisation.

    Args:
        simulate: Traceable.
        shapes: Of its arguments, the second of which is an array.
    """

    simulate: Callable
    shapes: tuple[jax.ShapeDtypeStruct, ...]

    @cached_property
    def _parts(self):
        """The traced program, its operations of the first and of the second stage, what passes between them, and the
        form of the result; traced again in another process."""
        program, shape = jax.make_jaxpr(lambda *args: self.simulate(*args), return_shape=True)(*self.shapes)
        jaxpr, constants = compat.plain(program)
        moving, noise, *further = jaxpr.invars
        from_noise, from_moving, first, second = {noise}, {moving, *further}, [], []
        for equation in jaxpr.eqns:
            inputs = {one for one in equation.invars if not hasattr(one, "val")}
            if inputs & from_moving:
                from_moving.update(equation.outvars)
                second.append(equation)
            elif inputs & from_noise:
                from_noise.update(equation.outvars)
                first.append(equation)
            else:
                first.append(equation)
                second.append(equation)
        asked = [one for equation in second for one in equation.invars] + list(jaxpr.outvars)
        kept = list(dict.fromkeys(one for one in asked if not hasattr(one, "val") and one in from_noise))
        return jaxpr, dict(zip(jaxpr.constvars, constants)), first, second, kept, jax.tree.structure(shape)

    @property
    def pay(self) -> bool:
        """Whether the first stage does more than add and multiply, and finds no more numbers than the noise has."""
        _, _, first, second, kept, _ = self._parts
        costs = any(one.primitive.name not in AT_NO_COST for one in first if one not in second)
        return costs and sum(int(np.prod(one.aval.shape)) for one in kept) <= np.prod(self.shapes[1].shape)

    def of_noise(self, value: jax.Array) -> list[jax.Array]:
        """What follows from a noise value alone."""
        jaxpr, constants, first, _, kept, _ = self._parts
        return _run(first, constants | {jaxpr.invars[1]: value}, kept)

    def rest(self, u: jax.Array, values: list[jax.Array], *further: jax.Array) -> Any:
        """The simulator's output."""
        jaxpr, constants, _, second, kept, structure = self._parts
        moving, _, *others = jaxpr.invars
        known = constants | dict(zip(kept, values)) | dict(zip([moving, *others], [u, *further]))
        return jax.tree.unflatten(structure, _run(second, known, jaxpr.outvars))


def _run(equations: Sequence[Any], known: dict[Any, Any], wanted: Sequence[Any]) -> list[Any]:
    """Values of variables of a traced program, by some of its operations."""

    def read(variable):
        return variable.val if hasattr(variable, "val") else known[variable]

    for equation in equations:
        known |= zip(equation.outvars, compat.bind(equation, [read(one) for one in equation.invars]))
    return [read(one) for one in wanted]
