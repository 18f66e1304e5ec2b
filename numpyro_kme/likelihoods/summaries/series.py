"""Generic features of time series: what they go through, their distribution, and how values depend on earlier ones."""

from dataclasses import field
from itertools import pairwise

import numpy as np

from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.summaries.features import (
    LAGS,
    LOW_FREQUENCIES,
    SMALL,
    Columns,
    Features,
    as_channels,
    centred,
    correlations,
    cosines,
    distribution,
    each,
)

SKEWED_LAGS = 8
"""Differences over so many steps at most have their skewness among the features: series run differently backwards."""

CROSSED = (-1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
"""Levels whose crossings are counted, in standard deviations from the mean."""


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
