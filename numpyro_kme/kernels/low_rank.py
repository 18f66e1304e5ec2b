"""Low-rank features of a kernel by pivoted Cholesky factors of Gram matrices, and kernel ridge regression on them."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import Array, by_columns, checks, in_jax_types, numpy_function, solves
from numpyro_kme.kernels.base import Kernel, PointSet, num_points, register, take

REGULARISATIONS = 10.0 ** np.arange(-9.0, 1.0)
"""Regularisations of kernel ridge regressions whose errors are compared."""

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
    """

    kernel: Kernel
    pivots: PointSet
    inverse: Array
    values: Array

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
        checks.require(
            kernel.symmetric,
            f"{type(kernel).__name__} is a density of one point given the other and not symmetric, as the kernel of a "
            "regression or an embedding has to be. Use it in KELFI with form=KernelMeans(data_kernel=...).",
        )
        checks.require(n >= 1, "`points` must hold at least one point; it is empty.")
        checks.sound("points", points)
        checks.positive_number("tolerance", tolerance)
        checks.require(tolerance < 1, f"`tolerance` must be below 1, a proportion of the diagonal; got {tolerance}.")
        checks.optional(checks.whole, "max_rank", max_rank, 1)
        values = 1.0 * np.asarray(kernel.diagonal(points))
        rounding = 8.0 * np.finfo(values.dtype).eps  # float32 where a user wrote the kernel in JAX
        stop, diagonal = max(tolerance, rounding) * values.max(), values.astype(np.float64)

        def columns(some):
            return np.asarray(kernel.gram(points, take(points, some)), np.float64)

        values, chosen = by_columns(columns, diagonal, stop, max_rank)
        inverse = np.linalg.solve(values[chosen], np.eye(len(chosen)))
        return cls(jax.tree.map(np.asarray, kernel), take(points, chosen), inverse, values)

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
            checks.table("t", t, columns=self.pivots.shape[1], min_rows=0)
        return self.kernel.gram(t, self.pivots)


COARSEST, FINEST, FALLS = 0.1, 1e-10, 0.01
"""Tolerances of a factor that are tried, each a tenth of the one before, until the squared held-out error falls by a
smaller proportion: the more noise there is in what is predicted, the coarser a factor serves."""


@register
class DistributionRegression:
    r"""Kernel ridge regression from data sets to parameters.

    $$ s(y) = \bar t + k(y)^\top (K + m \lambda I)^{-1} (t - \bar t) $$

    With a kernel on data sets, such as a Gaussian in their mean embeddings (`kernels.EmpiricalMeasure`), it learns
    summaries of any data from simulated pairs. DR-ABC is soft ABC with them:
    `soft_abc_weights(np.sum((fitted.held_out - fitted.predict(y)) ** 2, axis=1))`. Make one with `fit`.

    Args:
        features: Of the data sets, with the low-rank factor `U` of `K`.
        coefficients: `(U'U + m lam I)^-1 U' (t - mean t)`, `(r, p)`.
        centre: Mean of the targets, `(p,)`.
        held_out: Prediction for each data set from all others, in closed form, `(m, p)`: it errs as a prediction for
            new data does. Data sets that are the same to the kernel share the mean of theirs, since each by itself
            would tell which target it leaves out.
        error: Root mean squared error of those, `(p,)`.
        regularisation: `lam`.
    References: Szabo et al. (2016), JMLR 17; Mitrovic, Sejdinovic & Teh (2016), ICML.
    """

    paper = "mitrovic2016drabc"

    features: LowRank
    coefficients: Array
    centre: Array
    held_out: Array
    error: Array
    regularisation: Array

    @classmethod
    @numpy_function
    def fit(
        cls,
        kernel: Kernel,
        x: PointSet,
        targets: ArrayLike,
        regularisation: float | None = None,
        *,
        tolerance: float | None = None,
    ) -> "DistributionRegression":
        """Learn from pairs of a data set and its parameters.

        Args:
            kernel: `k`, on data sets.
            x: `m` data sets, `(m, n, dim)`, or whatever `kernel` compares.
            targets: `t`, `(m, p)`.
            regularisation: `lam`; when left out, the power of ten, 1e-9 to 1, with the least leave-one-out error.
            tolerance: Of the low-rank factor of `K`; when left out 0.1, 0.01, and so on until the squared held-out
                error falls by less than 1%.
        Raises:
            ValueError: If `x` and `targets` are not as many, or not finite.
            numpy.linalg.LinAlgError: If `regularisation` is below rounding.
        Cost: `m r` kernels and `m r^2` for a factor of rank `r`.
        """
        checks.table("targets", targets)
        targets = np.asarray(targets, np.float64)
        checks.optional(checks.positive_number, "regularisation", regularisation)
        points = kernel.points(np.asarray(in_jax_types(x)))
        checks.sound("x", points)
        n, m = num_points(points), len(targets)
        checks.require(n == m, f"`x` and `targets` must hold as many data sets; got {n} and {m}.")
        centre = targets.mean(axis=0)
        tried = REGULARISATIONS if regularisation is None else np.array([regularisation])
        before, finer = np.inf, COARSEST if tolerance is None else tolerance
        while True:
            features = LowRank.fit(kernel, points, tolerance=finer)
            fits = solves.ridges(features.values, targets - centre, tried)
            lam, coefficients, rest = min(fits, key=lambda fit: float(np.mean(np.square(fit[2]))))
            square = float(np.mean(np.square(rest)))
            if tolerance is not None or square > (1.0 - FALLS) * before or finer <= FINEST:
                break
            before, finer = square, 0.1 * finer
        error, own = np.sqrt(np.mean(np.square(rest), axis=0)), np.square(features.values).sum(axis=1)
        same = np.unique(np.round(features.values / np.sqrt(np.mean(own)), 9), axis=0, return_inverse=True)[1].ravel()
        held_out = np.stack([np.bincount(same, t) for t in (targets - rest).T], axis=1) / np.bincount(same)[:, None]
        return cls(features, coefficients, centre, held_out[same], error, np.asarray(lam))

    @classmethod
    def fit_best(
        cls, kernels: Sequence[Kernel], x: ArrayLike, targets: ArrayLike, *settings: Any, **more: Any
    ) -> "DistributionRegression":
        """Learn from pairs by the kernel whose squared held-out error, in units of the variances of the targets, is
        least.

        Args:
            kernels: At least one. The other arguments are those of `fit`.
        """
        tried = [cls.fit(kernel, x, targets, *settings, **more) for kernel in kernels]
        units = np.where(np.ptp(targets, axis=0) > 0.0, np.std(targets, axis=0), 1.0)
        return min(tried, key=lambda fitted: np.sum(np.square(fitted.error / units)))

    @numpy_function
    def predict(self, y: PointSet) -> np.ndarray:
        """Summaries `s(y)` of data sets, `(s, p)`.

        Raises:
            RuntimeError: If the kernel is zero between one of them and all that it was learnt from: the answer would be
                the mean of the targets, whatever the data.
        Cost: `s r` kernels.
        """
        y = self.features.kernel.points(np.asarray(in_jax_types(y)))
        checks.sound("y", y)
        near, own = np.abs(self.features.at_pivots(y)), np.square(self.features.values).sum(axis=1)
        checks.require(
            bool((near.max(axis=1) > np.finfo(np.float64).eps * own.mean()).all()),
            f"The kernel is zero between the observation and all {len(own)} simulations: none comes near, and nothing "
            "is predicted. Use a wider kernel, or simulations that come near.",
            checks.EffectiveSampleSizeError,
        )
        return np.asarray(self.centre) + self.features.features(y) @ np.asarray(self.coefficients)
