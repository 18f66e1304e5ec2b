r"""Tests of ranks that should be about uniform whatever the data were.

An engine that learns from simulations errs a little, in the same way for all data sets of one run, so that exactly
uniform ranks are not to be expected: with enough data sets a test of them rejects every such engine. What is tested is
whether its errors are small. A posterior is off by the mean $\mu$ of the truth in its standard deviations, and by the
logarithm $s$ of how much the truth's standard deviation is the larger; that costs about $\mu^2 / 2 + s^2$ nats. The
null hypothesis is the ball

$$ \mu^2 / 2 + s^2 \le \text{margin}^2 / 2, $$

of locations off by `margin` posterior standard deviations at most, or widths by a factor of `exp(margin / sqrt(2))`,
and every p-value is the largest over the ball: for location at its end $\mu$, for scale at its end $s$. A margin of 0
tests exact uniformity.
"""

import numpy as np
import scipy
from scipy.special import ndtr, ndtri

from numpyro_kme.kernels.length_scales import mad_or_sd
from numpyro_kme.models.problem import Arrays

MARGIN = 0.05
"""Errors of posteriors up to this many posterior standard deviations are let pass; `python -m benchmarks verdict`
counts what is flagged then."""


def tests(ranks: np.ndarray, components: np.ndarray | None = None, margin: float = MARGIN) -> dict[str, float]:
    r"""P-values of four ways not to be uniform, for ranks `r` that are independent given the data.

    By normal scores $z = \Phi^{-1}(r)$, independent standard normals where posteriors are exact. `location`:
    $\sqrt N |\bar z|$ against a folded normal at $\sqrt N$ margin (posteriors are shifted). `scale`:
    $\sum (z - \bar z)^2 e^{\mp 2 s}$ against $\chi^2_{N-1}$, $s$ = margin / $\sqrt 2$ (too narrow or too wide). `data`:
    $|P z|^2$ against a $\chi^2_k$ with noncentrality $N$ margin$^2$, `P` the projection on `k` components of the data
    (what is off changes with the data). `shape`: the Kolmogorov-Smirnov distance, less that of a normal shifted by the
    margin, $2 \Phi(\text{margin} / 2) - 1$.

    Args:
        ranks: In (0, 1), `(N,)`.
        components: Orthonormal columns `(N, k)`, from `components_of`; `data` is left out without any.
        margin: Errors that are let pass, in posterior standard deviations.
    """
    scores = ndtri(ranks)
    size = len(scores)
    centre, shift, scale = float(np.mean(scores)), np.sqrt(size) * margin, np.exp(np.sqrt(2.0) * margin)
    square, away = float(np.sum(np.square(scores - centre))), np.sqrt(size) * abs(centre)
    wide, narrow = scipy.stats.chi2.cdf(square * scale, size - 1), scipy.stats.chi2.sf(square / scale, size - 1)
    distance = scipy.stats.kstest(ranks, "uniform").statistic - (2.0 * ndtr(0.5 * margin) - 1.0)
    found = {
        "shape": float(scipy.stats.kstwo.sf(max(distance, 0.0), size)),
        "location": float(scipy.stats.norm.sf(away - shift) + scipy.stats.norm.sf(away + shift)),
        "scale": float(min(1.0, 2.0 * min(wide, narrow))),
    }
    if components is not None and components.shape[1]:
        along = np.sum(np.square(scores @ components))
        found["data"] = float(scipy.stats.ncx2.sf(along, components.shape[1], shift**2))
    return found


def components_of(data: Arrays) -> np.ndarray:
    """Leading principal components of simulated data sets, orthonormal, orthogonal to constants, `(N, k)`.

    Each number of the data is centred and scaled robustly and compressed by arcsinh. At most one component for ten
    data sets.

    Args:
        data: `{site: (N, *event)}`.
    """
    if not data:
        return np.zeros((0, 0))
    table = np.concatenate([np.asarray(x, np.float64).reshape(len(x), -1) for x in data.values()], axis=1)
    scale = mad_or_sd(table)
    scaled = np.arcsinh((table - np.median(table, axis=0))[:, scale > 0] / scale[scale > 0])
    left, sizes, _ = np.linalg.svd(scaled - scaled.mean(axis=0), full_matrices=False)
    kept = int(np.sum(sizes > 1e-8 * np.max(sizes, initial=0.0)))
    return left[:, : min(kept, len(table) // 10)]
