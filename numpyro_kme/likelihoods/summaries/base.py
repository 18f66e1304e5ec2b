"""What learnt summary statistics are: settings that are fitted to simulations, and the statistics as a value."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import Card, brief

FEWEST = 50
"""Fewer simulations teach no statistics."""


def check_enough(z: np.ndarray) -> None:
    """That there are enough simulations, with coordinates `(m, D)`."""
    checks.require(
        len(z) >= FEWEST,
        f"Statistics are learnt from at least {FEWEST} simulations; got {len(z)}. Simulate more.",
    )


class LearntStatistics(abc.ABC):
    """Statistics `s(y)` of a raw output, learnt from simulations; a frozen pytree of NumPy arrays.

    Attributes:
        names: What each statistic is, `k` names.
    """

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
        """The same of outputs with names, `(n_raw,)`, where statistics are some of these numbers; here as it is."""
        return self

    def seen(self, entries: np.ndarray) -> np.ndarray:
        """Which statistics are known, `(k,)`, where only the marked entries of an output were observed, `(n_raw,)`."""
        checks.require(
            bool(entries.all()),
            f"{np.sum(~entries)} of the {entries.size} entries of the observation are NaN, not observed, and "
            "statistics that are learnt from whole outputs are not known then. Let the simulator return what was "
            "observed, or give statistics that need no more by hand.",
        )
        return np.ones(len(self.names), bool)

    @abc.abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """What was learnt and what was left out, in words and numbers, for a person."""

    def describe_observation(self, y: np.ndarray) -> str:
        """Where an output `(n_raw,)` lies among the simulations, beyond what its statistics show; may be empty."""
        return ""


class Learnt(NamedTuple):
    """Statistics, and those of the simulations that a likelihood is learnt from.

    Attributes:
        statistics: They.
        simulated: Statistics of the simulations, `(m, k)`, each as they are learnt without it where that matters.
    """

    statistics: LearntStatistics
    simulated: np.ndarray


class Statistics(abc.ABC):
    """Settings of learnt statistics."""

    @abc.abstractmethod
    def fit(self, z: np.ndarray, x: np.ndarray, names: Sequence[str]) -> Learnt:
        """Learn from simulations.

        Args:
            z: Coordinates of the parameters, `(m, D)`, in float64.
            x: Raw outputs, `(m, *event)`, in float64 and finite.
            names: Of the coordinates.
        """
