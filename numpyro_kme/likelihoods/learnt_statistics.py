r"""Learnt summary statistics: settings that are fitted to simulations, a value, and their likelihood; selected ones.

What `SelectedStatistics` leaves out is independent of parameters and chosen statistics together, so that nothing is
lost: $p(x_S, x_R \mid \theta) = p(x_S \mid \theta) \, p(x_R)$.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy
from jax.typing import ArrayLike

from numpyro_kme._core import Array, checks, frozen, host, listed, numpy_function
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
            f"{np.sum(~entries)} of the {entries.size} entries of the observation are NaN, not observed: statistics of "
            "whole outputs are not known then. Let the simulator return what was observed, or use others.",
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
        many = len(z) >= FEWEST
        checks.require(many, f"Statistics are learnt from at least {FEWEST} simulations; got {len(z)}. Simulate more.")
        with host.one_blas_thread:
            return numpy_function(self._fit)(z, x, tuple(names))

    @abc.abstractmethod
    def _fit(self, z: np.ndarray, x: np.ndarray, names: tuple[str, ...]) -> Learnt:
        """Learn from enough simulations."""


class OfLearnt(Form):
    """Settings of the likelihood of statistics that are learnt from the same simulations: an author writes `learn`.

    Attributes:
        form: Of the likelihood of the statistics.
    """

    form: Form

    @abc.abstractmethod
    def learn(self, z: np.ndarray, x: np.ndarray, y: Any) -> Learnt:
        """Learn statistics from raw outputs `(m, *event)`, for an observation where it is known."""

    def points(self, x: Any) -> Any:
        """Outputs as they are."""
        return x

    def fit(self, z, x, *, measure=None, y=None, before: "StatisticsSurrogate | None" = None) -> "StatisticsSurrogate":
        """Implement `Form.fit`, of raw outputs `(m, *event)`; after what was learnt `before`, of as many statistics."""
        checks.concrete(z=z, x=x, y=y)
        checks.table("z", z)
        statistics, table = self.learn(np.asarray(z, np.float64), np.asarray(x, np.float64), y)
        seen = None if y is None else statistics(np.asarray(y, np.float64).reshape(1, -1))[0]
        if before is None or before.simulated.shape[1] != table.shape[1]:
            inner = self.form.fit(z, table, measure=measure, y=seen)
        else:
            inner = self.form.again(before.inner, z, table, np.arange(len(z)), measure=measure, y=seen)
        return StatisticsSurrogate(statistics, inner.named(statistics.names), table)

    def again(self, learnt, z, x, rows, *, measure=None, y=None) -> "StatisticsSurrogate":
        """Implement `Form.again`: statistics are learnt again, too."""
        return self.fit(z[rows], x[rows], measure=measure, y=y, before=learnt)


@frozen
class OfStatistics(OfLearnt):
    r"""Settings of the likelihood $q(s(y) \mid \theta)$ of statistics that are learnt from the same simulations.

    Args:
        statistics: How they are learnt.
        form: Of their likelihood.
        names: Of the coordinates; numbers when left out.
    """

    statistics: Statistics
    form: Form
    names: tuple[str, ...] = ()

    fewest = FEWEST

    def learn(self, z, x, y):
        """Implement `OfLearnt.learn`."""
        return self.statistics.fit(z, x, self.names or tuple(map(str, range(z.shape[1]))))


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

    def describe(self):
        """Implement `Surrogate.describe`, of the statistics."""
        return {**self.statistics.describe(), **self.inner.describe()}

    def describe_observation(self, y: Any, z: np.ndarray) -> Mapping[str, str]:
        """Implement `Surrogate.describe_observation`, of the statistics."""
        place = self.statistics.describe_observation(np.asarray(y, np.float64))
        return {**super().describe_observation(y, z), **({"raw outputs": place} if place else {})}

    def require_density(self) -> None:
        """Raise: it is a density of statistics, which are others for other simulations."""
        raise checks.explained(
            f"The likelihood is a density of the {len(self.statistics.names)} learnt statistics and not of the output, "
            "and compares with no density of others. Give all models the same by hand; posteriors need no more."
        )


@frozen
class SelectedStatistics(Statistics):
    r"""Statistics chosen among many that depend on the parameters, each as it is.

    A statistic is kept if a test rejects that it is independent of the parameters, or else that it is independent of
    the statistics that are kept: noise that it shares with these helps to read them. The test is that of the
    Hilbert-Schmidt independence criterion with kernels of finite rank on ranks: with orthonormal $\phi_k(x)$ and
    $\psi_l(z)$, three cosines of the rank of each number and products of the first of two coordinates,
    $m \sum_{kl} \widehat{\mathrm{corr}}(\phi_k, \psi_l)^2$ is about chi-squared if they are independent.

    Args:
        level: Probability that any statistic which is independent of the parameters is kept by the first test.
    References:
        Gretton et al. (2008), NIPS; Blum et al. (2013), Statistical Science 28, on selection and projection.
    """

    paper = "blum2013comparative"

    level: float = 0.01

    def __post_init__(self):
        checks.number("level", self.level)
        checks.require(0.0 < self.level < 1.0, f"`level` must lie between 0 and 1; got {self.level}.")

    def _fit(self, z, x, names):
        checks.require(np.size(x) > 0, f"`x` must hold at least one number; got shape {np.shape(x)}.")
        x = x.reshape(len(x), -1)
        waves = [orthonormal(cosines_of_ranks(column)) for column in x.T]
        of_parameters = [cosines_of_ranks(column) for column in z.T]
        products = [(a[:, :1] * b[:, :1]) for a, b in combinations(of_parameters, 2)]
        known, level = orthonormal(np.concatenate([*of_parameters, *products], axis=1)), self.level / x.shape[1]
        p_values = np.array([independence_p_value(own, known) for own in waves])
        kept = p_values < level
        checks.require(
            bool(kept.any()),
            f"None of the {x.shape[1]} statistics depends on the parameters, as far as {len(x)} simulations show: the "
            f"least p-value is {p_values.min():.2g}, and {level:.2g} is asked for. Simulate more.",
        )
        shared, further = kept, kept
        while further.any():
            known = orthonormal(np.concatenate([waves[i] for i in np.flatnonzero(shared)], axis=1))
            further = ~shared & np.array([independence_p_value(own, known) < level for own in waves])
            shared = shared | further
        chosen = tuple(np.flatnonzero(shared).tolist())
        statistics = Selected(p_values, chosen, tuple(f"x[{i}]" for i in chosen), int(kept.sum()))
        return Learnt(statistics, statistics(x))


def cosines_of_ranks(column: np.ndarray, waves: int = 3) -> np.ndarray:
    """`cos(k pi u)` of the ranks `u` of numbers `(m,)`, between 0 and 1 and equal where these are, `(m, k)`."""
    rank = (scipy.stats.rankdata(column) - 0.5) / len(column)
    return np.cos(np.pi * np.outer(rank, np.arange(1, waves + 1)))


def orthonormal(columns: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span those of `(m, k)` less their means; fewer where these are not independent."""
    left, values, _ = np.linalg.svd(columns - columns.mean(axis=0), full_matrices=False)
    return left[:, values > 1e-8 * max(values[0], 1e-8)] if len(values) else left


def independence_p_value(a: np.ndarray, b: np.ndarray) -> float:
    """Test two sets of orthonormal functions of the same draws, `(m, k)` and `(m, l)`."""
    size = a.shape[1] * b.shape[1]
    return float(scipy.stats.chi2.sf(len(a) * np.sum(np.square(a.T @ b)), size)) if size else 1.0


@register
class Selected(LearntStatistics):
    """Some of the statistics.

    Attributes:
        p_values: Of the test that a statistic is independent of the parameters, `(n_raw,)`.
        kept: Numbers of those that are kept (static).
        names: Names of these, `x[0]`, ... without (static).
        dependent: How many of them depend on the parameters; the others do on these (static).
    """

    p_values: ArrayLike
    kept: tuple[int, ...] = field(metadata=dict(static=True))
    names: tuple[str, ...] = field(metadata=dict(static=True))
    dependent: int = field(metadata=dict(static=True))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Implement `LearntStatistics.__call__`."""
        return rows[:, list(self.kept)]

    def named(self, names: Sequence[str]) -> "Selected":
        """Implement `LearntStatistics.named`."""
        return replace(self, names=tuple(names[i] for i in self.kept)) if names else self

    def seen(self, entries: np.ndarray) -> np.ndarray:
        """Implement `LearntStatistics.seen`."""
        return entries[list(self.kept)]

    def describe(self) -> Mapping[str, Any]:
        """Implement `LearntStatistics.describe`."""
        total, shared = len(np.asarray(self.p_values)), len(self.kept) - self.dependent
        also = f", {shared} of which only depend on the others" if shared else ""
        return {"statistics": f"{len(self.kept)} of {total} kept: {listed(self.names)}{also}"}
