"""Kernels on outputs of a simulator, by median heuristics, where none is given."""

import numpy as np

from numpyro_kme import _linalg
from numpyro_kme.engines._bank import Bank
from numpyro_kme.kernels import EmpiricalMeasure, Gaussian, median_heuristic, median_heuristic_per_dimension
from numpyro_kme.kernels.base import Kernel

SETS = 100
"""Data sets whose distances give the length scale."""


def data_kernel(bank: Bank) -> Kernel:
    """Gaussian with a length scale for each number of the output; on data sets under plates, Gaussian in their embeddings."""
    if not bank.data_sets:
        return Gaussian(median_heuristic_per_dimension(bank.x.reshape(len(bank), -1)))
    return set_kernel(bank.x)


def set_kernel(sets: np.ndarray) -> EmpiricalMeasure:
    """`exp(-MMD^2 / (2 l^2))` between data sets `(m, n, d)`, with the median of the MMD as `l`; a Gaussian kernel inside."""
    few = sets[:SETS]
    inner = Gaussian(median_heuristic(few.reshape(-1, few.shape[-1])))
    squared = _linalg.on_host(EmpiricalMeasure(inner, 1.0).squared_mmd, few)
    return EmpiricalMeasure(inner, float(np.sqrt(np.median(squared[np.triu_indices(len(few), 1)]))))
