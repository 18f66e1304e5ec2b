"""What the published form learns, and the simulations that it learns from, as the kernels see them."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme._core import checks
from numpyro_kme._core.solves import Array
from numpyro_kme.embeddings.measures import Measure
from numpyro_kme.kernels.base import Kernel, register
from numpyro_kme.kernels.stationary import Gaussian


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


@register
class TrainingSet:
    """Simulations as the kernels see them.

    Args:
        z: Coordinates, `(m, D)`.
        data: `m` data points: standardised statistics `(m, n)`, or a pytree that the data kernel understands.
        log_heavy_tailed: `log p_0(x_j)` of a heavy-tailed density much wider than the data, `(m,)`; `None` where the
            data have no density.
        measure: The prior in coordinates; only for objectives that need it.
        y: The observation alone, as data of one simulation; only for objectives that need it.
    """

    z: Array
    data: Any
    log_heavy_tailed: Array | None = None
    measure: Measure | None = None
    y: Any = None

    @property
    def is_table(self) -> bool:
        """Whether the data are vectors of statistics."""
        return isinstance(self.data, np.ndarray) and self.data.ndim == 2


def random_subset(training: TrainingSet, size: int) -> TrainingSet:
    """A fixed random choice of simulations where there are many more; what all share in the data stays as it is."""
    total = len(training.z)
    if total <= 1.3 * size:
        return training
    rows = np.random.default_rng(0).permutation(total)[:size]
    choose = lambda leaf: leaf[rows] if np.shape(leaf)[:1] == (total,) else leaf  # noqa: E731
    data, log_heavy_tailed = jax.tree.map(choose, (training.data, training.log_heavy_tailed))
    return replace(training, z=training.z[rows], data=data, log_heavy_tailed=log_heavy_tailed)


def log_integral(kernel: Kernel, data: Any) -> Any:
    """Log of the integral of a data kernel over the observation; `None` where it is not a density over such data."""
    try:
        return kernel.log_integral(int(np.prod(jnp.shape(jax.tree.leaves(data)[-1])[1:])))
    except ValueError:
        return None
