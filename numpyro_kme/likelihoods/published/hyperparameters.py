"""What the published form learns, and the simulations that it learns from; learning the prior itself."""

from dataclasses import replace
from math import log
from typing import Any

import jax
import numpy as np
import scipy

from numpyro_kme._core import checks
from numpyro_kme._core.display import frozen
from numpyro_kme._core.host import numpy_function
from numpyro_kme._core.solves import Array
from numpyro_kme.embeddings.measures import Measure, Normal, NormalMixture
from numpyro_kme.kernels.base import Kernel, namespace, register
from numpyro_kme.kernels.stationary import Gaussian
from numpyro_kme.likelihoods.base import LikelihoodAt


@register
class Hyperparameters:
    """Everything the published form learns.

    Args:
        parameter_kernel: `l` on coordinates, length scales `beta` `(D,)`.
        data_kernel: `k` on standardised statistics (length scales `eps`), or on whatever the data are.
        regularisation: `lam`, for `(L + m lam I)^-1`.
    """

    parameter_kernel: Gaussian
    data_kernel: Kernel
    regularisation: Array

    def __post_init__(self):
        checks.positive("regularisation", self.regularisation)


@frozen
class TrainingSet:
    """Simulations as the kernels see them.

    Args:
        z: Coordinates, `(m, D)`.
        data: `m` data points: standardised statistics `(m, n)`, or a pytree that the data kernel understands.
        measure: The prior in coordinates; only for objectives that need it.
        y: The observation alone, as data of one simulation; only for objectives that need it.
    """

    z: np.ndarray
    data: Any
    measure: Measure | None = None
    y: Any = None

    @property
    def is_table(self) -> bool:
        """Tell whether the data are vectors of statistics."""
        return isinstance(self.data, np.ndarray) and self.data.ndim == 2

    def random_subset(self, size: int) -> "TrainingSet":
        """A fixed random choice of simulations where there are many more; what all share in the data stays as it is."""
        total = len(self.z)
        if total <= 1.3 * size:
            return self
        rows = np.random.default_rng(0).permutation(total)[:size]
        choose = lambda leaf: leaf[rows] if np.shape(leaf)[:1] == (total,) else leaf  # noqa: E731
        return replace(self, z=self.z[rows], data=jax.tree.map(choose, self.data))


@numpy_function
def log_kernels(kernel: Kernel, x: Any, y: Any = None) -> np.ndarray:
    """Log kernels `(n, m)` of concrete points, float64; a kernel of a user's runs in the session's precision."""
    return np.asarray(kernel.log_gram(x, y), np.float64)


def log_integral(kernel: Kernel, data: Any) -> Any:
    """Log of the integral of a data kernel over the observation; `None` where it is not a density over such data."""
    try:
        found = kernel.log_integral(int(np.prod(np.shape(jax.tree.leaves(data)[-1])[1:])))
    except ValueError:
        return None
    return np.asarray(found, np.float64) if checks.is_concrete(found) else found


def log_positive_part(value: Any, log_floor: Any) -> Any:
    """Logarithm of `positive_part(value, exp(log_floor))`, `log(c / 2) + arcsinh(v / c)`, safe at every magnitude.

    Its gradient is finite everywhere: that of `log v` where `v` is large, and that of the floor where `v` vanishes.
    """
    xp = namespace(value, log_floor)
    value, log_floor = xp.asarray(value), xp.asarray(log_floor)
    far = xp.abs(value) > xp.exp(log_floor)
    small = log_floor - log(2.0) + xp.arcsinh(xp.where(far, 0.0, value * xp.exp(xp.minimum(-log_floor, 80.0))))
    log_size = xp.log(xp.where(far, xp.abs(value), 1.0))
    ratio = xp.where(far, xp.exp(xp.where(far, log_floor - log_size, 0.0)), 1.0)
    log_half = xp.log1p(xp.sqrt(1.0 + xp.square(ratio))) - log(2.0)
    above = log_size + log_half
    below = 2.0 * (log_floor - log(2.0)) - log_size - log_half
    return xp.where(far, xp.where(value > 0, above, below), small)


SD_FACTORS = 0.2, 5.0
"""Bounds of each learnt `sd`, as factors of the start's."""


def learn_normal(likelihood: LikelihoodAt, start: NormalMixture) -> NormalMixture:
    r"""Maximise the marginal likelihood `log q(y) = log int q(y | z) N(z | m, diag(sd^2)) dz` over `m` and `sd`.

    The surrogate stays as it is: simulations may come from any proposal, so a prior is learnt without simulating again.
    With one observation the best prior is narrow and sits on the likelihood's maximum; a lognormal prior of scale 1 on
    each `sd`, centred at the start, and the bounds hold it back. Means stay within the simulated region.

    Args:
        likelihood: `surrogate.at(y)` of the published form.
        start: Where the search starts, a normal with a diagonal covariance: the prior that was simulated from.
    Returns:
        The learnt measure.
    Raises:
        ValueError: If the likelihood is not a sum of kernels.
    """
    terms = likelihood.expansion()
    if terms is None:
        raise checks.explained(
            "A prior is learnt in closed form, from the published form of the surrogate (`KernelMeans`)."
        )
    mean, covariance = (np.asarray(moment, np.float64) for moment in start.moments())
    variances, points, dim = np.diagonal(covariance), np.asarray(terms.points), len(mean)
    diagonal = np.allclose(covariance, np.diag(variances))
    checks.require(diagonal, "`start` must have a diagonal covariance; only that is learnt.")
    squared_length = np.square(terms.kernel.length_scale)

    def loss(at):
        mean, log_factors = np.split(at, 2)
        widened = squared_length + variances * np.exp(2.0 * log_factors)
        logs = np.square(points - mean) @ (-0.5 / widened) + 0.5 * np.sum(np.log(squared_length / widened))
        return 0.5 * np.sum(np.square(log_factors)) - log_positive_part(terms.weights @ np.exp(logs), -30.0)

    bounds = [*zip(points.min(0), points.max(0), strict=True), *[tuple(np.log(SD_FACTORS))] * dim]
    begin = np.clip(np.concatenate([mean, np.zeros(dim)]), *np.array(bounds).T)
    found = scipy.optimize.minimize(loss, begin, method="L-BFGS-B", bounds=bounds).x
    return Normal(found[:dim], np.diag(variances * np.exp(2.0 * found[dim:])))
