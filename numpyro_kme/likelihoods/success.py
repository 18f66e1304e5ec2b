r"""The probability that a simulation succeeds, learnt where failures are left out.

Weights of the simulations that succeed are a posterior under the prior given success, and a likelihood that is learnt
from these alone is not: it lacks the factor $s(\theta)$, the probability of success. One call with coordinates `z`
succeeds with $s = 1 / (1 + e^{-f(z)})$, where `f` is quadratic; a simulation succeeds if all its calls do.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from scipy import special

from numpyro_kme._core import Array
from numpyro_kme.kernels.base import namespace, register


@register
class Success:
    """The probability that one call succeeds.

    Attributes:
        coefficients: Of `f`: of 1, the coordinates, and their products, `(1 + D + D (D + 1) / 2,)`.
    """

    coefficients: Array

    def log_probability(self, z: Any) -> Any:
        """Its logarithm at points `(..., D)`, `(...)`."""
        xp = namespace(z, self)
        return -xp.logaddexp(0.0, -(_columns(z, xp) @ xp.asarray(self.coefficients).astype(z.dtype)))


def fit_success(
    z: Mapping[str, np.ndarray], draws: Mapping[str, int], succeeded: np.ndarray, width: float = 10.0
) -> dict[str, Success]:
    """Learn from simulations that succeeded and failed, by penalised maximum likelihood; each failure is one of some
    call at some site.

    Args:
        z: Coordinates of the calls at each simulator site, `{site: (m, calls, D)}`.
        draws: How many outputs each of these calls stands for.
        succeeded: Which simulations succeeded, `(m,)`.
        width: Standard deviation of the normal prior of coefficients: steep enough for failures beyond a sharp edge.
    """
    columns = {name: _columns(value, np) for name, value in z.items()}
    ends = np.cumsum([value.shape[-1] for value in columns.values()])

    def loss(w):
        log_s, slopes = np.full(len(succeeded), -1e-12), []
        for name, part in zip(columns, np.split(w, ends[:-1])):
            f = columns[name] @ part
            log_s -= draws[name] * np.logaddexp(0.0, -f).sum(axis=1)
            slopes.append(np.einsum("mc,mcp->mp", draws[name] * special.expit(-f), columns[name]))
        value = np.sum(np.where(succeeded, log_s, np.log(-np.expm1(log_s))))
        slope = np.where(succeeded, 1.0, -1.0 / np.expm1(-log_s)) @ np.concatenate(slopes, axis=1)
        return 0.5 * np.sum(np.square(w / width)) - value, w / width**2 - slope

    found = scipy.optimize.minimize(loss, np.zeros(ends[-1]), jac=True, method="L-BFGS-B").x
    return {name: Success(part) for name, part in zip(columns, np.split(found, ends[:-1]))}


def _columns(z: Any, xp: Any) -> Any:
    first, second = np.triu_indices(z.shape[-1])
    return xp.concatenate([xp.ones_like(z[..., :1]), z, z[..., first] * z[..., second]], axis=-1)
