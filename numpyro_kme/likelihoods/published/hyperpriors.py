"""Learning the prior itself: the normal measure under which an observation is most probable."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from numpyro_kme._core import checks
from numpyro_kme._core.host import on_host
from numpyro_kme.embeddings.measures import Normal
from numpyro_kme.likelihoods.base import LikelihoodAt, log_positive_part

LOG_SMALLEST = -30.0


@on_host
def learn_normal(likelihood: LikelihoodAt, start: Normal, *, smallest: float = 0.2, largest: float = 5.0) -> Normal:
    r"""Maximise the marginal likelihood `log q(y) = log int q(y | z) N(z | m, diag(sd^2)) dz` over `m` and `sd`.

    The surrogate stays as it is: simulations may come from any proposal, so a prior is learnt without simulating again.
    With one observation the best prior is narrow and sits on the likelihood's maximum; a lognormal prior of scale 1 on
    each `sd`, centred at the start, and the bounds hold it back. Means stay within the simulated region.

    Args:
        likelihood: `surrogate.at(y)` of the published form.
        start: Where the search starts, with a diagonal covariance: the prior that was simulated from.
        smallest, largest: Bounds of `sd`, as factors of the start's.
    Returns:
        The learnt measure.
    Raises:
        ValueError: If the likelihood is not a sum of kernels.
    """
    terms = likelihood.expansion()
    if terms is None:
        raise ValueError("A prior is learnt in closed form, from the published form of the surrogate (`KernelMeans`).")
    variances = np.diagonal(np.asarray(start.covariance))
    checks.require(
        np.allclose(start.covariance, np.diag(variances)),
        "`start` must have a diagonal covariance; only that is learnt.",
    )
    mean, sds, points = np.array(start.mean, np.float64), np.sqrt(variances), np.asarray(terms.points)
    dim = len(mean)
    bounds = [*zip(points.min(0), points.max(0), strict=True), *[(np.log(smallest), np.log(largest))] * dim]

    begin = np.clip(np.concatenate([mean, np.zeros(dim)]), *np.array(bounds).T)
    found = minimize(lambda at: _loss(terms, sds, at), begin, jac=True, method="L-BFGS-B", bounds=bounds)
    return Normal(found.x[:dim], np.diag(np.square(sds * np.exp(found.x[dim:]))))


@jax.jit
@partial(jax.value_and_grad, argnums=2)
def _loss(terms, sds, at):
    mean, log_factors = jnp.split(at, 2)
    measure = Normal(mean, jnp.diag(jnp.square(sds * jnp.exp(log_factors))))
    marginal = terms.weights @ measure.mean_embedding(terms.kernel, terms.points)
    return 0.5 * jnp.sum(jnp.square(log_factors)) - log_positive_part(marginal, LOG_SMALLEST)
