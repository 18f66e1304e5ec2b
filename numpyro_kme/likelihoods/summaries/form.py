"""A likelihood of learnt statistics: a form of it for each form of the likelihood of statistics."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown
from numpyro_kme._core.saving import saveable
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.base import Form, LikelihoodAt, Surrogate
from numpyro_kme.likelihoods.summaries.base import LearntStatistics, Statistics


@shown
@saveable
@dataclass(frozen=True)
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
        """As `Form.fit`, of raw outputs `(m, *event)`."""
        checks.concrete(z=z, x=x, y=y)
        checks.table("z", z)
        names = self.names or tuple(map(str, range(np.shape(z)[1])))
        learnt = self.statistics.fit(np.asarray(z, np.float64), np.asarray(x, np.float64), names)
        seen = None if y is None else learnt.statistics(np.asarray(y, np.float64)[None])[0]
        inner = self.form.fit(z, learnt.simulated, measure=measure, y=seen)
        return StatisticsSurrogate(learnt.statistics, inner.named(learnt.statistics.names), learnt.simulated)


@register
class StatisticsSurrogate(Surrogate):
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
    def dim(self):
        """Number of coordinates."""
        return self.inner.dim

    def named(self, names: Sequence[str]) -> "StatisticsSurrogate":
        """As `Surrogate.named`: statistics that are numbers of the output have the names of these."""
        statistics = self.statistics.named(names)
        return replace(self, statistics=statistics, inner=self.inner.named(statistics.names))

    def _of(self, y: Any) -> np.ndarray:
        """Statistics `(..., k)` of outputs `(..., n_raw)`."""
        checks.concrete(y=y)
        checks.real("y", y)
        y = np.asarray(y, np.float64)
        self.statistics.seen(~np.isnan(y).reshape(-1, y.shape[-1]).any(axis=0))
        return self.statistics(y.reshape(-1, y.shape[-1])).reshape(*y.shape[:-1], -1)

    def at(self, y: Any) -> LikelihoodAt:
        """The likelihood at one observation `(n_raw,)`, concrete."""
        return self.inner.at(self._of(y))

    def at_rows(self, rows: np.ndarray) -> LikelihoodAt:
        """As `Surrogate.at_rows`."""
        return self.inner.at_rows(self._of(rows.reshape(len(rows), -1)))

    def _marginal(self, seen, last):
        """Of the statistics that are known."""
        return replace(self, inner=self.inner.marginal(self.statistics.seen(seen)))

    def statistics_shape(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        """As many as there are."""
        return (len(self.statistics.names),)

    def informativeness(self) -> tuple[str, np.ndarray]:
        """As `Surrogate.informativeness`, of the statistics."""
        return self.inner.informativeness()

    def variance(self, z):
        """As `Surrogate.variance`."""
        return self.inner.variance(z)

    def describe(self):
        """As `Surrogate.describe`, of the statistics."""
        return {**self.statistics.describe(), **self.inner.describe()}

    def describe_observation(self, y: Any) -> str:
        """As `Surrogate.describe_observation`, of the statistics."""
        place = self.statistics.describe_observation(np.asarray(y, np.float64))
        return "; ".join(part for part in (self.inner.describe_observation(self._of(y)), place) if part)

    def location_error(self, z: np.ndarray, power: float = 1.0) -> float:
        """As `Surrogate.location_error`."""
        return self.inner.location_error(z, power)

    def dependence(self) -> np.ndarray:
        """As `Surrogate.dependence`."""
        return self.inner.dependence()

    def outside_support(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """As `Surrogate.outside_support`, of the statistics."""
        return self.inner.outside_support(self._of(y), z)

    def require_density(self) -> None:
        """Raise: it is a density of statistics, which are others for other simulations."""
        raise checks.explained(
            f"The likelihood is a density of the {len(self.statistics.names)} learnt statistics and not of the "
            "output, so that marginal likelihoods, predictive densities and leave-one-out scores cannot be compared "
            "with those of other statistics. Give all models the same statistics by hand; posteriors need no more."
        )
