"""By how much the mean of a posterior may be off, since learnt locations rest on few simulations."""

import numpy as np

UNRESOLVED = 0.25
"""A location that moves a posterior mean by more standard deviations is warned of."""


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
