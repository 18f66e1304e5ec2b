"""Weights of simulations, by their discrepancies from an observation (soft and rejection ABC) or by a regression on the
data; and two ways to move weighted simulations: a regression to where they would lie had they given the observation,
and an iteration of kernel recursive ABC."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike
from scipy.special import softmax

from numpyro_kme._core import checks, in_jax_types, numpy_function, numpy_rng, shown, solves
from numpyro_kme.embeddings.means import ConditionalMeanEmbedding, MeanEmbedding, herd
from numpyro_kme.kernels import low_rank, median_heuristic
from numpyro_kme.kernels.base import Kernel, num_points
from numpyro_kme.kernels.low_rank import REGULARISATIONS
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.samplers.importance import SMALLEST, effective_size, tempered

ACCEPTED, LEAST = 0.02, 50.0
"""Default acceptance rate, and for soft weights the effective sample size relative to all, but at least so many."""

LEAST_EFFECTIVE_SIZE = 10.0
"""Weights with a smaller effective sample size are no posterior."""


@shown
class SoftWeights(NamedTuple):
    """Soft weights of simulations, and how they were made.

    Attributes:
        weights: `(m,)`, with a sum of one.
        epsilon: The width that was used.
    """

    weights: np.ndarray
    epsilon: float


@shown
class RejectionWeights(NamedTuple):
    """Simulations that rejection ABC accepts.

    Attributes:
        weights: `(m,)`, equal on those that are accepted, with a sum of one.
        threshold: The largest discrepancy that was accepted.
    """

    weights: np.ndarray
    threshold: float


@numpy_function
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
    return SoftWeights(softmax((distance.min() - distance) / epsilon), float(epsilon))


@numpy_function
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
        f"The least discrepancy is {distance.min():.6g}, the threshold {threshold:.6g}: raise it, or give `quantile`.",
        checks.EffectiveSampleSizeError,
    )
    return RejectionWeights(accepted / accepted.sum(), float(threshold))


@numpy_function
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
    checks.require(
        total > 1e-6 * size,
        f"{name}: the weights of {len(weights)} simulations sum to {total:.2g}, their sizes to {size:.2g}: the "
        f"observation lies away from the simulations, or the regularisation is too small. {advice}",
        checks.EffectiveSampleSizeError,
    )
    return weights / total


def check_acceptance(quantile: float | None, threshold: float | None) -> None:
    """Require at most one of the two, in its range."""
    for name, value in {"quantile": quantile, "threshold": threshold}.items():
        checks.optional(checks.number, name, value)
    checks.require(quantile is None or threshold is None, "Give `quantile` or `threshold`, not both.")
    checks.require(quantile is None or 0 < quantile < 1, f"`quantile` must lie between 0 and 1; got {quantile}.")
    checks.require(threshold is None or bool(np.isfinite(threshold)), f"`threshold` must be finite; got {threshold}.")


def _checked(name, values, advice="Check the discrepancy and the simulations.") -> np.ndarray:
    checks.sound(name, values, advice)
    values = np.asarray(values, np.float64)
    fits = values.ndim == 1 and len(values) >= 1
    checks.require(fits, f"`{name}` must have shape (m,), one for each simulation; got {values.shape}.")
    return values


def _for_effective_size(distance: np.ndarray, size: float) -> float:
    from_least = distance - distance.min()
    largest = float(from_least.max())
    varied = largest > 0
    checks.require(varied, "All discrepancies are equal. Check the simulations, or compare something else of them.")
    return largest / tempered(-from_least / largest, np.exp(-SMALLEST), size, halvings=50)[0]


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
        """Regress parameters on statistics, and adjust them to the observation.

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
        fits = solves.ridges(root * features[near], root * (t - middle)[near], REGULARISATIONS)
        lam, slopes, rest = min(fits, key=lambda fit: float(np.square(fit[2]).sum()))
        shift = (at - w @ features) @ slopes
        variance = w @ np.square(t - w @ t)
        scale = np.sqrt(np.where(variance > 0, variance, positive @ np.square(t - middle)))
        residual = np.sqrt(np.square(rest).mean(axis=0))
        gram = solves.inner(root * features[near], near.sum() * lam)
        leverage = near.sum() * float(at @ np.linalg.solve(gram, at))
        error = residual * np.sqrt(leverage * np.sum(np.square(positive)))
        return cls(t + (at - features) @ slopes, shift, scale, residual, error)


@numpy_function
def recursive_abc_step(
    rng_key: jax.Array,
    kernel: Kernel,
    theta: ArrayLike,
    x: ArrayLike,
    observed: ArrayLike,
    number: int,
    *,
    regularisation: float | None = None,
    tolerance: float = low_rank.TOLERANCE,
) -> np.ndarray:
    r"""One iteration: points that follow the posterior whose prior the given points follow, by kernel ABC and herding.

    The embedding $\sum_j v_j k_\Theta(\cdot, \theta_j)$, $v = (G_X + m \varepsilon I)^{-1} k_X(y)$, with a Gaussian
    $k_\Theta$ whose length scale is the median distance of the points, and weights divided by their sum. Candidates of
    `herd` are the points, and for each that is asked for ten others at a tenth, a third and all of the length scale.

    Args:
        rng_key: Makes the candidates.
        kernel: `k_X`, on outputs.
        theta: `(m, dim)`.
        x: Simulated there, `(m, *event)`.
        observed: `y`, `(*event)`.
        number: How many points come out.
        regularisation: `eps`; `0.01 / sqrt(m)` when left out.
        tolerance: Of the low-rank factor of `G_X`.
    Returns:
        `(number, dim)`, in the order in which they were chosen.
    Raises:
        RuntimeError: If the weights vanish or cancel, or the points come together in one place, because the observation
            lies far from all that was simulated.
    Cost: `m r^2` for a factor of rank `r`, and `11 number^2` for herding.
    References: Kajihara, Kanagawa, Yamazaki & Fukumizu (2018), ICML.
    """
    checks.table("theta", theta, min_rows=2)
    checks.whole("number", number, 1)
    checks.instance("kernel", kernel, Kernel, "a kernel on outputs, such as Gaussian(length_scale)")
    checks.real("x", x)
    checks.real("observed", observed)
    theta, points = np.asarray(theta, np.float64), kernel.points(np.asarray(in_jax_types(x)))
    y = kernel.points(np.asarray(in_jax_types(observed))[None])
    checks.sound("x", points)
    checks.sound("observed", y)
    m = len(theta)
    rows = num_points(points)
    checks.require(rows == m, f"`theta` and `x` must have as many rows; got {m} and {rows}.")
    epsilon = 0.01 / np.sqrt(m) if regularisation is None else regularisation
    fitted = ConditionalMeanEmbedding.fit(kernel, points, epsilon, tolerance=tolerance)
    advice = "Start where the observation is reached, with more simulations or a wider kernel."
    weights = with_unit_sum(fitted.weights(y)[0], "Kernel recursive ABC", advice)
    on_theta, rng = Gaussian(median_heuristic(theta, ties=False)), numpy_rng(rng_key)
    near, steps = rng.integers(m, size=10 * number), rng.normal(size=(10 * number, theta.shape[1]))
    reach = float(np.asarray(on_theta.length_scale)) / np.sqrt(theta.shape[1])
    candidates = np.concatenate([theta, theta[near] + reach * np.resize([0.1, 0.3, 1.0], (10 * number, 1)) * steps])
    values = MeanEmbedding(on_theta, theta, weights)(candidates)
    chosen = np.asarray(herd(on_theta, values, candidates, number))
    places = effective_size(np.bincount(chosen))
    checks.require(
        bool(places >= 2.0),
        f"Kernel recursive ABC: {number} points of an iteration have come together in {places:.1f} places. {advice}",
        checks.EffectiveSampleSizeError,
    )
    return candidates[chosen]
