"""Learning the hyperparameters of the residuals' density by its held-out log score, and that score itself."""

from math import log, pi
from typing import NamedTuple

import numpy as np

from numpyro_kme.likelihoods.residual.bandwidths import DEFENSIVE, Bandwidths
from numpyro_kme.likelihoods.residual.descent import ENOUGH, descend
from numpyro_kme.likelihoods.residual.held_out_density import HeldOutDensities, log_defensive_mixture

PRIOR_COUNT, LARGEST_WEIGHT = 0.05, 0.2
"""The heavy-tailed weight follows the held-out simulations, and so many more that are of that component; its bound."""


def learn_bandwidths(z: np.ndarray, residuals: np.ndarray, subset: int, steps: int) -> Bandwidths:
    """Maximise the held-out log density of the residuals, plus log priors, on at most `subset` simulations."""
    n, given = residuals.shape[1], _chosen(z, residuals, subset)
    start, low, high = Bandwidths.around(n, (0.5, 0.02, 0.98), (5.0, 0.3, 200.0), (0.1, 1e-3, 10.0), (0.1, 0.0, 0.5))
    size = float(len(given[0]))
    curvature = Bandwidths(np.full(n, size), 5.0, 5.0, 4.0 * size)
    return descend(loss, start, (low, high), steps, *given, curvature=curvature, enough=ENOUGH * n)


def _chosen(z: np.ndarray, residuals: np.ndarray, subset: int) -> tuple[np.ndarray, np.ndarray]:
    """The simulations that are learnt from, in float32.

    Kernels and their sums need no more, and the ridge is at least a thousandth of `m`.
    """
    rows = np.random.default_rng(0).permutation(len(z))[:subset]
    return z[rows].astype(np.float32), residuals[rows].astype(np.float32)


def loss(bandwidths: Bandwidths, z: np.ndarray, residuals: np.ndarray) -> tuple[float, Bandwidths]:
    """Minus the held-out log density and the log prior, and its gradient; NaN where `K + m lam I` has no factor."""
    found = HeldOutDensities.of(bandwidths, z, residuals)
    penalty, slope = bandwidths.penalty()
    gradient = found.gradient()
    value = penalty - float(np.sum(found.log_densities()))
    return value, Bandwidths(
        slope.eps - gradient.eps, slope.beta - gradient.beta, slope.lam - gradient.lam, -gradient.sensitivity
    )


class HeldOutScores(NamedTuple):
    """Log densities of the residuals that were learnt from.

    Attributes:
        mixture: Held-out log densities of the embedding, `(m,)`.
        heavy_tailed: Log densities of the heavy-tailed component, `(m,)`.
        normal: Log densities of independent standard normals, `(m,)`.
    """

    mixture: np.ndarray
    heavy_tailed: np.ndarray
    normal: np.ndarray

    @classmethod
    def of(cls, bandwidths: Bandwidths, z: np.ndarray, residuals: np.ndarray, subset: int) -> "HeldOutScores":
        """With the bandwidths that were learnt."""
        z, residuals = _chosen(z, residuals, subset)
        found = HeldOutDensities.of(bandwidths, z, residuals)
        return cls(found.mixture, found.heavy_tailed, -0.5 * np.sum(np.square(residuals) + log(2.0 * pi), axis=1))

    def improvement(self) -> float:
        """Mean held-out log density, with the heavy-tailed component, over that of independent standard normals."""
        return float(np.mean(log_defensive_mixture(self.mixture, self.heavy_tailed) - self.normal))

    def heavy_tailed_weight(self) -> float:
        """Weight `w` of the heavy-tailed component that held-out simulations ask for, by expectation-maximisation.

        The prior is worth `PRIOR_COUNT` simulations that the heavy-tailed component explains, so that `w` is positive
        and falls as `1 / m` where the embedding explains all.
        """
        gap, weight = self.heavy_tailed.astype(np.float64) - self.mixture, DEFENSIVE
        for _ in range(100):
            own = 1.0 / (1.0 + np.exp(np.minimum(np.log1p(-weight) - np.log(weight) - gap, 700.0)))
            weight = min((own.sum() + PRIOR_COUNT) / (len(gap) + PRIOR_COUNT), LARGEST_WEIGHT)
        return float(weight)
