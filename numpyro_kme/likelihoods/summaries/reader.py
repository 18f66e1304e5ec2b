"""Standardised features of raw outputs, and which ones make sense for outputs of a shape."""

from dataclasses import field
from math import prod

import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.statistics import StatisticsTransform
from numpyro_kme.likelihoods.summaries.features import Columns, Features, Images, Series, Sets, Values, described

ALONE, WITH_OTHERS, AN_IMAGE, CHANNELS = 20, 64, 8, 8
"""Up to so many numbers are no series, up to so many are features themselves; least side of an image; most channels."""


def by_shape(event_shape: tuple[int, ...]) -> tuple[Features, ...]:
    """Features that make sense for outputs of a shape: numbers, series with time along the longer axis, images."""
    size, sides = prod(event_shape), event_shape[:2]
    values: tuple[Features, ...] = (Values(),) if size <= WITH_OTHERS else ()
    if len(event_shape) in (2, 3) and min(sides) >= AN_IMAGE and prod(event_shape[2:]) <= CHANNELS:
        return (*values, Images())
    axis = int(np.argmax(event_shape)) if event_shape else 0
    checks.require(
        size <= CHANNELS * max(event_shape, default=1),
        f"No features are known for outputs of shape {event_shape}, neither series of up to {CHANNELS} channels nor "
        "images. Pass `features`, such as (Values(),).",
    )
    return (*values, Sets(axis) if size <= ALONE else Series(axis))


@register
class FeatureReader:
    """Features of outputs, each standardised robustly.

    Attributes:
        features: What they are.
        log_scale: Where outputs are never negative, `c` of the logarithms `log(1 + x / c)`, of which features are taken
            too; else NaN.
        transform: What of a feature varies, centred, scaled and with shortened tails.
        mean, scale: Of what is transformed, `(p,)`.
        event_shape: Of an output (static).
        kinds: What features there are, how many of each (static).
    """

    features: tuple[Features, ...]
    log_scale: ArrayLike
    transform: StatisticsTransform
    mean: ArrayLike
    scale: ArrayLike
    event_shape: tuple[int, ...] = field(metadata=dict(static=True))
    kinds: str = field(metadata=dict(static=True))

    @classmethod
    def fit(cls, features: tuple[Features, ...], x: np.ndarray) -> tuple["FeatureReader", Columns]:
        """Of outputs `(m, *event)`; and the features of these."""
        positive = x[x > 0.0]
        counted = x.min() >= 0.0 and len(np.unique(positive[:1000])) > 1
        log_scale = float(np.quantile(positive, 0.05)) if counted else np.nan
        columns = _columns(features, log_scale, x)
        table = np.concatenate(list(columns.values()), axis=1)
        with checks.collected_warnings():
            transform = StatisticsTransform.fit(table)
        standard = transform.forward(table)
        spread = standard.mean(axis=0), standard.std(axis=0)
        return cls(features, np.asarray(log_scale), transform, *spread, x.shape[1:], described(columns)), columns

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Standardised features `(n, p)` of outputs `(n, n_raw)`."""
        return self.standard(
            _columns(self.features, np.asarray(self.log_scale).item(), rows.reshape(-1, *self.event_shape))
        )

    def standard(self, columns: Columns) -> np.ndarray:
        """The same of features that are known."""
        table = np.concatenate(list(columns.values()), axis=1)
        return (self.transform.forward(table) - self.mean) / self.scale


def _columns(features: tuple[Features, ...], log_scale: float, x: np.ndarray) -> Columns:
    found: Columns = {}
    for one in features:
        found |= one(x)
        if np.isfinite(log_scale) and not isinstance(one, Values):
            logs = one(np.log1p(np.maximum(x, 0.0) / log_scale))
            found |= {f"{kind} of logarithms": value for kind, value in logs.items()}
    return found
