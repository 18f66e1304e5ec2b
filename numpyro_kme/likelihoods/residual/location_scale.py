"""Location and scale of a statistic given the coordinates, after a marginal transformation that is learnt with them."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import host, median_absolute_deviation
from numpyro_kme.kernels.base import register, take
from numpyro_kme.likelihoods.descent import descend_all, ravel
from numpyro_kme.likelihoods.residual.bandwidths import DEFENSIVE
from numpyro_kme.likelihoods.residual.ridge import Ridge, RidgeFunctions
from numpyro_kme.likelihoods.residual.smoothness import JITTER, Inputs, Smoothness
from numpyro_kme.likelihoods.statistics import log_cosh

STRAIGHT = 50.0
"""Width of a transformation that is a straight line over the bulk of the statistic, in its standard deviations."""

UNCHANGED = 1e4
"""Width of one that is a straight line everywhere."""

SHRINK = 0.1
"""Least factor of a start's amplitudes and noise: those of a statistic without noise stay well inside their box."""


LEAST_LOG_SCALE = -16.0
"""Least log of a residual's scale, in standard deviations of what it is a residual of: float32 rounds by about so much.
Without noise scales would fall without end, and residuals beyond them pass the largest number."""


@register
class Location:
    """Hyperparameters of the locations of some statistics, one for each leading axis `...`.

    Attributes:
        smoothness: Hyperparameters of the regressions.
        centre: Centres of the marginal transformations, in robust standard deviations of the statistic, `(...)`.
        log_width: Logarithms of their widths, in the same units, `(...)`.
    """

    smoothness: Any
    centre: Any
    log_width: Any

    @classmethod
    def bounds(
        cls, at: Inputs, transform: bool, log_noise: tuple[float, float] = (-7.0, 1.5)
    ) -> tuple["Location", "Location"]:
        """Box of the search; without `transform` the transformation stays a straight line."""
        low, high = Smoothness.bounds(at, log_noise)
        if not transform:
            return cls(low, 0.0, np.log(UNCHANGED)), cls(high, 0.0, np.log(UNCHANGED))
        return cls(low, -20.0, -12.0), cls(high, 20.0, np.log(STRAIGHT) + 2.0)

    def penalty(self) -> tuple[np.ndarray, "Location"]:
        """Minus the log prior, mild and in favour of straight lines, and its gradient."""
        smoothness, gradient = self.smoothness.penalty()
        value = smoothness + 0.3 * np.log1p(np.exp(-self.log_width)) + 0.02 * np.square(self.centre)
        return value, Location(gradient, 0.04 * self.centre, -0.3 / (1.0 + np.exp(self.log_width)))

    def curvature(self, size: int) -> "Location":
        """About the second derivatives of the loss of `size` simulations."""
        half, width = 0.5 * size, np.square(np.exp(self.log_width))
        return Location(self.smoothness.curvature(size), half / (1.0 + width), np.full(np.shape(width), half))

    def target(self, x: np.ndarray) -> np.ndarray:
        """Targets of the regressions, of statistics `(..., m)`."""
        return standardised(self.transformed(x))[0]

    def transformed(self, x: np.ndarray) -> np.ndarray:
        """Statistics `(..., m)` after the marginal transformations, `arcsinh((x - centre) / width)`."""
        return np.arcsinh((x - np.asarray(self.centre)[..., None]) / np.exp(self.log_width)[..., None])


def standardised(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values `(..., m)` to mean 0 and variance 1, and the standard deviations `(..., 1)`."""
    deviation = np.std(v, axis=-1, keepdims=True)
    return (v - np.mean(v, axis=-1, keepdims=True)) / deviation, deviation


def learn_location(
    location: Location,
    at: Inputs,
    x: np.ndarray,
    noise: np.ndarray,
    score_noise: np.ndarray,
    steps: int,
    bounds: tuple[Location, Location],
    inverses: np.ndarray | None = None,
) -> tuple[Location, np.ndarray]:
    """Maximise the held-out log density of each raw statistic, normal after the transformation, plus log priors.

    Args:
        location: Where to start, for `n` statistics.
        at: Coordinates.
        x: Statistics, `(n, m)`, in their robust standard deviations.
        noise: Relative noise variance of each simulation in the regression, `(n, m)`.
        score_noise: Relative noise variance in the score, `(n, m)`: `noise` without the weights of outliers.
        steps: Iterations.
        bounds: Box of the search.
        inverses: Inverse Hessians of an earlier search, `(n, p, p)`.
    Returns:
        Where each maximum is, and the last inverse Hessians.
    """
    least = location.smoothness.enough(at)
    if inverses is None:
        inverses = np.eye(ravel(location, 1).shape[1]) / ravel(location.curvature(x.shape[-1]), 1)[:, :, None]
    some = lambda location, rows: location_loss(location, least, x[rows], noise[rows], score_noise[rows])  # noqa: E731
    return descend_all(some, location, bounds, steps, inverses)


def location_loss(
    location: Location, at: Inputs, x: np.ndarray, noise: np.ndarray, score_noise: np.ndarray
) -> tuple[np.ndarray, Location]:
    """Minus the held-out log density and the log prior, `(...)`, and its gradient."""
    smoothness, width = location.smoothness, np.exp(location.log_width)
    v = location.transformed(x)
    target, scale = standardised(v)
    found = smoothness.regress(at, noise, target)
    own = np.exp(2.0 * smoothness.noise)[..., None] * (score_noise - noise)
    variance, residual = found.held_out.variance + own, found.held_out.residual
    normal = log_normal(np.square(residual), variance) - log_cosh(v, np) - np.log(width[..., None] * scale)
    log_density, responsibility = log_mixture_with_cauchy(normal, x)
    ratio = residual / variance
    of_variance = 0.5 * responsibility * (1.0 / variance - np.square(ratio))
    of_smoothness, of_target = found.gradient(responsibility * ratio, of_variance)
    along = np.mean(of_target * target, axis=-1, keepdims=True)
    of_v = (of_target - np.mean(of_target, axis=-1, keepdims=True) - target * along) / scale
    slope_of_log, total = np.tanh(v), responsibility.sum(axis=-1)
    of_v += responsibility * slope_of_log + total[..., None] * target / (x.shape[-1] * scale)
    penalty, slope = location.penalty()
    of_noise = of_smoothness.noise + 2.0 * np.sum(of_variance * own, axis=-1)
    gradient = Location(
        jax.tree.map(np.add, slope.smoothness, replace(of_smoothness, noise=of_noise)),
        slope.centre - np.sum(of_v / np.cosh(v), axis=-1) / width,
        slope.log_width - np.sum(of_v * slope_of_log, axis=-1) + total,
    )
    return penalty - log_density.sum(axis=-1), gradient


def log_normal(squares: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Log density of a centred normal at values of the given squares."""
    return -0.5 * (squares / variance + np.log(2.0 * np.pi * variance))


def log_mixture_with_cauchy(log_density: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of the mixture with a Cauchy distribution at statistics `x`, and the responsibility of `log_density`."""
    # log densities above this count as this: their exponential is finite
    own = (1.0 - DEFENSIVE) * np.exp(np.minimum(log_density, 700.0))
    mixture = own + DEFENSIVE / np.pi / (1.0 + np.square(x))
    return np.log(mixture), own / mixture


def start_locations(at: Inputs, x: np.ndarray, natural_zero: np.ndarray) -> tuple[Location, np.ndarray]:
    """The start for each statistic: the best of a grid of transformations and regressions by their mean held-out
    log density, `(n,)`, which is returned too.

    Args:
        at: Coordinates.
        x: Statistics, `(n, m)`, in their robust standard deviations.
        natural_zero: Raw zero in the same units, `(n,)`.
    Cost: twelve factorisations in all, whatever the number of statistics and transformations.
    """
    shapes = ((0.5, 1.5 / np.sqrt(at.dim)), (1.0, 1.5), (0.1, 2.0), (1.0, 0.5))
    tries = [Smoothness.start(at.dim, 0.5, rbf, length, noise) for rbf, length in shapes for noise in (0.1, 0.3, 0.8)]
    ridges = [smoothness.regress(at, np.ones(len(at)), x[0]).held_out for smoothness in tries]
    found = host.in_parallel(partial(_best_start, tries, ridges), zip(x, natural_zero, strict=True))
    locations, scores = zip(*found)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *locations), np.array(scores)


def _best_start(tries, ridges, pair):
    """Where to start for one statistic and its natural zero, and the score there."""
    centres, log_widths = _transformations(*pair)
    v = Location(None, centres, log_widths).transformed(pair[0])
    targets, scale = standardised(v)
    log_slopes = -log_cosh(v, np) - np.log(scale) - log_widths[:, None]
    found, overall = map(np.stack, zip(*(_scores(ridge, targets, log_slopes, pair[0]) for ridge in ridges)))
    j, k = np.unravel_index(np.argmax(found), found.shape)
    return Location(tries[j].times(max(SHRINK, np.sqrt(overall[j, k]))), centres[k], log_widths[k]), found[j, k]


def _transformations(column: np.ndarray, zero: float) -> tuple[np.ndarray, np.ndarray]:
    """Centres and log widths, `(k,)` each, of a straight line, and of curves around the middle, the ends and a zero
    that all values are beyond."""
    one_sided = abs(zero) < 20.0 and (zero <= column.min() or zero >= column.max())
    middles = [0.0, column.min(), column.max(), *([zero] if one_sided else [])]
    centres, widths = np.meshgrid(middles, np.geomspace(0.003, 10.0, 12), indexing="ij")
    return np.append(0.0, centres), np.log(np.append(STRAIGHT, widths))


def _scores(ridge: Ridge, targets, log_slopes, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean held-out log density of a statistic by transformation, `(k,)`, at a robust overall variance, and this."""
    squares = np.square(ridge.solve_rows(targets)) / ridge.diagonal
    middle = np.median(squares, axis=1, keepdims=True) / 0.455
    overall = np.mean(np.minimum(squares, 16.0 * middle), axis=1, keepdims=True)
    normal = log_normal(squares, overall) + 0.5 * np.log(ridge.diagonal) + log_slopes
    return np.mean(log_mixture_with_cauchy(normal, column)[0], axis=1), overall[:, 0]


DEGREES = 5.0
"""Degrees of freedom of the Student likelihood of residuals: one outlier moves the log scale by a bounded amount."""

INFORMATION = 2.0 * DEGREES / (DEGREES + 3.0)
"""Fisher information of the log scale in one residual of that likelihood; 2 for a Gaussian one."""


def winsorised_rms(residuals: np.ndarray) -> np.ndarray:
    """Root mean squares of residuals `(..., m)`, winsorised at four robust standard deviations; 0 is replaced by 1.

    Where winsorising leaves nothing, the plain standard deviation.
    """
    cut = 4.0 * median_absolute_deviation(np.moveaxis(residuals, -1, 0), 0.0)[..., None] / 0.6745
    robust = np.sqrt(np.mean(np.square(np.clip(residuals, -cut, cut)), axis=-1))
    plain = np.std(residuals, axis=-1)
    return np.where(robust > 0.0, robust, np.where(plain > 0.0, plain, 1.0))


class ScaleFunction:
    """Log scales `s(z)` being fitted to the residuals of `n` statistics: hyperparameters, and the last fit; `update`
    begins anew where there is none.

    Fisher scoring: with `e = r exp(-s)`, working targets `s + ((nu + 1) e^2 / (nu + e^2) - 1) / I` with variance
    `1 / I` are regressed on the coordinates as a location is. The logarithm of squared residuals, the usual target, has
    two and a half times the variance: it only gives the start.
    """

    def __init__(self, dim: int, n: int, size: int):
        """Before the first fit: the same for all of `size` residuals of `n` statistics."""
        start = Location(Smoothness.start(dim, noise=1.0), 0.0, np.log(UNCHANGED))
        self.location = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (n, *np.shape(leaf))), start)
        self.fitted, self.held_out = np.zeros((n, size)), np.zeros((n, size))
        self.offset, self.spread, self.inverses = np.zeros((n, 1)), np.ones((n, 1)), None
        self.last: Any = None

    def update(self, at: Inputs, residuals: np.ndarray, steps: int) -> None:
        """Fit to residuals `(n, m)` in two scoring steps; in the last hyperparameters get `steps` iterations."""
        if self.last is None:
            logs = np.log(np.square(residuals) + 1e-300)
            self._regress(at, 0.5 * (np.maximum(logs, np.median(logs, axis=-1, keepdims=True) - 5.0) + 1.27), steps)
        for now in (0, steps):
            squares = np.square(residuals * np.exp(-self.fitted))
            score = (DEGREES + 1.0) * squares / (DEGREES + squares) - 1.0
            self._regress(at, self.fitted + score / INFORMATION, now)

    def _regress(self, at, target, steps):
        self.offset = np.mean(target, axis=-1, keepdims=True)
        self.spread = np.maximum(np.std(target, axis=-1, keepdims=True), 1e-12)
        x = (target - self.offset) / self.spread
        noise = np.broadcast_to(1.0 / INFORMATION / np.square(self.spread), x.shape)
        if steps:
            bounds = Location.bounds(at, False, (0.0, 0.0))
            learnt = learn_location(self.location, at, x, noise, noise, steps, bounds, self.inverses)
            self.location, self.inverses = learnt
        smoothness = self.location.smoothness
        self.last = smoothness.regress(smoothness.enough(at), noise, x)
        predictions, noise = self.last.held_out, (1.0 + JITTER) * noise
        self.held_out = np.maximum(target - self.spread * predictions.residual, LEAST_LOG_SCALE)
        self.fitted = np.maximum(target - self.spread * (noise * predictions.alpha), LEAST_LOG_SCALE)


def explained(at: Inputs, v: np.ndarray, smoothness: Smoothness) -> float:
    """Larger proportion of the variance that is explained, held out, of a residual `(m,)` and of the score of its log
    scale by a regression whose hyperparameters are given, and not learnt."""
    score = np.square(v) / (DEGREES + np.square(v))
    fit = smoothness.regress(at, np.ones(len(v)), v).held_out
    left = np.square([fit.residual, fit.again((score - score.mean()) / score.std()).residual])
    return 1.0 - float(np.min(np.mean(left, axis=1)))


MOST_TURNS = 8
"""Location and scale are learnt in turn so many times at most: where the scale spans many orders of magnitude, what a
location can be known to follows from the scale, and the least scale from that."""

NEGLIGIBLE = 0.05
"""What location, in residual standard deviations, and log scale may be off by where a simpler function stands in."""

ROUNDED = 1.25
"""A location that is off at its own simulations by more residual standard deviations than this is off by rounding."""


def fit_statistics(
    steps: int, at: Inputs, rows: np.ndarray, x: np.ndarray, start: Location, transform: bool = True
) -> tuple[Location, RidgeFunctions, np.ndarray, np.ndarray]:
    """Learn locations and scales, some statistics at a time, on `rows` with some inducing points, and again with the
    noise found so, until that stays what it is; then fit all simulations.

    Args:
        steps: Iterations of one location.
        at: Coordinates.
        rows: Simulations that hyperparameters are learnt from.
        x: Statistics, `(n, m)`, in their robust standard deviations.
        start: Where the search begins.
        transform: Whether marginal transformations are learnt.
    Returns:
        Hyperparameters of the locations, locations and then log scales as simple as `NEGLIGIBLE` lets them be, held-out
        residuals, `(m, n)`, and what both add to the held-out log score, `(2, n)`.
    """
    parts = host.in_parallel(partial(_fit_group, steps, transform, at, rows, x, start), at.groups(len(x)))
    locations, functions, log_scales, residuals, improvements = zip(*parts)
    location = jax.tree.map(lambda *leaves: np.concatenate(leaves), *locations)
    together = RidgeFunctions.together([*functions, *log_scales])
    return location, together, np.concatenate(residuals).T, np.concatenate(improvements, axis=1)


def _fit_group(steps, transform, at, rows, x, start, group):
    """Hyperparameters of locations, functions of locations and of log scales, residuals and improvements."""
    at, x, start = at.group(group), x[group], take(start, group)
    scale = ScaleFunction(at.dim, *x[:, rows].shape)
    location, _ = _in_turn(transform, at.coarse[rows], x[:, rows], start, scale, steps)
    scale.last = None  # of other simulations
    location, found = _in_turn(transform, at, x, location, scale, 0)
    residuals = found.held_out.residual * np.exp(-scale.held_out)
    rest, plain = winsorised_rms(residuals), winsorised_rms(found.held_out.residual)
    log_scale, size = np.log(rest), rest[:, None] * np.exp(scale.fitted)
    of_location = RidgeFunctions.of(found, NEGLIGIBLE * size)
    # with so little noise that a simplified function is off by more, residuals and scales are those of the function
    off = (location.target(x) - of_location(at.z, np).T) / size
    rounding = winsorised_rms(off)
    rounded = rounding > ROUNDED
    residuals = np.where(rounded[:, None], off / rounding[:, None], residuals / rest[:, None])
    log_scale += np.where(rounded, np.log(rounding), 0.0)
    log_scales = RidgeFunctions.of(scale.last, NEGLIGIBLE / scale.spread * np.ones(x.shape))
    log_scales = log_scales.combined(np.diag(scale.spread[:, 0]), scale.offset[:, 0] + log_scale)
    improvements = np.stack([-np.log(plain), np.log(plain / rest) - np.mean(scale.held_out, axis=1)])
    return location, of_location, log_scales, residuals, improvements


def _in_turn(transform, at, x, location, scale, steps):
    """Locations and log scales in turn until scales stay what they are: hyperparameters with so many iterations, and
    the last regression."""
    bounds, inverses = Location.bounds(at, transform), None
    noise = size = np.ones(x.shape)
    for number in range(MOST_TURNS):
        if steps:
            now = steps // (1 if number == 0 else 2)
            location, inverses = learn_location(location, at, x, noise, size, now, bounds, inverses)
        smoothness, before = location.smoothness, size
        found = smoothness.regress(smoothness.enough(at), noise, location.target(x))
        scale.update(at, found.held_out.residual, steps // 3)
        noise, size = _noise(found.held_out.residual, scale.held_out)
        # squares of scales whose logarithms stay what they are
        if number > 0 and np.all(np.std(np.log(size / before), axis=1) < 2.0 * NEGLIGIBLE):
            break
    return location, found


def _noise(residuals, log_scale):
    """Relative noise variances for the next regression, and without the weights that outliers get, `(n, m)`."""
    standard = residuals * np.exp(-log_scale)
    noise = 4.0 + np.square(standard / winsorised_rms(standard)[:, None])
    size = np.exp(2.0 * (log_scale - np.mean(log_scale, axis=1, keepdims=True)))
    return size * noise * np.mean(1.0 / noise, axis=1, keepdims=True), size
