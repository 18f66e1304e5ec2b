"""Gaussian kernels and kernel Bayes' rule by dense matrices."""

import numpy as np


def gram(a, b, scale):
    return np.exp(-0.5 * np.sum(np.square((a[:, None] - b[None]) / scale), -1))


def dense_rule(mu, gram_y, delta):
    """R as printed."""
    product = mu[:, None] * gram_y
    return product @ np.linalg.solve(product @ product + delta * np.eye(len(mu)), np.diag(mu))
