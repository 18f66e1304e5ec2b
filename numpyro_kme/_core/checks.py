"""Checks of arguments; each error message names the argument, shows the values and says what to do.

Checks look at what is static (shapes, dtypes, Python numbers) and at concrete arrays on the host; a traced value is
let through, so every constructor works under `jax.jit`, `jax.vmap` and `jax.grad`.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import numpy as np

from numpyro_kme._core.display import short


def is_concrete(value: Any) -> bool:
    """Tell whether every leaf of `value` holds numbers that Python can look at."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def concrete(**values: Any) -> None:
    """Require that JAX traces none of the values, which a fit on the host looks at."""
    traced = [f"`{name}`" for name, value in values.items() if not is_concrete(value)]
    require(
        not traced,
        f"{' and '.join(traced)} must be concrete: fits are made on the host, and here JAX traces "
        f"{'it' if len(traced) == 1 else 'them'}. Fit outside `jax.jit`, `jax.vmap` and `jax.grad`, evaluate inside.",
        TypeError,
    )


def is_key(value: Any) -> bool:
    """Tell whether an array holds typed random keys of JAX."""
    return isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)


def key(value: Any, *, several: bool = False) -> jax.Array:
    """The random key of JAX that a value is, typed or of the older kind, two or four words, in its typed form; or
    `several` typed ones, `(blocks,)`."""
    words = getattr(value, "dtype", None) == np.uint32 and np.shape(value) in ((2,), (4,))
    known = np.ndim(value) <= several if is_key(value) else words
    message = f"`rng_key` must be a random key of JAX; got {value!r:.200}. Make one with jax.random.key(0)."
    require(known, message, TypeError)
    default = getattr(jax.config, "jax_default_prng_impl", "threefry2x32")
    kind = str(jax.random.key_impl(value)) if is_key(value) else ""
    require(
        kind in ("", default),
        f"`rng_key` is of the kind {kind!r}, and keys of this session are of the kind {default!r}. Make it with "
        f"jax.random.key(0), or set jax.config.update('jax_default_prng_impl', {kind!r}) first.",
    )
    return value if kind else jax.random.wrap_key_data(value)


class EffectiveSampleSizeError(RuntimeError):
    """Too few simulations carry the weights for them to be called a posterior."""


Raised = TypeVar("Raised", bound=Exception)
T = TypeVar("T")


def require(condition: bool, message: str, error: type[Exception] = ValueError) -> None:
    """Raise `error` with `message` unless `condition` holds."""
    if not condition:
        raise explained(message, error)


def given(value: T | None, message: str, error: type[Exception] = ValueError) -> T:
    """The value, if there is one; raise `error` with `message` for None."""
    if value is None:
        raise explained(message, error)
    return value


def explained(message: str, error: type[Raised] = ValueError, **details: str) -> Raised:  # type: ignore[assignment]
    """An error with a note that gives the page of errors, which has its cause and remedy."""
    found = error(message, **details)
    found.add_note(EXPLANATION)
    return found


@contextmanager
def needs(what: str, package: str) -> Iterator[None]:
    """Say how to install a package that is imported within, and what needs it, where it is not there."""
    try:
        yield
    except ImportError as error:
        message = f"{what} {package}, which is not installed: pip install {package}."
        raise explained(message, ModuleNotFoundError, name=package) from error


EXPLANATION = "Causes and remedies: docs/errors.md"
"""The page that has causes and remedies, by its name in this repository."""


def is_explained(error: Exception) -> bool:
    """Tell whether an error was raised by `explained`."""
    return EXPLANATION in getattr(error, "__notes__", ())


_told: ContextVar[dict[str, str] | None] = ContextVar("told", default=None)


def each_once() -> AbstractContextManager[dict[str, str]]:
    """A block in which `warn` says each sentence once, or one `about` the same, as rounds would say it again; those
    that were said, by what they are about."""
    return setting(_told, known if (known := _told.get()) is not None else {})


_collected: ContextVar[list[str] | None] = ContextVar("collected", default=None)


@contextmanager
def setting(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Give a context variable a value within a block, and its value of before behind it."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def collected_warnings() -> AbstractContextManager[list[str]]:
    """A list of what `warn` says within, in this thread, in place of the warnings."""
    return setting(_collected, [])


def warn(sentence: str, about: str = "") -> None:
    """Warn at the line of the user's that called the package, however deep it went, with the page of errors."""
    told, collected = _told.get(), _collected.get()
    if collected is not None:
        collected.append(sentence)
        return
    if told is not None:
        if (about or sentence) in told:
            return
        told[about or sentence] = sentence
    frame, level, outermost = sys._getframe(1), 2, 2
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "numpyro_kme":
            outermost = level + 1
        frame, level = frame.f_back, level + 1
    warnings.warn(f"{sentence}\n{EXPLANATION}", UserWarning, stacklevel=outermost)


def v_statistic(name: str, value: Any, size: Any) -> None:
    """Stop at a square, the sum of terms of a given size, that is negative by more than rounding."""
    if is_concrete((value, size)):
        rounding = 1e3 * float(np.finfo(np.asarray(value).dtype).eps) * float(size)
        require(
            float(value) >= -rounding,
            f"{name} must be at least 0; got {float(value):.3g} with a rounding error of {rounding:.2g}. It is a "
            "square where the kernel is positive definite, which this one is not: use another kernel.",
            RuntimeError,
        )


def positive(name: str, value: Any) -> None:
    """Require every entry of a concrete `value` to be positive and finite."""
    if is_concrete(value):
        real(name, value)
        array = np.asarray(value)
        if not np.all(np.isfinite(array) & (array > 0)):  # to print an array takes longer than to check it
            raise explained(f"`{name}` must be positive and finite; got {value}.")


def shape_of(name: str, value: Any) -> tuple[int, ...]:
    """The shape of what must be an array."""
    with suppress(TypeError, ValueError):
        if isinstance(shape := np.shape(value), tuple) and not isinstance(value, Mapping):
            return shape  # to write a value down takes longer than to look at it
    raise explained(f"`{name}` must be an array of real numbers; got {line(value)}.", TypeError)


def number(name: str, value: Any) -> None:
    """Require one real number."""
    require(value is not None, f"`{name}` must be one number; got None.")
    require(shape_of(name, value) == (), f"`{name}` must be one number; got shape {np.shape(value)}.")
    real(name, value)


def positive_number(name: str, value: Any) -> None:
    """Require one number, positive and finite where it is concrete."""
    number(name, value)
    positive(name, value)


def fraction(name: str, value: Any) -> None:
    """Require one number between 0 and 1."""
    number(name, value)
    require(0.0 < value < 1.0, f"`{name}` must be between 0 and 1; got {value}.")


def optional(check: Callable, name: str, value: Any, *how: Any) -> None:
    """Run `check(name, value, *how)` on a value that may be left out, where it is not None."""
    if value is not None:
        check(name, value, *how)


def non_negative(name: str, value: Any) -> None:
    """Require every entry of a concrete `value` to be finite and not negative."""
    real(name, value)
    if is_concrete(value) and not np.all(np.isfinite(value) & (np.asarray(value) >= 0)):
        raise explained(f"`{name}` must be finite and not negative; got {value}.")


def sums_to_one(name: str, weights: Any) -> None:
    """Require concrete weights to sum to one along their last axis, to 1e-4."""
    if is_concrete(weights):
        totals = np.sum(np.asarray(weights, dtype=np.float64), axis=-1)
        worst = totals.flat[np.argmax(np.abs(totals - 1.0))]
        require(bool(abs(worst - 1.0) <= 1e-4), f"`{name}` must sum to one; got a sum of {worst:.6g}. Divide by it.")


def whole(name: str, value: Any, least: int, advice: str = "") -> None:
    """Require a whole number of at least `least`."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    require(is_whole, f"`{name}` must be a whole number; got {value!r}.{advice}", TypeError)
    require(value >= least, f"`{name}` must be at least {least}; got {value}.{advice}")


def line(value: Any) -> str:
    """A value in one line, for a message."""
    return f"{value!r:.200}" if isinstance(value, str) or value is None else short(value, 200) or repr(value)


def instance(name: str, value: Any, kind: type[T] | Any, what: str) -> T:
    """The value, which must be an instance of `kind`, which `what` describes."""
    if not isinstance(value, kind):  # to write a value down takes longer than to check it
        raise explained(f"`{name}` must be {what}; got {line(value)}.", TypeError)
    return value


def real(name: str, value: Any) -> None:
    """Require every array of a pytree to hold real numbers."""
    for leaf in jax.tree.leaves(value):
        dtype = leaf.dtype if isinstance(leaf, jax.Array) else np.asarray(leaf).dtype
        numbers = any(jax.numpy.issubdtype(dtype, kind) for kind in (np.bool_, np.integer, np.floating))
        require(numbers, f"`{name}` must hold real numbers; got dtype {dtype}.", TypeError)


def unmasked(value: Any) -> Any:
    """A NumPy array with NaN where it is masked; anything else as it is."""
    return value.astype(float).filled(np.nan) if np.ma.is_masked(value) else value


def sound(name: str, value: Any, advice: str = "") -> None:
    """Require every array of a pytree to hold real numbers, none of them masked, and all finite where they are
    concrete."""
    real(name, value)
    for leaf in filter(is_concrete, jax.tree.leaves(value)):
        array = np.asarray(unmasked(leaf))
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            index = tuple(bad[0].tolist())
            raise explained(
                f"`{name}` has {len(bad)} entries that are not finite out of {array.size}; the first is "
                f"{array[index]} at index {index}. {advice or 'Remove or repair these entries first.'}"
            )


RESOLVED, NORMALISED = 100.0, 2.0
"""Roundings over which numbers must vary, at least, so that rounding adds less than a hundredth of their standard
deviation; up to `NORMALISED` they may be correlations and proportions that are constant but for rounding."""


def resolved(name: str, x: Any, observed: Any = None, *, varies: bool = False) -> None:
    """Require numbers of outputs `(m, ...)` that vary, or all where each `varies`, to vary by more than the roundings
    of their type, or of that of an observation of them."""
    x, y = np.asarray(x), np.asarray(x if observed is None else observed)
    types = x.dtype, y.dtype
    rounding = max([jax.numpy.finfo(t).eps for t in types if jax.numpy.issubdtype(t, jax.numpy.floating)], default=0.0)
    table = x.reshape(len(x), -1).astype(np.float64)
    both = np.concatenate([table, y.reshape(-1, table.shape[1])]) if y.size == table.shape[1] else table
    for rows in (table, both):  # simulations that are rounded to one number differ from an observation that is not
        low, high = np.fmin.reduce(rows), np.fmax.reduce(rows)
        size = np.maximum(abs(low), abs(high))
        narrow = high / 2 - low / 2 < RESOLVED / 2 * rounding * size
        lost = np.flatnonzero(narrow & ((low < high) | (varies and len(x) > 1)) & (size > NORMALISED))
        if not len(lost):
            continue
        i = lost[0]
        raise explained(
            f"Number {i} of {name} varies from {low[i]:.10g} to {high[i]:.10g}, which floating-point numbers of the "
            f"types {', '.join(dict.fromkeys(map(str, types)))} round to steps of about {rounding * size[i]:.2g}. "
            "Subtract the offset, in simulations and data alike, use 64 bits for both, or leave a constant out."
        )


def table(name: str, value: Any, *, columns: int | None = None, min_rows: int = 1, advice: str = "") -> None:
    """Require real numbers of shape `(rows, columns)` with at least `min_rows` rows, all finite where they are
    concrete."""
    shape = shape_of(name, value)
    require(len(shape) == 2, f"`{name}` must have shape (points, dim); got {shape}. Use {name}[:, None] for scalars.")
    require(shape[0] >= min_rows, f"`{name}` must have at least {min_rows} rows; got shape {shape}.")
    require(shape[1] >= 1, f"`{name}` must have at least 1 column; got shape {shape}.")
    if columns is not None:
        require(shape[1] == columns, f"`{name}` must have {columns} columns; got shape {shape}.")
    sound(name, value, advice)


def draws(name: str, value: Any) -> None:
    """Require draws `{site: (n, *shape)}`, real numbers, as many at each site."""
    instance(name, value, Mapping, "draws, {site: (n, *shape)}")
    named = all(isinstance(site, str) for site in value)
    require(named, f"`{name}` must be draws by the names of sites; got the keys {[*value]}.", TypeError)
    shapes = {site: shape_of(f"{name}[{site!r}]", one) for site, one in value.items()}
    for site, one in value.items():
        real(f"{name}[{site!r}]", one)
    alike = len({shape[:1] for shape in shapes.values()}) == 1 and all(shape[:1] > (0,) for shape in shapes.values())
    what = "at least one draw, {site: (n, *shape)}, and as many at each site"
    require(alike, f"`{name}` must hold {what}; got {shapes or 'none'}.")


def shaped(name: str, value: Any, shape: tuple[int, ...], what: str) -> None:
    """Require a shape, with one entry `what`."""
    require(np.shape(value) == shape, f"`{name}` must have shape {shape}, one {what}; got {np.shape(value)}.")


def expands(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Tell whether an array of a shape can be broadcast to another."""
    with suppress(ValueError, TypeError):
        return np.broadcast_shapes(shape, to) == to
    return False
