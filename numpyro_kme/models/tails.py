"""Both tail probabilities of univariate distributions, each precise where it is small."""

from functools import singledispatch

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import betainc, erf, erfc, gammainc, gammaincc, gammaln, ndtr
from numpyro.distributions.truncated import (
    LeftTruncatedDistribution,
    RightTruncatedDistribution,
    TwoSidedTruncatedDistribution,
)

Tails = tuple[jax.Array, jax.Array]


@singledispatch
def tails(fn: dist.Distribution, x: jax.Array) -> Tails:
    """Probabilities `P(X <= x)` and `P(X > x)`; `cdf(x)` and its complement unless `fn` is known better."""
    lower = fn.cdf(x)
    return lower, 1.0 - lower


@tails.register
def _(fn: dist.Normal, x):
    t = (x - fn.loc) / fn.scale
    return ndtr(t), ndtr(-t)


@tails.register
def _(fn: dist.SoftLaplace, x):
    return fn.cdf(x), fn.cdf(2.0 * fn.loc - x)


@tails.register
def _(fn: dist.Cauchy, x):
    t = (x - fn.loc) / fn.scale
    return _symmetric(jnp.arctan2(1.0, _distance(t)) / jnp.pi, t)


@tails.register
def _(fn: dist.Laplace, x):
    t = (x - fn.loc) / fn.scale
    return _symmetric(0.5 * jnp.exp(-_distance(t)), t)


@tails.register
def _(fn: dist.Logistic, x):
    t = (x - fn.loc) / fn.scale
    return jax.nn.sigmoid(t), jax.nn.sigmoid(-t)


@tails.register
def _(fn: dist.StudentT, x):
    t = (x - fn.loc) / fn.scale
    near, far = t * t < jnp.finfo(t.dtype).eps, t * t > 1.0
    density = jnp.exp(gammaln(0.5 * fn.df + 0.5) - gammaln(0.5 * fn.df)) / jnp.sqrt(fn.df * jnp.pi)
    square = jnp.where(near, 1.0, t * t)
    centre = 0.5 - 0.5 * betainc(0.5, 0.5 * fn.df, square / (fn.df + square))
    square = jnp.where(far, t * t, 1.0)
    tail = 0.5 * betainc(0.5 * fn.df, 0.5, fn.df / (fn.df + square))
    return _symmetric(jnp.where(near, 0.5 - density * _distance(t), jnp.where(far, tail, centre)), t)


@tails.register
def _(fn: dist.Uniform, x):
    width = fn.high - fn.low
    return (x - fn.low) / width, (fn.high - x) / width


@tails.register
def _(fn: dist.Exponential, x):
    return _from_hazard(fn.rate * x)


@tails.register
def _(fn: dist.Weibull, x):
    return _from_hazard((x / fn.scale) ** fn.concentration)


@tails.register
def _(fn: dist.Gompertz, x):
    return _from_hazard(fn.concentration * jnp.expm1(fn.rate * x))


@tails.register
def _(fn: dist.Gumbel, x):
    upper, lower = _from_hazard(jnp.exp((fn.loc - x) / fn.scale))
    return lower, upper


@tails.register
def _(fn: dist.Kumaraswamy, x):
    return _from_hazard(-fn.concentration0 * jnp.log1p(-(x**fn.concentration1)))


@tails.register
def _(fn: dist.Gamma, x):
    return gammainc(fn.concentration, fn.rate * x), gammaincc(fn.concentration, fn.rate * x)


@tails.register
def _(fn: dist.Beta, x):
    a, b = fn.concentration1, fn.concentration0
    return betainc(a, b, x), betainc(b, a, 1.0 - x)


@tails.register
def _(fn: dist.HalfNormal, x):
    t = x / (fn.scale * jnp.sqrt(2.0))
    return erf(t), erfc(t)


@tails.register
def _(fn: dist.HalfCauchy, x):
    t = x / fn.scale
    return 2.0 / jnp.pi * jnp.arctan2(t, 1.0), 2.0 / jnp.pi * jnp.arctan2(1.0, t)


@tails.register
def _(fn: LeftTruncatedDistribution, x):
    return _between(tails(fn.base_dist, x), tails(fn.base_dist, fn.low), (1.0, 0.0))


@tails.register
def _(fn: RightTruncatedDistribution, x):
    return _between(tails(fn.base_dist, x), (0.0, 1.0), tails(fn.base_dist, fn.high))


@tails.register
def _(fn: TwoSidedTruncatedDistribution, x):
    return _between(tails(fn.base_dist, x), tails(fn.base_dist, fn.low), tails(fn.base_dist, fn.high))


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


def _between(at, low, high) -> Tails:
    """Tails of a truncated distribution, from those of its base at the point and at the ends."""

    def mass(a, b):  # P(a < X <= b), from the tail that is smaller at the left end
        return jnp.where(a[0] < 0.5, b[0] - a[0], a[1] - b[1])

    total = mass(low, high)
    return mass(low, at) / total, mass(at, high) / total
