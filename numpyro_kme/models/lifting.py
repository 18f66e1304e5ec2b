"""Noise lifted out of a JAX simulator: `fn(rng_key, *params)` becomes `fn(z, *params)` of standard normals `z`.

The simulator is traced, and its program played with one input more: wherever it draws, it takes entries of `z`. Draws
whose quantile function is known (`quantiles`) take one normal a number and are precise in both tails; any other draw
takes random words made of `ndtr(z)`. The distribution of the output is the simulator's own, and its noise
is a point, at which there is quadrature, low discrepancy, and a derivative.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks, compat
from numpyro_kme._core.display import frozen
from numpyro_kme._core.host import at_once
from numpyro_kme.models.playing import NO_KEY, NoiseNotLifted, Player
from numpyro_kme.models.simulator_functions import name


@frozen
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

    With $z \sim N(0, I)$ of shape `(lifted.dim,)` the distribution of `lifted(z, *params)` is that of
    `fn(rng_key, *params)`.
    It can be traced and differentiated: normal, uniform, exponential, gamma and the like are smooth in `z` and in
    their parameters, and precise in both tails; counts (Poisson, binomial, geometric) are made by inversion and
    constant in their parameters, so that they have no derivative. Draws inside `scan`, `fori_loop`, `vmap`, `cond`,
    `switch` and nested `jit` are lifted too; branches of a `cond` take normals of their own.

    Args:
        fn: The simulator, in JAX; it draws one event.
        *params: Arguments of one call, arrays like those that it will get.
        most_loops: Largest number of iterations of a `while` loop that draws; where it would go on, its numbers are
            NaN, its whole numbers the largest there is, its truth values as they are. Without it such a loop is
            refused.
    Raises:
        NoiseNotLifted: If a `while` loop draws, if `fn` makes random keys of its own or reads theirs, if it draws
            twice from one key, so that draws depend on each other, or chooses keys by parameters or draws.
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
        fault = _fault_of_keys(fn, params, most_loops, program, counted.total())
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
    checks.require(not fault, f"Simulator `{name(fn)}` {fault}", NoiseNotLifted)
    return counted


DRAWS_TWICE = (
    "draws twice from one random key, so that its draws depend on each other: give each draw a key of its own, by "
    "jax.random.split or fold_in."
)
CHOOSES_KEYS = (
    "takes other random keys with other parameters, or with other draws, so that two draws may share one: make keys "
    "from `rng_key` and fixed numbers alone."
)


def _fault_of_keys(fn: Callable, params: Sequence, most_loops: int | None, program: Any, dim: int) -> str:
    """What is wrong with the keys of draws; asked once of each program and its constants, however it is named."""
    seen = most_loops, compat.fingerprint(program), tuple(np.asarray(param).tobytes() for param in params)
    if seen not in _faults:
        used = jax.jit(lambda z, *given: _play(fn, z, given, most_loops, for_keys=True)[1])
        given = [jnp.asarray(param) for param in params]
        keys = [np.asarray(key) for key in used(jnp.zeros(dim), *given)]
        rows = [tuple(row) for key in keys for row in key.reshape(-1, key.shape[-1]) if (row != NO_KEY).any()]
        others = (
            used(jax.random.normal(jax.random.key(i), (dim,)), *(_another(param, i) for param in given))
            for i in range(1, 6)
        )
        chooses = any(not np.array_equal(key, now) for other in others for key, now in zip(keys, other))
        _faults[seen] = DRAWS_TWICE if len(set(rows)) < len(rows) else CHOOSES_KEYS if chooses else ""
    return _faults[seen]


_faults: dict[tuple, str] = {}
"""By programs."""


def _another(param: jax.Array, i: int) -> jax.Array:
    """Other values of the same type."""
    if jnp.issubdtype(param.dtype, jnp.bool_):
        return param ^ (i % 2 == 1)
    return (param + i if jnp.issubdtype(param.dtype, jnp.integer) else 1.5**i * param + 0.7).astype(param.dtype)


def _run_alone(fn: Callable, params: Sequence) -> None:
    """The simulator without anything of this package, so that what it raises itself is told from other errors."""
    try:
        with compat.shielded():
            jax.block_until_ready(jax.jit(lambda *args: fn(*args))(jax.random.key(0), *map(jnp.asarray, params)))
    except Exception as error:
        raise checks.explained(
            f"Simulator `{name(fn)}` fails, called as fn(rng_key, *params) with parameters of shapes "
            f"{[jnp.shape(param) for param in params]}: {type(error).__name__}: {error}"
        ) from error


def _traced(fn: Callable, params: Sequence):
    """The program of one event at a key and parameters of these shapes, and the form of the event."""
    structs = [jax.ShapeDtypeStruct(jnp.shape(param), jnp.result_type(param)) for param in params]
    with compat.calls_binomial(), compat.shielded():
        return jax.make_jaxpr(lambda *args: fn(*args), return_shape=True)(jax.eval_shape(jax.random.key, 0), *structs)


def _play(
    fn: Callable, z: jax.Array, params: Sequence, most_loops: int | None, for_keys: bool = False
) -> tuple[Any, list[jax.Array]]:
    """One event, and with `for_keys` the data of the keys that its draws would have come from."""
    program, shape = _traced(fn, params)
    player = Player(name(fn), most_loops, for_keys)
    needed = player.needs(program).total()
    checks.shaped("z", z, (needed,), f"number for each that `{name(fn)}` draws")
    inputs = [jax.random.key(0), *(jnp.asarray(param) for param in params)]
    values, used = player.run(program, inputs, z)
    return jax.tree.unflatten(jax.tree.structure(shape), values), used
