r"""Semi-automatic summary statistics: estimates of posterior means, by regression on standardised features of the raw
output, which follow from its shape where none are given."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import combinations_with_replacement
from math import prod
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, solves
from numpyro_kme._core.display import frozen
from numpyro_kme._core.host import on_host
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import squared_distances_on_host
from numpyro_kme.likelihoods.statistics import StatisticsTransform
from numpyro_kme.likelihoods.summaries import feature_machine
from numpyro_kme.likelihoods.summaries.base import Learnt, LearntStatistics, Statistics, check_enough
from numpyro_kme.likelihoods.summaries.feature_machine import FeatureMachine
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


FOLDS = 10
"""Statistics of simulations are learnt from the others in so many folds."""

SIGNIFICANT = 3.0
"""A posterior mean is predicted if squared errors held out fall by more than so many of their standard errors."""

WORTH = 0.05
"""A second moment is added if the fraction of its variance that is explained rises by this much."""

SAID = 0.5
"""Second moments are of coordinates of which the mean explains less than this, held out: beside a mean that says most,
they nearly follow from it, and a likelihood of both claims what is not there."""

ALL_PRODUCTS = 6
"""Up to so many coordinates all products are second moments, otherwise squares."""

NEIGHBOURS = 5
"""The distance to the neighbour of this number says how far out an output lies."""


@frozen
class SemiAutomaticStatistics(Statistics):
    r"""Semi-automatic summary statistics: estimates of posterior means of the parameters, learnt by regression.

    With coordinates $z$ of the parameters, about standard normal under the prior, the statistics are estimates of
    $E[z_d \mid x]$, which lose nothing of what squared errors of posterior means need, and of second moments
    $E[z_d z_e \mid x]$ where means explain less than half of the variance, and these are predicted better than from
    the means: where a posterior is symmetric, means say nothing. They are kernel ridge regressions, on features of the
    raw output, that learn which features matter (`summaries.feature_machine`). The statistics of each simulation are
    learnt from the others, in ten folds, so that the likelihood of the statistics is not learnt from errors that were
    fitted.

    Args:
        features: What the regressions see; by the shape of an output when left out: `Series` for up to eight channels,
            `Images` for two sides of eight at least, `Values` for up to 64 numbers, and `Sets` for up to 20.
        second_moments: Whether second moments may be among the statistics.
    References:
        Fearnhead and Prangle (2012), JRSS B 74; Radhakrishnan et al. (2024), Science 383.
    """

    paper = "fearnhead2012constructing"

    features: tuple[Features, ...] | None = None
    second_moments: bool = True

    def __post_init__(self):
        given = (None,) if self.features is None else self.features
        checks.require(
            isinstance(given, tuple) and len(given) > 0 and all(isinstance(f, Features | None) for f in given),
            f"`features` must be a tuple of features, such as (Series(),), or None; got {self.features!r:.200}.",
            TypeError,
        )

    def fit(self, z: np.ndarray, x: np.ndarray, names: Sequence[str]) -> Learnt:
        """As `Statistics.fit`.

        Raises:
            ValueError: If there are too few simulations, or no feature predicts a parameter.
        Cost: for 1,000 simulations and 200 features about three seconds of one processor.
        """
        check_enough(z)
        with solves.one_blas_thread:
            return self._fit(z, x, self.features or by_shape(x.shape[1:]), tuple(names))

    @on_host
    def _fit(self, z, x, features, names):
        reader, columns = FeatureReader.fit(features, x)
        order = np.random.default_rng(0).permutation(len(z))
        a, standard = reader.standard(columns)[order], ((z - z.mean(axis=0)) / z.std(axis=0))[order]
        means = _CrossFitted.of(a, standard)
        kept = means.predicted(standard)
        machines, simulated = [means.machine.some(kept)], means.held_out[:, kept]
        explained = 1.0 - means.errors(standard)
        moments = _second_moments(np.flatnonzero(explained < SAID)) if self.second_moments else []
        products = np.stack([standard[:, i] * standard[:, j] for i, j in moments], axis=1) if moments else a[:, :0]
        chosen = _chosen(a, products, simulated)
        if chosen:
            targets = products[:, list(chosen)]
            further = _CrossFitted.of(a, targets)
            fall = np.array([*chosen.values()]) - further.errors(targets)
            better = further.predicted(targets) & (fall > WORTH * targets.var(axis=0))
            chosen = {number: least for (number, least), own in zip(chosen.items(), better) if own}
            machines.append(further.machine.some(better))
            simulated = np.concatenate([simulated, further.held_out[:, better]], axis=1)
        checks.require(
            simulated.shape[1] > 0,
            f"None of the {a.shape[1]} features of the outputs ({described(columns)}) predicts a parameter, held out: "
            "there is nothing to learn statistics from. Simulate more, or give statistics or features of your own.",
        )
        told = [f"mean of {names[i]}" for i in np.flatnonzero(kept)]
        told += [f"mean of {_product(names[i], names[j])}" for i, j in (moments[number] for number in chosen)]
        distances = np.sort(squared_distances_on_host(machines[0].centres, machines[0].centres), axis=1)[:, NEIGHBOURS]
        statistics = SemiAutomatic(reader, tuple(machines), explained, np.sort(distances), tuple(told), names)
        return Learnt(statistics, simulated[np.argsort(order)])


def _product(first: str, second: str) -> str:
    return f"{first}^2" if first == second else f"{first} times {second}"


def _second_moments(coordinates: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of coordinates."""
    pairs = combinations_with_replacement(coordinates.tolist(), 2)
    return [(i, j) for i, j in pairs if i == j or len(coordinates) <= ALL_PRODUCTS]


def _chosen(a: np.ndarray, products: np.ndarray, simulated: np.ndarray) -> dict[int, float]:
    """Second moments, `(m, k)`, that features predict better than the statistics that there are, `(m, s)`, and the mean
    squared error of these: one after another the one of which that is most true."""
    chosen: dict[int, float] = {}
    if not products.shape[1]:
        return chosen
    found = feature_machine.fit(a, products)
    while len(chosen) < products.shape[1]:
        known = np.concatenate([simulated, (products - found.residuals)[:, list(chosen)]], axis=1)
        least = products.var(axis=0)
        if known.shape[1]:
            least = np.minimum(least, feature_machine.fit(known / known.std(axis=0), products).errors)
        gain = (least - found.errors) / products.var(axis=0)
        gain[list(chosen)] = 0.0
        if gain.max() < WORTH:
            break
        best = int(np.argmax(gain))
        chosen[best] = float(least[best])
    return chosen


class _CrossFitted(NamedTuple):
    """Functions of features, and predictions of each target without the fold that it is in."""

    machine: FeatureMachine
    held_out: np.ndarray

    @classmethod
    def of(cls, a: np.ndarray, targets: np.ndarray) -> "_CrossFitted":
        """Of features `(m, p)`, in a random order, and targets `(m, k)`."""
        fitted, held_out = feature_machine.fit(a, targets), np.empty(targets.shape)
        fold = np.arange(len(a)) % FOLDS
        for number in range(FOLDS):
            own = fold == number
            held_out[own] = feature_machine.refit(a[~own], targets[~own], fitted)(a[own])
        return cls(fitted.machine, held_out)

    def predicted(self, targets: np.ndarray) -> np.ndarray:
        """Which targets are predicted at all, `(k,)`."""
        fall = np.square(targets - targets.mean(axis=0)) - np.square(targets - self.held_out)
        return fall.mean(axis=0) > SIGNIFICANT * fall.std(axis=0) / np.sqrt(len(fall))

    def errors(self, targets: np.ndarray) -> np.ndarray:
        """Mean squared errors of the predictions, `(k,)`."""
        return np.mean(np.square(targets - self.held_out), axis=0)


@register
class SemiAutomatic(LearntStatistics):
    """Estimates of posterior moments.

    Attributes:
        reader: Features of outputs.
        machines: Regressions on these, of means and of second moments.
        explained: Held-out fraction of the variance of each coordinate that is explained, `(D,)`.
        distances: Squared distances of simulations to a near neighbour in weighted features, sorted.
        names: What each statistic is (static).
        coordinates: Names of the coordinates (static).
    """

    reader: FeatureReader
    machines: tuple[FeatureMachine, ...]
    explained: ArrayLike
    distances: ArrayLike
    names: tuple[str, ...] = field(metadata=dict(static=True))
    coordinates: tuple[str, ...] = field(metadata=dict(static=True))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """As `LearntStatistics.__call__`."""
        features = self.reader(rows)
        return np.concatenate([machine(features) for machine in self.machines], axis=1)

    def describe(self) -> Mapping[str, Any]:
        """As `LearntStatistics.describe`."""
        held_out = [f"{name} {own:.2f}" for name, own in zip(self.coordinates, np.asarray(self.explained))]
        left = [name for name in self.coordinates if f"mean of {name}" not in self.names]
        return {
            "statistics": f"learnt, {len(self.names)}: {', '.join(self.names)}",
            "features": f"{len(np.asarray(self.reader.mean))}: {self.reader.kinds}",
            "held-out R^2": ", ".join(held_out),
            **({"left out": f"means that nothing predicts: {', '.join(left)}"} if left else {}),
        }

    def describe_observation(self, y: np.ndarray) -> str:
        """As `LearntStatistics.describe_observation`."""
        machine = self.machines[0]
        distance = np.sort(
            squared_distances_on_host(self.reader(y[None]) * np.sqrt(machine.weights), np.asarray(machine.centres))
        )[0]
        nearer = np.mean(np.asarray(self.distances) < distance[NEIGHBOURS - 1])
        return f"its features lie farther from the simulations than {nearer:.0%} of these from one another"
