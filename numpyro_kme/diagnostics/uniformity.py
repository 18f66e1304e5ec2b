"""Tests of ranks that should be uniform whatever the data were."""

import numpy as np
from scipy import stats
from scipy.special import ndtri

from numpyro_kme.problem import Arrays

ROWS_PER_COLUMN = 10
"""So many data sets stand for each component of the data that ranks are compared with."""


def tests(ranks: np.ndarray, components: np.ndarray | None = None) -> dict[str, float]:
    r"""P-values of four ways not to be uniform, each exact where ranks `r` are independent and uniform given the data.

    With normal scores $z = \Phi^{-1}(r)$, which are then independent standard normals: `shape`, the Kolmogorov-Smirnov test;
    `location`, $\sqrt N \bar z$ against a normal (posteriors are shifted); `spread`, $\sum z^2$ against $\chi^2_N$ (too narrow or too
    wide); `data`, $|P z|^2$ against $\chi^2_k$, `P` the projection on `k` components of the data (what is off changes with the data).

    Args:
        ranks: In (0, 1), `(N,)`.
        components: Orthonormal columns `(N, k)`, from `components_of`; `data` is left out without any.
    """
    scores = ndtri(ranks)
    size, square = len(scores), float(scores @ scores)
    found = {
        "shape": float(stats.kstest(ranks, "uniform").pvalue),
        "location": float(2.0 * stats.norm.sf(abs(np.mean(scores)) * np.sqrt(size))),
        "spread": float(min(1.0, 2.0 * min(stats.chi2.cdf(square, size), stats.chi2.sf(square, size)))),
    }
    if components is not None and components.shape[1]:
        found["data"] = float(stats.chi2.sf(np.sum(np.square(scores @ components)), components.shape[1]))
    return found


def components_of(data: Arrays) -> np.ndarray:
    """Leading principal components of simulated data sets, orthonormal, orthogonal to constants, `(N, k)`.

    Each number of the data is centred and scaled robustly and compressed by arcsinh. At most one component for ten data sets.

    Args:
        data: `{site: (N, *event)}`.
    """
    tables = [np.asarray(value, np.float64).reshape(len(value), -1) for value in data.values()]
    if not tables:
        return np.zeros((0, 0))
    table = np.concatenate(tables, axis=1)
    centre = np.median(table, axis=0)
    size = np.median(np.abs(table - centre), axis=0)
    size = np.where(size > 0, size, np.std(table, axis=0))
    scaled = np.arcsinh((table - centre)[:, size > 0] / size[size > 0])
    left, sizes, _ = np.linalg.svd(scaled - scaled.mean(axis=0), full_matrices=False)
    kept = int(np.sum(sizes > 1e-8 * np.max(sizes, initial=0.0)))
    return left[:, : min(kept, len(table) // ROWS_PER_COLUMN)]
