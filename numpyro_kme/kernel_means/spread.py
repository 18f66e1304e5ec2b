r"""Spread: the log scale of residuals given the coordinates, by a robust likelihood."""

from dataclasses import replace

import jax
import numpy as np

from numpyro_kme.kernel_means.descent import descend_again, ravel
from numpyro_kme.kernel_means.smoothness import JITTER, Inputs, Regression, Smoothness

DEGREES = 5.0
"""Degrees of freedom of the Student likelihood of residuals: one outlier moves the log scale by a bounded amount."""

INFORMATION = 2.0 * DEGREES / (DEGREES + 3.0)
"""Fisher information of the log scale in one residual of that likelihood; 2 for a Gaussian one."""


def robust_size(residuals: np.ndarray) -> float:
    """Root mean square of residuals, cut at four robust standard deviations; positive unless all are 0."""
    cut = 4.0 * np.median(np.abs(residuals)) / 0.6745
    return float(np.sqrt(np.mean(np.clip(residuals, -cut, cut) ** 2))) or float(np.std(residuals)) or 1.0


class Spread:
    """A log scale `s(z)` being fitted to residuals `(m,)`: hyperparameters, and the last fit.

    Fisher scoring: with `e = r exp(-s)`, working targets `s + ((nu + 1) e^2 / (nu + e^2) - 1) / I` with variance `1 / I`
    are regressed on the coordinates by ridge regression; hyperparameters follow the held-out density of the working targets.
    The logarithm of squared residuals, the usual target, has two and a half times the variance: it only gives the start.
    """

    def __init__(self, smoothness: Smoothness, size: int):
        self.smoothness = smoothness
        self.offset = 0.0
        self.fitted, self.held_out = np.zeros((2, size))
        self.last: Regression | None = None
        self._inverse = np.diag(1.0 / ravel(Smoothness.curvature(size, len(smoothness.length))))

    @classmethod
    def unknown(cls, dim: int, size: int) -> "Spread":
        """Before the first fit: the same for all of `size` residuals."""
        return cls(Smoothness.start(dim, noise=1.0), size)

    def update(self, at: Inputs, residuals: np.ndarray, rounds: int, steps: int) -> None:
        """Fit to residuals, `rounds` scoring steps, each with `steps` iterations on the hyperparameters."""
        if len(self.fitted) != len(at) or not self.fitted.any():
            self._begin(at, residuals, steps)
        known = None
        for _ in range(rounds):
            squares = np.square(residuals * np.exp(-self.fitted))
            score = (DEGREES + 1.0) * squares / (DEGREES + squares) - 1.0
            self._regress(at, self.fitted + score / INFORMATION, 1.0 / INFORMATION, steps, known)
            known = None if steps else self.last

    def _begin(self, at, residuals, steps):
        logs = np.log(np.square(residuals) + 1e-300)
        logs = 0.5 * (np.maximum(logs, np.median(logs) - 5.0) + 1.27)
        self._regress(at, logs, 1.23, steps)

    def _regress(self, at, target, variance, steps, known=None):
        self.offset = float(np.mean(target))
        centred, noise = target - self.offset, np.full(len(at), variance)
        if steps:
            low, high = (replace(bound, noise=0.0) for bound in Smoothness.bounds(at.dim))
            args = (low, high), steps, self.smoothness.enough(at), centred, noise
            self.smoothness, self._inverse = descend_again(loss, self.smoothness, *args, inverse=self._inverse)
        self.last = known.again(centred) if known else self.smoothness.regress(at, noise, centred)
        self.held_out = target - self.last.held_out.residual
        self.fitted = target - (1.0 + JITTER) * noise * self.last.alpha


def loss(smoothness: Smoothness, at: Inputs, target: np.ndarray, noise: np.ndarray) -> tuple[float, Smoothness]:
    """Minus the held-out normal log density and the log prior, and its gradient; the noise is known."""
    found = smoothness.regress(at, noise, target)
    residual, variance = found.held_out.residual, found.held_out.variance
    value = 0.5 * np.sum(np.log(variance) + np.square(residual) / variance)
    of_variance = 0.5 * (1.0 / variance - np.square(residual / variance))
    slope, _ = found.gradient(residual / variance, of_variance)
    penalty, of_penalty = smoothness.penalty()
    return penalty + value, jax.tree.map(np.add, slope, of_penalty)
