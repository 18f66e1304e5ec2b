"""Location and scale of a statistic given the coordinates, after a marginal transformation that is learnt with them."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import gaussian_gram
from numpyro_kme.kernels.length_scales import median_absolute_deviation
from numpyro_kme.likelihoods.descent import descend_all, ravel
from numpyro_kme.likelihoods.residual.ridge import Ridge, diagonal, inverse_root
from numpyro_kme.likelihoods.residual.smoothness import (
    INTERCEPT,
    JITTER,
    RIDGE,
    Inputs,
    Regression,
    Smoothness,
)
from numpyro_kme.likelihoods.statistics import log_cosh

STRAIGHT = 50.0
"""Width of a transformation that is a straight line over the bulk of the statistic, in its standard deviations."""

UNCHANGED = 1e4
"""Width of one that is a straight line everywhere."""


DEFENSIVE = 0.02
"""Weight of a heavy-tailed component (Cauchy, of the statistic's scale) in the score: one outlier teaches nothing."""


SHRINK = 0.1
"""Least factor of a start's amplitudes and noise: those of a statistic without noise stay well inside their box."""


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
    def bounds(cls, at: Inputs, transform_marginals: bool) -> tuple["Location", "Location"]:
        """Box of the search; without `transform_marginals` the transformation stays a straight line."""
        low, high = Smoothness.bounds(at)
        if not transform_marginals:
            return cls(low, 0.0, np.log(UNCHANGED)), cls(high, 0.0, np.log(UNCHANGED))
        straight = np.log(STRAIGHT)
        return cls(low, -20.0, -12.0), cls(high, 20.0, straight + 2.0)

    def penalty(self) -> tuple[np.ndarray, "Location"]:
        """Minus the log prior, mild and in favour of straight lines, and its gradient."""
        smoothness, gradient = self.smoothness.penalty()
        value = smoothness + 0.3 * np.log1p(np.exp(-self.log_width)) + 0.02 * np.square(self.centre)
        return value, Location(gradient, 0.04 * self.centre, -0.3 / (1.0 + np.exp(self.log_width)))

    def curvature(self, size: int) -> "Location":
        """About the second derivatives of the loss of `size` simulations."""
        half, width = 0.5 * size, np.square(np.exp(self.log_width))
        return Location(self.smoothness.curvature(size), half / (1.0 + width), np.full(np.shape(width), half))

    def fit(self, at: Inputs, x: np.ndarray, noise: np.ndarray) -> Regression:
        """Regress the transformed statistics `(..., m)` on the coordinates."""
        return self.smoothness.regress(at, noise, self.target(x))

    def target(self, x: np.ndarray) -> np.ndarray:
        """What is regressed, of statistics `(..., m)`."""
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
    transform_marginals: bool,
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
        transform_marginals: Whether the marginal transformation is learnt.
        inverses: Inverse Hessians of an earlier search, `(n, p, p)`.
    Returns:
        Where each maximum is, and the last inverse Hessians.
    """
    bounds, least = Location.bounds(at, transform_marginals), location.smoothness.enough(at)
    if inverses is None:
        inverses = diagonal(1.0 / ravel(location.curvature(x.shape[-1]), 1))
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
    of_v = (of_target - _mean(of_target) - target * _mean(of_target * target)) / scale
    slope_of_log, total = np.tanh(v), responsibility.sum(axis=-1)
    of_v += responsibility * slope_of_log + total[..., None] * target / (x.shape[-1] * scale)
    penalty, slope = location.penalty()
    gradient = Location(
        replace(
            jax.tree.map(np.add, slope.smoothness, of_smoothness),
            noise=of_smoothness.noise + 2.0 * np.sum(of_variance * own, axis=-1),
        ),
        slope.centre - np.sum(of_v / np.cosh(v), axis=-1) / width,
        slope.log_width - np.sum(of_v * slope_of_log, axis=-1) + total,
    )
    return penalty - log_density.sum(axis=-1), gradient


def _mean(values):
    return np.mean(values, axis=-1, keepdims=True)


def log_normal(squares: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Log density of a centred normal at values of the given squares."""
    return -0.5 * (squares / variance + np.log(2.0 * np.pi * variance))


def log_mixture_with_cauchy(log_density: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of the mixture with a Cauchy distribution at statistics `x`, and the responsibility of `log_density`."""
    # log densities above this count as this: their exponential is finite
    own = (1.0 - DEFENSIVE) * np.exp(np.minimum(log_density, 700.0))
    mixture = own + DEFENSIVE / np.pi / (1.0 + np.square(x))
    return np.log(mixture), own / mixture


def start_locations(
    at: Inputs, x: np.ndarray, natural_zero: np.ndarray, transform_marginals: bool
) -> tuple[Location, np.ndarray]:
    """Where to start for each statistic: the best of a grid of transformations and regressions.

    Best by their mean held-out log density, `(n,)`, which is returned too. After each shape of the regressions only the
    better half of the transformations is tried with the next.

    Args:
        at: Coordinates.
        x: Statistics, `(n, m)`, in their robust standard deviations.
        natural_zero: Raw zero in the same units, `(n,)`.
        transform_marginals: Whether marginal transformations are tried.
    Cost: twelve factorisations in all, whatever the number of statistics and transformations.
    """
    candidates = [_Candidates.of(*one, transform_marginals) for one in zip(x, natural_zero, strict=True)]
    best: list[tuple[float, Location]] = [(-np.inf, Location(Smoothness.start(at.dim), 0.0, np.log(STRAIGHT)))] * len(x)
    for rbf, length in ((0.5, 1.5 / np.sqrt(at.dim)), (1.0, 1.5), (0.1, 2.0), (1.0, 0.5)):
        tries = [Smoothness.start(at.dim, 0.5, rbf, length, noise) for noise in (0.1, 0.3, 0.8)]
        ridges = [smoothness.regress(at, np.ones(len(at)), x[0]).held_out.ridge for smoothness in tries]
        for i, tried in enumerate(candidates):
            found, overall = (np.stack(each) for each in zip(*(tried.scores(ridge, x[i]) for ridge in ridges)))
            j, k = np.unravel_index(np.argmax(found), found.shape)
            if found[j, k] > best[i][0]:
                own = tries[j].times(max(SHRINK, np.sqrt(overall[j, k])))
                best[i] = found[j, k], Location(own, tried.centres[k], tried.log_widths[k])
            candidates[i] = tried.half(found.max(axis=0))
    scores, locations = zip(*best, strict=True)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *locations), np.array(scores)


class _Candidates(NamedTuple):
    """Marginal transformations that are tried for one statistic, `(k,)`, and what they give, `(k, m)`."""

    centres: np.ndarray
    log_widths: np.ndarray
    targets: np.ndarray
    log_slopes: np.ndarray

    @classmethod
    def of(cls, column: np.ndarray, zero: float, transform_marginals: bool) -> "_Candidates":
        """A straight line, and curves of many widths around the middle, the ends and a zero that all are beyond."""
        centres, widths = [0.0], [STRAIGHT]
        if transform_marginals:
            one_sided = zero <= column.min() or zero >= column.max()
            ends = [column.min(), column.max(), *([zero] if one_sided and abs(zero) < 20.0 else [])]
            for centre in (0.0, *ends):
                grid = np.geomspace(0.003, 10.0, 12)
                centres += [centre] * len(grid)
                widths += list(grid)
        log_widths = np.log(widths)
        v = np.arcsinh((column - np.array(centres)[:, None]) / np.exp(log_widths)[:, None])
        targets, scale = standardised(v)
        return cls(np.array(centres), log_widths, targets, -log_cosh(v, np) - np.log(scale) - log_widths[:, None])

    def half(self, scores: np.ndarray) -> "_Candidates":
        """The better half."""
        best = np.argsort(-scores)[: (len(scores) + 1) // 2]
        return _Candidates(*(field[best] for field in self))

    def scores(self, ridge: Ridge, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean held-out log density for each transformation, `(k,)`, at a robust overall variance, and this."""
        squares = np.square(ridge.solve_rows(self.targets)) / ridge.diagonal
        middle = np.median(squares, axis=1, keepdims=True) / 0.455
        overall = np.mean(np.minimum(squares, 16.0 * middle), axis=1, keepdims=True)
        normal = log_normal(squares, overall) + (0.5 * np.log(ridge.diagonal) + self.log_slopes)
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
    """Log scales `s(z)` being fitted to the residuals of `n` statistics: hyperparameters, and the last fit.

    Fisher scoring: with `e = r exp(-s)`, working targets `s + ((nu + 1) e^2 / (nu + e^2) - 1) / I` with variance
    `1 / I` are regressed on the coordinates by ridge regression; hyperparameters follow the held-out density of the
    working targets. The logarithm of squared residuals, the usual target, has two and a half times the variance: it
    only gives the start.
    """

    def __init__(self, dim: int, n: int, size: int):
        """Before the first fit: the same for all of `size` residuals of `n` statistics."""
        start = Smoothness.start(dim, noise=1.0)
        self.smoothness = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (n, *np.shape(leaf))), start)
        self.offset, self.fitted, self.held_out = np.zeros(n), np.zeros((n, size)), np.zeros((n, size))
        self.last: Regression | None = None
        self._inverses = diagonal(1.0 / ravel(self.smoothness.curvature(size), 1))

    def update(self, at: Inputs, residuals: np.ndarray, rounds: int, steps: int) -> None:
        """Fit to residuals `(n, m)` in `rounds` scoring steps; in the last hyperparameters get `steps` iterations."""
        if self.fitted.shape[-1] != len(at) or not self.fitted.any():
            self._begin(at, residuals, steps)
        for number in range(rounds):
            squares = np.square(residuals * np.exp(-self.fitted))
            score = (DEGREES + 1.0) * squares / (DEGREES + squares) - 1.0
            target, now = self.fitted + score / INFORMATION, steps if number == rounds - 1 else None
            self._regress(at, target, 1.0 / INFORMATION, now, again=number > 0 and not now)

    def _begin(self, at, residuals, steps):
        logs = np.log(np.square(residuals) + 1e-300)
        logs = 0.5 * (np.maximum(logs, np.median(logs, axis=-1, keepdims=True) - 5.0) + 1.27)
        self._regress(at, logs, 1.23, steps)

    def _regress(self, at, target, variance, steps, again=False):
        self.offset = np.mean(target, axis=-1)
        centred, noise = target - self.offset[:, None], np.full(target.shape, variance)
        if steps:
            bounds = tuple(replace(bound, noise=0.0) for bound in Smoothness.bounds(at))
            least = self.smoothness.enough(at)
            some = lambda smoothness, rows: scale_loss(smoothness, least, centred[rows], noise[rows])  # noqa: E731
            self.smoothness, self._inverses = descend_all(some, self.smoothness, bounds, steps, self._inverses)
        least = self.smoothness.enough(at)
        self.last = self.last.again(centred) if again else self.smoothness.regress(least, noise, centred)
        self.held_out = target - self.last.held_out.residual
        self.fitted = target - (1.0 + JITTER) * noise * self.last.held_out.alpha


def scale_loss(
    smoothness: Smoothness, at: Inputs, target: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, Smoothness]:
    """Minus the held-out normal log density and the log prior, `(...)`, and its gradient; the noise is known."""
    found = smoothness.regress(at, noise, target)
    residual, variance = found.held_out.residual, found.held_out.variance
    value = 0.5 * np.sum(np.log(variance) + np.square(residual) / variance, axis=-1)
    of_variance = 0.5 * (1.0 / variance - np.square(residual / variance))
    slope, _ = found.gradient(residual / variance, of_variance)
    penalty, of_penalty = smoothness.penalty()
    return penalty + value, jax.tree.map(np.add, slope, of_penalty)


def explained(z: np.ndarray, points: np.ndarray, v: np.ndarray) -> float:
    """Larger proportion of the variance that is explained, held out, of a residual `(m,)` and of the score of its log
    scale by waves of each coordinate `(m, D)` and kernels around points `(r, D)`, without anything learnt."""
    dim = z.shape[1]
    waves = [wave(k * z) for k in (1.0, 2.0, 3.0) for wave in (np.sin, np.cos)]
    root = inverse_root(gaussian_gram(points, points, dim) + RIDGE * np.eye(len(points)))
    kernels = gaussian_gram(z, points, dim) @ root.T
    factor = np.concatenate(
        [np.full((len(z), 1), INTERCEPT), 0.1 * z, *(0.1 * wave for wave in waves), 0.3 * kernels], 1
    )
    ridge = Ridge.of(factor, np.ones(len(z)))
    score = np.square(v) / (DEGREES + np.square(v))
    left = [np.mean(np.square(ridge.held_out(t).residual)) for t in (v, (score - score.mean()) / score.std())]
    return 1.0 - float(min(left))
