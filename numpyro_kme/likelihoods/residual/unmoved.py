"""Which statistics the density takes as they are, without location and scale.

Simulations lend each other residuals where location and scale move a shape that hardly changes. Where the parameters
change how probable clusters of values are, as in a mixture, residuals have peaks that move, and their density blurs
them. Those of the statistic stay where they are, and its own embedding, of which the weights follow the parameters,
keeps them.
"""

import numpy as np

from numpyro_kme.likelihoods.residual.bandwidths import Bandwidths, log_densities_alone

WORTH, SIGNIFICANT = 0.05, 3.0
"""Improvement of the held-out log density, in nats and in its standard errors, that a raw statistic has to make."""

TRIED = Bandwidths(1.5, 0.03, 0.25, 0.0)
"""Bandwidths where nothing is learnt yet, `beta` times the root of the number of coordinates."""

LOOKED_AT = 300, 1000
"""Simulations that tell, half of those that are scored but between these: of 10,000 in all, 300 overlooked one
statistic in six of a mixture whose weights follow a parameter."""


def chosen(z: np.ndarray, statistics: np.ndarray, residuals: np.ndarray, gained: np.ndarray) -> np.ndarray:
    """Which of the statistics have larger held-out densities as they are than their residuals, `(n,)`, each alone.

    Args:
        z: Coordinates, `(m, D)`, in a random order.
        statistics: Transformed statistics, `(m, n)`.
        residuals: Held-out standardised residuals, `(m, n)`.
        gained: What location and scale add to the held-out log score, `(n,)`.
    Cost: two kernels for each statistic and each pair of 300 to 1,000 simulations.
    """
    some = slice(int(np.clip(len(z) // 2, *LOOKED_AT)))
    z, statistics, residuals = (np.asarray(part[some], np.float32) for part in (z, statistics, residuals))
    at = tried(z.shape[1])
    better = log_densities_alone(z, statistics, at) - log_densities_alone(z, residuals, at) - gained
    return better.mean(axis=0) > np.maximum(WORTH, SIGNIFICANT * better.std(axis=0) / np.sqrt(len(z)))


def tried(dim: int) -> Bandwidths:
    """Bandwidths for so many coordinates where nothing is learnt yet."""
    return TRIED._replace(beta=TRIED.beta * float(np.sqrt(dim)))
