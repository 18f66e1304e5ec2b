"""Maps between one prior and standard normals, from its tail probabilities: `z = to_normal(fn, value)` and back.

Every map takes one value of shape `fn.batch_shape + fn.event_shape`, can be traced and differentiated, and is
precise in both tails. Beyond the smallest positive number of the precision (|z| of 12.9 in float32, 37.5 in
float64) `z` stays constant. A distribution of your own needs a `cdf` and a support, or a row of its own:
`to_normal.register(MyDistribution, f)` and `from_normal.register(MyDistribution, g)`.
"""

from collections.abc import Callable
from functools import partial, singledispatch

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import betainc, erf, erfc, erfinv, gammainc, gammaincc, gammaln, log_ndtr, ndtr, ndtri
from numpyro.distributions import biject_to, constraints, transforms, truncated

from numpyro_kme._core import compat
from numpyro_kme._core.host import full_precision

Tails = tuple[jax.Array, jax.Array]


class NoNormalMap(NotImplementedError):
    """No map between this distribution and standard normals is known."""


def check(fn: dist.Distribution) -> None:
    """Raise `NoNormalMap` unless a value of `fn` maps to as many normals as it has entries, and back."""
    struct = jax.ShapeDtypeStruct(fn.shape(), jnp.result_type(float))
    name = type(compat.innermost(fn)).__name__
    try:
        z = jax.eval_shape(lambda value: to_normal(fn, value), struct)
        jax.eval_shape(lambda z: from_normal(fn, z), z)
    except NotImplementedError as error:
        raise NoNormalMap(f"no map between {name} and normals is known ({error})") from error
    if z.shape != struct.shape:
        raise NoNormalMap(f"the entries of a {name} are tied to each other")


@singledispatch
def to_normal(fn: dist.Distribution, value: jax.Array) -> jax.Array:
    """Map one value of `fn` to independent standard normals; `ndtri(cdf(value))` unless known better."""
    if fn.event_dim > 0:
        raise NoNormalMap("it has no univariate distribution function")
    lower, upper = tails(fn, value)
    in_lower = lower <= upper
    tail = jnp.where(in_lower, lower, upper)
    z = ndtri(jnp.maximum(tail, jnp.finfo(tail.dtype).tiny))
    return jnp.where(in_lower, z, -z)


@singledispatch
def from_normal(fn: dist.Distribution, z: jax.Array) -> jax.Array:
    """Map independent standard normals to one value of `fn`; by bisection unless known better."""
    return _bisect(fn, z)


def _inside(apply: Callable, fn: dist.Distribution, x: jax.Array) -> jax.Array:
    """`apply(base, .)` over the leading dimensions that a value has beyond the shape of the wrapped distribution."""
    call = partial(apply, fn.base_dist)
    if isinstance(fn, dist.ExpandedDistribution):
        for _ in range(x.ndim - len(fn.base_dist.shape())):
            call = jax.vmap(call)
    return call(x)


for _wrapper in compat.WRAPPERS:
    to_normal.register(_wrapper, partial(_inside, to_normal))
    from_normal.register(_wrapper, partial(_inside, from_normal))


@to_normal.register
def _(fn: dist.Normal, value):
    return (value - fn.loc) / fn.scale


@to_normal.register(dist.MultivariateNormal)
@to_normal.register(dist.LowRankMultivariateNormal)
def _(fn, value):
    difference, factor = (value - fn.loc)[..., None], _factor(fn)
    dtype = jnp.result_type(difference, factor)  # the arrays of a prior may be in another precision than the value
    factor = jnp.broadcast_to(factor, (*difference.shape[:-1], difference.shape[-2])).astype(dtype)
    return lax.linalg.triangular_solve(factor, difference.astype(dtype), left_side=True, lower=True)[..., 0]


@from_normal.register(dist.MultivariateNormal)
@from_normal.register(dist.LowRankMultivariateNormal)
@full_precision
def _(fn, z):
    return fn.loc + jnp.squeeze(_factor(fn) @ z[..., None], -1)


@to_normal.register
def _(fn: dist.TransformedDistribution, value):
    for transform in reversed(_bijections(fn)):
        value = transform.inv(value)
    return to_normal(fn.base_dist, value)


@from_normal.register
def _(fn: dist.TransformedDistribution, z):
    value = from_normal(fn.base_dist, z)
    for transform in _bijections(fn):
        value = transform(value)
    return value


def _by_sign(z: jax.Array, below: Callable, above: Callable) -> jax.Array:
    """`below(z)` where `z < 0`, else `above(z)`; each is evaluated where it may be, so derivatives are finite."""
    return jnp.where(z < 0, below(jnp.where(z < 0, z, -1.0)), above(jnp.where(z < 0, 1.0, z)))


def _hazard(z: jax.Array) -> jax.Array:
    """`-log P(Z > z)`, precise in both tails."""
    return _by_sign(z, lambda z: -jnp.log1p(-ndtr(z)), lambda z: -log_ndtr(-z))


def _absolute(z: jax.Array) -> jax.Array:
    """`y` with `P(|Z| <= y) = P(Z <= z)`, precise in both tails."""
    return _by_sign(z, lambda z: jnp.sqrt(2.0) * erfinv(ndtr(z)), lambda z: -ndtri(0.5 * ndtr(-z)))


@from_normal.register
def _(fn: dist.Uniform, z):
    width = fn.high - fn.low
    return jnp.where(z < 0, fn.low + width * ndtr(z), fn.high - width * ndtr(-z))


@from_normal.register
def _(fn: dist.Laplace, z):
    log_2 = jnp.log(2.0)
    return fn.loc + fn.scale * jnp.where(z < 0, log_2 + log_ndtr(z), -log_2 - log_ndtr(-z))


_FROM_NORMAL: dict[type, Callable] = {
    dist.Normal: lambda fn, z: fn.loc + fn.scale * z,
    dist.Exponential: lambda fn, z: _hazard(z) / fn.rate,
    dist.Weibull: lambda fn, z: fn.scale * _hazard(z) ** (1.0 / fn.concentration),
    dist.Gumbel: lambda fn, z: fn.loc - fn.scale * jnp.log(_hazard(-z)),
    dist.Logistic: lambda fn, z: fn.loc + fn.scale * (log_ndtr(z) - log_ndtr(-z)),
    dist.HalfNormal: lambda fn, z: fn.scale * _absolute(z),
}
for _kind, _inverse in _FROM_NORMAL.items():
    from_normal.register(_kind, _inverse)


def _factor(fn) -> jax.Array:
    """Lower Cholesky factor of the covariance."""
    return fn.scale_tril if isinstance(fn, dist.MultivariateNormal) else jnp.linalg.cholesky(fn.covariance_matrix)


def is_folded(fn: dist.TransformedDistribution) -> bool:
    """Whether two values of the base give the same value."""
    return any(isinstance(transform, transforms.AbsTransform) for transform in fn.transforms)


def _bijections(fn: dist.TransformedDistribution) -> list[transforms.Transform]:
    if is_folded(fn):
        raise NoNormalMap("it is folded")
    return fn.transforms


def _bisect(fn: dist.Distribution, z: jax.Array) -> jax.Array:
    """Solve `to_normal(fn, x) = z` for every entry, by halving an interval of an unconstrained coordinate of
    `x`.

    Derivatives are those of the implicit function.
    """
    chart = jnp.sinh if fn.support is constraints.real else biject_to(fn.support)
    z = jnp.asarray(z)
    info = np.finfo(z.dtype)
    low = jnp.full(z.shape, 2.0 - np.log(info.max), z.dtype)
    rising = chart(-low) >= chart(low)

    def excess(u):
        return to_normal(fn, chart(u)) - z

    def solve(excess, _):
        def halve(_, ends):
            low, high = ends
            middle = 0.5 * (low + high)
            above = (excess(middle) < 0) == rising
            return jnp.where(above, middle, low), jnp.where(above, high, middle)

        low_end, high_end = lax.fori_loop(0, info.nmant + 12, halve, (low, -low))
        return 0.5 * (low_end + high_end)

    def tangent_solve(linear, y):
        slope = linear(jnp.ones_like(y))
        return jnp.where(slope == 0.0, 0.0, y / jnp.where(slope == 0.0, 1.0, slope))

    return chart(lax.custom_root(excess, low, solve, tangent_solve))


@singledispatch
def tails(fn: dist.Distribution, x: jax.Array) -> Tails:
    """Probabilities `P(X <= x)` and `P(X > x)`; `cdf(x)` and its complement unless `fn` is known better."""
    lower = fn.cdf(x)
    return lower, 1.0 - lower


_STANDARD: dict[type, Callable[[jax.Array], Tails]] = {
    dist.Normal: lambda t: (ndtr(t), ndtr(-t)),
    dist.Logistic: lambda t: (jax.nn.sigmoid(t), jax.nn.sigmoid(-t)),
    dist.Cauchy: lambda t: _symmetric(jnp.arctan2(1.0, _distance(t)) / jnp.pi, t),
    dist.Laplace: lambda t: _symmetric(0.5 * jnp.exp(-_distance(t)), t),
}
"""Tails of location-scale families, in `t = (x - loc) / scale`."""
_HAZARDS: dict[type, Callable[..., jax.Array]] = {
    dist.Exponential: lambda fn, x: fn.rate * x,
    dist.Weibull: lambda fn, x: (x / fn.scale) ** fn.concentration,
    dist.Gompertz: lambda fn, x: fn.concentration * jnp.expm1(fn.rate * x),
    dist.Kumaraswamy: lambda fn, x: -fn.concentration0 * jnp.log1p(-(x**fn.concentration1)),
}
"""Cumulative hazards `-log P(X > x)`."""
_OTHERS: dict[type, Callable[..., Tails]] = {
    dist.Gumbel: lambda fn, x: _from_hazard(jnp.exp((fn.loc - x) / fn.scale))[::-1],
    dist.SoftLaplace: lambda fn, x: (fn.cdf(x), fn.cdf(2.0 * fn.loc - x)),
    dist.Uniform: lambda fn, x: ((x - fn.low) / (fn.high - fn.low), (fn.high - x) / (fn.high - fn.low)),
    dist.Gamma: lambda fn, x: (gammainc(fn.concentration, fn.rate * x), gammaincc(fn.concentration, fn.rate * x)),
    truncated.LeftTruncatedDistribution: lambda fn, x: _between(fn, x, tails(fn.base_dist, fn.low), (1.0, 0.0)),
    truncated.RightTruncatedDistribution: lambda fn, x: _between(fn, x, (0.0, 1.0), tails(fn.base_dist, fn.high)),
    truncated.TwoSidedTruncatedDistribution: lambda fn, x: _between(
        fn, x, tails(fn.base_dist, fn.low), tails(fn.base_dist, fn.high)
    ),
}
for _kind, _pair in _STANDARD.items():
    tails.register(_kind, lambda fn, x, pair=_pair: pair((x - fn.loc) / fn.scale))
for _kind, _cumulative in _HAZARDS.items():
    tails.register(_kind, lambda fn, x, cumulative=_cumulative: _from_hazard(cumulative(fn, x)))
for _kind, _both in _OTHERS.items():
    tails.register(_kind, _both)


@tails.register
def _(fn: dist.StudentT, x):
    t = (x - fn.loc) / fn.scale
    near, far = t * t < jnp.finfo(t.dtype).eps, t * t > 1.0
    density = jnp.exp(gammaln(0.5 * fn.df + 0.5) - gammaln(0.5 * fn.df)) / jnp.sqrt(fn.df * jnp.pi)
    square, half = jnp.where(near, 1.0, t * t), 0.5 * fn.df
    # one call, as two are compiled twice: the tail where it is far, the centre elsewhere
    part = 0.5 * betainc(
        jnp.where(far, half, 0.5), jnp.where(far, 0.5, half), jnp.where(far, fn.df, square) / (fn.df + square)
    )
    return _symmetric(jnp.where(near, 0.5 - density * _distance(t), jnp.where(far, part, 0.5 - part)), t)


@tails.register
def _(fn: dist.Beta, x):
    a, b = fn.concentration1, fn.concentration0
    low = x * (a + b) < a  # one call, of the tail that is smaller, or nearly so
    part = betainc(jnp.where(low, a, b), jnp.where(low, b, a), jnp.where(low, x, 1.0 - x))
    return jnp.where(low, part, 1.0 - part), jnp.where(low, 1.0 - part, part)


@tails.register
def _(fn: dist.HalfNormal, x):
    t = x / (fn.scale * jnp.sqrt(2.0))
    return erf(t), erfc(t)


@tails.register
def _(fn: dist.HalfCauchy, x):
    t = x / fn.scale
    return 2.0 / jnp.pi * jnp.arctan2(t, 1.0), 2.0 / jnp.pi * jnp.arctan2(1.0, t)


@tails.register
def _(fn: dist.MixtureSameFamily, x):
    lower, upper = tails(fn.component_distribution, jnp.expand_dims(x, -1))
    weights = jnp.broadcast_to(fn.mixing_distribution.probs, lower.shape)
    return jnp.sum(weights * lower, axis=-1), jnp.sum(weights * upper, axis=-1)


def _distance(t: jax.Array) -> jax.Array:
    """`|t|`, with derivative 1 at 0."""
    return jnp.where(t < 0, -t, t)


def _symmetric(beyond: jax.Array, t: jax.Array) -> Tails:
    """From the probability of one tail beyond `|t|` of a distribution symmetric around 0."""
    return jnp.where(t < 0, beyond, 1.0 - beyond), jnp.where(t < 0, 1.0 - beyond, beyond)


def _from_hazard(hazard: jax.Array) -> Tails:
    """From the cumulative hazard `-log P(X > x)`."""
    return -jnp.expm1(-hazard), jnp.exp(-hazard)


def _between(fn: dist.Distribution, x: jax.Array, low: tuple, high: tuple) -> Tails:
    """Tails of a truncated distribution, from those of its base at the ends."""
    at = tails(fn.base_dist, x)

    def mass(a, b):  # P(a < X <= b), from the tail that is smaller at the left end
        return jnp.where(a[0] < 0.5, b[0] - a[0], a[1] - b[1])

    total = mass(low, high)
    return mass(low, at) / total, mass(at, high) / total
