"""Simulations as a table, and how they are weighted: weighers, and kernels on their outputs."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.display import shown
from numpyro_kme._core.host import on_host
from numpyro_kme._core.saving import saveable
from numpyro_kme.embeddings.kernel_bayes import KernelBayesRule
from numpyro_kme.engines.base import check_positive, check_rule
from numpyro_kme.kernels import Gaussian, by_numpy
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.data_sets import EmpiricalMeasureRule
from numpyro_kme.kernels.length_scales import (
    KernelRule,
    LengthScaleRule,
    MedianHeuristic,
    and_a_wider_one,
    median_heuristic,
)
from numpyro_kme.kernels.low_rank import LowRankRidge
from numpyro_kme.kernels.ragged import (
    WithLength,
    beyond_end,
    lengths,
    log_lengths,
    pad,
    padded_together,
    require_any_length,
)
from numpyro_kme.kernels.regression import DistributionRegression
from numpyro_kme.models.coordinates import Coordinates
from numpyro_kme.models.problem import Problem
from numpyro_kme.simulations import Simulations


@saveable
@dataclass(frozen=True)
class ReferenceTable:
    """The simulations of one site.

    Attributes:
        latents, deterministics: `{site: (m, *shape)}`.
        coordinates: Of the simulator's arguments.
        z: Coordinates of the simulations, `(m, D)`.
        x: Outputs, `(m, *event)`; `(m, n, d)` where `n` draws lie along plates, without those that are masked in the
            observation. Without what is NaN there, not observed: `(m, numbers)`, or whole rows are left out.
        data_sets: Whether the rows of each output are draws along plates, so that their order says nothing.
        mask: Which draws of an output count, flat; without draws along plates which numbers were observed, `(*event)`.
        ragged: Whether outputs are of any length, with rows of NaN behind their ends.
    """

    latents: Mapping[str, np.ndarray]
    deterministics: Mapping[str, np.ndarray]
    coordinates: Coordinates
    z: np.ndarray
    x: np.ndarray
    data_sets: bool
    mask: np.ndarray
    ragged: bool = False

    @classmethod
    def read(cls, coordinates: Coordinates, problem: Problem, simulations: Simulations) -> "ReferenceTable":
        """Read the simulations of a checked model."""
        site = problem.site()
        arguments = np.asarray(simulations.arguments[site])
        z = coordinates.table(arguments.reshape(len(arguments), -1))
        latents = {name: np.asarray(value) for name, value in simulations.latents.items()}
        if not latents:
            latents = coordinates.latents_table(z)
        deterministics = {name: np.asarray(value) for name, value in simulations.deterministics.items()}
        simulator, mask = problem.simulators[site].simulator, observed_part(problem)
        data_sets = bool(simulator.batch_shape)
        x = np.asarray(simulations.x[site], np.float64)
        if data_sets:
            x = x.reshape(len(x), -1, int(np.prod(simulator.event_shape, dtype=int)))
            checks.require(
                x.shape[1] == len(mask),
                f"The simulations of {site!r} have {x.shape[1]} draws each, the model {len(mask)}: they were made by "
                "another model.",
            )
        table = cls(latents, deterministics, coordinates, z, x, data_sets, mask, simulator.ragged)
        return replace(table, x=table._counted(x))

    def __len__(self) -> int:
        return len(self.z)

    @property
    def sites(self) -> dict[str, np.ndarray]:
        """Latents and deterministics, `{site: (m, *shape)}`."""
        return {**self.latents, **self.deterministics}

    def coordinates_of(self, arguments: np.ndarray) -> np.ndarray:
        """Coordinates `(k, D)` of arguments `(k, *ones, p)` of the simulator."""
        return self.coordinates.table(np.asarray(arguments).reshape(len(arguments), -1))

    def point(self, y: np.ndarray) -> np.ndarray:
        """An observation in the shape of a row of `x`."""
        checks.require(
            np.size(y) == self._size,
            f"The observation has shape {np.shape(y)}, each simulation {self._size} numbers: they were made by another "
            "model.",
        )
        return self._counted(np.asarray(y, np.float64)[None])[0]

    def points(self, observations: Any) -> np.ndarray:
        """Many observations `(s, *event)`, masked draws included, as rows of `x`."""
        if self.ragged:
            observations = padded_together(observations)
        checks.real("observations", observations)
        y = np.asarray(observations, np.float64)
        if self.ragged and y.ndim == self.x.ndim and y.shape[1] < self.x.shape[1]:
            y = np.stack([pad(one, self.x.shape[1]) for one in y])
        checks.require(
            y.ndim >= 1 and len(y) >= 1 and y[0].size == self._size,
            "`observations` must have shape (s, *event) with s at least 1 and as many numbers in each as the "
            f"simulator gives, {self._size}; got shape {y.shape}.",
        )
        counted = self._counted(y)
        checks.finite("observations", counted[~beyond_end(counted)] if self.ragged else counted)
        checks.require(not self.ragged or bool(lengths(counted).all()), "One of the `observations` has no row.")
        return counted

    @property
    def _size(self) -> int:
        """Numbers in one output, with those that are masked or were not observed."""
        return len(self.mask) * self.x.shape[2] if self.data_sets else self.mask.size

    def _counted(self, y: np.ndarray) -> np.ndarray:
        """Outputs `(s, *event)` as rows of `x`."""
        if self.data_sets:
            return y.reshape(len(y), len(self.mask), -1)[:, self.mask]
        y, rows = y.reshape(-1, *self.mask.shape), self.mask.reshape(*self.mask.shape[:1], -1)
        if self.mask.all():
            return y
        return y[:, self.mask] if self.rows_in_part else y[:, rows.all(axis=1)]

    @property
    def rows_in_part(self) -> bool:
        """Whether a row of an output was observed in part, so that `x` is a table of numbers."""
        rows = self.mask.reshape(*self.mask.shape[:1], -1)
        return not self.data_sets and bool(rows.ndim == 2 and (rows.any(axis=1) != rows.all(axis=1)).any())

    def require_rows(self, what: str) -> None:
        """Raise where `what` would get numbers in place of outputs of the simulator's shape."""
        checks.require(
            not self.rows_in_part,
            f"{self.mask.size - self.mask.sum()} of {self.mask.size} numbers of the observation are NaN, not observed, "
            f"and rows of it were observed in part, which {what} cannot compare. Leave it out where the engine has its "
            "own, leave out whole rows, or use KELFI.",
        )

    def require_one_length(self, what: str) -> None:
        """Raise where `what` would get outputs of any length."""
        checks.require(
            not self.ragged,
            f"The outputs are of any length (ragged=True), which {what} here does not compare. Use KELFI with "
            "form=KernelStatistics(EmpiricalMeasureRule()), or DistributionRegressionABC, KernelABC or KernelBayes "
            "with kernel=EmpiricalMeasureRule(), for data sets; SignatureRule() for series.",
        )

    def statistics(self, x: np.ndarray) -> np.ndarray:
        """Outputs `(k, *event)` as numbers `(k, q)`: of data sets under plates, and of outputs of any length, the mean
        and log standard deviation of each column, this at least a hundredth of that over all simulations; of the
        latter the log length, too."""
        if not (self.ragged or self.data_sets):
            return x.reshape(len(x), -1)
        rows, simulated = (outputs.reshape(*outputs.shape[:2], -1) for outputs in (x, self.x))
        least = np.maximum(0.01 * np.nanstd(simulated, axis=(0, 1)), 1e-300)
        found = [np.nanmean(rows, axis=1), np.log(np.maximum(np.nanstd(rows, axis=1), least))]
        return np.concatenate([*found, log_lengths(x)[:, None]] if self.ragged else found, axis=1)

    @cached_property
    def simulated_statistics(self) -> np.ndarray:
        """`statistics` of the simulations, `(m, q)`."""
        return self.statistics(self.x)

    def as_data_sets(self, x: np.ndarray) -> np.ndarray:
        """Outputs `(k, *event)` as data sets `(k, n, d)`."""
        self.require_rows("a discrepancy between data sets")
        self.require_one_length("a discrepancy between data sets")
        checks.require(
            x.ndim in (2, 3),
            f"The output of the simulator has shape {self.x.shape[1:]}; as a data set it must be (n,) or (n, d), or n "
            "draws under a plate.",
        )
        return x[..., None] if x.ndim == 2 else x


def observed_part(problem: Problem) -> np.ndarray:
    """Of the one simulator site of a checked model, as `ReferenceTable.mask`."""
    site = problem.simulators[problem.site()]
    if site.simulator.batch_shape:
        return site.mask.ravel()
    return ~np.isnan(np.asarray(site.observed)) | site.simulator.ragged


@shown
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
        # simulations that are compared with one another, where that is cheap
        return min(200, len(self.table))

    @cached_property
    def between(self) -> np.ndarray:
        """Distances of some simulations from one another, `(k, k)`."""
        some = self.table.x[np.linspace(0, len(self.table) - 1, self.num_compared).astype(int)]
        return self.apart(some, some)


@shown
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


def check_kernel(kernel: Any, rule: LengthScaleRule | None, regularisation: float | None) -> None:
    """That a kernel and a regression can be made of these settings."""
    check_positive(regularisation=regularisation)
    what = "a kernel, such as Gaussian(length_scale), or a rule that makes one, such as EmpiricalMeasureRule()"
    check_rule(rule, kernel, "kernel", Kernel | KernelRule, what)


def kernels_on(table: ReferenceTable, given: Kernel | KernelRule | None, rule: LengthScaleRule | None) -> list[Kernel]:
    """The kernel that is given, or the candidates of a rule, or `data_kernel`, on data sets with a wider one; on
    outputs of any length times one on their lengths, since a kernel sees nothing of how many rows say what it
    compares."""
    if given is None:
        table.require_one_length("the kernel that is chosen")
        chosen = data_kernel(table, rule)
        return and_a_wider_one(chosen) if table.data_sets else [chosen]
    table.require_rows("a kernel of your own")
    kernels = given.candidates(table.x, table.z) if isinstance(given, KernelRule) else [given]
    if not table.ragged:
        return kernels
    for kernel in kernels:
        require_any_length(kernel)
    logs = log_lengths(table.x)[:, None]
    if not np.ptp(logs):
        return kernels
    scale = float(median_heuristic(logs, ties=False))
    return [kernel if isinstance(kernel, WithLength) else WithLength(kernel, scale) for kernel in kernels]


def kernel_on(table: ReferenceTable, given: Kernel | KernelRule | None, rule: LengthScaleRule | None) -> Kernel:
    """The first of `kernels_on`: the kernel that is given, or that a rule or the median makes."""
    return kernels_on(table, given, rule)[0]


def held_out_regularisation(table: ReferenceTable, kernel: Kernel, tolerance: float) -> float:
    """The power of ten with which coordinates and their squares are predicted best by kernel ridge regression, each
    simulation without itself."""
    targets = np.concatenate([table.z, np.square(table.z)], axis=1)
    return float(DistributionRegression.fit(kernel, table.x, targets, tolerance=tolerance).regularisation)


@on_host
def apart(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`k(x_i, x_i) + k(y_j, y_j) - 2 k(x_i, y_j)` for outputs `(k, *event)` and `(s, *event)`, `(s, k)`."""
    x, y = kernel.points(x), kernel.points(y)
    own = by_numpy.diagonal(kernel, x)[None] + by_numpy.diagonal(kernel, y)[:, None]
    return own - 2.0 * by_numpy.gram(kernel, y, x)


def data_kernel(table: ReferenceTable, rule: LengthScaleRule | None = None) -> Kernel:
    """Gaussian with a length scale for each number of the output; on data sets `(m, n, d)` under plates
    `exp(-MMD^2 / (2 l^2))`, with the median of the MMD as `l` and a Gaussian kernel inside."""
    if not table.data_sets:
        return Gaussian((rule or MedianHeuristic(per_dimension=True))(table.x.reshape(len(table), -1), table.z))
    return EmpiricalMeasureRule(rule or MedianHeuristic(), 1.0)(table.as_data_sets(table.x), table.z)


def draws(table: ReferenceTable, sets: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the first data sets, `(sets * n, d)`, and the coordinates of the parameters of each, `(sets * n, D)`."""
    x = table.as_data_sets(table.x[:sets])
    return np.concatenate(x), np.repeat(table.z[:sets], x.shape[1], axis=0)
