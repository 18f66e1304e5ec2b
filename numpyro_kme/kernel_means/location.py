r"""Location: where a statistic lies given the coordinates, on a scale that is learnt with it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme.kernel_means.descent import descend
from numpyro_kme.kernel_means.ridge import Smoothness, held_out
from numpyro_kme.kernel_means.warping import log_cosh
from numpyro_kme.kernels.base import register

STRAIGHT = 50.0
"""Width of a warp that is a straight line over the bulk of the statistic, in its standard deviations."""


@register
class Location:
    """Hyperparameters of one statistic's location.

    Attributes:
        smoothness: Of the regression.
        centre: Of the warp, in robust standard deviations of the statistic.
        log_width: Logarithm of the warp's width, in the same units.
    """

    smoothness: Smoothness
    centre: ArrayLike
    log_width: ArrayLike

    @classmethod
    def bounds(cls, dim: int, warp: bool) -> tuple["Location", "Location"]:
        """Box of the search; without `warp` the warp stays a straight line."""
        low, high = Smoothness.bounds(dim)
        straight = np.log(STRAIGHT)
        if not warp:
            return cls(low, 0.0, straight), cls(high, 0.0, straight)
        return cls(low, -20.0, -12.0), cls(high, 20.0, straight + 2.0)

    def warped(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Statistic `(m,)`, in its standard deviations, to mean 0 and variance 1 after the warp; log slopes `(m,)`."""
        v = jnp.arcsinh((x - self.centre) / jnp.exp(self.log_width))
        spread = jnp.std(v)
        return (v - jnp.mean(v)) / spread, -log_cosh(v) - self.log_width - jnp.log(spread)

    def penalty(self) -> jax.Array:
        """Minus the log prior: mild, in favour of straight warps."""
        bent = 0.3 * jnp.log1p(jnp.exp(-self.log_width))
        return self.smoothness.penalty() + bent + 0.02 * jnp.square(self.centre)

    def fit(self, z: ArrayLike, x: ArrayLike, noise: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Weights `alpha` and held-out residuals of the warped statistic, each `(m,)`."""
        return tuple(map(np.asarray, _fit(self, z, x, noise)))


def learn_location(
    location: Location, z: np.ndarray, x: np.ndarray, noise: np.ndarray, spread: np.ndarray, steps: int, warp: bool
) -> Location:
    """Maximise the held-out Gaussian log density of the raw statistic, with the warp's Jacobian, plus log priors.

    Args:
        location: Where to start.
        z: Coordinates, `(m, D)`.
        x: Statistic, `(m,)`, in its robust standard deviations.
        noise: Relative noise variance of each simulation in the regression, `(m,)`.
        spread: Relative noise variance in the score, `(m,)`: `noise` without the weights of outliers.
        steps: L-BFGS iterations.
        warp: Whether the warp is learnt.
    """
    bounds = Location.bounds(z.shape[1], warp)
    return descend(_value_and_gradient, location, bounds, steps, z, x, noise, spread)


def start_locations(z: np.ndarray, x: np.ndarray, natural_zero: np.ndarray, warp: bool) -> list[Location]:
    """Where to start for each statistic: the best of a grid of warps and regressions by their held-out density.

    Args:
        z: Coordinates, `(m, D)`.
        x: Statistics, `(m, n)`, in their robust standard deviations.
        natural_zero: Raw zero in the same units, `(n,)`.
        warp: Whether warps are tried.
    Cost: twelve inverses of size `m` in all, whatever the number of statistics and warps.
    """
    dim = z.shape[1]
    warps = [_candidates(column, zero, warp) for column, zero in zip(x.T, natural_zero, strict=True)]
    warped = [
        jax.vmap(lambda c, w, x: Location(None, c, w).warped(x), (0, 0, None))(*pair, column)
        for pair, column in zip(warps, x.T, strict=True)
    ]
    best: list[tuple[float, Location | None]] = [(-np.inf, None)] * x.shape[1]
    for bump, length in ((0.5, 1.5 / np.sqrt(dim)), (1.0, 1.5), (0.1, 2.0), (1.0, 0.5)):
        for noise in (0.1, 0.3, 0.8):
            smoothness = Smoothness.start(dim, 0.5, bump, length, noise)
            for i, (targets, slopes) in enumerate(warped):
                scores = np.asarray(_profile_scores(smoothness, z, targets, slopes))
                k = int(np.nanargmax(scores))
                if scores[k] > best[i][0]:
                    best[i] = scores[k], Location(smoothness, warps[i][0][k], warps[i][1][k])
    return [location for _, location in best]


def _candidates(column, zero, warp):
    """Centres and log widths of the warps that are tried for one statistic."""
    centres, widths = [0.0], [STRAIGHT]
    if warp:
        one_sided = zero <= column.min() or zero >= column.max()
        ends = [column.min(), column.max(), *([zero] if one_sided and abs(zero) < 20.0 else [])]
        for centre in (0.0, *ends):
            grid = np.geomspace(0.003, 10.0, 12)
            centres += [centre] * len(grid)
            widths += list(grid)
    return np.array(centres), np.log(widths)


@jax.jit
def _profile_scores(smoothness, z, targets, slopes):
    """Mean held-out log density of each warped version `(k, m)`, at the best overall variance."""
    matrix = smoothness.regularised(z, jnp.ones(len(z)))
    alpha, diagonal = jax.vmap(partial(_apply, jnp.linalg.inv(matrix)))(targets)
    variance = jnp.mean(jnp.square(alpha) / diagonal, axis=1)
    return jnp.mean(slopes + 0.5 * jnp.log(diagonal), axis=1) - 0.5 * jnp.log(variance)


def _apply(inverse, target):
    return inverse @ target, jnp.diagonal(inverse)


@jax.jit
def _fit(location, z, x, noise):
    target, _ = location.warped(x)
    alpha, diagonal = held_out(location.smoothness.regularised(z, noise), target)
    return alpha, alpha / diagonal


def _loss(location, z, x, noise, spread):
    target, log_slope = location.warped(x)
    alpha, diagonal = held_out(location.smoothness.regularised(z, noise), target)
    own = jnp.exp(2.0 * location.smoothness.noise) * (spread - noise)
    variance = 1.0 / diagonal + own
    log_density = -0.5 * (jnp.square(alpha / diagonal) / variance + jnp.log(variance)) + log_slope
    return location.penalty() - jnp.sum(log_density)


_value_and_gradient = jax.jit(jax.value_and_grad(_loss))
