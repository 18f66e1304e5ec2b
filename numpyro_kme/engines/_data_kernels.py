"""Kernels on outputs of a simulator, by the median heuristic or another rule, where none is given."""

from typing import Any

import jax
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.embeddings.mmd import Quadratic
from numpyro_kme.engines._reference_table import ReferenceTable
from numpyro_kme.kernels import EmpiricalMeasure, Gaussian
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.kernels.length_scales import LengthScaleRule, MedianHeuristic

SETS = 100
"""Data sets whose distances give the length scale."""
MEASURE = "squared distance in the space of the kernel"
"""What `apart` measures."""


def checked_rule(
    kernel: Any,
    rule: LengthScaleRule | None,
    name: str = "kernel",
    kind: Any = Kernel,
    what: str = "a kernel, such as Gaussian(length_scale)",
) -> LengthScaleRule | None:
    """The rule for length scales, which has nothing to say where a kernel is given."""
    checks.instance("length_scale", rule, LengthScaleRule | None, "a rule such as CrossValidation(key)")
    checks.require(kernel is None or rule is None, f"Give `{name}` or `length_scale`, not both.")
    checks.instance(name, kernel, kind | None, what)
    return rule


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
