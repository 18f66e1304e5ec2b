"""Out-of-distribution check: whether an observation lies far outside all simulations."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core.host import on_host
from numpyro_kme._core.solves import Array
from numpyro_kme.likelihoods.statistics import StatisticsTransform

MARGIN = 4.5
"""Log kernel value that is never far: three length scales of a Gaussian kernel."""


def log_nearest_quantile(log_gram: jax.Array) -> jax.Array:
    """First percentile, over simulations, of the log data kernel at the nearest other one, relative to itself.

    Args:
        log_gram: `(m, m)`, `log k(x_i, x_k)` in row `i` and column `k`.
    """
    others = jnp.where(jnp.eye(len(log_gram), dtype=bool), -jnp.inf, log_gram)
    return jnp.quantile(jnp.max(others, axis=1) - jnp.diagonal(log_gram), 0.01)


def warn_if_out_of_distribution(
    log_nearest: Array, usual: Array, transform: StatisticsTransform | None, data: Any, y: Any
) -> None:
    """Warn if the observation is much further from every simulation than simulations are from each other.

    In squared distances: further than nine more than twice the usual one, `log_nearest_quantile`; or, in any one
    statistic, further outside the simulated range than a quarter of it, on the standardised scale.

    Args:
        log_nearest: Log data kernel at the simulation nearest to the observation, relative to the observation itself.
        usual: `log_nearest_quantile` of the simulations.
        transform: Raw statistics to standardised ones; without, single statistics are not looked at.
        data: Standardised statistics of the simulations, or their extremes, `(..., n)`.
        y: The observation.
    """
    advice = "The posterior there rests on no simulation: check the simulator and the prior, or simulate more."
    outside = [] if transform is None else _outside(transform, data, y)
    if outside:
        names = ", ".join(
            f"{i} (observed {value:.6g}, simulated {low:.6g} to {high:.6g})" for i, value, low, high in outside
        )
        warnings.warn(f"The observation lies far outside all simulations in statistics {names}. {advice}", stacklevel=4)
    elif float(log_nearest) < 2.0 * min(float(usual), 0.0) - MARGIN:
        warnings.warn(
            f"The observation lies far outside all simulations: log data kernel {float(log_nearest):.3g} at the "
            f"nearest one, where 99 % of the simulations have a neighbour above {float(usual):.3g}. {advice}",
            stacklevel=4,
        )


def _outside(transform, data, y):
    lowest, highest = np.min(data, axis=0), np.max(data, axis=0)
    standardised = on_host(StatisticsTransform.forward)(transform, y)
    beyond = np.maximum(lowest - standardised, standardised - highest) > 0.25 * (highest - lowest)
    if not beyond.any():
        return []
    ends = on_host(StatisticsTransform.inverse)(transform, np.stack([lowest, highest]))
    return [(transform.kept[i], np.asarray(y)[transform.kept[i]], *ends[:, i]) for i in np.flatnonzero(beyond)]
