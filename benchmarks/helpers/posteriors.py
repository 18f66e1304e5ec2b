"""Posteriors on a grid."""

import numpy as np


def normalised(log_p):
    """Probabilities from log weights."""
    p = np.exp(log_p - log_p.max())
    return p / p.sum()


def moments(p, values):
    """Mean and standard deviation of values with probabilities `p`, of shapes that broadcast."""
    mean = np.sum(p * values)
    return mean, np.sqrt(np.sum(p * np.square(values - mean)))
