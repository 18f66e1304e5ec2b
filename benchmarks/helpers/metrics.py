"""Moments of posteriors on a grid, and scores of posterior draws."""

import numpy as np
import scipy.stats


def normalised(log_p):
    """Probabilities from log weights."""
    p = np.exp(log_p - log_p.max())
    return p / p.sum()


def moments(p, values):
    """Mean and standard deviation of values with probabilities `p`, of shapes that broadcast."""
    mean = np.sum(p * values)
    return mean, np.sqrt(np.sum(p * np.square(values - mean)))


def wasserstein(draws, exact, weights=None):
    """Wasserstein-1 of draws to an exact distribution, a frozen one of SciPy, in its standard deviations."""
    quantiles = exact.ppf((np.arange(20_000) + 0.5) / 20_000)
    return scipy.stats.wasserstein_distance(draws, quantiles, weights) / exact.std()


def c2st(reference, draws, seed=1, folds=5):
    """Held-out accuracy of a classifier that tells draws from as many of a reference: 0.5 if it cannot, 1 if always.

    The network and the standardisation by the reference are those of sbibm (Lueckmann et al. 2021, AISTATS). Folds run
    on all cores.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.neural_network import MLPClassifier

    both, rng = [np.asarray(points, np.float64) for points in (reference, draws)], np.random.default_rng(seed)
    size = min(map(len, both))
    x, y = (points if len(points) == size else points[rng.choice(len(points), size, replace=False)] for points in both)
    mean, sd = x.mean(axis=0), x.std(axis=0, ddof=1)
    data, labels = (np.concatenate([x, y]) - mean) / np.where(sd > 0, sd, 1.0), np.repeat([0.0, 1.0], size)
    network = MLPClassifier((10 * data.shape[1],) * 2, max_iter=10_000, random_state=seed)
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return float(cross_val_score(network, data, labels, cv=split, n_jobs=-1).mean())
