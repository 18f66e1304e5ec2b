"""The learning rate of a generalised posterior, so that its covariance is about that of the posterior bootstrap."""

import numpy as np
from scipy.special import ndtri

from numpyro_kme._core import checks, door, frozen
from numpyro_kme.engines.posterior_bootstrap import PosteriorBootstrap


@frozen
class WeightCalibration:
    """Learning rates for `handlers.generalized_bayes`.

    Attributes:
        by_bootstrap: The weight whose normal approximation is nearest to the loss-likelihood bootstrap.
        by_coverage: The weight at which intervals of probability `level` cover the estimate in that fraction of the
            bootstrap replicates.
        level: See `by_coverage`.
        num_replicates: Replicates that converged, which the others rest on.
    """

    by_bootstrap: float
    by_coverage: float
    level: float
    num_replicates: int


@door
def calibrate_weight(bootstrap: PosteriorBootstrap, *, level: float = 0.9) -> WeightCalibration:
    r"""Calibrate the weight of prior x `exp(-weight n loss)` by the loss-likelihood bootstrap and by coverage.

    With Hessian `H` of the loss at its minimum `u`, the generalised posterior is about `N(u, (weight n H)^-1)`;
    replicates `u_b` minimise the loss on randomly weighted data. The first answer makes the two distributions as alike
    as one number can, `weight = D / (n tr(H Cov(u_b)))`, the minimum of their Kullback-Leibler divergence; with one
    parameter it is the rule of Lyddon, Holmes and Walker. The second is the weight at which the intervals `u_b +- z
    sd`, of probability `level`, cover `u` in that fraction of the replicates, averaged over parameters. Both are on the
    unconstrained scale, both ignore the prior, and both are for the loss against the model's distribution itself
    (`CommonNoise` with many nodes).

    Args:
        bootstrap: One that has been run with the loss of the generalised posterior, of 400 samples or so. Data sets of
            one size that one engine runs in turn share its compiled programs.
        level: Probability of the intervals.
    Raises:
        ValueError: If `level` is not between 0 and 1, or fewer than half of the replicates converged.
    References: Lyddon, Holmes and Walker (2019), Biometrika 106; Syring and Martin (2019), Biometrika 106.
    Example:
        >>> bootstrap = PosteriorBootstrap(model, MMD(), num_samples=400)
        >>> bootstrap.run(jax.random.key(0), x)
        >>> calibrate_weight(bootstrap).by_bootstrap
    """
    checks.fraction("level", level)
    checks.instance("bootstrap", bootstrap, PosteriorBootstrap, "a PosteriorBootstrap that has been run")
    (data,), found = bootstrap.posterior.groups["observed_data"].values(), bootstrap.posterior.replicates
    size, converged = len(data), np.asarray(found.converged)
    offsets = (found.u - found.minimum)[converged]
    enough = 2 * len(offsets) >= len(converged) and len(offsets) > offsets.shape[1]
    checks.require(enough, f"Only {len(offsets)} of {len(converged)} replicates converged: look at the run first.")
    hessian = np.asarray(found.hessian)
    weight = offsets.shape[1] / (size * np.trace(hessian @ (offsets.T @ offsets / len(offsets))))
    sd = np.sqrt(np.diag(np.linalg.inv(hessian)) / size)
    reach = np.quantile(np.abs(offsets) / sd, level) / ndtri(0.5 + 0.5 * level)  # at the weight 1
    return WeightCalibration(float(weight), float(reach**-2), level, len(offsets))
