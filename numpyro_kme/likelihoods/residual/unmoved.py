"""Which statistics the density takes as they are, without location and scale.

Simulations lend each other residuals where location and scale move a shape that hardly changes. Where the parameters
change how probable clusters of values are, as in a mixture, residuals have peaks that move, and their density blurs
them. Those of the statistic stay where they are, and its own embedding, of which the weights follow the parameters,
keeps them.
"""

import numpy as np

from numpyro_kme.likelihoods.residual.bandwidth_learning import HeldOutWeights
from numpyro_kme.likelihoods.residual.density import Bandwidths
from numpyro_kme.likelihoods.residual.product_learning import SIGNIFICANT, alone

WORTH = 0.05
"""Improvement of the held-out log density, in nats, that a statistic as it is has to make."""

LENGTH, LAM = 1.5, 0.03
"""Length scale of the weights, times the root of the number of coordinates, and their regularisation, where nothing is
learnt yet."""

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
    (bandwidths,) = Bandwidths.around(1, (0.5,), (LENGTH * np.sqrt(z.shape[1]),), (LAM,), (0.0,))
    weights = HeldOutWeights.of(bandwidths, z).positive
    columns = zip(statistics.T[:, :, None], residuals.T[:, :, None])
    better = np.array([alone(own, weights) - alone(rest, weights) for own, rest in columns]) - gained[:, None]
    return better.mean(axis=1) > np.maximum(WORTH, SIGNIFICANT * better.std(axis=1) / np.sqrt(len(z)))
