"""Whether a product of densities of single residuals says more of held-out simulations than their joint embedding."""

from dataclasses import replace
from functools import partial

import numpy as np
from scipy.special import expit, logit

from numpyro_kme._core.threads import in_parallel
from numpyro_kme.kernels.gram import squared_distances_on_host
from numpyro_kme.likelihoods.residual import density
from numpyro_kme.likelihoods.residual.bandwidth_learning import (
    HeldOutDensities,
    HeldOutWeights,
    learn_bandwidths,
    log_defensive_mixture,
)
from numpyro_kme.likelihoods.residual.density import Bandwidths
from numpyro_kme.likelihoods.residual.mixture import log_heavy_tailed
from numpyro_kme.likelihoods.residual.product import ProductDensity

PAIRS, TRIED = 350, 300
"""Bandwidths of single residuals are learnt from so many simulations, and so many say whether it is worth a try; all
that bandwidths are learnt from say whether it is."""

TRIED_EPS = 0.25
"""Bandwidth of the kernels that say so."""

WORTH, SIGNIFICANT = 0.005, 3.0
"""Improvement of the held-out log density, in nats and in its standard errors, that the product has to make: counts
are a little skewed, which moves posteriors where some of many are out in their tails."""


def fit_product(
    z: np.ndarray, residuals: np.ndarray, few: tuple[np.ndarray, np.ndarray], together: HeldOutDensities, steps: int
) -> tuple[ProductDensity | None, float]:
    """The product, mixed with the joint embedding as held-out densities ask for, and what that adds to these; None and
    0 where it is not worth its cost.

    Hyperparameters are those of each residual by itself; the weights, which all share, have the medians.

    Args:
        z: Coordinates, `(m, D)`.
        residuals: Held-out decorrelated residuals, `(m, n)`.
        few: Some of both, in a random order.
        together: Their held-out densities by the joint embedding.
        steps: Iterations of the search.
    Cost: `n` kernels for each pair of 300 simulations; where more is learnt, `n` searches with 350, as many kernels
        for each pair of `few`, and `m min(m, 4000) n`.
    """
    points, some = few
    n, held_out = residuals.shape[1], together.log_densities().astype(np.float64)
    tried = alone(some[:TRIED], together.weights.positive[:TRIED, :TRIED])
    if n == 1 or np.mean(tried - held_out[:TRIED]) < WORTH:
        return None, 0.0
    columns = [some[:, i : i + 1] for i in range(n)]
    learnt = in_parallel(partial(learn_bandwidths, points[:PAIRS], steps=steps), [own[:PAIRS] for own in columns])
    beta, lam = (np.median([getattr(own, name) for own in learnt]) for name in ("beta", "lam"))
    shared = [replace(own, beta=beta, lam=lam) for own in learnt]
    weights = HeldOutWeights.of(shared[0], points)
    scores = [HeldOutDensities.of(own, weights, column) for own, column in zip(shared, columns)]
    gap = np.sum([score.log_densities() for score in scores], axis=0) - held_out
    proportion = 0.5
    for _ in range(100):  # expectation-maximisation; half a simulation each way is the prior
        proportion = (expit(gap + logit(proportion)).sum() + 0.5) / (len(gap) + 1.0)
    added = np.logaddexp(np.log1p(-proportion), np.log(proportion) + gap)
    if added.mean() < max(WORTH, SIGNIFICANT * added.std() / np.sqrt(len(added))):
        return None, 0.0
    product = ProductDensity(
        density.fit_weights(z, shared[0]),
        residuals,
        np.exp(np.concatenate([own.eps for own in shared])),
        np.stack([density.local_factors(residuals[:, [i]], own) for i, own in enumerate(shared)], axis=1),
        np.array([score.heavy_tailed_weight() for score in scores]),
        np.array(proportion),
    )
    return product, float(added.mean())


def alone(residuals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Held-out log densities `(m,)` of residuals `(m, n)` by a product of kernel densities of bandwidth `TRIED_EPS`,
    each in a defensive mixture, with held-out weights `(m, m)` up to factors."""
    total = np.zeros(len(residuals))
    weights, one = weights / weights.sum(axis=1, keepdims=True), Bandwidths(np.log([TRIED_EPS]), 0.0, 0.0, 0.0)
    for column in residuals.T[:, :, None]:
        logs = density.log_kernels(squared_distances_on_host(*density.scaled_pairs(column, one)), 0.0, one)
        np.fill_diagonal(logs, -np.inf)
        total += log_defensive_mixture(density.log_mixture(logs, weights)[0], log_heavy_tailed(column))
    return total
