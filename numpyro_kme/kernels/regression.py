"""Kernel ridge regression from data of any kind to numbers, with held-out predictions in closed form."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, solves
from numpyro_kme._core.checks import EffectiveSampleSizeError
from numpyro_kme._core.host import numpy_function
from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import Kernel, PointSet, num_points, register
from numpyro_kme.kernels.length_scales import REGULARISATIONS
from numpyro_kme.kernels.low_rank import LowRank

COARSEST, FINEST, FALLS = 0.1, 1e-10, 0.01
"""Tolerances of a factor that are tried, each a tenth of the one before, until the squared held-out error falls by a
smaller proportion: the more noise there is in what is predicted, the coarser a factor serves."""

COMPARED = 2000
"""Pairs, at most, on which kernels are compared."""


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
            new data does.
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
    def fit(
        cls,
        kernel: Kernel,
        x: PointSet,
        targets: ArrayLike,
        regularisation: float | None = None,
        *,
        tolerance: float | None = None,
    ) -> "DistributionRegression":
        """Learn from pairs.

        Args:
            kernel: `k`, on data sets.
            x: `m` data sets, `(m, n, dim)`, or whatever `kernel` compares.
            targets: `t`, `(m, p)`.
            regularisation: `lam`; when left out, the power of ten, 1e-9 to 1, with the least leave-one-out error.
            tolerance: Of the low-rank factor of `K`; when left out 0.1, 0.01, and so on until the squared held-out
                error falls by less than 1 %.
        Raises:
            ValueError: If `x` and `targets` are not as many, or not finite.
            numpy.linalg.LinAlgError: If `regularisation` is below rounding.
        Cost: `m r` kernels and `m r^2` for a factor of rank `r`.
        """
        checks.concrete(x=x, targets=targets, kernel=kernel)
        checks.instance("kernel", kernel, Kernel, "a kernel on data sets, such as EmpiricalMeasure(Gaussian(1.0), 1.0)")
        checks.table("targets", targets)
        targets = np.asarray(targets, np.float64)
        if regularisation is not None:
            checks.positive_number("regularisation", regularisation)
        points = kernel.points(np.asarray(x))
        checks.sound("x", points)
        checks.require(
            num_points(points) == len(targets),
            f"`x` and `targets` must hold as many data sets; got {num_points(points)} and {len(targets)}.",
        )
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
        error = np.sqrt(np.mean(np.square(rest), axis=0))
        return cls(features, coefficients, centre, targets - rest, error, np.asarray(lam))

    @classmethod
    def fit_best(
        cls, kernels: Sequence[Kernel], x: ArrayLike, targets: ArrayLike, *settings: Any, **more: Any
    ) -> "DistributionRegression":
        """Learn from pairs by the kernel whose squared held-out error on `COMPARED` of them, in units of the variances
        of the targets, is least.

        Args:
            kernels: At least one. The other arguments are those of `fit`.
        """
        best = kernels[0]
        if len(kernels) > 1:
            x, targets = np.asarray(x), np.asarray(targets, np.float64)
            some = np.linspace(0, len(targets) - 1, min(COMPARED, len(targets))).astype(int)
            sd = np.maximum(targets[some].std(axis=0), 1e-300)
            tried = [cls.fit(kernel, x[some], targets[some], *settings, **more) for kernel in kernels]
            best = kernels[int(np.argmin([np.sum(np.square(fitted.error / sd)) for fitted in tried]))]
        return cls.fit(best, x, targets, *settings, **more)

    @numpy_function
    def predict(self, y: PointSet) -> np.ndarray:
        """Summaries `s(y)` of data sets, `(s, p)`.

        Raises:
            RuntimeError: If the kernel is zero between one of them and all that it was learnt from: the answer would be
                the mean of the targets, whatever the data.
        Cost: `s r` kernels.
        """
        y = self.features.kernel.points(np.asarray(y))
        checks.sound("y", y)
        near, own = (
            np.abs(np.asarray(self.features.at_pivots(y))),
            np.square(np.asarray(self.features.values)).sum(axis=1),
        )
        checks.require(
            bool((near.max(axis=1) > np.finfo(np.float64).eps * own.mean()).all()),
            f"The kernel is zero between the observation and all {len(own)} simulations: none comes near, and nothing "
            "is predicted. Use a wider kernel, or simulations that come near.",
            EffectiveSampleSizeError,
        )
        return np.asarray(self.centre) + self.features.features(y) @ np.asarray(self.coefficients)
