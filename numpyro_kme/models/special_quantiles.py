"""Quantiles that JAX lacks: of the gamma and Poisson distributions, from the ratio of a tail to the density, which
neither overflows nor vanishes, however far the tail; of the von Mises distribution, from sums of its density."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import digamma, gammaln, i0e, i1e, log_ndtr

LARGE_SHAPE, LARGE_RATE = 1e6, 1e4
"""Beyond these expansions take the place of sums: Wilson and Hilferty's and Giles's, see `log_gamma` and `poisson`."""

AT_ONCE = 2
"""Terms between tests whether a sum is precise: a test takes as long as a term."""


def log_gamma(z: jax.Array, shape: jax.Array) -> jax.Array:
    """Logarithm of the quantile at `ndtr(z)` of the gamma distribution of a shape `a` and rate 1.

    Halley's method in `log x`, on whichever tail is smaller. Derivatives are those of the implicit function. Shapes
    above a million take the start of it, whose error is below 1e-7 standard deviations there; shape 0 is all at zero.

    References: Wilson and Hilferty (1931), PNAS 17.
    """
    shape, z = jnp.broadcast_arrays(jnp.asarray(shape, z.dtype), z)
    large, none = shape > LARGE_SHAPE, shape == 0.0
    shape = jnp.where(none, 1.0, shape)
    found = jnp.where(large, _approximate(z, shape), _log_gamma(z, jnp.where(large, 1.0, shape)))
    return jnp.where(none, -jnp.inf, found)


def gamma(z: jax.Array, shape: jax.Array) -> jax.Array:
    """Quantile at `ndtr(z)` of the gamma distribution of a shape and rate 1."""
    return jnp.exp(log_gamma(z, shape))


def _approximate(z: jax.Array, shape: jax.Array) -> jax.Array:
    """Wilson and Hilferty's quantile; for small shapes and far below, `P(x) -> x^a / Gamma(a + 1)`."""
    small = (log_ndtr(z) + gammaln(shape + 1.0)) / shape
    cube = 1.0 - 1.0 / (9.0 * shape) + z / (3.0 * jnp.sqrt(shape))
    return jnp.where((cube > 0.3) & (shape > 0.5), jnp.log(shape) + 3.0 * jnp.log(jnp.maximum(cube, 0.3)), small)


@jax.custom_jvp
def _log_gamma(z: jax.Array, shape: jax.Array) -> jax.Array:
    lower, target = z < 0, log_ndtr(-jnp.abs(z))
    sign = jnp.where(lower, 1.0, -1.0)
    # a step so short leaves rounding: the method converges by third powers
    short = 0.25 * jnp.finfo(z.dtype).eps ** (1.0 / 3.0)

    def unfinished(state):
        return jnp.any(jnp.abs(state[1]) > short) & (state[2] < 50)

    def step(state):
        u, _, count = state
        log_density, ratio = _log_density(u, shape), _tail_over_density(u, shape, lower)
        newton = (target - log_density - jnp.log(ratio)) * sign * ratio
        bend = 1.0 + 0.5 * newton * (shape - jnp.exp(u) - sign / ratio)
        move = jnp.clip(newton / jnp.clip(bend, 0.5, 2.0), -1.0, 1.0)
        return u + move, move, count + 1

    return lax.while_loop(unfinished, step, (_approximate(z, shape), jnp.ones_like(z), 0))[0]


@_log_gamma.defjvp
def _(primals, tangents):
    (z, a), (dz, da) = primals, tangents
    u, lower = _log_gamma(z, a), z < 0
    log_density = _log_density(u, a)
    by_z = jnp.exp(-0.5 * jnp.square(z) - 0.5 * jnp.log(2.0 * jnp.pi) - log_density)
    ratio = jnp.exp(_log_tail(u, a, lower) - log_density)
    return u, by_z * dz + jnp.where(lower, -ratio, ratio) * _slope(u, a, lower) * da


@jax.custom_jvp
def _log_tail(u: jax.Array, a: jax.Array, lower: jax.Array) -> jax.Array:
    """`log P(a, x)` or `log Q(a, x)` at `u = log x`."""
    return _summed(u, lower, a)


@_log_tail.defjvp
def _(primals, tangents):
    (u, a, lower), (du, da, _) = primals, tangents
    log_tail = _log_tail(u, a, lower)
    return log_tail, _along(u, a, lower, log_tail) * du + _slope(u, a, lower) * da


@jax.custom_jvp
def _slope(u: jax.Array, a: jax.Array, lower: jax.Array) -> jax.Array:
    """Derivative of `_log_tail` in the shape. Its own in `u` is in closed form: series are summed in one direction."""
    return jax.jvp(partial(_summed, u, lower), (a,), (jnp.ones_like(a),))[1]


@_slope.defjvp
def _(primals, tangents):
    (u, a, lower), (du, da, _) = primals, tangents

    def of_shape(a):
        return jax.jvp(partial(_summed, u, lower), (a,), (jnp.ones_like(a),))

    (log_tail, slope), (_, by_shape) = jax.jvp(of_shape, (a,), (jnp.ones_like(a),))
    return slope, _along(u, a, lower, log_tail) * (u - digamma(a) - slope) * du + by_shape * da


def _summed(u: jax.Array, lower: jax.Array, a: jax.Array) -> jax.Array:
    """`_log_tail` by sums, with as many terms as derivatives in the shape take."""
    return _log_density(u, a) + jnp.log(_tail_over_density(u, a, lower, with_derivative=True))


def _along(u: jax.Array, a: jax.Array, lower: jax.Array, log_tail: jax.Array) -> jax.Array:
    """Derivative of `_log_tail` in `u`."""
    return jnp.where(lower, 1.0, -1.0) * jnp.exp(_log_density(u, a) - log_tail)


def _log_density(u: jax.Array, a: jax.Array) -> jax.Array:
    """Of `u = log x`."""
    return a * u - jnp.exp(u) - gammaln(a)


def _tail_over_density(u: jax.Array, a: jax.Array, lower: jax.Array, with_derivative: bool = False) -> jax.Array:
    """`P(a, x)` or `Q(a, x)` over the density of `u = log x`: Kummer's series, or Legendre's continued fraction for the
    upper tail beyond `a + 1`; see Press et al. (2007), Numerical Recipes, section 6.2. At whole shapes the fraction
    ends early, and its derivative does not."""
    x, eps = jnp.exp(u), 0.1 * jnp.finfo(u.dtype).eps
    summed = lower | (x < a + 1.0)
    within, beyond = jnp.where(summed, x, 0.0), jnp.where(summed, a + 10.0, x)

    def add(state):
        number, term, total = state
        for _ in range(AT_ONCE):
            number = number + 1.0
            term = term * within / number
            total = total + term
        return number, term, total

    below = lax.while_loop(lambda state: jnp.any(state[1] > eps * state[2]), add, (a, 1.0 / a, 1.0 / a))[2]

    def continue_fraction(state):
        number, b, c, d, value, _ = state
        for _ in range(AT_ONCE):
            top, b = -number * (number - a), b + 2.0
            c, d = b + top / c, 1.0 / (b + top * d)
            number, value = number + 1.0, value * c * d
        return number, b, c, d, value, c * d

    # about exp(-4 sqrt(n x)) is left after n terms
    least_terms, b = 12.0 + 81.0 / beyond if with_derivative else 0.0, beyond + 1.0 - a

    def inexact(state):
        return jnp.any((jnp.abs(state[5] - 1.0) > 10.0 * eps) | (state[0] < least_terms))

    start = jnp.ones_like(a), b, jnp.full_like(a, 1e30), 1.0 / b, 1.0 / b, jnp.full_like(a, 2.0)
    above = lax.while_loop(inexact, continue_fraction, start)[4]
    rest = jnp.exp(-_log_density(jnp.where(summed, u, 0.0), a)) - below
    least = jnp.finfo(u.dtype).tiny
    return jnp.maximum(jnp.where(lower, below, jnp.where(summed, rest, above)), least)


def poisson(z: jax.Array, rate: jax.Array) -> jax.Array:
    """Quantile at `ndtr(z)` of the Poisson distribution, constant in its rate; -1 where there is none, as in JAX.

    Chernoff's bound gives a number beyond it, in whichever tail is smaller; the tail from there is a series, and
    probabilities are added one by one until it is reached. Rates above 10,000 take an expansion instead, which may be
    one off.

    References: Giles (2016), Algorithm 955, ACM TOMS 42.
    """
    given = lax.stop_gradient((z, jnp.broadcast_to(jnp.asarray(rate, z.dtype), z.shape)))
    z, rate = given
    large = rate > LARGE_RATE
    summed = _by_summing(z, jnp.where(large | ~(rate > 0), 1.0, rate))
    w, root = jnp.square(z), jnp.sqrt(jnp.where(large, rate, 1.0))
    third = (-8.0 / 405.0 + w * (7.0 / 810.0 + w / 270.0)) / jnp.square(root)
    expanded = rate + root * z + (2.0 + w) / 6.0 - z * (2.0 + w) / (72.0 * root) + third
    found = jnp.where(large, jnp.maximum(jnp.floor(expanded), 0.0), summed)
    return jnp.where(rate > 0, found, jnp.where(rate == 0, 0.0, -1.0))


def _by_summing(z: jax.Array, rate: jax.Array) -> jax.Array:
    lower, log_target = z < 0, log_ndtr(-jnp.abs(z))
    # P(N >= k) and P(N <= k) are at most exp(-k log(k / rate) + k - rate); Newton's method from outside stays there
    reach, least = jnp.sqrt(-2.0 * rate * log_target), jnp.minimum(1e-3 * rate, 0.5)
    k = jnp.where(lower, jnp.maximum(rate - reach, least), rate - log_target / 1.5 + reach)
    for _ in range(3):
        slope = jnp.log(k / rate)
        k = jnp.maximum(k - (k * slope - k + rate + log_target) / slope, least)
    k = jnp.where(lower, jnp.floor(k), jnp.ceil(k))
    target = jnp.exp(log_target - k * jnp.log(rate) + rate + gammaln(k + 1.0))  # over the probability of k

    def add(state):
        top, bottom, term, total = state
        top, bottom = jnp.where(lower, top, rate), jnp.where(lower, rate, bottom + 1.0)
        term = term * top / bottom
        return jnp.maximum(top - 1.0, 0.0), bottom, term, total + term

    eps, one = 0.1 * jnp.finfo(z.dtype).eps, jnp.ones_like(z)
    tail = lax.while_loop(lambda state: jnp.any(state[2] > eps * state[3]), add, (k, k, one, one))[3]

    def ahead(k, term, total):
        further = term * jnp.where(lower, rate / (k + 1.0), k / rate)
        return further, jnp.where(lower, total < target, (total + further <= target) & (k > 1.0))

    def walk(state):
        k, term, total = state
        further, goes = ahead(*state)
        return k + jnp.where(goes, jnp.where(lower, 1.0, -1.0), 0.0), *(
            jnp.where(goes, new, old) for new, old in ((further, term), (total + further, total))
        )

    k = lax.while_loop(lambda state: jnp.any(ahead(*state)[1]), walk, (k, one, tail))[0]
    return jnp.where(lower, k, k - 1.0)


NODES, WEIGHTS = np.polynomial.legendre.leggauss(48)
"""Of the quadrature of a density over an interval."""
STEPS = 24
"""Of Newton's method within a bracket; ten reach rounding."""
REACH = 40.0
"""Density `exp(-REACH)` times that at the end of an interval counts as none."""


@jax.custom_jvp
def von_mises(z: jax.Array, concentration: jax.Array) -> jax.Array:
    """The quantile at `ndtr(z)` of the von Mises distribution around 0, with derivatives of the implicit function."""
    z, kappa = jnp.broadcast_arrays(z, jnp.asarray(concentration, z.dtype))
    target = log_ndtr(-jnp.abs(z))

    def step(_, state):
        x, low, high = state
        log_below = jnp.log(_below(x, kappa)[0])
        low, high = jnp.where(log_below < target, x, low), jnp.where(log_below < target, high, x)
        end = jnp.maximum(x + jnp.pi, jnp.finfo(z.dtype).eps)  # Newton's method in the logarithm of this distance
        move = (target - log_below) * jnp.exp(log_below - _log_of_von_mises(x, kappa)) / end
        newton = x + end * jnp.expm1(jnp.clip(move, -1.0, 40.0))
        return jnp.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high)), low, high

    low = jnp.full(z.shape, -jnp.pi, z.dtype)
    flat = low * (1.0 - jnp.exp(jnp.log(2.0) + target))  # that of no concentration
    start = jnp.maximum(flat, -jnp.abs(z) / jnp.sqrt(jnp.maximum(kappa, 1e-6)))
    return jnp.copysign(lax.fori_loop(0, STEPS, step, (start, low, jnp.zeros_like(low)))[0], z)


@von_mises.defjvp
def _(primals, tangents):
    z, kappa = (jnp.asarray(value, primals[0].dtype) for value in primals)
    x = von_mises(z, kappa)
    slope = jnp.exp(-_log_of_von_mises(x, kappa))
    by_kappa = jnp.copysign(_below(-jnp.abs(x), kappa)[1], x)
    by_z = jnp.exp(-0.5 * jnp.square(z) - 0.5 * jnp.log(2.0 * jnp.pi)) * slope
    return x, by_z * tangents[0] - by_kappa * slope * tangents[1]


def _log_of_von_mises(x: jax.Array, kappa: jax.Array) -> jax.Array:
    return -2.0 * kappa * jnp.square(jnp.sin(0.5 * x)) - jnp.log(2.0 * jnp.pi * i0e(kappa))


def _below(x: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The distribution function at `x <= 0`, and its derivative in `kappa`, precise where both are small."""
    falling = jnp.where(x > -0.5 * jnp.pi, -jnp.sin(x), 0.0) * kappa * (2.0 / jnp.pi)  # of log density, at least
    width = jnp.minimum(jnp.pi * jnp.sqrt(0.5 * REACH / kappa), REACH / jnp.maximum(falling, 1e-6))
    width = jnp.minimum(width, jnp.maximum(x + jnp.pi, 0.0))[..., None]
    t = x[..., None] - 0.5 * width * jnp.asarray(1.0 + NODES, x.dtype)
    mass = 0.5 * width * jnp.asarray(WEIGHTS, x.dtype) * jnp.exp(_log_of_von_mises(t, kappa[..., None]))
    mean = (i1e(kappa) / i0e(kappa))[..., None]
    return jnp.sum(mass, axis=-1), jnp.sum(mass * (jnp.cos(t) - mean), axis=-1)
