"""Pivoted incomplete Cholesky factors of Gram matrices: `G ~ U U'` with as few columns as a tolerance needs."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from scipy.linalg.lapack import dpstrf

from numpyro_kme._core import checks
from numpyro_kme._core.host import numpy_function
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import Kernel, PointSet, num_points, register, take

TOLERANCE = 1e-10
"""Relative to the largest diagonal entry; small enough that what is left out is far below any regularisation here."""


@register
class LowRank:
    """Features `phi(t) = W k(P, t)` of a kernel by its pivots `P`: `k(a, b) ~ phi(a)' phi(b)`, exact at the pivots.

    Args:
        kernel: `k`.
        pivots: `(r, dim)`.
        inverse: `W`, `(r, r)`: the inverse of the Cholesky factor of `k(P, P)`.
        values: `U`, features of the points that it was made of, `(n, r)`; `G ~ U U'`.
        residual: Largest diagonal entry of `G - U U'`.
    """

    kernel: Kernel
    pivots: PointSet
    inverse: Array
    values: Array
    residual: Array

    @classmethod
    @numpy_function
    def fit(
        cls, kernel: Kernel, points: PointSet, *, tolerance: float = TOLERANCE, max_rank: int | None = None
    ) -> "LowRank":
        """Choose pivots by `by_columns`: points that those before them explain worst.

        Args:
            kernel: Positive definite.
            points: `(n, dim)`, or any pytree of points.
            tolerance: Stop when no diagonal entry of the rest exceeds the largest one of `G` times this. A failed or
                zero pivot cannot occur: the matrix `U U'` is positive semi-definite at every rank.
            max_rank: Stop at this rank at the latest.
        Cost: some `2 n r` kernel evaluations and `2 n r^2` operations, without an `(n, n)` matrix.
        References: Fine & Scheinberg (2001), JMLR 2.
        """
        n = num_points(points)
        checks.instance("kernel", kernel, Kernel, "a kernel, such as Gaussian(length_scale)")
        checks.require(
            kernel.symmetric,
            f"{type(kernel).__name__} is a density of one point given the other and not symmetric, as the kernel of a "
            "regression or an embedding has to be. Use it in KELFI with form=KernelMeans(data_kernel=...), or a kernel "
            "such as Signature here.",
        )
        checks.require(n >= 1, "`points` must hold at least one point; it is empty.")
        checks.sound("points", points)
        checks.positive_number("tolerance", tolerance)
        checks.require(tolerance < 1, f"`tolerance` must be below 1, a proportion of the diagonal; got {tolerance}.")
        if max_rank is not None:
            checks.whole("max_rank", max_rank, 1)
        values = 1.0 * np.asarray(kernel.diagonal(points))
        rounding = 8.0 * np.finfo(values.dtype).eps  # float32 where a user wrote the kernel in JAX
        stop, diagonal = max(tolerance, rounding) * values.max(), values.astype(np.float64)

        def columns(some):
            return np.asarray(kernel.gram(points, take(points, some)), np.float64)

        values, chosen = by_columns(columns, diagonal, stop, max_rank)
        rest = np.maximum(diagonal - np.square(values).sum(axis=1), 0.0)
        pivots = take(points, chosen)
        inverse = np.linalg.solve(values[chosen], np.eye(len(chosen)))
        return cls(jax.tree.map(np.asarray, kernel), pivots, inverse, values, np.asarray(rest.max()))

    @property
    def rank(self) -> int:
        """Number of pivots."""
        return len(self.inverse)

    def features(self, t: PointSet) -> np.ndarray:
        """Features of other points, `(s, r)`."""
        return numpy_function(type(self).at_pivots)(self, t) @ np.asarray(self.inverse).T

    def at_pivots(self, t: PointSet) -> Any:
        """The kernel between other points and the pivots, `(s, r)`."""
        if isinstance(self.pivots, np.ndarray) and np.ndim(t) == 2:
            checks.same_columns("t", t, "pivots", self.pivots)
        return self.kernel.gram(t, self.pivots)


def blocked(matrix: np.ndarray, stop: float, most: int) -> tuple[np.ndarray, list[int]]:
    """Greedy columns `(n, r)` of a pivoted Cholesky factor of a matrix that is formed already, and their pivots.

    No diagonal entry of the rest is over `stop`.
    """
    factor, order, rank, _ = dpstrf(matrix, tol=stop, lower=1)
    order, rank = order - 1, min(int(rank), most)
    columns = np.zeros((len(matrix), rank))
    columns[order] = np.tril(factor)[:, :rank]
    return columns, order[:rank].tolist()


TOGETHER = 64
"""Most columns that are evaluated at a time, of which those are kept that are not of each other's span; twice as many
as were kept of those before, in powers of two."""


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
