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
"""Stands for a key that another branch draws from."""


class NoiseNotLifted(ValueError):
    """A simulator draws its noise in a way that no fixed number of normals gives."""


@dataclass(frozen=True)
class Player:
    """Plays programs of a simulator.

    Args:
        simulator: Its name.
        most_loops: As in `lift_noise`.
        for_keys: Whether it is for the keys of all draws that there may be: branches that are not taken and rounds
            after the end of a loop are then played too.
    """

    simulator: str
    most_loops: int | None
    for_keys: bool = False
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
        try:
            total = sum(map(self.needs, compat.programs(equation)), Counter())
        except NoiseNotLifted:
            unclear = quantiles.RULES.get(compat.written_in(equation))
            if unclear is None:
                raise
            self._refuse(
                f"draws {unclear[0]} numbers ({compat.source_line(equation)}) inside a `vmap` in a way that cannot be "
                "followed: give each call a key of its own, and parameters of the shape of its draw, mapped over their "
                "first axis."
            )
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
        """Outputs, and with `for_keys` the data of the keys that draws would have come from."""
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
            used = quantiles.keys(equation, values[0]) if self.for_keys else []
            return [quantiles.drawn(equation, values, z)], used
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
        ends = np.cumsum([self.needs(branch).total() for branch in branches])
        parts = np.split(np.arange(len(z)), ends[:-1])
        if self.for_keys:
            found, used = zip(*(self.run(branch, inputs, z[part]) for branch, part in zip(branches, parts)))
            return jax.lax.switch(index, [lambda found, i=i: found[i] for i in range(len(found))], found), _either(used)

        def taken(branch, part):
            return lambda *inputs: self.run(branch, inputs, z[part])[0]

        return jax.lax.switch(index, list(map(taken, branches, parts)), *inputs), []

    def _while(self, equation, values, z):
        """The loop for a fixed number of rounds, those after its end without effect; NaN where it would go on."""
        given = equation.params
        of_condition, of_body = given["cond_nconsts"], given["body_nconsts"]
        first, second = values[:of_condition], values[of_condition : of_condition + of_body]
        parts = z.reshape(self.most_loops, -1)
        in_condition = self.needs(given["cond_jaxpr"]).total()

        def step(state, part):
            state, going = state
            (more,), used = self.run(given["cond_jaxpr"], [*first, *state], part[:in_condition])
            after, further = self.run(given["body_jaxpr"], [*second, *state], part[in_condition:])
            if self.for_keys:
                return (after, going), [*used, *further]
            more &= going  # a condition that draws is not asked again
            return ([jnp.where(more, new, old) for new, old in zip(after, state)], more), []

        state, going = list(values[of_condition + of_body :]), jnp.array(True)
        (state, going), used = jax.lax.scan(step, (state, going), parts)
        if not in_condition:
            going &= self.run(given["cond_jaxpr"], [*first, *state], z[:0])[0][0]
        return [_unfinished(going, value) for value in state], used


def _either(used: Sequence[list[jax.Array]]) -> list[jax.Array]:
    """Keys of branches of which one is taken: a key of several counts as often as in the branch that has it most."""
    rows = [jnp.concatenate([key.reshape(-1, key.shape[-1]) for key in keys]) for keys in used if keys]
    kept = []
    for i, own in enumerate(rows):
        same = [(own[:, None] == other[None]).all(axis=-1) for other in rows[: i + 1]]
        earlier = jnp.tril(same.pop(), -1).sum(axis=1)
        elsewhere = sum((jnp.array(one.sum(axis=1) > earlier) for one in same), jnp.zeros(len(own), int)) > 0
        kept.append(jnp.where(elsewhere[:, None], NO_KEY, own))
    return kept


def _unfinished(more: jax.Array, value: jax.Array) -> jax.Array:
    """NaN, or the largest integer, where a loop has not come to its end."""
    if jnp.issubdtype(value.dtype, jnp.floating):
        return jnp.where(more, jnp.nan, value)
    if jnp.issubdtype(value.dtype, jnp.integer):
        return jnp.where(more, jnp.iinfo(value.dtype).max, value)
    return value
