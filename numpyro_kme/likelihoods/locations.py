"""By how much the mean of a posterior may be off, since learnt locations rest on few simulations."""

from typing import NamedTuple

import numpy as np

UNRESOLVED = 0.25
"""A location that moves a posterior mean by more standard deviations is warned of."""


class Locations(NamedTuple):
    r"""What learnt locations of statistics say of the coordinates at draws of a posterior, and how well they are known.

    Attributes:
        slopes: $J_i = \partial \mu_i / \partial z$, `(k, n, D)`.
        precision: $1 / \sigma_i^2$, `(k, n)`.
        variances: $v_i$ of the locations themselves, `(k, n)`.
    """

    slopes: np.ndarray
    precision: np.ndarray
    variances: np.ndarray

    def error(self, power: float = 1.0) -> float:
        r"""By how many standard deviations the mean of the posterior may be off, each draw taken as a normal posterior.

        With $P = (I + \sum_i J_i J_i' / \sigma_i^2)^{-1}$ the mean moves by the covariance
        $P (\sum_i J_i J_i' v_i / \sigma_i^4) P$. The root of its trace in units of `P`, over the number of
        directions that are learnt, is $(E_z \sum_i a_i v_i / \sigma_i^2 / \max(1, E_z \sum_i a_i))^{1/2}$ with the
        leverages $a_i = J_i' P J_i / \sigma_i^2$ of the statistics. A likelihood to a power has $\sigma_i^2$ over it.
        """
        precision = power * self.precision
        slopes = self.slopes * np.sqrt(precision)[..., None]
        solved = slopes @ np.linalg.inv(slopes.mT @ slopes + np.eye(slopes.shape[-1]))
        leverage = np.sum(slopes * solved, axis=-1)
        return float(np.sqrt(np.sum(leverage * precision * self.variances) / max(np.sum(leverage), len(slopes))))


def moved_means(draws: np.ndarray, changes: np.ndarray) -> np.ndarray:
    r"""By how many standard deviations posterior means move when the log likelihood changes, root mean square over
    several changes.

    To first order the mean of `theta` moves by its posterior covariance with the change, so by
    $\operatorname{cov}(\theta, \Delta_s) / \operatorname{sd}(\theta)$. The square that chance gives in `k` draws, the
    variance of the product over `k`, is subtracted.

    Args:
        draws: Draws from the posterior, `(k, L)`.
        changes: Changes of the log likelihood at these draws, `(k, s)`.
    Returns:
        `(L,)`; 0 for what does not vary.
    References:
        Gustafson (1996), Annals of Statistics 24.
    """
    draws = np.asarray(draws, np.float64)
    standard = (draws - draws.mean(axis=0)) / np.maximum(draws.std(axis=0), 1e-300)
    changes = changes - changes.mean(axis=0)
    moved = standard.T @ changes / len(draws)
    by_chance = (np.square(standard).T @ np.square(changes) / len(draws) - moved**2) / len(draws)
    return np.sqrt(np.maximum(0.0, np.mean(moved**2 - by_chance, axis=1)))
