"""Generic features of sets, series and images; regression finds those that tell about the parameters."""

from itertools import pairwise

import numpy as np

ORDERED, ALONE, FEW = 8, 20, 64
"""Least length of an axis along which values are compared, as in time or space; shorter ones hold channels. Up to
`ALONE` numbers have no order, and up to `FEW` are features themselves."""

LOW_FREQUENCIES, LAGS = 16, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Cosine coefficients of a series, half as many along each of several axes; lags, up to a third of an axis."""

BANDS, CROSSED = 10, (-1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
"""Bands of frequency; levels whose upward crossings are counted, in standard deviations from the mean."""

SMALL = 1e-6
"""Added to relative squares before their logarithms are taken."""


def features(x: np.ndarray) -> np.ndarray:
    """Features `(m, p)` of outputs `(m, *event)`, in float64, of each output by itself.

    Of each channel: the distribution of its values, and along each ordered axis that of differences, low frequencies,
    autocorrelations, variograms, skewness of differences, power by frequency, and crossings of levels; correlations of
    channels, over lags too.
    """
    x = x.reshape(len(x), -1) if x.ndim == 1 else x
    ordered = [axis for axis in range(1, x.ndim) if x.shape[axis] >= ORDERED] or [1]
    x = np.moveaxis(x, ordered, range(1, 1 + len(ordered)))
    x = x.reshape(*x.shape[: 1 + len(ordered)], -1)  # channels last
    found, axes = [distribution(x)], tuple(range(1, x.ndim - 1))
    if x[0].size <= FEW:
        found.append(x.reshape(len(x), -1))
    unit = _standardised(x, axes)
    found += _between_channels(unit, unit)
    if x[0].size <= ALONE:
        return np.concatenate(found, axis=1)
    found.append(_low_frequencies(x, axes))
    for axis in axes:
        found += [distribution(np.diff(x, axis=axis)), *_along(unit, axis, axes)]
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
    for axis in axes:
        n = x.shape[axis]
        order = np.arange(min(LOW_FREQUENCIES if len(axes) == 1 else LOW_FREQUENCIES // 2, n))
        waves = (
            np.cos(np.pi * np.outer(order, np.arange(n) + 0.5) / n)
            * np.sqrt(np.where(order > 0, 2.0, 1.0) / n)[:, None]
        )
        x = np.moveaxis(np.tensordot(x, waves, axes=(axis, 1)), -1, axis)
    return x.reshape(len(x), -1)


def _along(unit: np.ndarray, axis: int, axes: tuple[int, ...]) -> list[np.ndarray]:
    """Dependence of standardised values on earlier ones along an axis, by channel, `(m, channels)` each."""
    n, found = unit.shape[axis], []
    for lag in (lag for lag in LAGS if 3 * lag <= n):
        late, early = np.take(unit, np.arange(lag, n), axis), np.take(unit, np.arange(n - lag), axis)
        change = late - early
        found += [np.mean(late * early, axis=axes), np.log(np.mean(np.square(change), axis=axes) + SMALL)]
        found += [np.cbrt(np.mean(change**3, axis=axes)), *_between_channels(late, early)]
    power = np.square(np.abs(np.fft.rfft(unit, axis=axis))) / n
    edges = np.unique(np.round(np.geomspace(1, power.shape[axis], BANDS + 1)).astype(int))
    found += [np.log(np.mean(np.take(power, np.arange(a, b), axis), axis=axes) + SMALL) for a, b in pairwise(edges)]
    late, early = np.take(unit, np.arange(1, n), axis), np.take(unit, np.arange(n - 1), axis)
    return found + [np.sqrt(np.mean((late > level) & (early <= level), axis=axes)) for level in CROSSED]


def _between_channels(first: np.ndarray, second: np.ndarray) -> list[np.ndarray]:
    """Mean products of each two channels, `(m, 1)` each; once where these are the same."""
    numbers, axes = range(first.shape[-1]), tuple(range(1, first.ndim - 1))
    pairs = [(i, j) for i in numbers for j in numbers if i != j and (i > j or first is not second)]
    return [np.mean(first[..., i] * second[..., j], axis=axes)[:, None] for i, j in pairs]
