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
from hashlib import sha256
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks, compat
from numpyro_kme._core.display import shown
from numpyro_kme._core.host import at_once
from numpyro_kme.models.playing import NO_KEY, NoiseNotLifted, Player
from numpyro_kme.models.simulator_functions import name


@shown
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
        ValueError: If `fn` itself fails, called with a key and these parameters.
    """
    if most_loops is not None:
        checks.whole("most_loops", most_loops, 1)
    checks.concrete(params=params)
    counted = at_once(partial(_looked_at, fn, params, most_loops))
    return LiftedNoise(fn, tuple(counted.items()), most_loops)


def _looked_at(fn: Callable, params: Sequence, most_loops: int | None) -> Counter[str]:
    """How many numbers of each kind one event takes."""
    try:
        program, _ = _traced(fn, params)
        counted = Player(name(fn), most_loops).needs(program)
        told_apart = _keys_differ(fn, params, most_loops, program, counted.total())
    except NoiseNotLifted:
        raise
    except (jax.errors.UnexpectedTracerError, jax.errors.TracerArrayConversionError) as error:
        raise checks.explained(
            f"Simulator `{name(fn)}` refers to a number that JAX is tracing and that is none of its parameters: make "
            "it one.",
            NoiseNotLifted,
        ) from error
    except Exception as error:
        _run_alone(fn, params)
        raise checks.explained(
            f"Simulator `{name(fn)}` runs, and its noise cannot be lifted ({type(error).__name__}: {error}).",
            NoiseNotLifted,
        ) from error
    checks.require(
        told_apart,
        f"Simulator `{name(fn)}` draws twice from one random key, so that its draws depend on each other: give each "
        "draw a key of its own, by jax.random.split or fold_in.",
        NoiseNotLifted,
    )
    return counted


def _keys_differ(fn: Callable, params: Sequence, most_loops: int | None, program: Any, dim: int) -> bool:
    """Whether no two draws come from one key; asked once of each program and its constants, however it is named."""
    seen = sha256(f"{most_loops} {program}".encode())
    for number in (*params, *compat.constants(program)):
        seen.update(np.asarray(number).tobytes())
    if seen.digest() not in _told_apart:
        used = jax.jit(lambda z, *given: _play(fn, z, given, most_loops)[1])
        keys = [np.asarray(key) for key in used(jnp.zeros(dim), *map(jnp.asarray, params))]
        rows = [tuple(row) for key in keys for row in key.reshape(-1, key.shape[-1]) if (row != NO_KEY).any()]
        _told_apart[seen.digest()] = len(set(rows)) == len(rows)
    return _told_apart[seen.digest()]


_told_apart: dict[bytes, bool] = {}
"""Digests of programs."""


def _run_alone(fn: Callable, params: Sequence) -> None:
    """The simulator without anything of this package, so that what it raises itself is told from other errors."""
    try:
        jax.block_until_ready(jax.jit(lambda *args: fn(*args))(jax.random.key(0), *map(jnp.asarray, params)))
    except Exception as error:
        raise checks.explained(
            f"Simulator `{name(fn)}` fails, called as fn(rng_key, *params) with parameters of shapes "
            f"{[jnp.shape(param) for param in params]}: {type(error).__name__}: {error}"
        ) from error


def _traced(fn: Callable, params: Sequence):
    """The program of one event at a key and parameters of these shapes, and the form of the event."""
    structs = [jax.ShapeDtypeStruct(jnp.shape(param), jnp.result_type(param)) for param in params]
    with compat.calls_binomial():
        return jax.make_jaxpr(lambda *args: fn(*args), return_shape=True)(jax.eval_shape(jax.random.key, 0), *structs)


def _play(fn: Callable, z: jax.Array, params: Sequence, most_loops: int | None) -> tuple[Any, list[jax.Array]]:
    """One event, and the data of the keys that its draws would have come from."""
    program, shape = _traced(fn, params)
    player = Player(name(fn), most_loops)
    needed = player.needs(program).total()
    checks.require(
        jnp.shape(z) == (needed,),
        f"`z` must have shape ({needed},), one number for each that `{name(fn)}` draws; got {jnp.shape(z)}.",
    )
    inputs = [jax.random.key(0), *(jnp.asarray(param) for param in params)]
    values, used = player.run(program, inputs, z)
    return jax.tree.unflatten(jax.tree.structure(shape), values), used
