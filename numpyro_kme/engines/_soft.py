"""Discrepancies between simulations and an observation, and the soft weights that they give."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp

from numpyro_kme import _calls, _checks, _linalg
from numpyro_kme.kernels.base import Kernel
from numpyro_kme.losses.base import Loss
from numpyro_kme.losses.mmd import MMD
from numpyro_kme.mmd_estimators import Estimator

SHARE, LEAST = 0.02, 50.0
"""By default this share of the simulations carries the weights, at least so many."""

Discrepancy = Callable[[Any, Any], Any]


def checked_discrepancy(given: Any) -> Estimator | Loss | Discrepancy | None:
    """An estimator, a loss between samples or a function; not a kernel, which is larger the more alike its arguments are."""
    _checks.require(
        not isinstance(given, Kernel | MMD),
        f"`discrepancy` must be less where samples are more alike; got {type(given).__name__}. Use the estimator Quadratic(kernel).",
        TypeError,
    )
    _checks.require(
        given is None or callable(given) or isinstance(given, Loss),
        f"`discrepancy` must be a function of a simulation and the observation, an estimator of the MMD, or a loss such as "
        f"Wasserstein(); got {given!r:.200}.",
        TypeError,
    )
    return given


def on_samples(function: Any) -> bool:
    """Whether a discrepancy compares samples `(n, d)`."""
    return isinstance(function, Estimator | Loss)


def discrepancies(function: Estimator | Loss | Discrepancy, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`function(x_i, y)` for all simulations, `(m,)`, in float64: compiled if JAX can trace it, one by one if not."""
    with _linalg.float64():
        data = _linalg.in_present_precision((x, y))
        if isinstance(function, Loss):
            found = _losses(function, *data)
        elif isinstance(function, Estimator):
            found = _estimates(*_linalg.in_present_precision((function, x, y)))
        else:
            try:
                found = _called(function, x, y, data)
            except Exception as error:
                raise ValueError(f"The discrepancy `{_calls.name(function)}` failed: {error}") from error
    found = np.asarray(found, np.float64)
    _checks.require(
        found.shape == (len(x),),
        f"The discrepancy must give one number for a simulation and the observation; it gave shape {found.shape[1:]}.",
    )
    _checks.finite("discrepancies", found, "Check the discrepancy and the simulations.")
    return found


def _called(function, x, y, data):
    try:
        return _compiled(function, *data)
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


def soft_weights(distance: np.ndarray, epsilon: float | None) -> tuple[np.ndarray, float]:
    """`exp(-distance / epsilon)`, normalised in logs, and the `epsilon` that was used.

    The default is the one at which the effective sample size is `max(50, m / 50)`. It grows with `epsilon`, so there is one.
    """
    if epsilon is None:
        epsilon = _for_effective_size(distance, min(max(LEAST, SHARE * len(distance)), 0.5 * len(distance)))
    logs = -(distance - distance.min()) / epsilon
    return np.exp(logs - logsumexp(logs)), float(epsilon)


def _for_effective_size(distance: np.ndarray, size: float) -> float:
    from_least = distance - distance.min()
    _checks.require(
        bool(from_least.max() > 0),
        "The discrepancies of all simulations are equal: they say nothing of the parameters.",
    )

    def excess(log_epsilon):
        logs = -from_least / np.exp(log_epsilon)
        return 2.0 * logsumexp(logs) - logsumexp(2.0 * logs) - np.log(size)

    scale = np.log(from_least.max())
    low, high = scale - 60.0, scale + 5.0
    return float(np.exp(low if excess(low) >= 0 else brentq(excess, low, high)))
