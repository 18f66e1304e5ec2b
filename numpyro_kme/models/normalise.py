"""Maps between one prior and standard normals: `z = to_normal(fn, value)`, `value = from_normal(fn, z)`.

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
from jax.scipy.special import erfinv, log_ndtr, ndtr, ndtri
from numpyro.distributions import biject_to, constraints, transforms

from numpyro_kme._core import compat
from numpyro_kme.models.tails import tails


class NoNormalMap(NotImplementedError):
    """No map between this distribution and standard normals is known."""


def is_elementwise(fn: dist.Distribution) -> bool:
    """Whether every entry of a value is mapped on its own."""
    return compat.innermost(fn).event_dim == 0


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


@from_normal.register
def _(fn: dist.Normal, z):
    return fn.loc + fn.scale * z


@to_normal.register(dist.MultivariateNormal)
@to_normal.register(dist.LowRankMultivariateNormal)
def _(fn, value):
    difference, factor = (value - fn.loc)[..., None], _factor(fn)
    dtype = jnp.result_type(difference, factor)  # the arrays of a prior may be in another precision than the value
    factor = jnp.broadcast_to(factor, (*difference.shape[:-1], difference.shape[-2])).astype(dtype)
    return lax.linalg.triangular_solve(factor, difference.astype(dtype), left_side=True, lower=True)[..., 0]


@from_normal.register(dist.MultivariateNormal)
@from_normal.register(dist.LowRankMultivariateNormal)
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


@from_normal.register
def _(fn: dist.Uniform, z):
    width = fn.high - fn.low
    return jnp.where(z < 0, fn.low + width * ndtr(z), fn.high - width * ndtr(-z))


@from_normal.register
def _(fn: dist.Exponential, z):
    return _hazard(z) / fn.rate


@from_normal.register
def _(fn: dist.Weibull, z):
    return fn.scale * _hazard(z) ** (1.0 / fn.concentration)


@from_normal.register
def _(fn: dist.Gumbel, z):
    return fn.loc - fn.scale * jnp.log(_hazard(-z))


@from_normal.register
def _(fn: dist.Logistic, z):
    return fn.loc + fn.scale * (log_ndtr(z) - log_ndtr(-z))


@from_normal.register
def _(fn: dist.Laplace, z):
    log_2 = jnp.log(2.0)
    return fn.loc + fn.scale * jnp.where(z < 0, log_2 + log_ndtr(z), -log_2 - log_ndtr(-z))


@from_normal.register
def _(fn: dist.HalfNormal, z):
    negative, positive = jnp.where(z < 0, z, -1.0), jnp.where(z < 0, 1.0, z)
    return fn.scale * jnp.where(z < 0, jnp.sqrt(2.0) * erfinv(ndtr(negative)), -ndtri(0.5 * ndtr(-positive)))


def _hazard(z: jax.Array) -> jax.Array:
    """`-log P(Z > z)`, precise in both tails."""
    negative, positive = jnp.where(z < 0, z, -1.0), jnp.where(z < 0, 1.0, z)
    return jnp.where(z < 0, -jnp.log1p(-ndtr(negative)), -log_ndtr(-positive))


def _factor(fn) -> jax.Array:
    """Lower Cholesky factor of the covariance."""
    if isinstance(fn, dist.MultivariateNormal):
        return fn.scale_tril
    return jnp.linalg.cholesky(fn.covariance_matrix)


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
