r"""Spread: the log scale of residuals given the coordinates, by a robust likelihood."""

from dataclasses import replace

import jax
import numpy as np

from numpyro_kme.kernel_means.descent import descend
from numpyro_kme.kernel_means.ridge import JITTER, HeldOut, Smoothness, held_out, inverse_of

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
        self.alpha, self.fitted, self.held_out = np.zeros((3, size))

    @classmethod
    def unknown(cls, dim: int, size: int) -> "Spread":
        """Before the first fit: the same for all of `size` residuals."""
        return cls(Smoothness.start(dim, noise=1.0), size)

    def update(self, z: np.ndarray, residuals: np.ndarray, rounds: int, steps: int) -> None:
        """Fit to residuals, `rounds` scoring steps, each with `steps` L-BFGS iterations on the hyperparameters."""
        if len(self.fitted) != len(z) or not self.fitted.any():
            self._begin(z, residuals, steps)
        known = None
        for _ in range(rounds):
            squares = np.square(residuals * np.exp(-self.fitted))
            score = (DEGREES + 1.0) * squares / (DEGREES + squares) - 1.0
            found = self._regress(z, self.fitted + score / INFORMATION, 1.0 / INFORMATION, steps, known)
            known = None if steps else found.inverse

    def _begin(self, z, residuals, steps):
        logs = np.log(np.square(residuals) + 1e-300)
        logs = 0.5 * (np.maximum(logs, np.median(logs) - 5.0) + 1.27)
        self._regress(z, logs, 1.23, steps)

    def _regress(self, z, target, variance, steps, inverse=None):
        self.offset = float(np.mean(target))
        centred, noise = target - self.offset, np.full(len(z), variance)
        if steps:
            low, high = (replace(bound, noise=0.0) for bound in Smoothness.bounds(z.shape[1]))
            self.smoothness = descend(loss, self.smoothness, (low, high), steps, z, centred, noise)
        if inverse is None:
            inverse = inverse_of(self.smoothness.regularised(z, noise))
        found = HeldOut(inverse, inverse @ centred)
        self.alpha = found.alpha
        self.held_out = target - found.residual
        self.fitted = target - (noise + JITTER) * self.alpha
        return found


def loss(smoothness: Smoothness, z: np.ndarray, target: np.ndarray, noise: np.ndarray) -> tuple[float, Smoothness]:
    """Minus the held-out normal log density and the log prior, and its gradient; the noise is known."""
    found = held_out(smoothness.regularised(z, noise), target)
    residual, variance = found.residual, found.variance
    value = 0.5 * np.sum(np.log(variance) + np.square(residual) / variance)
    of_variance = 0.5 * (1.0 / variance - np.square(residual / variance))
    of_matrix, _ = found.adjoint(residual / variance, of_variance)
    penalty, slope = smoothness.penalty()
    found_slope = smoothness.gradient(z, noise, of_matrix)
    return penalty + value, jax.tree.map(np.add, slope, found_slope)
