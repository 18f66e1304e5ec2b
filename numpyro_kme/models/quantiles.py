"""How the draws of a traced program are made from standard normals: quantile functions, and words of random bits."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from itertools import product
from math import prod

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import betainc, ndtr, ndtri

from numpyro_kme._core import checks, compat
from numpyro_kme.models.normalise import Tails, from_normal
from numpyro_kme.models.special_quantiles import gamma, log_gamma, poisson, von_mises


def of_family(family: Callable[..., dist.Distribution]) -> Callable[..., jax.Array]:
    """The quantile function at `ndtr(z)` of a family, `(z, *params)`."""
    return lambda z, *params: from_normal(family(*params, validate_args=False), z)


def cauchy(z: jax.Array) -> jax.Array:
    """The quantile function of the standard Cauchy distribution at `ndtr(z)`."""
    far = jnp.abs(z) > 0.5
    tail = jnp.sign(z) / jnp.tan(jnp.pi * ndtr(-jnp.where(far, jnp.abs(z), 1.0)))
    return jnp.where(far, tail, jnp.tan(jnp.pi * (ndtr(jnp.where(far, 0.0, z)) - 0.5)))


def uniform(z: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """The quantile function at `ndtr(z)` of the uniform distribution, up to the largest number that JAX draws; `low`
    where that is above `high`."""
    low, high = jnp.asarray(low, z.dtype), jnp.asarray(high, z.dtype)
    high = jnp.where(high < low, low, high)
    value = from_normal(dist.Uniform(low, high, validate_args=False), z)
    low, high = lax.stop_gradient((low, high))
    most = jnp.minimum(low + (high - low) * (1.0 - jnp.finfo(z.dtype).eps), lax.nextafter(high, low))
    return value + lax.stop_gradient(jnp.minimum(most - value, 0.0))


def truncated_normal(z: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """The quantile function at `ndtr(z)` of the standard normal distribution between two bounds, which are left out;
    next to the nearer one where they are so far out that nothing is left between them in this precision."""
    low, high = jnp.asarray(low, z.dtype), jnp.asarray(high, z.dtype)
    below = ndtr(low) * ndtr(-z) + ndtr(high) * ndtr(z)  # P(Z < x), of untruncated Z; and its complement
    above = ndtr(-low) * ndtr(-z) + ndtr(-high) * ndtr(z)
    lower = below < above
    smaller = jnp.where(lower, below, above)
    tail = ndtri(jnp.where(smaller == 0.0, 0.5, smaller))
    value = jnp.where(smaller == 0.0, jnp.where(low > 0.0, low, high), jnp.where(lower, tail, -tail))
    low, high = lax.stop_gradient((low, high))
    return value + lax.stop_gradient(jnp.clip(value, lax.nextafter(low, high), lax.nextafter(high, low)) - value)


def count(z: jax.Array, tails: Callable[[jax.Array], Tails], most: jax.Array | float) -> jax.Array:
    """The smallest whole number from 0 to `most` whose distribution function, `tails(k)[0]`, reaches `ndtr(z)`.

    By halving an interval, which doubles until it holds the number; by the smaller tail, so that both are precise.
    """
    lower, upper = lax.stop_gradient((ndtr(z), ndtr(-z)))

    def reached(k):
        below, above = tails(k)
        return jnp.where(z < 0, below >= lower, above <= upper) | (k >= most)

    def double(ends):
        low, high = ends
        found = reached(high)
        return jnp.where(found, low, high + 1.0), jnp.where(found, high, 2.0 * high + 1.0)

    def halve(ends):
        low, high = ends
        middle = jnp.floor(0.5 * (low + high))
        found = reached(middle)
        return jnp.where(found, low, jnp.minimum(middle + 1.0, high)), jnp.where(found, middle, high)

    start = jnp.zeros_like(z), jnp.ones_like(z)
    ends = lax.while_loop(lambda ends: ~jnp.all(reached(ends[1])), double, start)
    return lax.while_loop(lambda ends: jnp.any(ends[0] < ends[1]), halve, ends)[0]


def binomial(z: jax.Array, number: jax.Array, probability: jax.Array) -> jax.Array:
    """Quantile at `ndtr(z)` of the binomial distribution, constant in its probability."""
    given = (jnp.broadcast_to(jnp.asarray(value, z.dtype), z.shape) for value in (number, probability))
    n, p = lax.stop_gradient(tuple(given))

    def tails(k):
        left = jnp.maximum(n - k, 0.5)  # at k = n the search is over
        return betainc(left, k + 1.0, 1.0 - p), betainc(k + 1.0, left, p)

    return jnp.where(p > 0, jnp.where(p < 1, count(z, tails, n), n), 0.0)


def binomial_of_jax(z: jax.Array, number: jax.Array, probability: jax.Array) -> jax.Array:
    """The same of the whole part of a number; NaN where JAX has it."""
    n, p = jnp.floor(jnp.asarray(number, z.dtype)), jnp.asarray(probability, z.dtype)
    valid = (n >= 0) & (p >= 0) & (p <= 1)
    found = jnp.where(jnp.isinf(n), n, binomial(z, jnp.where(valid & (n < jnp.inf), n, 0.0), p))
    return jnp.where(valid, found, jnp.nan)


def geometric(z: jax.Array, probability: jax.Array) -> jax.Array:
    """Quantile at `ndtr(z)` of the number of trials up to the first success."""
    hazard = from_normal(dist.Exponential(1.0, validate_args=False), z)
    return jnp.maximum(jnp.ceil(hazard / -jnp.log1p(-probability)), 1.0)


def words(z: jax.Array, width: int) -> jax.Array:
    """Uniform words of so many bits, increasing in `z` down to the digits that `ndtr(z)` has; those below are mixed
    from the bits of `z`."""
    kind = jnp.dtype(f"uint{width}")
    known = min(width, jnp.finfo(z.dtype).nmant)
    level = jnp.floor(jnp.where(z < 0, ndtr(z), 1.0 - ndtr(-z)) * 2.0**known)
    upper = jnp.minimum(level, 2.0**known - 1.0).astype(jnp.uint64 if width == 64 else jnp.uint32)
    if known == width:
        return upper.astype(kind)
    mixed = lax.bitcast_convert_type(z.astype(jnp.float32), jnp.uint32)
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(factor)
    lower = (mixed ^ (mixed >> 15)).astype(upper.dtype) & jnp.asarray(2 ** (width - known) - 1, upper.dtype)
    return ((upper << (width - known)) | lower).astype(kind)


def randint(z: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """Whole numbers from `low` to `high - 1`, increasing in `z`; `low` where there is none."""
    dtype = jnp.result_type(low, high)
    dtype = dtype if jnp.issubdtype(dtype, jnp.integer) else jnp.result_type(int)
    low, high = low.astype(dtype), high.astype(dtype)
    high = jnp.where(high > low, high, low + 1)
    if dtype.itemsize > 4:
        span = high - low
        return low + jnp.minimum(jnp.floor(ndtr(z) * span).astype(dtype), span - 1)
    low, span = low.astype(jnp.uint32), (high - low).astype(jnp.uint32)
    word = words(z, 32)
    upper, lower = word >> 16, word & 0xFFFF
    crossed = upper * (span & 0xFFFF)
    middle = ((lower * (span & 0xFFFF)) >> 16) + (crossed & 0xFFFF) + lower * (span >> 16)
    return low + upper * (span >> 16) + (crossed >> 16) + (middle >> 16)  # the upper word of word * span


JAX, NUMPYRO = "jax", "numpyro"
RULES: dict[tuple[str, str], tuple[str, Callable[..., jax.Array]]] = {
    (JAX, "_normal_real"): ("normal", lambda z: z),
    (JAX, "_uniform"): ("uniform", uniform),
    (JAX, "_truncated_normal"): ("truncated normal", truncated_normal),
    (JAX, "_exponential"): ("exponential", of_family(partial(dist.Exponential, 1.0))),
    (JAX, "_weibull_min"): ("weibull", of_family(dist.Weibull)),
    (JAX, "_gumbel"): ("gumbel", of_family(partial(dist.Gumbel, 0.0, 1.0))),
    (JAX, "_laplace"): ("laplace", of_family(partial(dist.Laplace, 0.0, 1.0))),
    (JAX, "_logistic"): ("logistic", of_family(partial(dist.Logistic, 0.0, 1.0))),
    (JAX, "_cauchy"): ("cauchy", cauchy),
    (JAX, "_rayleigh"): ("rayleigh", lambda z, scale: scale * jnp.sqrt(2.0 * from_normal(dist.Exponential(1.0), z))),
    (JAX, "_randint"): ("randint", randint),
    (JAX, "_geometric"): ("geometric", geometric),
    (JAX, "_poisson"): ("poisson", poisson),
    (JAX, "_binomial"): ("binomial", binomial_of_jax),
    (NUMPYRO, "_von_mises_centered"): ("von Mises", von_mises),
    (NUMPYRO, "_binomial"): ("binomial", lambda z, probability, number: binomial(z, number, probability)),
}
"""What compiled functions of `jax.random` and of NumPyro draw, and their quantile functions."""


def kind(equation) -> str:
    """What an operation of a traced program draws, in one word; empty if it draws nothing or is made of draws."""
    match equation.primitive.name:
        case "random_bits":
            return "random bits"
        case "random_gamma":
            return "gamma"
    found = RULES.get(compat.written_in(equation))
    return "" if found is None or _aligned(equation, found[1]) is None else found[0]


def size(equation) -> int:
    """How many numbers it draws."""
    return prod(equation.outvars[0].aval.shape)


def keys(equation, key: jax.Array) -> list[jax.Array]:
    """Data of its key, with a zero behind them, and, with a one behind, of those whose bits it takes: of the same, or
    of those that it makes of it. No draw shares either with another."""
    if equation.primitive.name == "random_gamma":
        made = size(equation) // max(key.size, 1)
    else:
        made = max((_largest(program, ("random_split",), _made) for program in compat.programs(equation)), default=0)
    bits = jax.vmap(lambda key: jax.random.split(key, made))(key.reshape(-1)) if made else key
    data = map(jax.random.key_data, (key, bits))
    return [jnp.insert(one.reshape(-1, one.shape[-1]), one.shape[-1], tag, axis=1) for tag, one in enumerate(data)]


def drawn(equation, values: Sequence, z: jax.Array) -> jax.Array:
    """What it draws, of its inputs and as many normals as `size` says."""
    aval = equation.outvars[0].aval
    real = aval.dtype if jnp.issubdtype(aval.dtype, jnp.floating) else z.dtype
    z = z.reshape(aval.shape).astype(real)
    match equation.primitive.name:
        case "random_bits":
            return words(z, equation.params["bit_width"])
        case "random_gamma":
            return (log_gamma if equation.params["log_space"] else gamma)(z, values[1])
    rule = RULES[compat.written_in(equation)][1]
    shapes = _aligned(equation, rule) or ()
    params = (jnp.broadcast_to(jnp.reshape(value, shape), aval.shape) for value, shape in zip(values[1:], shapes))
    return rule(z, *params).astype(aval.dtype)


def _aligned(equation, rule: Callable[..., jax.Array]) -> tuple[tuple[int, ...], ...] | None:
    """Shapes in which the parameters of a draw broadcast to it; None where they need not do so, where draws that `vmap`
    made many share their noise, or where it is a derivative: then what it is made of is looked at."""
    out, (key, *params) = equation.outvars[0].aval, (variable.aval for variable in equation.invars)
    program = equation.params["jaxpr"]
    try:
        signature(rule).bind(out, *params)
    except TypeError:
        return None
    if len(equation.outvars) > 1 or _largest(program, DRAWS, size) < prod(out.shape):
        return None
    if _largest(program, ("transpose",), size):  # axes of calls are not in front
        return None
    found = [_shape(param.shape, key.shape, out.shape) for param in params]
    return None if any(shape is None for shape in found) else tuple(shape for shape in found if shape is not None)


def _shape(own: tuple[int, ...], calls: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape in which a parameter broadcasts to what many calls draw, whichever of their axes it has in front; None
    if none fits, or several."""
    event, fits = out[len(calls) :], set()
    for has in product((False, True), repeat=len(calls)):
        front = tuple(size for size, one in zip(calls, has) if one)
        rest = own[len(front) :]
        if own[: len(front)] == front and checks.expands(rest, event):
            lead = tuple(size if one else 1 for size, one in zip(calls, has))
            fits.add(lead + (1,) * (len(event) - len(rest)) + rest)
    return fits.pop() if len(fits) == 1 else None


DRAWS = ("random_bits", "random_gamma")


def _made(equation) -> int:
    """How many keys `random_split` makes of one."""
    return prod(equation.params["shape"])


def _largest(program, operations: Sequence[str], measure: Callable[..., int]) -> int:
    """The largest measure of operations of these names in a program; 0 where there is none."""
    found = [0]
    for equation in compat.plain(program)[0].eqns:
        if equation.primitive.name in operations:
            found.append(measure(equation))
        found += [_largest(inner, operations, measure) for inner in compat.programs(equation)]
    return max(found)
