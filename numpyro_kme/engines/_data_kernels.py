"""Engines with a kernel on the outputs of a simulator, which a rule for length scales makes where none is given."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.embeddings.kernel_bayes import KernelBayesRule
from numpyro_kme.embeddings.mmd import Quadratic
from numpyro_kme.engines._reference_table import ReferenceTable
from numpyro_kme.engines._weighted import Weigher, WeightedEngine, Weighting
from numpyro_kme.engines.base import check_positive
from numpyro_kme.kernels import EmpiricalMeasure, Gaussian
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import LengthScaleRule, MedianHeuristic
from numpyro_kme.kernels.low_rank import TOLERANCE, LowRankRidge

SETS = 100
"""Data sets whose distances give the length scale."""


@dataclass(eq=False, repr=False, kw_only=True)
class KernelEngine(WeightedEngine):
    """Base of the engines that weight simulations by ridge regression on the data, with a kernel on these.

    Args:
        kernel: On outputs of the simulator; made by `length_scale` when left out.
        length_scale: Rule for the length scale of that kernel; the median heuristic when left out.
        regularisation: Of the regression.
        tolerance: Of the low-rank factor of the Gram matrix of the data.
    """

    measure = "squared distance in the space of the kernel"
    kernel: Kernel | None = None
    length_scale: LengthScaleRule | None = None
    regularisation: float | None = None
    tolerance: float = TOLERANCE

    def __post_init__(self, simulations):
        super().__post_init__(simulations)
        check_kernel(self.kernel, self.length_scale, self.regularisation, self.tolerance)

    def _kernel(self, table: ReferenceTable) -> Kernel:
        return self.kernel or data_kernel(table, self.length_scale)


@dataclass(eq=False, repr=False, kw_only=True)
class SignedEngine(KernelEngine):
    """Base of the engines whose weights have both signs; `_fit` makes a `SignedWeigher`."""

    def weights(self, observations: Any) -> np.ndarray:
        """Signed weights of the simulations at many observations `(s, *event)`, `(s, m)`, as they are, from one
        factorisation."""
        weigher = self.trained.learnt.weigher
        return weigher.at_rows(weigher.table.points(observations))


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
    return x.reshape(-1, x.shape[-1]), np.repeat(table.z[:sets], x.shape[1], axis=0)
