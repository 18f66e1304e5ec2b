r"""A neuron that fires, or not, in 100 bins, driven by a filter of white noise; summed up by sufficient statistics.

$$z_t \sim \mathrm{Bernoulli}\big(\sigma(v_t^\top \theta)\big),\qquad x = V^\top z$$

where row $v_t$ of the design holds a one and the last nine values of the stimulus. The prior of the nine filter weights
favours small second differences.

References: Lueckmann et al. (2021), AISTATS, whose settings and stimulus these are; white noise, fixed by a seed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_kme._core import full_precision
from numpyro_kme.models.simulator import Simulator

PARAMETERS = ("offset", *(f"weight of lag {lag}" for lag in range(9)))
"""Names of the ten, in order."""
BINS = 100
"""In which the neuron fires or not."""


@functools.cache
def design():
    """The matrix `V`, `(100, 10)`: ones, and the stimulus at lags 0 to 8."""
    stimulus = np.random.RandomState(42).randn(BINS)
    return np.column_stack([np.ones(BINS), *(np.r_[np.zeros(lag), stimulus[: BINS - lag]] for lag in range(9))])


@full_precision
def spikes(rng_key, theta):
    """Sums of the rows of the design in which the neuron fires, `(10,)`, at `theta` `(10,)`."""
    return jax.random.bernoulli(rng_key, jax.nn.sigmoid(design() @ theta)).astype(theta.dtype) @ design()


def prior():
    """Normal: variance 2 of the offset, and a smooth filter."""
    difference = np.eye(9) - np.eye(9, k=-1)
    root = difference @ difference + np.diag(np.sqrt(np.arange(9) / 9.0))
    precision = np.zeros((10, 10))
    precision[0, 0], precision[1:, 1:] = 0.5, root.T @ root
    return dist.MultivariateNormal(jnp.zeros(10), scale_tril=np.linalg.cholesky(np.linalg.inv(precision)))


def model(x=None):
    """Weights `theta` and statistics `x`, `(10,)`."""
    theta = numpyro.sample("theta", prior())
    numpyro.sample("x", Simulator(spikes, theta), obs=x)
