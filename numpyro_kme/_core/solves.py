"""Linear algebra by NumPy: pivoted Cholesky factors, ridge regression, robust scales."""

from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.typing import ArrayLike
from scipy.linalg.lapack import dpstrf

from numpyro_kme._core import checks

Array = jax.Array | np.ndarray
"""An array leaf of a fitted object: NumPy as it was learnt, JAX where it is traced."""


def require_resolved(added: float, square: np.ndarray) -> None:
    """Require that float64 sees what regularisation adds beside a positive semi-definite matrix `U'U`.

    Raises:
        numpy.linalg.LinAlgError: If it does not: the solve would be rounding, blown up.
    """
    least = np.finfo(np.float64).eps * np.trace(square)
    checks.require(
        bool(added > least),
        f"U U' + c I cannot be solved: with c = {added:.3g}, number of points times regularisation, it is singular to "
        f"working precision ({least:.3g}). Increase the regularisation.",
        np.linalg.LinAlgError,
    )


def ridges(
    factor: Array, targets: np.ndarray, regularisations: ArrayLike
) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    r"""Kernel ridge regression for each `lam` from one eigendecomposition: `(lam, coefficients, held-out residuals)`.

    With $G = U U^\top$ and $H = U (U^\top U + n \lambda I)^{-1} U^\top$: predictions at `t` are `phi(t)' c`,
    $c = (U^\top U + n \lambda I)^{-1} U^\top t$, `(r, p)`, and leaving one out
    $t_i - \hat t_{-i}(x_i) = [(I - H) t]_i / (1 - H_{ii})$, `(n, p)`.

    Args:
        factor: `U`, `(n, r)`.
        targets: `(n, p)`.
        regularisations: Each `lam`.
    Cost: `2 n r^2 + 9 r^3`, then `n r p` for each `lam`.
    """
    factor = np.asarray(factor)
    square = factor.T @ factor
    values, vectors = np.linalg.eigh(square)
    rotated = factor @ vectors
    for lam in np.asarray(regularisations):
        added = len(factor) * lam
        require_resolved(added, square)
        inverse = 1.0 / (np.maximum(values, 0.0) + added)
        within = inverse[:, None] * (rotated.T @ targets)
        leverage = np.square(rotated) @ inverse
        yield lam, vectors @ within, (targets - rotated @ within) / (1.0 - leverage)[:, None]


def ridge(factor: Array, added: float, right: np.ndarray) -> np.ndarray:
    """`(U U' + c I)^-1 b` by Woodbury's formula, for `U` `(n, r)` and `b` `(n, ...)`. Cost: `n r^2`."""
    factor = np.asarray(factor)
    return (right - factor @ np.linalg.solve(inner(factor, added), factor.T @ right)) / added


def inner(factor: Array, added: float) -> np.ndarray:
    """`U'U + c I`, `(r, r)`, checked: with a `c` below rounding, what is solved with it is noise."""
    factor = np.asarray(factor)
    square = factor.T @ factor
    require_resolved(added, square)
    return square + added * np.eye(len(square))


def blocked(matrix: np.ndarray, stop: float, most: int) -> tuple[np.ndarray, list[int]]:
    """Greedy columns `(n, r)` of a pivoted Cholesky factor of a matrix that is formed already, and their pivots.

    No diagonal entry of the rest is over `stop`.
    """
    factor, order, rank, _ = dpstrf(matrix, tol=stop, lower=1)
    order, rank = order - 1, min(int(rank), most)
    columns = np.zeros((len(matrix), rank))
    columns[order] = np.tril(factor[:, :rank])
    return columns, order[:rank].tolist()


def by_columns(
    columns: Callable[[np.ndarray], np.ndarray], diagonal: np.ndarray, stop: float, most: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Columns `(n, r)` of a pivoted Cholesky factor, and their pivots, as `blocked`, of a matrix that is never formed.

    No diagonal entry of the rest is over `stop`. Several pivots are found at a time: each has at least half of the
    largest rest when it is chosen.

    Args:
        columns: `(k,)` indices to these columns `(n, k)` of the matrix.
        diagonal: That of the matrix, `(n,)`.
        stop: Largest diagonal entry of what is left out.
        most: Largest `r`, with which more may be left out.
    Cost: `n r^2`, and memory for `2 n r` numbers.
    """
    rest, rank, factor, size = np.array(diagonal), 0, np.empty((len(diagonal), TOGETHER)), 8
    most, pivots = len(rest) if most is None else most, np.empty(0, int)
    while (largest := rest.max()) > stop and rank < most:
        some = np.argpartition(rest, -min(size, len(rest)))[-size:]
        further = columns(some) - factor[:, :rank] @ factor[some, :rank].T
        own, order = blocked(further[some], max(stop, 0.5 * largest), min(len(some), most - rank))
        if not order:  # all that is left is rounding
            break
        further = np.linalg.solve(own[order], further[:, order].T).T
        if rank + len(order) > factor.shape[1]:
            factor = np.concatenate([factor[:, :rank], np.empty((len(rest), max(rank, TOGETHER)))], axis=1)
        factor[:, rank : rank + len(order)] = further
        rank += len(order)
        size = min(TOGETHER, 1 << (2 * len(order) - 1).bit_length())
        rest = np.maximum(rest - np.sum(np.square(further), axis=1), 0.0)
        rest[some[order]] = 0.0
        pivots = np.concatenate([pivots, some[order]])
    return factor[:, :rank], pivots


def median_absolute_deviation(x: np.ndarray, centre: ArrayLike | None = None) -> np.ndarray:
    """`median_i |x_i - centre|` over the first axis, `(...)`, in the units of `x`; 0 where half of a column agrees.

    Args:
        x: `(m, ...)`.
        centre: `(...)`; the median when left out.
    """
    return np.median(np.abs(x - (np.median(x, axis=0) if centre is None else centre)), axis=0)


def robust_standard_deviation(column: np.ndarray) -> float:
    """A robust standard deviation of `(m,)` numbers, consistent for a normal distribution; 0 if all agree.

    `1.4826 median |x - median|`; where that is 0, the interquartile range over `1.349`; where that is 0 too, the median
    of the deviations that are not 0. Deviations below 1e-13 of the median are rounding, and count as 0.
    """
    centre = np.median(column)
    rounding = 1e-13 * abs(centre)
    if (scale := 1.4826 * median_absolute_deviation(column, centre)) > rounding:
        return float(scale)
    low, high = np.quantile(column, [0.25, 0.75])
    if high - low > 1.349 * rounding:
        return float(high - low) / 1.349
    deviations = np.abs(column - centre)
    return float(np.median(deviations[deviations > rounding])) if np.any(deviations > rounding) else 0.0


TOGETHER = 64
"""Most columns that are evaluated at a time, of which those are kept that are not of each other's span; twice as many
as were kept of those before, in powers of two."""
