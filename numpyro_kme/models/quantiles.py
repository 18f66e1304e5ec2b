"""How the draws of a traced program are made from standard normals: quantile functions, and words of random bits."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import betainc, gammainc, gammaincc, gammaln, log_ndtr, ndtr, ndtri

from numpyro_kme._core import checks, compat
from numpyro_kme.models.normalise import Tails, from_normal
from numpyro_kme.models.von_mises import von_mises


def of_family(family: Callable[..., dist.Distribution]) -> Callable[..., jax.Array]:
    """The quantile function at `ndtr(z)` of a family, `(z, *params)`."""
    return lambda z, *params: from_normal(family(*params, validate_args=False), z)


def cauchy(z: jax.Array) -> jax.Array:
    """The quantile function of the standard Cauchy distribution at `ndtr(z)`."""
    far = jnp.abs(z) > 0.5
    tail = jnp.sign(z) / jnp.tan(jnp.pi * ndtr(-jnp.where(far, jnp.abs(z), 1.0)))
    return jnp.where(far, tail, jnp.tan(jnp.pi * (ndtr(jnp.where(far, 0.0, z)) - 0.5)))


def uniform(z: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """The quantile function at `ndtr(z)` of the uniform distribution, up to the largest number that JAX draws."""
    value = from_normal(dist.Uniform(low, high, validate_args=False), z)
    low, high = lax.stop_gradient((low, high))
    most = jnp.minimum(low + (high - low) * (1.0 - jnp.finfo(z.dtype).eps), lax.nextafter(high, low))
    return value + lax.stop_gradient(jnp.minimum(most - value, 0.0))


def truncated_normal(z: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """The quantile function at `ndtr(z)` of the standard normal distribution between two bounds, which are left out."""
    low, high = jnp.asarray(low, z.dtype), jnp.asarray(high, z.dtype)
    below = ndtr(low) * ndtr(-z) + ndtr(high) * ndtr(z)  # P(Z < x), of untruncated Z; and its complement
    above = ndtr(-low) * ndtr(-z) + ndtr(-high) * ndtr(z)
    lower = below < above
    tail = ndtri(jnp.where(lower, below, above))
    value, low, high = jnp.where(lower, tail, -tail), *lax.stop_gradient((low, high))
    return value + lax.stop_gradient(jnp.clip(value, lax.nextafter(low, high), lax.nextafter(high, low)) - value)


@jax.custom_jvp
def log_gamma(z: jax.Array, shape: jax.Array) -> jax.Array:
    """Logarithm of the quantile at `ndtr(z)` of the gamma distribution of a shape `a` and rate 1.

    Newton's method in `log x`, on whichever tail is smaller. Derivatives are those of the implicit function: `phi(z)`
    over the density in `z`, and JAX's `random_gamma_grad` in `a`.
    """
    shape, z = jnp.broadcast_arrays(jnp.asarray(shape, z.dtype), z)
    small = (log_ndtr(z) + gammaln(shape + 1.0)) / shape  # P(x) -> x^a / Gamma(a + 1)
    cube = 1.0 - 1.0 / (9.0 * shape) + z / (3.0 * jnp.sqrt(shape))  # Wilson and Hilferty
    start = jnp.where((cube > 0.3) & (shape > 0.5), jnp.log(shape) + 3.0 * jnp.log(jnp.maximum(cube, 0.3)), small)
    lower, target = z < 0, log_ndtr(-jnp.abs(z))

    def step(_, u):
        x = jnp.exp(u)
        tail = jnp.where(lower, gammainc(shape, x), gammaincc(shape, x))
        tiny = tail < jnp.finfo(z.dtype).tiny
        series = shape * u - gammaln(shape + 1.0) + jnp.log1p(-shape / (shape + 1.0) * jnp.minimum(x, 1e-6))
        # the series of log P serves where P has no digits
        log_tail = jnp.where(lower & (tiny | (x < 1e-6)), series, jnp.log(jnp.where(tiny, 1.0, tail)))
        log_slope = shape * u - x - gammaln(shape) - log_tail  # of log P or log Q in log x
        move = (target - log_tail) * jnp.exp(-jnp.clip(log_slope, -30.0, 30.0)) * jnp.where(lower, 1.0, -1.0)
        return u + jnp.clip(move, -1.0, 1.0)

    # steps of Newton's method for a quantile of the gamma distribution; six reach rounding
    return lax.fori_loop(0, 12, step, start)


@log_gamma.defjvp
def _(primals, tangents):
    (z, shape), (dz, da) = primals, tangents
    u = log_gamma(z, shape)
    x = jnp.exp(u)
    a = jnp.broadcast_to(jnp.asarray(shape, u.dtype), u.shape)
    log_density = a * u - x - gammaln(a)  # of log x
    by_z = jnp.exp(-0.5 * jnp.square(z) - 0.5 * jnp.log(2.0 * jnp.pi) - log_density)
    near = x < 1e-6
    series = (jax.scipy.special.digamma(a + 1.0) - u) / a  # of (log P + log Gamma(a + 1)) / a at fixed P
    by_a = jnp.where(near, series, lax.random_gamma_grad(a, jnp.where(near, 1.0, x)) / jnp.where(near, 1.0, x))
    return u, by_z * dz + by_a * da


def gamma(z: jax.Array, shape: jax.Array) -> jax.Array:
    """Quantile at `ndtr(z)` of the gamma distribution of a shape and rate 1."""
    return jnp.exp(log_gamma(z, shape))


FEW = 300.0
"""Poisson probabilities are added one by one up to this rate; beyond, halving an interval takes less time."""


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


def poisson(z: jax.Array, rate: jax.Array) -> jax.Array:
    """Quantile at `ndtr(z)` of the Poisson distribution, constant in its rate."""
    rate = lax.stop_gradient(jnp.broadcast_to(jnp.asarray(rate, z.dtype), z.shape))
    few = rate <= FEW
    large = jnp.where(few, 1.0, rate)

    def search(_):
        found = count(z, lambda k: (gammaincc(k + 1.0, large), gammainc(k + 1.0, large)), jnp.inf)
        return found, jnp.ones_like(few)

    # a loop, and no condition: that of many rates at once would always search
    searched, _ = lax.while_loop(lambda state: ~jnp.all(state[1]), search, (jnp.zeros_like(z), few))
    summed = by_summing(z, jnp.where(few, jnp.maximum(rate, jnp.finfo(z.dtype).tiny), 1.0))
    return jnp.where(rate > 0, jnp.where(few, summed, searched), 0.0)


def by_summing(z: jax.Array, rate: jax.Array) -> jax.Array:
    """Quantile at `ndtr(z)` of the Poisson distribution, by adding probabilities from the end of the smaller tail."""
    lower, upper = ndtr(z), ndtr(-z)
    up, reach = z < 0, 9.5 * jnp.sqrt(rate)
    k = jnp.floor(jnp.where(up, jnp.maximum(rate - reach, 0.0), rate + reach + 20.0))

    def unfinished(state):
        return ~jnp.all(state[3])

    def step(state):
        k, log_probability, total, done = state
        total = jnp.where(done, total, total + jnp.exp(log_probability))
        done = done | jnp.where(up, total >= lower, (total > upper) | (k <= 0.0))
        ratio = jnp.where(up, rate / (k + 1.0), k / rate)
        further = log_probability + jnp.log(jnp.maximum(ratio, jnp.finfo(z.dtype).tiny))
        return jnp.where(done, k, k + jnp.where(up, 1.0, -1.0)), further, total, done

    log_probability = k * jnp.log(rate) - rate - gammaln(k + 1.0)
    start = k, log_probability, jnp.zeros_like(z), jnp.zeros_like(up)
    return lax.stop_gradient(lax.while_loop(unfinished, step, start)[0])


def binomial(z: jax.Array, number: jax.Array, probability: jax.Array) -> jax.Array:
    """Quantile at `ndtr(z)` of the binomial distribution, constant in its probability."""
    given = (jnp.broadcast_to(jnp.asarray(value, z.dtype), z.shape) for value in (number, probability))
    n, p = lax.stop_gradient(tuple(given))

    def tails(k):
        left = jnp.maximum(n - k, 0.5)  # at k = n the search is over
        return betainc(left, k + 1.0, 1.0 - p), betainc(k + 1.0, left, p)

    return jnp.where(p > 0, jnp.where(p < 1, count(z, tails, n), n), 0.0)


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
    (JAX, "_binomial"): ("binomial", binomial),
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
    if found is None or _aligned(equation) is None:
        return ""
    return found[0]


def size(equation) -> int:
    """How many numbers it draws."""
    return prod(equation.outvars[0].aval.shape)


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
    shapes = _aligned(equation) or ()
    params = (jnp.broadcast_to(jnp.reshape(value, shape), aval.shape) for value, shape in zip(values[1:], shapes))
    return RULES[compat.written_in(equation)][1](z, *params).astype(aval.dtype)


def _aligned(equation) -> tuple[tuple[int, ...], ...] | None:
    """Shapes in which the parameters of a draw broadcast to it; None where they need not do so, or where draws that
    `vmap` made many share their noise: then what it is made of is looked at."""
    out, (key, *params) = equation.outvars[0].aval, (variable.aval for variable in equation.invars)
    if max(map(_most_drawn, compat.programs(equation)), default=0) < prod(out.shape):
        return None
    found = [_shape(param.shape, key.shape, out.shape) for param in params]
    return None if any(shape is None for shape in found) else tuple(shape for shape in found if shape is not None)


def _shape(own: tuple[int, ...], calls: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape in which a parameter broadcasts to what many calls draw, whether it is one for all of them or has their
    axes in front; None if neither fits, or both do and differ."""
    event = out[len(calls) :]
    fits = {own} if checks.expands(own, event) else set()
    if calls and own[: len(calls)] == calls and checks.expands(own[len(calls) :], event):
        fits.add(calls + (1,) * (len(out) - len(own)) + own[len(calls) :])
    return fits.pop() if len(fits) == 1 else None


def _most_drawn(program) -> int:
    """The largest number of numbers that one operation of a program draws at once."""
    found = [0]
    for equation in compat.plain(program)[0].eqns:
        if equation.primitive.name in ("random_bits", "random_gamma"):
            found.append(size(equation))
        found += map(_most_drawn, compat.programs(equation))
    return max(found)
