"""Approximate Bayesian computation without a model: discrepancies from an observation, weights of simulations."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import logsumexp

from numpyro_kme._core import checks
from numpyro_kme._core.checks import EffectiveSampleSizeError
from numpyro_kme._core.host import on_host
from numpyro_kme.embeddings.mmd import Estimator
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.losses.base import Loss
from numpyro_kme.losses.mmd import MMD

Discrepancy = Callable[[Any, Any], Any]

ACCEPTED, LEAST = 0.02, 50.0
"""Default acceptance rate, and for soft weights the effective sample size relative to all, but at least so many."""
LEAST_EFFECTIVE_SIZE = 10.0


class SoftWeights(NamedTuple):
    """Soft weights.

    Attributes:
        weights: `(m,)`, with a sum of one.
        epsilon: The width that was used.
    """

    weights: np.ndarray
    epsilon: float


class RejectionWeights(NamedTuple):
    """Accepted simulations.

    Attributes:
        weights: `(m,)`, equal on those that are accepted, with a sum of one.
        threshold: The largest discrepancy that was accepted.
    """

    weights: np.ndarray
    threshold: float


@on_host
def discrepancies_to(observed: Any, simulated: Any, discrepancy: Estimator | Loss | Discrepancy) -> np.ndarray:
    r"""Discrepancies $d(x_i, y)$ of simulated outputs from an observed one, `(m,)`.

    Args:
        observed: `y`, `(*event)`; for estimators and losses a data set `(n, dim)`.
        simulated: `x`, `(m, *event)`.
        discrepancy: An estimator of the squared MMD such as `Quadratic(kernel)`, a loss between samples such as
            `Wasserstein()`, or a function of a simulation and the observation that gives one number.
    Raises:
        TypeError: If `discrepancy` is none of these; a kernel is not one, since it is larger where samples are more
            alike.
        ValueError: If the discrepancy fails, gives anything but one finite number, or shapes disagree.
    Cost: `m` discrepancies, compiled if JAX can trace the function, one by one in Python if not.
    """
    check_discrepancy(discrepancy)
    x, y = _outputs(simulated, observed)
    checks.require(
        not isinstance(discrepancy, Estimator | Loss) or x.shape[2:] == y.shape[1:],
        "The points of the data sets of `simulated` and `observed` must be alike; got shapes "
        f"{x.shape[2:]} and {y.shape[1:]}.",
    )
    if isinstance(discrepancy, Loss):
        found = _losses(discrepancy, x, y)
    elif isinstance(discrepancy, Estimator):
        found = _estimates(discrepancy, x, y)
    else:
        try:
            found = _called(discrepancy, x, y)
        except Exception as error:
            name = getattr(discrepancy, "__name__", type(discrepancy).__name__)
            raise ValueError(f"The discrepancy `{name}` failed: {error}") from error
    found = np.asarray(found, np.float64)
    checks.require(
        found.shape == (len(x),),
        f"The discrepancy must give one number for a simulation and the observation; it gave shape {found.shape[1:]}.",
    )
    checks.finite("discrepancies", found, "Check the discrepancy and the simulations.")
    return found


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
    size = float(np.sum(np.square(weights)))
    return float(np.square(weights.sum())) / size if size > 0 else 0.0


def with_unit_sum(weights: np.ndarray, name: str, advice: str) -> np.ndarray:
    """Weights divided by their sum, unless they vanish or cancel.

    Raises:
        EffectiveSampleSizeError: If they do.
    """
    weights = np.asarray(weights, np.float64)
    total, size = float(weights.sum()), float(np.abs(weights).sum())
    if not (np.isfinite(size) and size > 0):
        raise EffectiveSampleSizeError(
            f"{name}: the weights of all {len(weights)} simulations are zero: none comes near the observation. {advice}"
        )
    if total <= 1e-6 * size:
        raise EffectiveSampleSizeError(
            f"{name}: the signed weights sum to {total:.2g} where their sizes sum to {size:.2g}, so they are no "
            "posterior: the observation lies away from the simulations, or the regularisation is too small. "
            f"{advice}"
        )
    return weights / total


def check_discrepancy(given: Any) -> None:
    """Require an estimator, a loss between samples or a function; not a kernel, which is larger for like samples."""
    checks.require(
        not isinstance(given, Kernel | MMD),
        f"`discrepancy` must be less where samples are more alike; got {type(given).__name__}. Use the estimator "
        "Quadratic(kernel).",
        TypeError,
    )
    checks.require(
        callable(given) or isinstance(given, Loss),
        "`discrepancy` must be a function of a simulation and the observation, an estimator of the MMD, or a loss such "
        f"as Wasserstein(); got {given!r:.200}.",
        TypeError,
    )


def check_acceptance(quantile: float | None, threshold: float | None) -> None:
    """Require at most one of the two, in its range."""
    for name, value in {"quantile": quantile, "threshold": threshold}.items():
        if value is not None:
            checks.number(name, value)
    checks.require(quantile is None or threshold is None, "Give `quantile` or `threshold`, not both.")
    checks.require(quantile is None or 0 < quantile < 1, f"`quantile` must lie between 0 and 1; got {quantile}.")
    checks.require(threshold is None or bool(np.isfinite(threshold)), f"`threshold` must be finite; got {threshold}.")


def _outputs(simulated, observed) -> tuple[np.ndarray, np.ndarray]:
    for name, value in {"simulated": simulated, "observed": observed}.items():
        checks.sound(name, value)
    x, y = np.asarray(simulated, np.float64), np.asarray(observed, np.float64)
    checks.require(
        x.ndim >= 1 and len(x) >= 1 and x.ndim == y.ndim + 1,
        f"`simulated` must be outputs (m, *event) of the kind of `observed` (*event); got shapes {x.shape} and "
        f"{y.shape}.",
    )
    return x, y


def _checked(name, values, advice="Check the discrepancy and the simulations.") -> np.ndarray:
    checks.concrete(**{name: values})
    checks.sound(name, values, advice)
    values = np.asarray(values, np.float64)
    checks.require(
        values.ndim == 1 and len(values) >= 1,
        f"`{name}` must have shape (m,), one for each simulation; got {values.shape}.",
    )
    return values


def _called(function, x, y):
    try:
        return _compiled(function, x, y)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        return np.stack([np.asarray(function(one, y), np.float64) for one in x])


@jax.jit
def _estimates(estimator, x, y):
    return jax.lax.map(lambda one: estimator(one, y), x)


@partial(jax.jit, static_argnums=0)
def _losses(loss, x, y):
    equal = [jnp.full(len(sample), 1.0 / len(sample)) for sample in (x[0], y)]
    return jax.lax.map(lambda one: loss.value(one, equal[0], y, equal[1]), x)


@partial(jax.jit, static_argnums=0)
def _compiled(function, x, y):
    return jax.lax.map(lambda one: jnp.asarray(function(one, y)), x)


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
    return float(np.exp(low if excess(low) >= 0 else brentq(excess, low, high)))
