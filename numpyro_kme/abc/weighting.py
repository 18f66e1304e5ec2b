"""Weights of simulations by their discrepancies from an observation, soft and rejection ABC; and the regression that
moves weighted simulations to where they would lie had they given the observation."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
from jax.typing import ArrayLike
from scipy.special import logsumexp

from numpyro_kme._core import checks, solves
from numpyro_kme._core.checks import EffectiveSampleSizeError
from numpyro_kme._core.display import shown
from numpyro_kme.kernels.low_rank import REGULARISATIONS
from numpyro_kme.samplers.importance import effective_size

ACCEPTED, LEAST = 0.02, 50.0
"""Default acceptance rate, and for soft weights the effective sample size relative to all, but at least so many."""

LEAST_EFFECTIVE_SIZE = 10.0
"""Weights with a smaller effective sample size are no posterior."""


@shown
class SoftWeights(NamedTuple):
    """Soft weights.

    Attributes:
        weights: `(m,)`, with a sum of one.
        epsilon: The width that was used.
    """

    weights: np.ndarray
    epsilon: float


@shown
class RejectionWeights(NamedTuple):
    """Accepted simulations.

    Attributes:
        weights: `(m,)`, equal on those that are accepted, with a sum of one.
        threshold: The largest discrepancy that was accepted.
    """

    weights: np.ndarray
    threshold: float


def soft_abc_weights(discrepancies: ArrayLike, epsilon: float | None = None) -> SoftWeights:
    r"""Weights of soft ABC, $w_i \propto e^{-d_i / \epsilon}$: with the squared MMD as `d` those of K2-ABC.

    Normalised in logs: they depend on differences of discrepancies only, and do not underflow. So they never show that
    all simulations are far from the observation; `out_of_distribution_check` does.

    Args:
        discrepancies: `d`, `(m,)`; estimates of a squared MMD may be negative.
        epsilon: Width, in units of `d`. When left out, the one at which the effective sample size is `max(50, m / 50)`,
            but at most `m / 2`: it grows with `epsilon`, so there is one.
    Raises:
        ValueError: If discrepancies are not finite, or all equal while `epsilon` is left out.
    References: Park, Jitkrittum & Sejdinovic (2016), AISTATS.
    """
    distance = _checked("discrepancies", discrepancies)
    if epsilon is None:
        epsilon = _for_effective_size(distance, min(max(LEAST, ACCEPTED * len(distance)), 0.5 * len(distance)))
    checks.positive_number("epsilon", epsilon)
    logs = -(distance - distance.min()) / epsilon
    return SoftWeights(np.exp(logs - logsumexp(logs)), float(epsilon))


def rejection_weights(
    discrepancies: ArrayLike, *, quantile: float | None = None, threshold: float | None = None
) -> RejectionWeights:
    r"""Weights of rejection ABC: $w_i = 1[d_i \le t] \,/\, \#\{j : d_j \le t\}$.

    Args:
        discrepancies: `d`, `(m,)`.
        quantile: Proportion of the simulations to accept, at least one; 0.02 when left out and there is no `threshold`.
            All that are equally near as the last of them are accepted too.
        threshold: `t`, the largest discrepancy to accept.
    Raises:
        ValueError: If both are given, `quantile` does not lie between 0 and 1, or discrepancies or `threshold` are not
            finite.
        RuntimeError: If none is accepted.
    References: Pritchard et al. (1999).
    """
    check_acceptance(quantile, threshold)
    distance = _checked("discrepancies", discrepancies)
    if threshold is None:
        kept = max(1, round((quantile or ACCEPTED) * len(distance)))
        threshold = np.sort(distance)[kept - 1]
    accepted = distance <= threshold
    checks.require(
        bool(accepted.any()),
        f"The weights of all {len(distance)} simulations are zero: the least discrepancy is {distance.min():.6g}, the "
        f"threshold {threshold:.6g}. Raise `threshold`, or give `quantile`.",
        EffectiveSampleSizeError,
    )
    return RejectionWeights(accepted / accepted.sum(), float(threshold))


def effective_sample_size(weights: ArrayLike) -> float:
    r"""$(\sum_i w_i)^2 / \sum_i w_i^2$, for weights `(m,)` of one sign or of both; 0 where all are zero.

    Below about 10 the engines of this package do not call weights a posterior.
    """
    weights = _checked("weights", weights, "Check what they were made of.")
    largest = np.max(np.abs(weights))
    return float(effective_size(weights / largest)) if largest > 0 else 0.0


def with_unit_sum(weights: np.ndarray, name: str, advice: str) -> np.ndarray:
    """Weights divided by their sum, unless they vanish or cancel.

    Raises:
        EffectiveSampleSizeError: If they do.
    """
    weights = np.asarray(weights, np.float64)
    total, size = float(weights.sum()), float(np.abs(weights).sum())
    if not (np.isfinite(size) and size > 0):
        raise checks.explained(
            f"{name}: the weights of all {len(weights)} simulations are zero: none comes near the observation. "
            f"{advice}",
            EffectiveSampleSizeError,
        )
    if total <= 1e-6 * size:
        raise checks.explained(
            f"{name}: the signed weights sum to {total:.2g} where their sizes sum to {size:.2g}, so they are no "
            "posterior: the observation lies away from the simulations, or the regularisation is too small. "
            f"{advice}",
            EffectiveSampleSizeError,
        )
    return weights / total


def check_acceptance(quantile: float | None, threshold: float | None) -> None:
    """Require at most one of the two, in its range."""
    for name, value in {"quantile": quantile, "threshold": threshold}.items():
        if value is not None:
            checks.number(name, value)
    checks.require(quantile is None or threshold is None, "Give `quantile` or `threshold`, not both.")
    checks.require(quantile is None or 0 < quantile < 1, f"`quantile` must lie between 0 and 1; got {quantile}.")
    checks.require(threshold is None or bool(np.isfinite(threshold)), f"`threshold` must be finite; got {threshold}.")


def _checked(name, values, advice="Check the discrepancy and the simulations.") -> np.ndarray:
    checks.concrete(**{name: values})
    checks.sound(name, values, advice)
    values = np.asarray(values, np.float64)
    checks.require(
        values.ndim == 1 and len(values) >= 1,
        f"`{name}` must have shape (m,), one for each simulation; got {values.shape}.",
    )
    return values


def _for_effective_size(distance: np.ndarray, size: float) -> float:
    from_least = distance - distance.min()
    checks.require(
        bool(from_least.max() > 0),
        "The discrepancies of all simulations are equal: they say nothing of the parameters. Check the simulations, or "
        "compare something else of them.",
    )

    def excess(log_epsilon):
        logs = -from_least / np.exp(log_epsilon)
        return 2.0 * logsumexp(logs) - logsumexp(2.0 * logs) - np.log(size)

    scale = np.log(from_least.max())
    low, high = scale - 60.0, scale + 5.0
    return float(np.exp(low if excess(low) >= 0 else scipy.optimize.brentq(excess, low, high)))


REGULARISATION = REGULARISATIONS[REGULARISATIONS > 1e-7]
"""Tried by leave-one-out; below, constant statistics are rounding."""


@shown
@dataclass(frozen=True, eq=False)
class RegressionAdjustment:
    r"""Local linear regression of parameters on statistics, over weighted simulations.

    With $\hat\beta$ of a ridge regression under the positive part of the weights, regularised by leave-one-out,

    $$ t_i^* = t_i + (s(y) - s_i)^\top \hat\beta . $$

    Args:
        adjusted: $t^*$, `(m, p)`.
        shift: By how much it moves the weighted mean, `(p,)`.
        scale: Standard deviation under the weights, before, or under their positive part where signed weights give a
            negative variance, `(p,)`.
        residual: That of what the regression leaves, each point left out in turn, `(p,)`.
        error: Standard error of the shift, `(p,)`: that of a prediction by as many points as the effective sample size.
    References: Beaumont, Zhang & Balding (2002), Genetics 162.
    """

    paper = "beaumont2002approximate"

    adjusted: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    residual: np.ndarray
    error: np.ndarray

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
        variance = w @ np.square(t - w @ t)
        scale = np.sqrt(np.where(variance > 0, variance, positive @ np.square(t - middle)))
        residual = np.sqrt(np.square(rest).mean(axis=0))
        gram = solves.inner(root * features[near], near.sum() * lam)
        leverage = near.sum() * float(at @ np.linalg.solve(gram, at))
        error = residual * np.sqrt(leverage * np.sum(np.square(positive)))
        return cls(t + (at - features) @ slopes, shift, scale, residual, error)
