"""The functions that simulators are made of: in JAX, in NumPy, or written in terms of their noise."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from numpyro.distributions import Distribution

from numpyro_kme._core import Program, checks, compat, host, shown
from numpyro_kme.kernels.data_sets import pad

Shape = tuple[int, ...]


called_back: ContextVar[bool] = ContextVar("called_back", default=False)
"""Whether a black-box simulator is being called from inside JAX, which waits for it."""


def name(fn: Callable) -> str:
    """Name of a function, for sentences; of the function inside where one wraps another."""
    while isinstance(fn, partial | Joined | Padded | FromNoise):
        fn = fn.func if isinstance(fn, partial) else fn.fn
    return getattr(fn, "__name__", type(fn).__name__)


def parameters(fn: Callable, number: int) -> list[str]:
    """Names of the first parameters of a simulator behind its key, as its signature has them, else `arguments[i]`."""
    while isinstance(fn, Joined | Padded | FromNoise):
        fn = fn.fn
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    with suppress(ValueError, TypeError):  # some functions of C have no signature
        found = [one.name for one in inspect.signature(fn).parameters.values() if one.kind in positional][1:]
        if len(found) >= number:
            return found[:number]
    return [f"arguments[{i}]" for i in range(number)]


def fits(found: Shape, declared: Shape) -> bool:
    """Tell whether an array has the shape that was declared, where one number may be a scalar."""
    return found == declared or (found == () and declared == (1,))


class WrongOutput(ValueError):
    """A black-box simulator returned something else than it declares."""


def check_function(fn: Any) -> None:
    """Require something callable that JAX can recognise when it meets it again."""
    checks.require(callable(fn), f"The first argument of Simulator must be a function; got {fn!r}.", TypeError)
    try:
        hash(fn)
    except TypeError as error:
        raise checks.explained(
            f"Simulator `{name(fn)}` cannot be hashed, which JAX needs in order to recognise it. Pass a "
            "plain function, or make its class hashable, for example by @dataclass(frozen=True).",
            TypeError,
        ) from error


def traced_anew(fn: Callable, *args: Any) -> Any:
    """`fn(*args)` by a compiled program that is traced each time, and not as JAX remembers it: what `fn` refers to may
    have changed."""
    own = compat.shielded(lambda *args: fn(*args))
    return Program(own, thorough=True)(*args) if checks.is_concrete(args) else own(*args)


def calls_on_host(fn: Callable, shape: Shape, dtype: np.dtype, key_data: np.ndarray, params: Sequence) -> np.ndarray:
    """Calls of a black-box simulator, `(*lead, *shape)`: one for each leading index of `key_data` and of parameters.

    Each has the NumPy generator that belongs to the data of a JAX key. Parameters are handed out in float64, since
    NumPy computes in the precision of what it is given.

    Raises:
        WrongOutput: If a result has not the declared shape, or a dtype that does not cast to the declared one.
    """
    lead = key_data.shape[:-1]
    outputs = np.empty(lead + shape, dtype)
    given = [param.astype(np.float64) if param.dtype.kind == "f" else param for param in params]
    for i in np.ndindex(lead):
        rng = np.random.default_rng(np.asarray(key_data[i], np.uint32).ravel())
        found = fn(rng, *(param[i] for param in given))
        x = found.astype(float).filled(np.nan) if np.ma.is_masked(found) else np.asarray(found)
        if x.shape != shape or not np.can_cast(x.dtype, dtype, "same_kind"):  # the sentence takes as long as the call
            raise checks.explained(
                f"Simulator `{name(fn)}` declares shape {shape} and dtype {dtype} but returned shape {x.shape} and "
                f"dtype {x.dtype}. Correct the declaration, Simulator(..., shape=..., dtype=...), or the simulator.",
                WrongOutput,
            )
        outputs[i] = _as(dtype, x, fn)
    return outputs


def _as(dtype: np.dtype, x: np.ndarray, fn: Callable) -> np.ndarray:
    """An output in the type that is declared, or that JAX has; whole numbers must stay what they are."""
    found = x.astype(dtype)
    if dtype.kind in "iu" and np.any(found != x):
        raise checks.explained(
            f"Simulator `{name(fn)}` returned {x[found != x][0]}, which {dtype} cannot hold. Declare dtype=float, or a "
            "longer type; JAX has 32 bits of it unless numpyro.enable_x64() is called.",
            WrongOutput,
        )
    return found


def call_back(fn: Callable, shape: Shape, dtype: np.dtype, key_data: jax.Array, params: Sequence) -> jax.Array:
    """Calls of a black-box simulator from inside JAX, one for each leading index of `key_data`."""
    canonical = jax.dtypes.canonicalize_dtype(dtype)  # float64 is float32 while x64 is off

    def rows(key_data, *params):
        with checks.setting(called_back, True):
            return _as(np.dtype(canonical), calls_on_host(fn, shape, dtype, key_data, params), fn)

    if checks.is_concrete((key_data, params)):  # JAX would say in its own words what fails
        found = calls_on_host(fn, shape, dtype, np.asarray(key_data), list(map(np.asarray, params)))
        return jax.numpy.asarray(_as(np.dtype(canonical), found, fn))
    no_derivative = TypeError(
        f"Simulator `{name(fn)}` runs in NumPy, so that its draws have no derivative, which NUTS, HMC and SVI ask for. "
        "Write it in JAX, or use PseudoMarginal, numpyro.infer.SA, or an engine that learns the likelihood, as KELFI."
    )
    given = compat.without_derivative(tuple(params), no_derivative)
    return host.call_back(rows, key_data.shape[:-1] + shape, canonical, key_data, *given, vmap_method="broadcast_all")


@dataclass(frozen=True)
class Joined:
    """A simulator that gives numbers by name, as one that gives them in one vector.

    Args:
        fn: It returns a dictionary of arrays; a black box may return a row or a table of pandas too.
        names: Which entries, in their order; those of the dictionary in its own order when left out.
        shapes: Shapes of these entries, where they were declared.
    """

    fn: Callable
    names: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = ()

    def __call__(self, key: Any, *params):
        """One event as a vector; a table with named columns as a matrix; anything else as it is."""
        found = self.fn(key, *params)
        if isinstance(found, Mapping):
            missing = [one for one in self.names if one not in found]
            checks.require(not missing, f"Simulator `{name(self.fn)}` gives {list(found)}, without {missing}.")
            each = [found[one] for one in self.names or found]
            shapes = tuple(map(np.shape, each))
            checks.require(
                not self.shapes or all(map(fits, shapes, self.shapes)),
                f"Simulator `{name(self.fn)}` declares entries of the shapes {dict(zip(self.names, self.shapes))} but "
                f"returned {shapes}. Correct `names`.",
                WrongOutput,
            )
            xp: Any = jax.numpy if any(isinstance(one, jax.Array) for one in each) else np
            return xp.concatenate([xp.ravel(one) for one in each])
        if type(found).__module__.partition(".")[0] == "pandas":
            return np.asarray(found[list(self.names)])
        return found


@dataclass(frozen=True)
class Padded:
    """A black-box simulator of outputs of any length, with rows of NaN behind them.

    Args:
        fn: `(rng, *params) -> (n, *rest)`, with `n` from 1 to the first number of `shape`.
        shape: That of the longest output.
    """

    fn: Callable
    shape: Shape

    def __call__(self, rng: np.random.Generator, *params: np.ndarray) -> np.ndarray:
        """Simulate one event; one that is longer than was declared stays so."""
        x = np.asarray(self.fn(rng, *params))
        checks.require(
            x.ndim == len(self.shape) and 1 <= len(x) <= self.shape[0] and x.shape[1:] == self.shape[1:],
            f"Simulator `{name(self.fn)}` declares outputs of at most {self.shape[0]} rows, shape {self.shape}, but "
            f"returned shape {x.shape}. Declare the longest, Simulator(..., shape=..., ragged=True); none is empty.",
            WrongOutput,
        )
        return pad(x, self.shape[0])


@shown
@dataclass(frozen=True, eq=False)
class FromNoise:
    """A simulator `fn(noise, *params)` whose noise has a declared distribution.

    It is a simulator `fn(rng_key, *params)` like any other: `Simulator(FromNoise(fn, dist.Normal(0, 1)),
    *params)`. `handlers.soft_abc` and `LatentNoise` need the noise as numbers: they make it a latent of the
    model.

    Define it once, outside the model: JAX compares functions by identity.

    Args:
        fn: `(noise, *params) -> one event`, traceable.
        noise: Distribution of the noise of one event, for instance `dist.Normal(0, 1).expand([3]).to_event(1)`.
    """

    fn: Callable
    noise: Distribution

    def __post_init__(self):
        checks.instance("fn", self.fn, Callable, "a function (noise, *params) -> one event")
        checks.instance("noise", self.noise, Distribution, "a NumPyro distribution")

    @cached_property
    def joined(self) -> "FromNoise":
        """Join the entries of a dictionary in one vector."""
        return FromNoise(Joined(self.fn), self.noise)

    def __call__(self, rng_key: jax.Array, *params):
        """Draw the noise and simulate one event."""
        return self.fn(self.noise.sample(rng_key), *params)
