"""Generic features of sets, series and images; regression finds those that tell about the parameters."""

import abc
from collections.abc import Mapping
from dataclasses import field
from itertools import pairwise
from typing import Any

import numpy as np

from numpyro_kme.kernels.base import register

Columns = dict[str, np.ndarray]
"""Features by kind, `(m, k)` each."""

SMALL = 1e-6
"""Added to relative squares before their logarithms are taken."""

LOW_FREQUENCIES = 16
"""Cosine coefficients of a series; an image has half as many along each axis."""

LAGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Lags of series and images, up to a third of their length."""


SKEWED_LAGS = 8
"""Differences over so many steps at most have their skewness among the features: series run differently backwards."""

CROSSED = (-1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
"""Levels whose crossings are counted, in standard deviations from the mean."""


class Features(abc.ABC):
    """Features of outputs: an author writes what they are, regression finds what they are worth.

    Frozen dataclasses that `kernels.register` decorates can be saved.
    """

    @abc.abstractmethod
    def __call__(self, x: np.ndarray) -> Columns:
        """Features of outputs `(m, *event)`, in float64, of each output by itself."""


@register
class Values(Features):
    """The numbers as they are: for a few, of which each means something of its own."""

    def __call__(self, x: np.ndarray) -> Columns:
        """`(m, numbers)`."""
        return {"values": x.reshape(len(x), -1)}


@register
class Sets(Features):
    """Distribution of points in no order: moments and quantiles of each of their numbers, and correlations.

    Args:
        axis: Along which axis of an output the points lie.
    """

    axis: int = field(default=0, metadata=dict(static=True))

    def __call__(self, x: np.ndarray) -> Columns:
        """Means of eighths of the sorted values, moments, ends; correlations of the numbers."""
        x = as_channels(x, self.axis)
        return {"distribution": each(distribution, x), "between channels": correlations(x, (0,))}


@register
class Series(Features):
    """Time series: values at low frequencies and at both ends, distributions of values and of first differences,
    autocorrelations, variograms, skewness of differences, power by frequency, crossings of levels, and correlations of
    channels over lags.

    Args:
        axis: Along which axis of an output time runs; along the others are channels.
    """

    axis: int = field(default=0, metadata=dict(static=True))

    def __call__(self, x: np.ndarray) -> Columns:
        """By channel."""
        x = as_channels(x, self.axis)
        lags = tuple(lag for lag in (0, 1, 2, 4, 8, 16) if 3 * lag < x.shape[1])
        low = np.einsum("kt,mtc->mkc", cosines(x.shape[1], LOW_FREQUENCIES), x).reshape(len(x), -1)
        return {
            "low frequencies": low,
            "ends": np.concatenate([x[:, 0], x[:, -1]], axis=1),
            "distribution": each(distribution, x),
            "differences": each(distribution, np.diff(x, axis=1)),
            "dependence in time": each(_serial, x),
            "between channels": correlations(x, lags),
        }


@register
class Images(Features):
    """Images `(m, height, width)`, with channels along a further axis: values at low frequencies, their distribution,
    correlations over distances, power by frequency, gradients, and moments of where there is something."""

    def __call__(self, x: np.ndarray) -> Columns:
        """By channel."""
        channels = x[..., None] if x.ndim == 3 else x
        found = [_of_image(channels[..., c]) for c in range(channels.shape[3])]
        flat = channels.reshape(len(x), -1, channels.shape[3])
        return joined(found) | {"between channels": correlations(flat, (0,))}


def as_channels(x: np.ndarray, axis: int) -> np.ndarray:
    """Outputs `(m, *event)` as `(m, n, channels)`, with an axis of the event first."""
    x = np.moveaxis(x, 1 + axis, 1) if x.ndim > 1 else x[:, None]
    return x.reshape(*x.shape[:2], -1)


def each(function: Any, x: np.ndarray) -> np.ndarray:
    """A function `(m, n) -> (m, k)` of each channel of `(m, n, channels)`, side by side."""
    return np.concatenate([function(x[:, :, c]) for c in range(x.shape[2])], axis=1)


def joined(parts: list[Columns]) -> Columns:
    """Features of several parts, side by side."""
    return {kind: np.concatenate([part[kind] for part in parts], axis=1) for kind in parts[0]}


def described(columns: Mapping[str, np.ndarray]) -> str:
    """How many features of which kind."""
    return ", ".join(f"{kind} {value.shape[1]}" for kind, value in columns.items() if value.shape[1])


def centred(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values `(m, n)` less their means, and variances `(m,)`, 1 where they are 0."""
    rest = x - x.mean(axis=1, keepdims=True)
    variance = np.mean(np.square(rest), axis=1)
    return rest, np.where(variance > 0.0, variance, 1.0)


def distribution(x: np.ndarray) -> np.ndarray:
    """Of numbers `(m, n)` in no order: means of eighths, mean, log standard deviation, skewness, kurtosis, ends, and
    the fraction of the lowest value."""
    ordered = np.sort(x, axis=1)
    eighths = [part.mean(axis=1) for part in np.array_split(ordered, min(8, x.shape[1]), axis=1)]
    rest, variance = centred(x)
    standard = rest / np.sqrt(variance)[:, None]
    third, fourth = (np.mean(standard**power, axis=1) for power in (3, 4))
    low, high = ordered[:, 0], ordered[:, -1]
    lowest = np.mean(x == low[:, None], axis=1)
    size = 0.5 * np.log(np.mean(np.square(rest), axis=1) + 1e-24)
    shape = [np.tanh(third), np.log(fourth + 1e-3)]
    return np.column_stack([*eighths, x.mean(axis=1), size, *shape, low, high, lowest])


def correlations(x: np.ndarray, lags: tuple[int, ...]) -> np.ndarray:
    """Correlations of each two channels of `(m, n, channels)`, one `lag` behind the other."""
    rest = x - x.mean(axis=1, keepdims=True)
    size = rest.std(axis=1, keepdims=True)
    rest, n = rest / np.where(size > 0.0, size, 1.0), x.shape[1]
    pairs = [(i, j, lag) for i in range(x.shape[2]) for j in range(i) for lag in lags]
    both = [(i, j, lag) for a, b, lag in pairs for i, j in ((a, b), (b, a))[: 1 + (lag > 0)]]
    found = [np.mean(rest[:, lag:, i] * rest[:, : n - lag, j], axis=1) for i, j, lag in both]
    return np.column_stack(found) if found else np.zeros((len(x), 0))


def cosines(n: int, most: int) -> np.ndarray:
    """Orthonormal cosines of the lowest frequencies over `n` points, `(frequencies, n)`."""
    order = np.arange(min(most, n))
    waves = np.cos(np.pi * np.outer(order, np.arange(n) + 0.5) / n) * np.sqrt(2.0 / n)
    waves[0] /= np.sqrt(2.0)
    return waves


def _serial(x: np.ndarray) -> np.ndarray:
    """How values of series `(m, times)` depend on earlier ones, whatever their mean and variance."""
    rest, variance = centred(x)
    return np.column_stack([*_over_lags(rest, variance), *_spectrum(rest, variance), *_crossings(rest, variance)])


def _over_lags(rest: np.ndarray, variance: np.ndarray) -> list[np.ndarray]:
    """Autocorrelations, logarithms of the variogram, and cube roots of third moments of differences."""
    found = []
    for lag in (lag for lag in LAGS if 3 * lag <= rest.shape[1]):
        change = rest[:, lag:] - rest[:, :-lag]
        found.append(np.mean(rest[:, lag:] * rest[:, :-lag], axis=1) / variance)
        found.append(np.log(np.mean(np.square(change), axis=1) / variance + SMALL))
        if lag <= SKEWED_LAGS:
            found.append(np.cbrt(np.mean(change**3, axis=1)) / np.sqrt(variance))
    return found


def _spectrum(rest: np.ndarray, variance: np.ndarray) -> list[np.ndarray]:
    """Log power in ten bands; mean and spread of the log frequency, entropy, and where the highest peak is and how
    high."""
    times = rest.shape[1]
    power = np.square(np.abs(np.fft.rfft(rest * np.hanning(times), axis=1)[:, 1:])) / times
    edges = np.unique(np.round(np.geomspace(1, power.shape[1] + 1, 11)).astype(int)) - 1
    bands = [power[:, a:b].mean(axis=1) for a, b in pairwise(edges)]
    total = power.sum(axis=1, keepdims=True)
    share, frequency = power / np.where(total > 0.0, total, 1.0), np.log(np.arange(1, power.shape[1] + 1))
    mean = share @ frequency
    spread = np.sqrt(np.maximum(share @ frequency**2 - mean**2, 0.0))
    entropy = -np.sum(share * np.log(share + 1e-12), axis=1)
    peak = frequency[np.argmax(power, axis=1)], np.log(share.max(axis=1) + SMALL)
    return [*(np.log(band / variance + SMALL) for band in bands), mean, spread, entropy, *peak]


def _crossings(rest: np.ndarray, variance: np.ndarray) -> list[np.ndarray]:
    """Square roots of how often levels are crossed upwards."""
    standard = rest / np.sqrt(variance)[:, None]
    return [np.sqrt(np.mean((standard[:, 1:] > level) & (standard[:, :-1] <= level), axis=1)) for level in CROSSED]


def _of_image(x: np.ndarray) -> Columns:
    """Features of images `(m, height, width)`."""
    m, height, width = x.shape
    rest, variance = centred(x.reshape(m, -1))
    rest, most = rest.reshape(x.shape), LOW_FREQUENCIES // 2
    low = cosines(height, most) @ x @ cosines(width, most).T
    gradients = [np.abs(np.diff(x, axis=axis)).reshape(m, -1) for axis in (1, 2)]
    return {
        "low frequencies": low.reshape(m, -1),
        "distribution": distribution(x.reshape(m, -1)),
        "dependence in space": np.column_stack([*_over_distances(rest, variance), *_power(rest, variance)]),
        "gradients": distribution(np.concatenate(gradients, axis=1)),
        "moments": _moments(x),
    }


def _over_distances(rest: np.ndarray, variance: np.ndarray) -> list[np.ndarray]:
    """Correlations, and logarithms of mean squared differences, along both axes and both diagonals."""
    found = []
    for lag in (lag for lag in LAGS if lag < min(rest.shape[1:]) // 2):
        ahead, behind, all_of = slice(lag, None), slice(None, -lag), slice(None)
        for a, b in (((ahead, all_of), (behind, all_of)), ((all_of, ahead), (all_of, behind)),
                     ((ahead, ahead), (behind, behind)), ((ahead, behind), (behind, ahead))):  # fmt: skip
            first, second = rest[:, *a], rest[:, *b]
            found.append(np.mean(first * second, axis=(1, 2)) / variance)
            found.append(np.log(np.mean(np.square(first - second), axis=(1, 2)) / variance + SMALL))
    return found


def _power(rest: np.ndarray, variance: np.ndarray) -> list[np.ndarray]:
    """Logarithms of mean squared cosine coefficients, in ten bands of frequency."""
    height, width = rest.shape[1:]
    squares = np.square(cosines(height, height) @ rest @ cosines(width, width).T)
    frequency = np.hypot(np.arange(height)[:, None] / height, np.arange(width) / width)
    edges = np.geomspace(1.0 / max(height, width), 1.0, 11)
    band = np.searchsorted(edges[1:-1], frequency, side="right")
    band[0, 0] = -1
    chosen = (band == number for number in range(10))
    return [np.log(squares[:, some].mean(axis=1) / variance + SMALL) for some in chosen if some.any()]


def _moments(x: np.ndarray) -> np.ndarray:
    """Centre and second moments of the absolute differences from the median."""
    m, height, width = x.shape
    weight = np.abs(x - np.median(x.reshape(m, -1), axis=1)[:, None, None])
    total = weight.sum(axis=(1, 2), keepdims=True)
    weight /= np.where(total > 0.0, total, 1.0)
    i, j = np.arange(height) / height - 0.5, np.arange(width) / width - 0.5
    down, across = weight.sum(axis=2), weight.sum(axis=1)
    a, b = down @ i, across @ j
    return np.column_stack([a, b, down @ i**2 - a * a, across @ j**2 - b * b, (weight @ j) @ i - a * b])
