r"""Semi-automatic summary statistics: estimates of posterior means, by regression on standardised features of the raw
output; generic features of sets, series and images, of which regression finds those that tell about the parameters."""

from collections.abc import Callable, Mapping
from dataclasses import field
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import scipy
from jax.typing import ArrayLike

from numpyro_kme._core import checks, frozen
from numpyro_kme.kernels.base import Sum, register
from numpyro_kme.kernels.gram import gaussian_gram, squared_distances
from numpyro_kme.kernels.low_rank import DistributionRegression
from numpyro_kme.kernels.products import Polynomial
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.learnt_statistics import Learnt, LearntStatistics, Statistics
from numpyro_kme.likelihoods.statistics import StatisticsTransform

KERNEL = Sum((Gaussian(1.0), Polynomial(1)))
"""Compares features whose mean squared distance is 2."""

UPDATES, DERIVATIVES = 2, 400
"""Turns in which weights are learnt; simulations at which derivatives are taken."""

SIGNIFICANT = 3.0
"""A posterior mean is predicted if squared errors held out fall by more than this many of their standard errors."""

WORTH, SAID = 0.05, 0.5
"""A second moment is added if the fraction of its variance that is explained is larger by this than by the means; of
coordinates of which the mean explains less than `SAID`, held out: beside a mean that says most, it nearly follows from
it, and a likelihood of both claims what is not there."""

ORDERED, ALONE, FEW = 8, 20, 64
"""Least length of an axis along which values are compared, as in time or space; shorter ones hold channels. Up to
`ALONE` numbers have no order, and up to `FEW` are features themselves."""

LOW_FREQUENCIES, LAGS = 16, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Cosine coefficients of a series, half as many along each of several axes; lags, up to a third of an axis."""


@register
class FeatureReader:
    """Features of outputs, each standardised robustly, and weighted by what it tells about the parameters.

    Attributes:
        log_scale: Where outputs are never negative, `c` of the logarithms `log(1 + x / c)`, of which features are taken
            too; else NaN.
        transform: What of a feature varies, centred, scaled and with shortened tails.
        mean: That of what is transformed, `(p,)`.
        factors: Weights over its standard deviation, `(p,)`.
        event_shape: Shape of an output (static).
        features: Features of outputs `(m, *event)`, `(m, p)` (static).
    """

    log_scale: ArrayLike
    transform: StatisticsTransform
    mean: ArrayLike
    factors: ArrayLike
    event_shape: tuple[int, ...] = field(metadata=dict(static=True))
    features: Callable[[np.ndarray], np.ndarray] | None = field(default=None, metadata=dict(static=True))

    @classmethod
    def fit(cls, z: np.ndarray, x: np.ndarray, features: Callable | None) -> "FeatureReader":
        """Fit to coordinates `(m, D)` and outputs `(m, *event)`."""
        positive = x[x > 0.0]
        counted = x.min() >= 0.0 and len(np.unique(positive[:1000])) > 1
        log_scale = float(np.quantile(positive, 0.05)) if counted else np.nan
        table = _table(features, log_scale, x)
        with checks.collected_warnings():
            transform = StatisticsTransform.fit(table)
        standard = transform.forward(table)
        mean, sd = standard.mean(axis=0), standard.std(axis=0)
        weights, targets = np.full(len(sd), 1.0 / len(sd)), np.concatenate([z, np.square(z)], axis=1)
        for _ in range(UPDATES):
            weights = relevance((standard - mean) / sd, weights, targets)
        return cls(np.asarray(log_scale), transform, mean, np.sqrt(weights) / sd, x.shape[1:], features)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Weighted features `(n, p)` of outputs `(n, n_raw)`."""
        x = rows.reshape(-1, *self.event_shape)
        table = _table(self.features, float(np.asarray(self.log_scale)), x)
        return (self.transform.forward(table) - self.mean) * self.factors


def relevance(a: np.ndarray, weights: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Weights of features `(m, p)`, `(p,)`, from regressions of targets `(m, k)` on the features with given weights.

    Mean squared derivatives of the regression of a target, in shares, times the fraction of its variance that is
    explained, held out; they add up to one, and stay where nothing is explained.

    Reference: Radhakrishnan et al. (2024), Science 383, recursive feature machines.
    """
    a = a * np.sqrt(weights)
    regression = DistributionRegression.fit(KERNEL, a, targets)
    centres, some = np.asarray(regression.features.pivots), a[:: -(-len(a) // DERIVATIVES)]
    gaussian, total = gaussian_gram(some, centres), np.zeros(len(weights))
    explained = np.maximum(1.0 - np.square(regression.error) / targets.var(axis=0), 0.0)
    for beta, own in zip((regression.features.inverse.T @ regression.coefficients).T, explained):
        near = gaussian * beta
        slopes = near @ centres - near.sum(axis=1)[:, None] * some + beta @ centres
        squares = weights * np.mean(np.square(slopes), axis=0)
        total += own * squares / max(squares.sum(), 1e-300)
    return total / total.sum() if total.any() else weights


def _table(features: Callable | None, log_scale: float, x: np.ndarray) -> np.ndarray:
    """Features of outputs, and of their logarithms where there are any, `(m, p)`."""
    if features is not None or not np.isfinite(log_scale):
        return np.asarray((features or generic_features)(x), np.float64)
    return np.concatenate([generic_features(x), generic_features(np.log1p(np.maximum(x, 0.0) / log_scale))], axis=1)


@frozen
class SemiAutomaticStatistics(Statistics):
    r"""Semi-automatic summary statistics: estimates of posterior means of the parameters, learnt by regression.

    With coordinates $z$ of the parameters, about standard normal under the prior, the statistics are estimates of
    $E[z_d \mid x]$, which lose nothing of what squared errors of posterior means need, and of second moments
    $E[z_d z_e \mid x]$ where means explain less than half of the variance, and these are predicted better than from
    the means: where a posterior is symmetric, means say nothing. They are kernel ridge regressions on features of the
    raw output, each weighted by the squared derivatives of the regression before. The statistics of each simulation are
    predicted without it, in closed form, so that the likelihood of the statistics is not learnt from errors that were
    fitted.

    Args:
        features: What the regressions see, a function of outputs `(m, *event)` that gives `(m, p)`; when left out
            generic ones of sets, series and images.
        second_moments: Whether second moments may be among the statistics.
    Cost: for 1,000 simulations and 200 features about a second of one processor.
    References:
        Fearnhead and Prangle (2012), JRSS B 74; Radhakrishnan et al. (2024), Science 383.
    """

    paper = "fearnhead2012constructing"

    features: Callable[[np.ndarray], np.ndarray] | None = None
    second_moments: bool = True

    def __post_init__(self):
        what = "a function of outputs (m, *event) giving (m, p), or None"
        checks.instance("features", self.features, Callable | None, what)

    def _fit(self, z, x, names):
        reader = FeatureReader.fit(z, x, self.features)
        a, standard = reader(x), (z - z.mean(axis=0)) / z.std(axis=0)
        means = DistributionRegression.fit(KERNEL, a, standard)
        kept, explained = _predicted(standard, means.held_out), 1.0 - np.square(means.error)
        parts, told = [(means, kept)], [f"mean of {names[i]}" for i in np.flatnonzero(kept)]
        pairs = list(combinations_with_replacement(np.flatnonzero(explained < SAID).tolist(), 2))
        if self.second_moments and pairs:
            products = np.stack([standard[:, i] * standard[:, j] for i, j in pairs], axis=1)
            moments, known = DistributionRegression.fit(KERNEL, a, products), products.var(axis=0)
            if kept.any():
                predicted = means.held_out[:, kept]
                by_means = DistributionRegression.fit(KERNEL, predicted / predicted.std(axis=0), products)
                known = np.minimum(known, np.square(by_means.error))
            fall = known - np.square(moments.error)
            worth = _predicted(products, moments.held_out) & (fall > WORTH * products.var(axis=0))
            told += [f"mean of {_product(names[i], names[j])}" for (i, j), own in zip(pairs, worth) if own]
            parts.append((moments, worth))
        useful = bool(told)
        checks.require(useful, f"None of the {a.shape[1]} features of the outputs predicts a parameter: simulate more.")
        regressions, chosen = zip(*((regression, tuple(np.flatnonzero(own).tolist())) for regression, own in parts))
        near = squared_distances(a, a) + np.diag(np.full(len(a), np.inf))
        distances = np.sort(near.min(axis=1))
        statistics = SemiAutomatic(reader, regressions, explained, a, distances, tuple(told), names, chosen)
        return Learnt(statistics, np.concatenate([one.held_out[:, own] for one, own in parts], axis=1))


def _predicted(targets: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Tell which targets `(m, k)` are predicted at all, `(k,)`."""
    fall = np.square(targets - targets.mean(axis=0)) - np.square(targets - held_out)
    return fall.mean(axis=0) > SIGNIFICANT * fall.std(axis=0) / np.sqrt(len(fall))


def _product(first: str, second: str) -> str:
    return f"{first}^2" if first == second else f"{first} times {second}"


@register
class SemiAutomatic(LearntStatistics):
    """Estimates of posterior moments.

    Attributes:
        reader: Features of outputs.
        regressions: Predictions from these, of means and of second moments.
        explained: Held-out fraction of the variance of each coordinate that is explained, `(D,)`.
        simulated: Weighted features of the simulations, `(m, p)`.
        distances: Squared distances of these to the nearest other, sorted.
        names: What each statistic is (static).
        coordinates: Names of the coordinates (static).
        chosen: Which predictions of each regression are statistics (static).
    """

    reader: FeatureReader
    regressions: tuple[DistributionRegression, ...]
    explained: ArrayLike
    simulated: ArrayLike
    distances: ArrayLike
    names: tuple[str, ...] = field(metadata=dict(static=True))
    coordinates: tuple[str, ...] = field(metadata=dict(static=True))
    chosen: tuple[tuple[int, ...], ...] = field(metadata=dict(static=True))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Implement `LearntStatistics.__call__`."""
        a = self.reader(rows)
        return np.concatenate([r.predict(a)[:, list(own)] for r, own in zip(self.regressions, self.chosen)], axis=1)

    def describe(self) -> Mapping[str, Any]:
        """Implement `LearntStatistics.describe`."""
        held_out = [f"{name} {own:.2f}" for name, own in zip(self.coordinates, np.asarray(self.explained))]
        left = [name for name in self.coordinates if f"mean of {name}" not in self.names]
        return {
            "statistics": f"learnt, {len(self.names)}: {', '.join(self.names)}",
            "features": str(np.shape(self.simulated)[1]),
            "held-out R^2": ", ".join(held_out),
            **({"left out": f"means that nothing predicts: {', '.join(left)}"} if left else {}),
        }

    def describe_observation(self, y: np.ndarray) -> str:
        """Implement `LearntStatistics.describe_observation`."""
        nearest = squared_distances(self.reader(y[None]), np.asarray(self.simulated)).min()
        nearer = np.mean(np.asarray(self.distances) < nearest)
        return f"its features lie farther from the simulations than {nearer:.0%} of these from one another"


def generic_features(x: np.ndarray) -> np.ndarray:
    """Features `(m, p)` of outputs `(m, *event)`, in float64, of each output by itself.

    Of each channel: the distribution of its values, and along each ordered axis that of differences, and low
    frequencies; correlations of channels, and over lags with itself and each other.
    """
    x = x.reshape(len(x), -1) if x.ndim == 1 else x
    ordered = [axis for axis in range(1, x.ndim) if x.shape[axis] >= ORDERED] or [1]
    x = np.moveaxis(x, ordered, range(1, 1 + len(ordered)))
    x = x.reshape(*x.shape[: 1 + len(ordered)], -1)  # channels last
    found, axes = [distribution(x)], tuple(range(1, x.ndim - 1))
    if x[0].size <= FEW:
        found.append(x.reshape(len(x), -1))
    unit = _standardised(x, axes)
    found += _products(unit, unit)
    if x[0].size <= ALONE:
        return np.concatenate(found, axis=1)
    found.append(_low_frequencies(x, axes))
    for axis in axes:
        n = x.shape[axis]
        found.append(distribution(np.diff(x, axis=axis)))
        for lag in (lag for lag in LAGS if 3 * lag <= n):
            found += _products(np.take(unit, np.arange(lag, n), axis), np.take(unit, np.arange(n - lag), axis))
    return np.concatenate(found, axis=1)


def distribution(x: np.ndarray) -> np.ndarray:
    """Summaries of values `(m, *sides, channels)` in no order: means of eighths, mean, log standard deviation,
    skewness, kurtosis, ends, and the fraction of the lowest value."""
    ordered = np.sort(x.reshape(len(x), -1, x.shape[-1]), axis=1)
    eighths = [part.mean(axis=1) for part in np.array_split(ordered, min(8, ordered.shape[1]), axis=1)]
    unit = _standardised(ordered, (1,))
    third, fourth = (np.mean(unit**power, axis=1) for power in (3, 4))
    low, high = ordered[:, 0], ordered[:, -1]
    lowest, shape = np.mean(ordered == low[:, None], axis=1), [np.tanh(third), np.log(fourth + 1e-3)]
    size = 0.5 * np.log(ordered.var(axis=1) + 1e-24)
    return np.concatenate([*eighths, ordered.mean(axis=1), size, *shape, low, high, lowest], axis=1)


def _standardised(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Values of each channel to mean 0 and variance 1; constant ones to 0."""
    rest = x - x.mean(axis=axes, keepdims=True)
    size = rest.std(axis=axes, keepdims=True)
    return rest / np.where(size > 0.0, size, 1.0)


def _low_frequencies(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Coefficients of orthonormal cosines of the lowest frequencies along all ordered axes."""
    most = LOW_FREQUENCIES if len(axes) == 1 else LOW_FREQUENCIES // 2
    for axis in axes:
        x = np.take(scipy.fft.dct(x, axis=axis, norm="ortho"), np.arange(min(most, x.shape[axis])), axis)
    return x.reshape(len(x), -1)


def _products(late: np.ndarray, early: np.ndarray) -> list[np.ndarray]:
    """Mean products of each two channels, `(m, 1)` each; once where both are the same values, and not of a channel
    with itself, which is 1."""
    numbers, axes = range(late.shape[-1]), tuple(range(1, late.ndim - 1))
    pairs = [(i, j) for i in numbers for j in numbers if i > j or late is not early]
    return [np.mean(late[..., i] * early[..., j], axis=axes)[:, None] for i, j in pairs]
