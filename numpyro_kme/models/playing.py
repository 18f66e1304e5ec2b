"""A traced program played with its noise given: wherever it draws, it takes entries of a vector of normals."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks, compat
from numpyro_kme.models import quantiles

MISUSED = {
    "random_seed": "makes a key of a seed",
    "random_wrap": "makes a key of numbers",
    "random_unwrap": "reads the numbers of a key",
}
"""What a simulator may not do with keys."""
ITS_OWN = "its noise is not a function of `rng_key` alone. Split `rng_key`, or fold numbers into it."

NO_KEY = np.uint32(np.iinfo(np.uint32).max)
"""Stands for the key of a draw that is not made, in a branch that is not taken."""


class NoiseNotLifted(ValueError):
    """A simulator draws its noise in a way that no fixed number of normals gives."""


@dataclass(frozen=True)
class Player:
    """Plays programs of a simulator.

    Args:
        simulator: Its name.
        most_loops: As in `lift_noise`.
    """

    simulator: str
    most_loops: int | None
    _counted: dict[int, tuple[Any, Counter[str]]] = field(default_factory=dict, repr=False)

    def needs(self, program) -> Counter[str]:
        """How many numbers of each kind a program draws; found once for each program.

        Raises:
            NoiseNotLifted: If this cannot be known, or is not all of its noise.
        """
        if id(program) not in self._counted:
            self._counted[id(program)] = program, self._count(program)  # which keeps it alive, and its id its own
        return self._counted[id(program)][1]

    def _count(self, program) -> Counter[str]:
        jaxpr, constants = compat.plain(program)
        if any(map(checks.is_key, constants)):
            self._refuse(f"has a key of its own: {ITS_OWN}")
        return sum(map(self._needs_one, jaxpr.eqns), Counter())

    def _needs_one(self, equation) -> Counter[str]:
        """As `needs`, of one operation."""
        kind = quantiles.kind(equation)
        if kind:
            return Counter({kind: quantiles.size(equation)})
        operation = equation.primitive.name
        if operation in MISUSED:
            self._refuse(f"{MISUSED[operation]} ({compat.source_line(equation)}): {ITS_OWN}")
        total = sum(map(self.needs, compat.programs(equation)), Counter())
        if not total:
            return total
        if operation not in compat.PLAYED:
            self._refuse(
                f"draws random numbers inside `{operation}` ({compat.source_line(equation)}), which cannot be taken "
                "apart: draw them before it."
            )
        if operation == "while" and self.most_loops is None:
            self._refuse(
                f"draws random numbers inside a `while` loop ({compat.source_line(equation)}): how many is not known "
                "beforehand. Use a loop of fixed length (lax.fori_loop, lax.scan), or give lift_noise `most_loops`."
            )
        times = {"scan": equation.params.get("length"), "while": self.most_loops}.get(operation, 1)
        return Counter({kind: times * count for kind, count in total.items()})

    def _refuse(self, sentence: str) -> NoReturn:
        raise checks.explained(f"Simulator `{self.simulator}` {sentence}", NoiseNotLifted)

    def run(self, program, inputs: Sequence, z: jax.Array) -> tuple[list[Any], list[jax.Array]]:
        """Outputs, and the data of the keys that draws would have come from."""
        jaxpr, constants = compat.plain(program)
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs]))
        used: list[jax.Array] = []
        place = 0

        def read(variable):
            return variable.val if hasattr(variable, "val") else known[variable]

        for equation in jaxpr.eqns:
            count = self._needs_one(equation).total()
            values = [read(variable) for variable in equation.invars]
            if not count:
                outputs = compat.bind(equation, values)
            else:
                outputs, keys = self._noisy(equation, values, z[place : place + count])
                used, place = [*used, *keys], place + count
            known |= zip(equation.outvars, outputs)
        return [read(variable) for variable in jaxpr.outvars], used

    def _noisy(self, equation, values, z) -> tuple[Sequence, list[jax.Array]]:
        if quantiles.kind(equation):
            return [quantiles.drawn(equation, values, z)], [jax.random.key_data(values[0])]
        inner = compat.programs(equation)
        match equation.primitive.name:
            case "scan":
                return self._scan(equation, inner[0], values, z)
            case "cond":
                return self._cond(inner, values, z)
            case "while":
                return self._while(equation, values, z)
        return self.run(inner[0], values, z)

    def _scan(self, equation, body, values, z):
        consts, carry, rows, num_carry = compat.scan_parts(equation, values)
        length = equation.params["length"]

        def step(carry, row):
            part, *rest = row
            outputs, used = self.run(body, [*consts, *carry, *rest], part)
            return outputs[:num_carry], (outputs[num_carry:], used)

        rows = (z.reshape(length, -1), *rows)
        end, (found, used) = jax.lax.scan(step, list(carry), rows, length, reverse=equation.params["reverse"])
        return [*end, *found], used

    def _cond(self, branches, values, z):
        index, *inputs = values
        counts = [self.needs(branch).total() for branch in branches]
        starts = np.cumsum([0, *counts])
        parts = [z[start : start + count] for start, count in zip(starts, counts)]

        def keys_of(branch, part):
            return jax.eval_shape(lambda part, *inputs: self.run(branch, inputs, part)[1], part, *inputs)

        shapes = [keys_of(branch, part) for branch, part in zip(branches, parts)]

        def taken(i):
            def branch(*inputs):
                outputs, used = self.run(branches[i], inputs, parts[i])
                others = [[jnp.full(key.shape, NO_KEY, key.dtype) for key in shape] for shape in shapes]
                return outputs, [*others[:i], used, *others[i + 1 :]]

            return branch

        outputs, used = jax.lax.switch(index, [taken(i) for i in range(len(branches))], *inputs)
        return outputs, [key for of_branch in used for key in of_branch]

    def _while(self, equation, values, z):
        """The loop for a fixed number of rounds, those after its end without effect; NaN where it would go on."""
        given = equation.params
        of_condition, of_body = given["cond_nconsts"], given["body_nconsts"]
        first, second = values[:of_condition], values[of_condition : of_condition + of_body]
        parts = z.reshape(self.most_loops, -1)
        in_condition = self.needs(given["cond_jaxpr"]).total()

        def going(state, part):
            (found,), used = self.run(given["cond_jaxpr"], [*first, *state], part)
            return found, used

        def step(state, part):
            more, used = going(state, part[:in_condition])
            after, further = self.run(given["body_jaxpr"], [*second, *state], part[in_condition:])
            state = [jnp.where(more, new, old) for new, old in zip(after, state)]
            return state, [jnp.where(more, key, NO_KEY) for key in [*used, *further]]

        state, used = jax.lax.scan(step, list(values[of_condition + of_body :]), parts)
        more, _ = going(state, jnp.zeros(in_condition))
        return [_unfinished(more, value) for value in state], used


def _unfinished(more: jax.Array, value: jax.Array) -> jax.Array:
    """NaN, or the largest integer, where a loop has not come to its end."""
    if jnp.issubdtype(value.dtype, jnp.floating):
        return jnp.where(more, jnp.nan, value)
    if jnp.issubdtype(value.dtype, jnp.integer):
        return jnp.where(more, jnp.iinfo(value.dtype).max, value)
    return value
