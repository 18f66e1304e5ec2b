r"""Learnt likelihoods of what is computed from an output, as those of the output; of which entries are recorded.

A simulator that itself gives NaN for what is not recorded has a distribution of whether, and what.
With $r_i = 1$ where entry $i$ is recorded and 0 elsewhere, the likelihood of an observation is the joint one of all
indicators and of the entries that were recorded,

$$ q(r, y_r \mid \theta) = \int p(r, \tilde y \mid \theta) \, d\tilde y_{\bar r}, $$

where $\tilde y$ is $y$ with anything in place of what was not recorded: whatever that is, the integral takes it out.
So simulations are filled with what makes the joint density easy to learn: values that other simulations recorded, at
nearby parameters and with alike other entries (a hot deck). Indicators stand behind the entries as further statistics,
and the integral is `Surrogate.marginal` of the form.
"""

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from numpyro_kme._core import Array, checks, frozen, listed
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import Form, LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.residual.form import ResidualKernelMeans
from numpyro_kme.likelihoods.statistics import StatisticsTransform

EXPECTED = 10
"""What no simulation has of two entries is impossible where, did one not depend on the other, so many would have it."""


def _of_inner(name: str) -> Any:
    """Attribute of this name of the inner likelihood."""
    return property(attrgetter(f"inner.{name}"))


class TransformedSurrogate(Surrogate):
    """A learnt likelihood `q(s(y) | z)`: an author writes `s`.

    Attributes:
        inner: The likelihood of `s`.
    """

    inner: Surrogate

    @abc.abstractmethod
    def transformed(self, rows: np.ndarray) -> np.ndarray:
        """`s`, `(R, k)`, of outputs `(R, n_raw)` in float64; raises for those that nothing is known of."""

    def _of(self, y: Any, *lead: int) -> np.ndarray:
        """`s`, `(*lead, k)`, of concrete outputs `(*lead, *event)`."""
        checks.concrete(y=y)
        checks.real("y", y)
        return self.transformed(np.asarray(y, np.float64).reshape(math.prod(lead), -1)).reshape(*lead, -1)

    region = _of_inner("region")
    moves = _of_inner("moves")
    variance = _of_inner("variance")
    informativeness = _of_inner("informativeness")
    require_density = _of_inner("require_density")

    def at(self, y: Any) -> LikelihoodAt:
        """The likelihood at one observation `(*event)`, concrete."""
        return self.inner.at(self._of(y))

    def at_rows(self, rows: np.ndarray, axes: int = 1) -> LikelihoodAt:
        """The likelihood at several outputs."""
        return self.inner.at_rows(self._of(rows, *rows.shape[:axes]), axes)

    def describe_observation(self, y: Any, z: np.ndarray) -> Mapping[str, str]:
        """Describe `s` of an observation."""
        return self.inner.describe_observation(self._of(y), z)

    def misfit(self, y: Any, z: np.ndarray) -> dict[str, float]:
        """Compare `s` of an observation."""
        return self.inner.misfit(self._of(y), z)

    def outside_support(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Tell whether `s` cannot come from some coordinates."""
        return self.inner.outside_support(self._of(y, *y.shape[:-1]), z)


@frozen
class Recorded(Form):
    """Settings of the likelihood of whether entries are recorded, and of those that are.

    Args:
        form: Of their joint likelihood, one that can be marginalised.
    """

    most_calls = ResidualKernelMeans.most_calls

    form: Form = ResidualKernelMeans()

    def points(self, x: Any) -> Any:
        """Read outputs as the inner form does."""
        return self.form.points(x)

    def fit(self, z, x, *, measure=None, y=None) -> Surrogate:
        """Implement `Form.fit`, with NaN in `x` where nothing is recorded."""
        z, x = np.asarray(z, np.float64), np.asarray(x, np.float64)
        recorded = ~np.isnan(x)
        partly = np.flatnonzero(~recorded.all(axis=0))
        table = np.concatenate([_filled(z, x), recorded[:, partly]], axis=1)
        inner = self.form.fit(z, table, measure=measure, y=None if len(partly) else y)
        both = _both_ways(recorded[:, partly])
        return RecordedSurrogate(inner, (both.T @ both).astype(int), tuple(partly.tolist()))


@register
class RecordedSurrogate(TransformedSurrogate):
    """A learnt likelihood of whether entries are recorded, and of those that are.

    Attributes:
        inner: Of all entries, filled, and then the indicators.
        together: Numbers of simulations in which two of them are recorded or lost, `(2 k, 2 k)`: whether each is
            recorded, and then whether it is lost.
        partly: Entries that some simulations lack (static).
    """

    records = True

    inner: Surrogate
    together: Array
    partly: tuple[int, ...] = field(metadata=dict(static=True))

    def transformed(self, rows: np.ndarray) -> np.ndarray:
        """Outputs `(R, n)`, NaN where nothing was recorded, and their indicators, `(R, n + k)`."""
        self._require_possible(rows)
        return np.concatenate([rows, ~np.isnan(rows[:, list(self.partly)])], axis=1)

    def _require_possible(self, rows: np.ndarray) -> None:
        """Raise where entries are lost or recorded as they are in no simulation."""
        lost = np.isnan(rows)
        always = np.delete(np.arange(rows.shape[1]), self.partly)
        unknown = always[lost[:, always].any(axis=0)]
        checks.require(
            not len(unknown),
            f"Entry {unknown[:1]} of the observation is NaN, and every simulation has it: let the simulator lose it.",
        )
        found, together = _both_ways(~lost[:, list(self.partly)]), np.asarray(self.together)
        each = np.diagonal(together)
        expected = np.outer(each, each) / max(sum(each[:: len(self.partly)]), 1) if len(each) else together
        never = (together == 0) & ((expected >= EXPECTED) | np.eye(len(each), dtype=bool))
        pairs = np.argwhere(never & (found.T @ found > 0.0))
        ways = [f"entry {i} is {way}" for way in ("recorded", "NaN") for i in self.partly]
        checks.require(
            not len(pairs),
            f"In the observation {' and '.join(ways[i] for i in np.unique(pairs[:1]))}, and in no simulation: the "
            "simulator cannot produce this observation, or does so too rarely to learn from. Let it lose entries as "
            "they are lost here, or leave `missing` out where entries are missing at random.",
        )

    def _marginal(self, seen, last):
        """Keep all indicators and the entries that were recorded."""
        own = np.zeros(len(self.partly), bool)
        every = (np.concatenate([part, indicators]) for part, indicators in ((seen, ~own), (last, own)))
        return replace(self, inner=self.inner.marginal(*every))

    def named(self, names: Sequence[str]) -> "RecordedSurrogate":
        """Implement `Surrogate.named`; whether an entry is recorded is a statistic too."""
        own = [f"{names[i]} recorded" for i in self.partly] if names else []
        return replace(self, inner=self.inner.named([*names, *own]))

    def informativeness(self) -> tuple[str, np.ndarray]:
        """Implement `Surrogate.informativeness`, the sum of that of an entry and of whether it is recorded."""
        measure, values = self.inner.informativeness()
        first = len(values) - len(self.partly)
        total = values[:first].copy()
        total[list(self.partly)] += values[first:]
        return measure, total

    def describe(self):
        """Implement `Surrogate.describe`; the indicators stand behind the entries."""
        recorded, lost = np.split(np.diagonal(np.asarray(self.together)), 2)
        shares = listed(f"{i} in {share:.0%}" for i, share in zip(self.partly, recorded / (recorded + lost)))
        told = f"entries {shares} of the simulations; whether an entry is recorded is learnt too"
        return {"recorded": told if self.partly else "all entries in all simulations", **self.inner.describe()}


def _both_ways(recorded: np.ndarray) -> np.ndarray:
    """Tell whether entries are recorded, and then whether they are lost, `(R, 2 k)`, as numbers."""
    return np.concatenate([recorded, ~recorded], axis=1).astype(float)


def _filled(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Statistics `(m, n)` with a recorded value in place of each NaN; zeros where none was recorded at all.

    It is that of the nearest simulation, by the sum of squares of the differences of the coordinates, and the mean of
    those of the standardised statistics that both have.
    """
    x = np.where(np.isnan(x).all(axis=0), 0.0, x)
    lost, filled, s = np.isnan(x), x.copy(), np.where(np.isnan(x), np.nanmedian(x, axis=0), x)
    varies = np.ptp(s, axis=0) > 0.0
    if varies.any():
        s[:, varies] = StatisticsTransform.fit(s[:, varies]).forward(s[:, varies])
    for j in np.flatnonzero(lost.any(axis=1)):
        both = ~lost & ~lost[j]
        apart = np.sum(np.where(both, np.square(s - s[j]), 0.0), axis=1) / np.maximum(both.sum(axis=1), 1)
        apart += np.sum(np.square(z - z[j]), axis=1)
        nearest = np.argmin(np.where(lost, np.inf, apart[:, None]), axis=0)
        filled[j, lost[j]] = x[nearest, np.arange(x.shape[1])][lost[j]]
    return filled
