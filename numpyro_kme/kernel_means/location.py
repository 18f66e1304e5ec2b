r"""Location: where a statistic lies given the coordinates, on a scale that is learnt with it."""

from typing import Any

import numpy as np

from numpyro_kme.kernel_means.descent import descend
from numpyro_kme.kernel_means.smoothness import Inputs, Regression, Smoothness
from numpyro_kme.kernel_means.warping import log_cosh
from numpyro_kme.kernels.base import register

STRAIGHT = 50.0
"""Width of a warp that is a straight line over the bulk of the statistic, in its standard deviations."""

DEFENSIVE = 0.02
"""Share of a broad density (Cauchy, of the scale of the statistic) in the score: one outlier teaches nothing."""


@register
class Location:
    """Hyperparameters of one statistic's location.

    Attributes:
        smoothness: Of the regression.
        centre: Of the warp, in robust standard deviations of the statistic.
        log_width: Logarithm of the warp's width, in the same units.
    """

    smoothness: Any
    centre: Any
    log_width: Any

    @classmethod
    def bounds(cls, dim: int, warp: bool) -> tuple["Location", "Location"]:
        """Box of the search; without `warp` the warp stays a straight line."""
        low, high = Smoothness.bounds(dim)
        straight = np.log(STRAIGHT)
        if not warp:
            return cls(low, 0.0, straight), cls(high, 0.0, straight)
        return cls(low, -20.0, -12.0), cls(high, 20.0, straight + 2.0)

    def penalty(self) -> tuple[float, "Location"]:
        """Minus the log prior, mild and in favour of straight warps, and its gradient."""
        smoothness, gradient = self.smoothness.penalty()
        value = smoothness + 0.3 * np.log1p(np.exp(-self.log_width)) + 0.02 * np.square(self.centre)
        return value, Location(gradient, 0.04 * self.centre, -0.3 / (1.0 + np.exp(self.log_width)))

    def curvature(self, size: int) -> "Location":
        """About the second derivatives of the loss of `size` simulations."""
        width = np.exp(self.log_width)
        return Location(
            Smoothness.curvature(size, len(self.smoothness.length)), 0.5 * size / (1.0 + width**2), 0.5 * size
        )

    def fit(self, at: Inputs, x: np.ndarray, noise: np.ndarray) -> Regression:
        """Regress the warped statistic `(m,)` on the coordinates."""
        target, _ = standardised(warped(x, self.centre, self.log_width))
        return self.smoothness.regress(at, noise, target)


def warped(x: np.ndarray, centre: Any, log_width: Any) -> np.ndarray:
    """`arcsinh((x - centre) / width)`."""
    return np.arcsinh((x - centre) / np.exp(log_width))


def standardised(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values `(..., m)` to mean 0 and variance 1, and the standard deviations `(..., 1)`."""
    spread = np.std(v, axis=-1, keepdims=True)
    return (v - np.mean(v, axis=-1, keepdims=True)) / spread, spread


def learn_location(
    location: Location,
    at: Inputs,
    x: np.ndarray,
    noise: np.ndarray,
    spread: np.ndarray,
    steps: int,
    warp: bool,
) -> Location:
    """Maximise the held-out log density of the raw statistic, normal after the warp, plus log priors.

    Args:
        location: Where to start.
        at: Coordinates.
        x: Statistic, `(m,)`, in its robust standard deviations.
        noise: Relative noise variance of each simulation in the regression, `(m,)`.
        spread: Relative noise variance in the score, `(m,)`: `noise` without the weights of outliers.
        steps: Iterations.
        warp: Whether the warp is learnt.
    """
    bounds = Location.bounds(at.dim, warp)
    least = location.smoothness.enough(at)
    return descend(loss, location, bounds, steps, least, x, noise, spread, curvature=location.curvature(len(x)))


def loss(
    location: Location, at: Inputs, x: np.ndarray, noise: np.ndarray, spread: np.ndarray
) -> tuple[float, Location]:
    """Minus the held-out log density and the log prior, and its gradient."""
    smoothness = location.smoothness
    v = warped(x, location.centre, location.log_width)
    target, scale = standardised(v)
    found = smoothness.regress(at, noise, target)
    own = np.exp(2.0 * smoothness.noise) * (spread - noise)
    variance, residual = found.held_out.variance + own, found.held_out.residual
    normal = log_normal(np.square(residual), variance) - log_cosh(v, np) - location.log_width - np.log(scale)
    log_density, share = defended(normal, x)
    of_variance = 0.5 * share * (1.0 / variance - np.square(residual / variance))
    of_smoothness, of_target = found.gradient(share * residual / variance, of_variance)
    of_v = (of_target - np.mean(of_target) - target * np.mean(of_target * target)) / scale
    of_v += share * np.tanh(v) + share.sum() * target / (len(x) * scale)
    penalty, slope = location.penalty()
    gradient = Location(
        Smoothness(
            slope.smoothness.linear + of_smoothness.linear,
            slope.smoothness.bump + of_smoothness.bump,
            slope.smoothness.length + of_smoothness.length,
            of_smoothness.noise + 2.0 * (of_variance @ own),
        ),
        slope.centre - np.sum(of_v / np.cosh(v)) / np.exp(location.log_width),
        slope.log_width - of_v @ np.tanh(v) + share.sum(),
    )
    return penalty - log_density.sum(), gradient


def log_normal(squares: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Log density of a centred normal at values of the given squares."""
    return -0.5 * (squares / variance + np.log(2.0 * np.pi * variance))


def defended(log_density: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of the mixture with the broad density at statistics `x`, and the share of `log_density` in it."""
    broad = np.log(DEFENSIVE / np.pi) - np.log1p(np.square(x))
    mixture = np.logaddexp(np.log1p(-DEFENSIVE) + log_density, broad)
    return mixture, np.exp(np.log1p(-DEFENSIVE) + log_density - mixture)


def start_locations(at: Inputs, x: np.ndarray, natural_zero: np.ndarray, warp: bool) -> list[Location]:
    """Where to start for each statistic: the best of a grid of warps and regressions by their held-out density.

    Args:
        at: Coordinates.
        x: Statistics, `(m, n)`, in their robust standard deviations.
        natural_zero: Raw zero in the same units, `(n,)`.
        warp: Whether warps are tried.
    Cost: twelve factorisations in all, whatever the number of statistics and warps.
    """
    warps = [_candidates(column, zero, warp) for column, zero in zip(x.T, natural_zero, strict=True)]
    best = [-np.inf] * x.shape[1]
    found = [Location(Smoothness.start(at.dim), 0.0, np.log(STRAIGHT))] * x.shape[1]
    for bump, length in ((0.5, 1.5 / np.sqrt(at.dim)), (1.0, 1.5), (0.1, 2.0), (1.0, 0.5)):
        for noise in (0.1, 0.3, 0.8):
            smoothness = Smoothness.start(at.dim, 0.5, bump, length, noise)
            ridge = smoothness.regress(at, np.ones(len(at)), x[:, 0]).held_out.ridge
            for i, (centres, log_widths) in enumerate(warps):
                scores = _profile_scores(ridge, x[:, i], centres[:, None], log_widths[:, None])
                k = int(np.argmax(scores))
                if scores[k] > best[i]:
                    best[i], found[i] = scores[k], Location(smoothness, centres[k], log_widths[k])
    return found


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


def _profile_scores(ridge, x, centres, log_widths):
    """Mean held-out log density for each of `k` warps, `(k,)`, at a robust overall variance."""
    v = warped(x, centres, log_widths)
    targets, scale = standardised(v)
    squares = np.square(ridge.solve(targets.T).T) / ridge.diagonal
    middle = np.median(squares, axis=1, keepdims=True) / 0.455
    overall = np.mean(np.minimum(squares, 16.0 * middle), axis=1, keepdims=True)
    normal = log_normal(squares, overall) + 0.5 * np.log(ridge.diagonal) - log_cosh(v, np) - log_widths - np.log(scale)
    return np.mean(defended(normal, x)[0], axis=1)
