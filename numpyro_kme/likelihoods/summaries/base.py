"""What learnt summary statistics are: settings that are fitted to simulations, a value, and their likelihood."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from numpyro_kme._core import checks, solves
from numpyro_kme._core.display import Card, brief, frozen
from numpyro_kme._core.host import numpy_function
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import Form, Surrogate
from numpyro_kme.likelihoods.transformed import TransformedSurrogate

FEWEST = 50
"""Fewer simulations teach no statistics."""


class LearntStatistics(abc.ABC):
    """Statistics `s(y)` of a raw output, learnt from simulations; a frozen pytree of NumPy arrays.

    Attributes:
        names: What each statistic is, `k` names.
    """

    records: ClassVar[bool] = False
    """Whether they read NaN in an output as what the simulator gives: an end."""

    names: tuple[str, ...]

    def _card(self) -> Card:
        rows = dict(self.describe())
        told = str(rows.pop("statistics"))
        return Card(
            f"Statistics: {told}", {name: brief(row) for name, row in rows.items()}, "call it with outputs (n, n_raw)"
        )

    @abc.abstractmethod
    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Statistics `(n, k)` of outputs `(n, n_raw)`, flattened."""

    def named(self, names: Sequence[str]) -> Self:
        """Name statistics that are some of the numbers of an output by names of these, `(n_raw,)`; here none is."""
        return self

    def seen(self, entries: np.ndarray) -> np.ndarray:
        """Tell which statistics are known, `(k,)`, where only the marked entries were observed, `(n_raw,)`."""
        checks.require(
            bool(entries.all()),
            f"{np.sum(~entries)} of the {entries.size} entries of the observation are NaN, not observed, and "
            "statistics that are learnt from whole outputs are not known then. Let the simulator return what was "
            "observed, or give statistics that need no more by hand.",
        )
        return np.ones(len(self.names), bool)

    @abc.abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Report what was learnt and what was left out, in words and numbers."""

    def describe_observation(self, y: np.ndarray) -> str:
        """Where an output `(n_raw,)` lies among the simulations, beyond what its statistics show; may be empty."""
        return ""


class Learnt(NamedTuple):
    """Statistics, and those of the simulations, `(m, k)`, each as learnt without it where that matters."""

    statistics: LearntStatistics
    simulated: np.ndarray


class Statistics(abc.ABC):
    """Settings of learnt statistics."""

    def fit(self, z: np.ndarray, x: np.ndarray, names: Sequence[str]) -> Learnt:
        """Learn from simulations.

        Args:
            z: Coordinates of the parameters, `(m, D)`, in float64.
            x: Raw outputs, `(m, *event)`, in float64 and finite.
            names: Names of the coordinates.
        Raises:
            ValueError: If there are too few simulations, or they teach no statistic.
        """
        checks.require(
            len(z) >= FEWEST, f"Statistics are learnt from at least {FEWEST} simulations; got {len(z)}. Simulate more."
        )
        with solves.one_blas_thread:
            return numpy_function(self._fit)(z, x, tuple(names))

    @abc.abstractmethod
    def _fit(self, z: np.ndarray, x: np.ndarray, names: tuple[str, ...]) -> Learnt:
        """Learn from enough simulations."""


@frozen
class OfStatistics(Form):
    r"""Settings of the likelihood $q(s(y) \mid \theta)$ of statistics that are learnt from the same simulations.

    Args:
        statistics: How they are learnt.
        form: Of their likelihood.
        names: Of the coordinates; numbers when left out.
    """

    statistics: Statistics
    form: Form
    names: tuple[str, ...] = ()

    def points(self, x: Any) -> Any:
        """Outputs as they are."""
        return x

    def fit(self, z, x, *, measure=None, y=None) -> "StatisticsSurrogate":
        """Implement `Form.fit`, of raw outputs `(m, *event)`."""
        checks.concrete(z=z, x=x, y=y)
        checks.table("z", z)
        names = self.names or tuple(map(str, range(np.shape(z)[1])))
        learnt = self.statistics.fit(np.asarray(z, np.float64), np.asarray(x, np.float64), names)
        seen = None if y is None else learnt.statistics(np.asarray(y, np.float64)[None])[0]
        inner = self.form.fit(z, learnt.simulated, measure=measure, y=seen)
        return StatisticsSurrogate(learnt.statistics, inner.named(learnt.statistics.names), learnt.simulated)


@register
class StatisticsSurrogate(TransformedSurrogate):
    """A learnt likelihood of learnt statistics, as a function of the raw output.

    Attributes:
        statistics: They.
        inner: Their likelihood.
        simulated: Statistics of the simulations, each learnt without it, `(m, k)`.
    """

    statistics: LearntStatistics
    inner: Surrogate
    simulated: Array

    @property
    def records(self) -> bool:  # type: ignore[override]
        """Tell whether the statistics read NaN in an output as its end."""
        return self.statistics.records

    def named(self, names: Sequence[str]) -> "StatisticsSurrogate":
        """Implement `Surrogate.named`: statistics that are numbers of the output have the names of these."""
        statistics = self.statistics.named(names)
        return replace(self, statistics=statistics, inner=self.inner.named(statistics.names))

    def transformed(self, rows: np.ndarray) -> np.ndarray:
        """Statistics `(R, k)`."""
        self.statistics.seen(~np.isnan(rows).any(axis=0))
        return self.statistics(rows)

    def _marginal(self, seen, last):
        """Keep the statistics that are known."""
        return replace(self, inner=self.inner.marginal(self.statistics.seen(seen)))

    def informativeness(self) -> tuple[str, np.ndarray]:
        """Implement `Surrogate.informativeness`, of the statistics."""
        return self.inner.informativeness()

    def describe(self):
        """Implement `Surrogate.describe`, of the statistics."""
        return {**self.statistics.describe(), **self.inner.describe()}

    def describe_observation(self, y: Any) -> str:
        """Implement `Surrogate.describe_observation`, of the statistics."""
        place = self.statistics.describe_observation(np.asarray(y, np.float64))
        return "; ".join(part for part in (super().describe_observation(y), place) if part)

    def require_density(self) -> None:
        """Raise: it is a density of statistics, which are others for other simulations."""
        raise checks.explained(
            f"The likelihood is a density of the {len(self.statistics.names)} learnt statistics and not of the "
            "output, so that marginal likelihoods, predictive densities and leave-one-out scores cannot be compared "
            "with those of other statistics. Give all models the same statistics by hand; posteriors need no more."
        )
