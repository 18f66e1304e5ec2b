"""Bayesian kernel learning as a NumPyro model, for the posterior of a length scale instead of its best value."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from numpyro_kme._core import checks
from numpyro_kme.kernels import median_heuristic
from numpyro_kme.kernels.kernel_learning import log_pseudo_likelihood


def length_scale_model(x: ArrayLike, landmarks: ArrayLike) -> None:
    r"""The pseudo-likelihood of Bayesian kernel learning with priors on length scale and noise: a model for NUTS.

    $\log s \sim U(\log 10^{-3} m, \log m)$ with `m` the median heuristic, $\log \tau \sim N(\log 0.3, 1)$.
    Deterministic sites `length_scale` and `noise` hold `s` and `tau`; `eta` is the root mean squared distance of the
    data from their mean.

    Args:
        x: Data `(n, D)`; centred here.
        landmarks: `(q, D)`, such as `farthest_point_design(key, x, 50)`, in the units of `x`.
    References: Flaxman et al. (2016), UAI.
    """
    checks.matrix("x", x, min_rows=2)
    checks.matrix("landmarks", landmarks, columns=np.shape(x)[1])
    table = np.asarray(x, np.float64)
    centre, median = table.mean(axis=0), float(median_heuristic(table))
    reach = float(np.sqrt(np.mean(np.sum(np.square(table - centre), axis=1))))
    # least length scale, in median heuristics
    log_scale = numpyro.sample("log_length_scale", dist.Uniform(np.log(1e-3 * median), np.log(median)))
    log_noise = numpyro.sample("log_noise", dist.Normal(np.log(0.3), 1.0))
    scale = numpyro.deterministic("length_scale", jnp.exp(log_scale))
    noise = numpyro.deterministic("noise", jnp.exp(log_noise))
    at = jnp.asarray(table - centre), jnp.asarray(np.asarray(landmarks, np.float64) - centre)
    numpyro.factor("pseudo_likelihood", log_pseudo_likelihood(*at, scale, noise, reach))
