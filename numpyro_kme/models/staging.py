"""A simulator in two stages: what follows from its noise alone, computed once, and what parameters change."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import compat

AT_NO_COST = {"add", "broadcast_in_dim", "convert_element_type", "mul", "reshape", "slice", "squeeze", "sub"}
"""Operations for which two stages are not worth it."""


def in_stages(
    simulate: Callable, noise: jax.ShapeDtypeStruct, *moving: jax.ShapeDtypeStruct
) -> tuple[Callable, Callable] | None:
    """`simulate(noise, *moving)` as `rest(of_noise(noise), *moving)`.

    A quantile function of fixed parameters, as that of a Student t of given degrees of freedom, is then evaluated once
    for each noise value, and not at every step of a minimisation.

    Args:
        simulate: Traceable.
        noise: Shape and type of a noise value, an array.
        *moving: Those of what changes.
    Returns:
        `of_noise` and `rest`, or None where the first would do nothing, or find more numbers than the noise has.
    """
    program, shape = jax.make_jaxpr(simulate, return_shape=True)(noise, *moving)
    jaxpr, constants = compat.plain(program)
    from_noise, from_moving, first, second = {jaxpr.invars[0]}, set(jaxpr.invars[1:]), [], []
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
    worth_it = any(one.primitive.name not in AT_NO_COST for one in first if one not in second)
    if not worth_it or sum(int(np.prod(one.aval.shape)) for one in kept) > np.prod(noise.shape):
        return None
    known = dict(zip(jaxpr.constvars, constants))

    def of_noise(value):
        return _run(first, known | {jaxpr.invars[0]: value}, kept)

    def rest(values, *given):
        found = _run(second, known | dict(zip(kept, values)) | dict(zip(jaxpr.invars[1:], given)), jaxpr.outvars)
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return of_noise, rest


def _run(equations: Sequence[Any], known: dict[Any, Any], wanted: Sequence[Any]) -> list[Any]:
    """Values of variables of a traced program, by some of its operations."""

    def read(variable):
        return variable.val if hasattr(variable, "val") else known[variable]

    for equation in equations:
        known |= zip(equation.outvars, compat.bind(equation, [read(one) for one in equation.invars]))
    return [read(one) for one in wanted]
