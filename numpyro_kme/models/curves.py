"""Monotone curves of one number, and the quantiles of a prior."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy
from numpyro.distributions import biject_to, constraints
from scipy.special import ndtri

from numpyro_kme._core import Program, compat, in_present_precision
from numpyro_kme.kernels.base import register
from numpyro_kme.models.tracing import as_numpyro_does

SCORES = np.linspace(-5.0, 5.0, 201)
"""Normal scores between which the map of a prior that is not normal is interpolated, and beyond which it is linear."""

STRAIGHT = 1e-4
"""Largest distance from a straight line, relative to the range, at which a curve is one."""

WIDEST = 40.0
"""Largest absolute unconstrained value at which a quantile is looked for."""

REFINEMENTS = 8
"""Number of times that a distribution function is evaluated at all quantiles, each time nearer to these."""


@register
class Curves:
    """Monotone cubics, continued by straight lines; of arrays of NumPy or JAX.

    Attributes:
        knots: `(C, J)`, increasing.
        powers: Coefficients of the cubic, square, linear and constant term behind each knot, `(4, C, J - 1)`.
    """

    knots: np.ndarray
    powers: np.ndarray

    @classmethod
    def through(cls, x: np.ndarray, y: np.ndarray) -> "Curves":
        """Interpolate points `(J, C)`, each column rising or falling; a column of NaN for any other."""
        knots, powers = map(np.stack, zip(*map(_interpolated, x.T, np.broadcast_to(y.T, x.T.shape))))
        most = max(2, 1 + np.argmax(knots, axis=1).max())
        return cls(knots[:, :most], np.moveaxis(powers, 0, 1)[..., : most - 1])

    def __call__(self, x: Any) -> Any:
        """The values at `(*lead, C)`."""
        xp = x.__array_namespace__()
        knots, powers, own = xp.asarray(self.knots), xp.asarray(self.powers), np.arange(len(self.knots))
        piece = xp.clip((knots <= x[..., None]).sum(axis=-1) - 1, 0, knots.shape[1] - 2)
        inside = xp.clip(x, knots[:, 0], knots[:, -1])
        step, (cubic, square, linear, constant) = inside - knots[own, piece], powers[:, own, piece]
        slope = (3.0 * cubic * step + 2.0 * square) * step + linear
        return ((cubic * step + square) * step + linear) * step + constant + slope * (x - inside)

    def take(self, columns: list[int]) -> "Curves":
        """Select curves by number."""
        return Curves(self.knots[columns], self.powers[:, columns])


def _interpolated(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knots `(J,)` and powers `(4, J - 1)` of one curve, whose last knot is repeated before the line behind it."""
    finite, number = np.isfinite(x), len(x)
    knots, place = np.unique(x[finite], return_inverse=True)
    steps = np.diff(x[finite])
    if len(knots) < 2 or not (np.all(steps >= 0.0) or np.all(steps <= 0.0)):
        return np.full(number, np.nan), np.full((4, number - 1), np.nan)
    values = np.bincount(place, y[finite]) / np.bincount(place)
    if np.abs(values - np.interp(knots, knots[[0, -1]], values[[0, -1]])).max() < STRAIGHT * np.ptp(values):
        knots, values = knots[[0, -1]], values[[0, -1]]
    powers, width = scipy.interpolate.PchipInterpolator(knots, values).c, knots[-1] - knots[-2]
    line = np.array([0.0, 0.0, np.polyval(np.polyder(powers[:, -1]), width), values[-1]])
    more = number - len(knots)
    return np.pad(knots, (0, more), mode="edge"), np.append(powers, np.tile(line[:, None], more), axis=1)


def quantiles(fn: dist.Distribution, shape: tuple[int, ...]) -> np.ndarray | None:
    """Values `(J, *shape)` whose normal scores are `SCORES`, entry by entry; None where no `cdf` is known."""
    fn = in_present_precision(compat.innermost(fn))
    scores = SCORES.reshape(-1, *(1,) * len(shape))
    if isinstance(fn, dist.Normal | dist.MultivariateNormal | dist.LowRankMultivariateNormal):
        mean, sd = (np.broadcast_to(np.asarray(part, np.float64), shape) for part in (fn.mean, np.sqrt(fn.variance)))
        return mean + sd * scores
    if fn.event_dim:
        return None
    chart = jnp.sinh if fn.support is constraints.real else biject_to(fn.support)

    @Program
    def evaluated(u):
        with as_numpyro_does():
            return chart(u), fn.cdf(chart(u))

    u = z = np.zeros((0, math.prod(shape)))
    wanted = np.linspace(-WIDEST, WIDEST, len(SCORES))[:, None] * np.ones(u.shape[1])
    for _ in range(REFINEMENTS):
        try:
            x, level = evaluated(jnp.asarray(wanted.reshape(-1, *shape), jnp.result_type(float)))
        except NotImplementedError:
            return None
        level = np.clip(np.asarray(level, np.float64).reshape(wanted.shape), 1e-30, 1.0 - 1e-16)
        u, z = np.concatenate([u, wanted]), np.concatenate([z, ndtri(level)])
        order = np.argsort(u, axis=0)
        u, z = np.take_along_axis(u, order, axis=0), np.take_along_axis(z, order, axis=0)
        rising = np.where(z[-1] >= z[0], 1.0, -1.0)
        wanted = np.stack([np.interp(r * SCORES, r * b, a) for r, a, b in zip(rising, u.T, z.T)], axis=1)
    return np.asarray(x, np.float64)
