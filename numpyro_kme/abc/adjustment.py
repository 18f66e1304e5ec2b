"""Regression adjustment: weighted simulations moved to where they would lie had they given the observation."""

from dataclasses import dataclass

import numpy as np
from jax.typing import ArrayLike

from numpyro_kme._core import checks, solves
from numpyro_kme._core.display import shown
from numpyro_kme.kernels.length_scales import REGULARISATIONS

REGULARISATION = REGULARISATIONS[REGULARISATIONS > 1e-7]
"""Tried by leave-one-out; below, constant statistics are rounding."""


@shown
@dataclass(frozen=True, eq=False)
class RegressionAdjustment:
    r"""What a local linear regression of parameters on statistics says of weighted simulations.

    With $\hat\beta$ of a ridge regression under the positive part of the weights, regularised by leave-one-out,

    $$ t_i^* = t_i + (s(y) - s_i)^\top \hat\beta . $$

    Args:
        adjusted: $t^*$, `(m, p)`.
        shift: By how much it moves the weighted mean, `(p,)`.
        scale: Standard deviation under the weights, before, or under their positive part where signed weights give a
            negative variance, `(p,)`.
        residual: That of what the regression leaves, each point left out in turn, `(p,)`.
        error: Standard error of the shift, `(p,)`: that of a prediction by as many points as the effective sample size.
        distance: Squared Mahalanobis distance of $s(y)$ from the statistics under the positive part of the weights; of
            the centre of a ball in which they lie evenly it is 0, of its edge `q + 2`.
    References: Beaumont, Zhang & Balding (2002), Genetics 162.
    """

    paper = "beaumont2002approximate"

    adjusted: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    residual: np.ndarray
    error: np.ndarray
    distance: float

    @classmethod
    def fit(
        cls, targets: ArrayLike, statistics: ArrayLike, weights: ArrayLike, observed: ArrayLike
    ) -> "RegressionAdjustment":
        """Regress, and adjust.

        Args:
            targets: `t`, `(m, p)`, best without constraints.
            statistics: `s`, `(m, q)`.
            weights: `(m,)`, of any sign, with a sum of one.
            observed: `s(y)`, `(q,)`.
        Cost: `m q^2` and `q^3`.
        """
        given = {"targets": targets, "statistics": statistics, "weights": weights, "observed": observed}
        checks.concrete(**given)
        for name, value in given.items():
            checks.sound(name, value)
        t, s, w, y = (np.asarray(value, np.float64) for value in given.values())
        checks.require(
            t.ndim == s.ndim == 2 and w.shape == (len(t),) == (len(s),) and y.shape == s.shape[1:],
            "`targets` (m, p), `statistics` (m, q), `weights` (m,) and `observed` (q,) must fit one another; got "
            f"shapes {t.shape}, {s.shape}, {w.shape} and {y.shape}.",
        )
        checks.sums_to_one("weights", w)
        positive = np.maximum(w, 0.0) / np.maximum(w, 0.0).sum()
        near = positive > 0
        root = np.sqrt(near.sum() * positive[near])[:, None]
        centre, middle = positive @ s, positive @ t
        unit = np.sqrt(positive @ np.square(s - centre))
        varies = unit > 1e-10 * np.maximum(np.abs(centre), 1e-300)
        unit = np.where(varies, unit, np.inf)
        features, at = (s - centre) / unit, (y - centre) / unit
        fits = solves.ridges(root * features[near], root * (t - middle)[near], REGULARISATION)
        lam, slopes, rest = min(fits, key=lambda fit: float(np.square(fit[2]).sum()))
        shift = (at - w @ features) @ slopes
        scale = deviations(t, w)
        residual = np.sqrt(np.square(rest).mean(axis=0))
        leverage, distance = (
            near.sum() * float(at @ np.linalg.solve(solves.inner(root * features[near], near.sum() * added), at))
            for added in (lam, REGULARISATION[0])
        )
        error = residual * np.sqrt(leverage * np.sum(np.square(positive)))
        return cls(t + (at - features) @ slopes, shift, scale, residual, error, distance)


def deviations(t: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Standard deviations of `t` `(m, p)` under weights with a sum of one, or under their positive part where weights
    of both signs give a negative variance, `(p,)`."""
    positive = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    variance = weights @ np.square(t - weights @ t)
    return np.sqrt(np.where(variance > 0, variance, positive @ np.square(t - positive @ t)))
