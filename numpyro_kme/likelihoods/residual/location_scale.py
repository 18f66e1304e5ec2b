"""Location and scale of a statistic given the coordinates, after a marginal transformation that is chosen with them."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_kme._core.host import in_parallel
from numpyro_kme._core.solves import median_absolute_deviation
from numpyro_kme.likelihoods.descent import descend_all, ravel
from numpyro_kme.likelihoods.residual.ridge import Ridge, RidgeFunctions
from numpyro_kme.likelihoods.residual.smoothness import JITTER, Inputs, Smoothness
from numpyro_kme.likelihoods.statistics import MarginalTransform

STRAIGHT, WIDTHS = 50.0, np.geomspace(0.003, 10.0, 12)
"""Width of a transformation that is a straight line over the bulk of the statistic, in its standard deviations, and
those of the curved ones that are tried."""

DEFENSIVE = 0.02
"""Weight of a heavy-tailed component (Cauchy, of the statistic's scale) in the score: one outlier teaches nothing."""

MOVES = 2
"""Moves of a marginal transformation in each of the first two turns."""

LOG_NOISE = -7.0, 1.5
"""Box of the log standard deviation of the noise of a location, in standard deviations of its target."""


def transformations(x: np.ndarray, natural_zero: np.ndarray | None) -> MarginalTransform:
    """The marginal transformations that are tried for each statistic, `(n, k)`: a straight line, and curves around the
    middle, the ends and a zero that all values are beyond.

    Args:
        x: Statistics, `(n, m)`, in their robust standard deviations.
        natural_zero: Raw zero in the same units, `(n,)`; where left out statistics stay as they are.
    """
    centre, width = np.zeros((len(x), 1)), np.full((len(x), 1), STRAIGHT)
    if natural_zero is not None:
        low, high = x.min(axis=1), x.max(axis=1)
        one_sided = (np.abs(natural_zero) < 20.0) & ((natural_zero <= low) | (natural_zero >= high))
        middles = np.stack([np.zeros(len(x)), low, high, np.where(one_sided, natural_zero, 0.0)], axis=1)
        centre = np.append(centre, np.repeat(middles, len(WIDTHS), axis=1), axis=1)
        width = np.append(width, np.tile(WIDTHS, (len(x), middles.shape[1])), axis=1)
    return MarginalTransform.fit(x.T[..., None], centre, width)


def nearby(marginals: MarginalTransform, x: np.ndarray) -> MarginalTransform:
    """Each of `n` transformations itself, and those whose centre is half a width, or whose width is a factor, away,
    `(n, 9)`."""
    shifts, factors = (part.ravel() for part in np.meshgrid([0.0, -0.5, 0.5], [1.0, 0.7, 1.4]))
    centre, width = np.asarray(marginals.centre)[:, None], np.asarray(marginals.width)[:, None]
    return MarginalTransform.fit(x.T[..., None], centre + shifts * width, factors * width)


def start(at: Inputs, x: np.ndarray, tried: MarginalTransform) -> tuple[Smoothness, MarginalTransform, np.ndarray]:
    """Begin for each statistic with the best of a grid of regressions and of the transformations that are tried;
    return its mean held-out log density too, `(n,)`.

    Args:
        at: Coordinates.
        x: Statistics, `(n, m)`, in their robust standard deviations.
        tried: The transformations, `(n, k)`.
    Cost: eight factorisations, whatever the number of statistics and transformations.
    """
    shapes = ((0.5, 1.5 / np.sqrt(at.dim)), (1.0, 1.5), (0.1, 2.0), (1.0, 0.5))
    grid = [Smoothness.start(at.dim, 0.5, rbf, length, noise) for rbf, length in shapes for noise in (0.1, 0.8)]
    found = [_best(smoothness.regress(at, np.ones(len(at)), x[0]).held_out, x, tried) for smoothness in grid]
    marginals, scores, variances = zip(*found)
    best, every = np.argmax(scores, axis=0), np.arange(len(x))
    factors = np.sqrt(np.array(variances)[best, every])
    chosen = [grid[j].times(factor) for j, factor in zip(best, factors)]
    take = lambda *leaves: np.stack(leaves)[best, every]  # noqa: E731
    smoothness = jax.tree.map(lambda *leaves: np.stack(leaves), *chosen)
    return smoothness, jax.tree.map(take, *marginals), np.array(scores)[best, every]


def _best(ridge: Ridge, x: np.ndarray, tried: MarginalTransform) -> tuple[MarginalTransform, np.ndarray, np.ndarray]:
    """The transformation of each statistic with the highest mean held-out log density by a regression, at a robust
    overall variance; this score and this variance, `(n,)` both."""
    columns = x.T[..., None]
    targets, log_slopes = (np.moveaxis(of(columns, np), 0, -1) for of in (tried, tried.log_slope))
    squares = np.square(ridge.solve_rows(targets)) / ridge.diagonal[..., None, :]
    middle = np.median(squares, axis=-1, keepdims=True) / 0.455
    overall = np.mean(np.minimum(squares, 16.0 * middle), axis=-1, keepdims=True)
    normal = log_normal(squares, overall) + 0.5 * np.log(ridge.diagonal)[..., None, :]
    scores = np.mean(np.logaddexp(np.log1p(-DEFENSIVE) + normal + log_slopes, log_tails(x)[:, None]), axis=-1)
    every, best = np.arange(len(x)), np.argmax(scores, axis=1)
    return jax.tree.map(lambda leaf: leaf[every, best], tried), scores[every, best], overall[every, best, 0]


def log_normal(squares: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Log density of a centred normal at values of the given squares."""
    return -0.5 * (squares / variance + np.log(2.0 * np.pi * variance))


def log_tails(x: np.ndarray) -> np.ndarray:
    """Log of the heavy-tailed component, with its weight, at statistics `x`."""
    return np.log(DEFENSIVE / np.pi) - np.log1p(np.square(x))


class RegressionData(NamedTuple):
    """The data that regressions of `n` statistics are learnt from.

    Attributes:
        values: Transformed statistics, of mean 0 and variance 1, `(n, m)`.
        log_tails: Log of the heavy-tailed component, with its weight, as a density of these, `(n, m)`.
        noise: Relative noise variance of each simulation in the regression, `(n, m)`.
        score_noise: Relative noise variance in the score, `(n, m)`: `noise` without the weights of outliers.
    """

    values: np.ndarray
    log_tails: np.ndarray
    noise: np.ndarray
    score_noise: np.ndarray


def learn_smoothness(
    smoothness: Smoothness,
    at: Inputs,
    targets: RegressionData,
    steps: int,
    log_noise: tuple[float, float],
    inverses: np.ndarray | None,
) -> tuple[Smoothness, np.ndarray]:
    """Maximise the held-out log density of each target, normal, plus log priors, from where `smoothness` is.

    Return the maxima, and the last inverse Hessians, `(n, p, p)`; `inverses` are those of an earlier search.
    """
    enough, size = smoothness.enough(at), targets.values.shape[1]
    if inverses is None:
        inverses = np.eye(ravel(smoothness, 1).shape[1]) / ravel(smoothness.curvature(size), 1)[:, :, None]

    def some(smoothness, rows):
        return loss(smoothness, enough, RegressionData(*(part[rows] for part in targets)))

    return descend_all(some, smoothness, Smoothness.bounds(at, log_noise), steps, inverses)


def loss(smoothness: Smoothness, at: Inputs, targets: RegressionData) -> tuple[np.ndarray, Smoothness]:
    """Minus the held-out log density and the log prior, `(n,)`, and its gradient."""
    found = smoothness.regress(at, targets.noise, targets.values)
    own = np.exp(2.0 * smoothness.noise)[..., None] * (targets.score_noise - targets.noise)
    variance, residual = found.held_out.variance + own, found.held_out.residual
    normal = np.log1p(-DEFENSIVE) + log_normal(np.square(residual), variance)
    log_density = np.logaddexp(normal, targets.log_tails)
    responsibility, ratio = np.exp(normal - log_density), residual / variance
    of_variance = 0.5 * responsibility * (1.0 / variance - np.square(ratio))
    penalty, slope = smoothness.penalty()
    gradient = jax.tree.map(np.add, slope, found.gradient(responsibility * ratio, of_variance))
    noise = gradient.noise + 2.0 * np.sum(of_variance * own, axis=-1)
    return penalty - log_density.sum(axis=-1), replace(gradient, noise=noise)


DEGREES = 5.0
"""Degrees of freedom of the Student likelihood of residuals: one outlier moves the log scale by a bounded amount."""

INFORMATION = 2.0 * DEGREES / (DEGREES + 3.0)
"""Fisher information of the log scale in one residual of that likelihood; 2 for a Gaussian one."""


def same_for_all(smoothness: Smoothness, n: int) -> Smoothness:
    """Hyperparameters `n` times over, for as many regressions."""
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (n, *np.shape(leaf))), smoothness)


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
        self.smoothness = same_for_all(Smoothness.start(dim, noise=1.0), n)
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
            targets = RegressionData(x, log_tails(x), noise, noise)
            learnt = learn_smoothness(self.smoothness, at, targets, steps, (0.0, 0.0), self.inverses)
            self.smoothness, self.inverses = learnt
        self.last = self.smoothness.regress(self.smoothness.enough(at), noise, x)
        predictions, noise = self.last.held_out, (1.0 + JITTER) * noise
        self.held_out, self.fitted = (
            target - self.spread * rest for rest in (predictions.residual, noise * predictions.alpha)
        )


def explained(at: Inputs, v: np.ndarray, smoothness: Smoothness) -> float:
    """Larger proportion of the variance that is explained, held out, of a residual `(m,)` and of the score of its log
    scale by a regression whose hyperparameters are given, and not learnt."""
    score = np.square(v) / (DEGREES + np.square(v))
    fit = smoothness.regress(at, np.ones(len(v)), v)
    fits = fit, fit.again((score - score.mean()) / score.std())
    return 1.0 - min(float(np.mean(np.square(one.held_out.residual))) for one in fits)


MOST_TURNS = 8
"""Location and scale are learnt in turn so many times at most: where the scale spans many orders of magnitude, what a
location can be known to follows from the scale, and the least scale from that."""

NEGLIGIBLE = 0.05
"""What location, in residual standard deviations, and log scale may be off by where a simpler function stands in."""


ROUNDED = 1.25
"""A location that is off at its own simulations by more residual standard deviations than this is off by rounding."""


class Fits(NamedTuple):
    """Statistics as they are fitted: marginal transformations, locations and then log scales as simple as `NEGLIGIBLE`
    lets them be, held-out residuals, `(m, n)`, and what both add to the held-out log score, `(2, n)`."""

    marginals: MarginalTransform
    functions: RidgeFunctions
    residuals: np.ndarray
    improvements: np.ndarray


def fit_statistics(
    steps: int, at: Inputs, rows: np.ndarray, x: np.ndarray, natural_zero: np.ndarray | None = None
) -> Fits:
    """Learn locations and scales, some statistics at a time, on `rows` with some inducing points, and again with the
    noise found so, until that stays what it is; then fit all simulations.

    Args:
        steps: Iterations of one location.
        at: Coordinates.
        rows: Simulations that hyperparameters are learnt from.
        x: Statistics, `(n, m)`, in their robust standard deviations.
        natural_zero: As in `transformations`; where left out the search begins with little but noise.
    """
    parts = in_parallel(partial(_fit_group, steps, at, rows, x, natural_zero), at.groups(len(x)))
    marginals, functions, log_scales, residuals, improvements = zip(*parts)
    marginals = jax.tree.map(lambda *leaves: np.concatenate(leaves), *marginals)
    together = RidgeFunctions.together([*functions, *log_scales])
    return Fits(marginals, together, np.concatenate(residuals).T, np.concatenate(improvements, axis=1))


def _fit_group(steps, at, rows, x, natural_zero, group):
    """Marginal transformations, functions of locations and of log scales, residuals and improvements."""
    at, x = at.group(group), x[group]
    zero = None if natural_zero is None else natural_zero[group]
    coarse, few = at.coarse[rows], x[:, rows]
    tried = transformations(few, zero)
    if zero is None:
        smoothness = same_for_all(Smoothness.start(at.dim, linear=0.1, length=1.0, noise=0.9), len(x))
        marginals = jax.tree.map(lambda leaf: leaf[:, 0], tried)
    else:
        smoothness, marginals, _ = start(coarse, few, tried)
    scale = ScaleFunction(at.dim, *few.shape)
    smoothness, marginals, _ = _in_turn(coarse, few, marginals, zero is not None, smoothness, scale, steps)
    scale.last = None  # of other simulations
    marginals = MarginalTransform.fit(x.T, marginals.centre, marginals.width)
    _, _, found = _in_turn(at, x, marginals, False, smoothness, scale, 0)
    residuals = found.held_out.residual * np.exp(-scale.held_out)
    rest, plain = winsorised_rms(residuals), winsorised_rms(found.held_out.residual)
    log_scale, size = np.log(rest), rest[:, None] * np.exp(scale.fitted)
    of_location = RidgeFunctions.of(found, NEGLIGIBLE * size)
    # with so little noise that a simplified function is off by more, residuals and scales are those of the function
    off = (marginals(x.T, np) - of_location(at.z, np)).T / size
    rounding = winsorised_rms(off)
    rounded = rounding > ROUNDED
    residuals = np.where(rounded[:, None], off / rounding[:, None], residuals / rest[:, None])
    log_scale += np.where(rounded, np.log(rounding), 0.0)
    log_scales = RidgeFunctions.of(scale.last, NEGLIGIBLE / scale.spread * np.ones(x.shape))
    log_scales = log_scales.combined(np.diag(scale.spread[:, 0]), scale.offset[:, 0] + log_scale)
    improvements = np.stack([-np.log(plain), np.log(plain / rest) - np.mean(scale.held_out, axis=1)])
    return marginals, of_location, log_scales, residuals, improvements


def _in_turn(at, x, marginals, moves, smoothness, scale, steps):
    """Locations and log scales in turn until scales stay what they are: hyperparameters with so many iterations,
    transformations, which may have moved, and the last regression."""
    inverses, noise, size = None, np.ones(x.shape), np.ones(x.shape)
    for number in range(MOST_TURNS):
        values = marginals(x.T, np).T
        if steps:
            targets = RegressionData(values, log_tails(x) - marginals.log_slope(x.T, np).T, noise, size)
            now = steps // (1 if number == 0 else 2)
            smoothness, inverses = learn_smoothness(smoothness, at, targets, now, LOG_NOISE, inverses)
        found, before = smoothness.regress(smoothness.enough(at), noise, values), size
        if moves and number < 2:  # turns that all statistics take
            for _ in range(MOVES):
                marginals, _, _ = _best(found.held_out, x, nearby(marginals, x))
            found = found.again(marginals(x.T, np).T)
        scale.update(at, found.held_out.residual, steps // 3)
        noise, size = _noise(found.held_out.residual, scale.held_out)
        if number > 0 and np.all(np.std(np.log(size / before), axis=1) < 2.0 * NEGLIGIBLE):
            break
    return smoothness, marginals, found


def _noise(residuals, log_scale):
    """Relative noise variances for the next regression, and without the weights that outliers get, `(n, m)`."""
    standard = residuals * np.exp(-log_scale)
    noise = 4.0 + np.square(standard / winsorised_rms(standard)[:, None])
    size = np.exp(2.0 * (log_scale - np.mean(log_scale, axis=1, keepdims=True)))
    return size * noise * np.mean(1.0 / noise, axis=1, keepdims=True), size
