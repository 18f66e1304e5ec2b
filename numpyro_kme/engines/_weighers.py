"""How simulations are weighted: by regression with a kernel on their outputs, or by their discrepancy from the data."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme._core.robust import mad_or_sd
from numpyro_kme.abc.discrepancies import Discrepancy, discrepancies_to, dissimilarities
from numpyro_kme.embeddings.kernel_bayes import KernelBayesRule
from numpyro_kme.embeddings.mmd import Estimator, Quadratic
from numpyro_kme.engines._reference_table import ReferenceTable
from numpyro_kme.engines.base import check_positive
from numpyro_kme.kernels import EmpiricalMeasure, Gaussian
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import LengthScaleRule, MedianHeuristic
from numpyro_kme.kernels.low_rank import LowRankRidge
from numpyro_kme.losses.base import Loss

COMPARED = 200
"""Simulations that are compared with one another, where that is cheap."""

SETS = 100
"""Data sets whose distances give the length scale."""


class Weighting(NamedTuple):
    """Weights of the simulations.

    Attributes:
        weights: `(m,)`, of any sign and total.
        distances: Of the simulations from the observation, `(m,)`, as `Weigher.apart` measures them.
        info: What a person reads.
    """

    weights: np.ndarray
    distances: np.ndarray
    info: Mapping[str, Any]


@dataclass(frozen=True)
class Weigher(abc.ABC):
    """What an engine has learnt to weight simulations by; frozen.

    Attributes:
        table: The simulations.
    """

    table: ReferenceTable

    def at(self, y: np.ndarray) -> Self:
        """The same for one observation, where it measures by it."""
        return self

    @abc.abstractmethod
    def weigh(self, y: np.ndarray) -> Weighting:
        """Weights of the simulations given an observation, read as a row of `table.x`, and their distances from it."""

    @abc.abstractmethod
    def apart(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """How far rows `(k, *event)` of `table.x` are from such rows `(s, *event)`, `(s, k)`."""

    @property
    def num_compared(self) -> int:
        """How many simulations are compared with one another."""
        return min(COMPARED, len(self.table))

    @cached_property
    def between(self) -> np.ndarray:
        """Distances of some simulations from one another, `(k, k)`."""
        some = self.table.x[np.linspace(0, len(self.table) - 1, self.num_compared).astype(int)]
        return self.apart(some, some)


@dataclass(frozen=True)
class SignedWeigher(Weigher):
    """Signed weights by ridge regression on the data.

    Attributes:
        fitted: The regression.
    """

    fitted: LowRankRidge | KernelBayesRule

    def at_rows(self, y: np.ndarray) -> np.ndarray:
        """Weights `(s, m)` at rows `(s, *event)`."""
        return self.fitted.weights(self.fitted.right.kernel.points(y))

    def weigh(self, y):
        """As `Weigher.weigh`."""
        weights = self.at_rows(y[None])[0]
        info = {
            "sum of weights": float(weights.sum()),
            **dict(zip(("regularisation", "delta"), np.ravel(self.fitted.regularisation).tolist())),
            "rank of the data": f"{self.fitted.right.rank} of {len(self.table)}",
        }
        return Weighting(weights, self.apart(self.table.x, y[None])[0], info)

    def apart(self, x, y):
        """As `Weigher.apart`."""
        return apart(self.fitted.right.kernel, x, y)


@dataclass(frozen=True)
class DiscrepancyWeigher(Weigher):
    """Weights by a discrepancy from the observation.

    Attributes:
        discrepancy: None until there is an observation whose length scale the squared MMD takes.
        length_scale: Rule for that length scale.
    """

    discrepancy: Estimator | Loss | Discrepancy | None
    length_scale: LengthScaleRule | None

    @abc.abstractmethod
    def weights_of(self, discrepancies: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Weights of simulations with discrepancies `(m,)`, and what a person reads."""

    def at(self, y):
        """As `Weigher.at`."""
        if self.discrepancy is not None:
            return self
        observed = self.table.as_data_sets(y[None])[0]
        return replace(self, discrepancy=quadratic_by(self.length_scale, self.table, observed))

    def weigh(self, y):
        """As `Weigher.weigh`."""
        x, observed = self._as_compared(self.table.x), self._as_compared(y[None])
        found = discrepancies_to(observed[0], x, self.discrepancy)
        bounded = isinstance(self.discrepancy, Estimator)
        distances = dissimilarities(self.discrepancy, x, observed)[0] if bounded else found
        weights, info = self.weights_of(found)
        return Weighting(weights, distances, info)

    @property
    def num_compared(self):
        """So many that comparing them with one another costs half of what comparing all with the observation does."""
        return int(np.clip(np.sqrt(len(self.table) / 2), 10, 50))

    def apart(self, x, y):
        """As `Weigher.apart`."""
        x, y = self._as_compared(x), self._as_compared(y)
        if isinstance(self.discrepancy, Estimator):
            return dissimilarities(self.discrepancy, x, y)
        return np.stack([discrepancies_to(one, x, self.discrepancy) for one in y])

    def _as_compared(self, x: np.ndarray) -> np.ndarray:
        """Outputs as the discrepancy gets them."""
        return self.table.as_data_sets(x) if isinstance(self.discrepancy, Estimator | Loss) else x


@dataclass(frozen=True)
class NumbersWeigher(Weigher):
    """Weights of the simulations whose numbers are nearest to the observed ones, each in units of its robust standard
    deviation.

    Attributes:
        accept: Gives weights of distances `(m,)`, and what a person reads.
    """

    accept: Callable[[np.ndarray], tuple[np.ndarray, dict[str, Any]]]

    @cached_property
    def rows(self) -> np.ndarray:
        """The simulations as they are compared, `(m, d)`."""
        return self._as_compared(self.table.x)

    @cached_property
    def scale(self) -> np.ndarray:
        """Median absolute deviation of each number, or its standard deviation where that is 0, or 1, `(d,)`."""
        scale = mad_or_sd(self.rows)
        return np.where(scale > 0, scale, 1.0)

    def weigh(self, y):
        """As `Weigher.weigh`."""
        found = self._distances(self.rows, self._as_compared(y[None])[0])
        weights, info = self.accept(found)
        return Weighting(weights, found, info)

    def apart(self, x, y):
        """As `Weigher.apart`."""
        return np.stack([self._distances(self._as_compared(x), one) for one in self._as_compared(y)])

    def _distances(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.linalg.norm((x - y) / self.scale, axis=1)

    def _as_compared(self, x: np.ndarray) -> np.ndarray:
        """Rows of numbers, draws along plates in the order of their values."""
        return np.sort(x[..., 0], axis=1) if self.table.data_sets else x.reshape(len(x), -1)


def check_kernel(kernel: Any, rule: LengthScaleRule | None, regularisation: float | None, tolerance: float) -> None:
    """That a kernel and a regression can be made of these settings."""
    check_positive(regularisation=regularisation)
    checks.positive_number("tolerance", tolerance)
    check_rule(rule, kernel, "kernel", Kernel, "a kernel, such as Gaussian(length_scale)")


def check_rule(rule: LengthScaleRule | None, given: Any, name: str, kind: Any, what: str) -> None:
    """That a rule for length scales is one, and that nothing is `given` that has its own."""
    checks.instance("length_scale", rule, LengthScaleRule | None, "a rule such as CrossValidation(key)")
    checks.require(given is None or rule is None, f"Give `{name}` or `length_scale`, not both.")
    checks.instance(name, given, kind | None, what)


def apart(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`k(x_i, x_i) + k(y_j, y_j) - 2 k(x_i, y_j)` for outputs `(k, *event)` and `(s, *event)`, `(s, k)`."""
    return on_host(_squared_distances)(kernel, kernel.points(x), kernel.points(y))


@jax.jit
def _squared_distances(kernel, x, y):
    return kernel.diagonal(x)[None] + kernel.diagonal(y)[:, None] - 2.0 * kernel.gram(y, x)


def quadratic_by(rule: LengthScaleRule | None, table: ReferenceTable, observed: np.ndarray) -> Quadratic:
    """The MMD with a Gaussian kernel: the median distance within the observed data `(n, d)`, or what the rule says.

    A rule that needs parameters sees the draws of all simulations.
    """
    rule = rule or MedianHeuristic()
    return Quadratic(Gaussian(rule(*draws(table)) if rule.needs_targets else rule(observed)))


def data_kernel(table: ReferenceTable, rule: LengthScaleRule | None = None) -> Kernel:
    """Gaussian with a length scale for each number of the output; on data sets under plates, Gaussian in their
    embeddings."""
    if table.data_sets:
        return set_kernel(table, rule or MedianHeuristic())
    return Gaussian((rule or MedianHeuristic(per_dimension=True))(table.x.reshape(len(table), -1), table.z))


def set_kernel(table: ReferenceTable, rule: LengthScaleRule) -> EmpiricalMeasure:
    """`exp(-MMD^2 / (2 l^2))` between data sets `(m, n, d)`, with the median of the MMD as `l`; a Gaussian kernel
    inside."""
    few = table.x[:SETS]
    inner = Gaussian(rule(*draws(table, SETS)))
    squared = on_host(EmpiricalMeasure.squared_mmd)(EmpiricalMeasure(inner, 1.0), few)
    return EmpiricalMeasure(inner, float(np.sqrt(np.median(squared[np.triu_indices(len(few), 1)]))))


def draws(table: ReferenceTable, sets: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the first data sets, `(sets * n, d)`, and the coordinates of the parameters of each, `(sets * n, D)`."""
    x = table.as_data_sets(table.x[:sets])
    return np.concatenate(x), np.repeat(table.z[:sets], x.shape[1], axis=0)
