"""Noise lifted out of a JAX simulator: `fn(rng_key, *params)` becomes `fn(z, *params)` of standard normals `z`.

The simulator is traced, and its program played with one input more: wherever it draws, it takes entries of `z`. Draws
whose quantile function is known (`quantiles`) take one normal a number and are precise in both tails; any other draw
takes random words made of `ndtr(z)`. The law of the output is the simulator's own, and its noise is a point, at which
there is quadrature, low discrepancy, and a derivative.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks, compat
from numpyro_kme._core.host import at_once, to_host
from numpyro_kme.models import quantiles
from numpyro_kme.models.simulator_functions import name

KEYS_MADE = {"random_seed": "makes a key of a seed", "random_wrap": "makes a key of numbers"}
KEYS_READ = {"random_unwrap": "reads the numbers of a key"}

NO_KEY = np.uint32(np.iinfo(np.uint32).max)
"""Stands for the key of a draw that is not made, in a branch that is not taken."""


class NoiseNotLifted(ValueError):
    """A simulator draws its noise in a way that no fixed number of normals gives."""


@dataclass(frozen=True)
class LiftedNoise:
    """A simulator as a function of standard normals: `lifted(z, *params)` with `z` of shape `(dim,)`.

    Args:
        fn: The simulator `fn(rng_key, *params)`.
        drawn: How many numbers of each kind one event takes, such as `(("normal", 2), ("poisson", 1))`.
        most_loops: As in `lift_noise`.
    """

    fn: Callable
    drawn: tuple[tuple[str, int], ...]
    most_loops: int | None = field(default=None, repr=False)

    @property
    def dim(self) -> int:
        """How many normals one event takes."""
        return sum(count for _, count in self.drawn)

    @property
    def __name__(self) -> str:
        return name(self.fn)

    def __call__(self, z: jax.Array, *params):
        """One event."""
        return _play(self.fn, z, params, self.most_loops)[0]

    def __str__(self) -> str:
        return f"{', '.join(f'{count} {kind}' for kind, count in self.drawn) or 'no noise'} a draw, lifted"


def lift_noise(fn: Callable, *params: Any, most_loops: int | None = None) -> LiftedNoise:
    r"""Write a simulator as a function of standard normals: `fn(rng_key, *params)` as `lifted(z, *params)`.

    With $z \sim N(0, I)$ of shape `(lifted.dim,)` the law of `lifted(z, *params)` is that of `fn(rng_key, *params)`.
    It can be traced and differentiated: normal, uniform, exponential, gamma and the like are smooth in `z` and in
    their parameters, and precise in both tails; counts (Poisson, binomial, geometric) are made by inversion and
    constant in their parameters, so that they have no derivative. Draws inside `scan`, `fori_loop`, `vmap`, `cond`,
    `switch` and nested `jit` are lifted too; branches of a `cond` take normals of their own.

    Args:
        fn: The simulator, in JAX; it draws one event.
        *params: Arguments of one call, arrays like those that it will get.
        most_loops: Largest number of iterations of a `while` loop that draws; where it would go on, its numbers are
            NaN, its whole numbers the largest there is. Without it such a loop is refused.
    Raises:
        NoiseNotLifted: If a `while` loop draws, if `fn` makes random keys of its own or reads theirs, or if it draws
            twice from one key, so that draws depend on each other.
    """
    if most_loops is not None:
        checks.whole("most_loops", most_loops, 1)
    checks.concrete(params=params)
    counted, used = at_once(partial(_looked_at, fn, params, most_loops))
    rows = [tuple(row) for keys in used for row in keys.reshape(-1, keys.shape[-1]) if (row != NO_KEY).any()]
    checks.require(
        len(set(rows)) == len(rows),
        f"Simulator `{name(fn)}` draws twice from one random key, so that its draws depend on each other: give each "
        "draw a key of its own, by jax.random.split or fold_in.",
        NoiseNotLifted,
    )
    return LiftedNoise(fn, tuple(counted.items()), most_loops)


def _looked_at(fn: Callable, params: Sequence, most_loops: int | None) -> tuple[Counter[str], list[np.ndarray]]:
    """How many numbers of each kind one event takes, and the data of the keys that they would have come from."""
    counted = _needs(_traced(fn, params)[0], fn, most_loops)
    used = jax.jit(lambda z, *given: _play(fn, z, given, most_loops)[1])
    return counted, to_host(used(jnp.zeros(counted.total()), *map(jnp.asarray, params)))


def _traced(fn: Callable, params: Sequence):
    """The program of one event at a key and parameters of these shapes, and the form of the event."""
    structs = [jax.ShapeDtypeStruct(jnp.shape(param), jnp.result_type(param)) for param in params]
    with compat.calls_binomial():
        return jax.make_jaxpr(lambda *args: fn(*args), return_shape=True)(jax.eval_shape(jax.random.key, 0), *structs)


def _play(fn: Callable, z: jax.Array, params: Sequence, most_loops: int | None) -> tuple[Any, list[jax.Array]]:
    """One event, and the data of the keys that its draws would have come from."""
    program, shape = _traced(fn, params)
    needed = _needs(program, fn, most_loops).total()
    checks.require(
        jnp.shape(z) == (needed,),
        f"`z` must have shape ({needed},), one number for each that `{name(fn)}` draws; got {jnp.shape(z)}.",
    )
    inputs = [jax.random.key(0), *(jnp.asarray(param) for param in params)]
    values, used = _Player(fn, most_loops).run(program, inputs, z)
    return jax.tree.unflatten(jax.tree.structure(shape), values), used


def _needs(program, fn: Callable, most_loops: int | None) -> Counter[str]:
    """How many numbers of each kind a program draws."""
    jaxpr, constants = compat.plain(program)
    checks.require(
        not any(map(checks.is_key, constants)),
        f"Simulator `{name(fn)}` has a key of its own: its noise is not a function of `rng_key` alone. Split "
        "`rng_key`, or fold numbers into it.",
        NoiseNotLifted,
    )
    total: Counter[str] = Counter()
    for equation in jaxpr.eqns:
        total += _needs_one(equation, fn, most_loops)
    return total


def _needs_one(equation, fn: Callable, most_loops: int | None) -> Counter[str]:
    """As `_needs`, of one operation."""
    kind = quantiles.kind(equation)
    if kind:
        return Counter({kind: quantiles.size(equation)})
    operation, inner = equation.primitive.name, compat.programs(equation)
    misuse = {**KEYS_MADE, **KEYS_READ}.get(operation)
    checks.require(
        misuse is None,
        f"Simulator `{name(fn)}` {misuse} ({compat.source_line(equation)}): its noise is not a function of `rng_key` "
        "alone. Split `rng_key`, or fold numbers into it.",
        NoiseNotLifted,
    )
    total: Counter[str] = Counter()
    for one in inner:
        total += _needs(one, fn, most_loops)
    times = equation.params["length"] if operation == "scan" else 1
    if operation == "while" and total:
        checks.require(
            most_loops is not None,
            f"Simulator `{name(fn)}` draws random numbers inside a `while` loop ({compat.source_line(equation)}): how "
            "many is not known beforehand. Use a loop of fixed length (lax.fori_loop, lax.scan), or give lift_noise "
            "`most_loops`.",
            NoiseNotLifted,
        )
        times = most_loops or 1
    return Counter({kind: times * count for kind, count in total.items()})


@dataclass(frozen=True)
class _Player:
    """Plays a program with its noise taken from a vector of normals."""

    fn: Callable
    most_loops: int | None

    def needs(self, program) -> int:
        return _needs(program, self.fn, self.most_loops).total()

    def run(self, program, inputs: Sequence, z: jax.Array) -> tuple[list[Any], list[jax.Array]]:
        """Outputs, and the data of the keys that draws would have come from."""
        jaxpr, constants = compat.plain(program)
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs]))
        used: list[jax.Array] = []
        place = 0

        def read(variable):
            return variable.val if hasattr(variable, "val") else known[variable]

        for equation in jaxpr.eqns:
            count = _needs_one(equation, self.fn, self.most_loops).total()
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
        counts = [self.needs(branch) for branch in branches]
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
        in_condition = self.needs(given["cond_jaxpr"])

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
