r"""Spread: the log scale of residuals given the coordinates, by a robust likelihood."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_kme.kernel_means.descent import descend
from numpyro_kme.kernel_means.ridge import JITTER, Smoothness, held_out

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

    def __init__(self, smoothness: Smoothness):
        self.smoothness = smoothness
        self.alpha = np.zeros(0)
        self.offset = 0.0
        self.fitted: np.ndarray | None = None
        self.held_out = np.zeros(0)

    @classmethod
    def unknown(cls, dim: int) -> "Spread":
        """Before the first fit."""
        return cls(Smoothness.start(dim, noise=1.0))

    def update(self, z: np.ndarray, residuals: np.ndarray, rounds: int, steps: int) -> None:
        """Fit to residuals, `rounds` scoring steps, each with `steps` L-BFGS iterations on the hyperparameters."""
        if self.fitted is None or len(self.fitted) != len(z):
            self._begin(z, residuals, steps)
        for _ in range(rounds):
            squares = np.square(residuals * np.exp(-self.fitted))
            score = (DEGREES + 1.0) * squares / (DEGREES + squares) - 1.0
            self._regress(z, self.fitted + score / INFORMATION, 1.0 / INFORMATION, steps)

    def _begin(self, z, residuals, steps):
        logs = np.log(np.square(residuals) + 1e-300)
        logs = 0.5 * (np.maximum(logs, np.median(logs) - 5.0) + 1.27)
        self._regress(z, logs, 1.23, steps)

    def _regress(self, z, target, variance, steps):
        self.offset = float(np.mean(target))
        centred, noise = target - self.offset, np.full(len(z), variance)
        if steps:
            low, high = (replace(bound, noise=0.0) for bound in Smoothness.bounds(z.shape[1]))
            self.smoothness = descend(_value_and_gradient, self.smoothness, (low, high), steps, z, centred, noise)
        self.alpha, rest = map(np.asarray, _fit(self.smoothness, z, centred, noise))
        self.held_out = target - rest
        self.fitted = target - (noise + JITTER) * self.alpha


@jax.jit
def _fit(smoothness, z, target, noise):
    alpha, diagonal = held_out(smoothness.regularised(z, noise), target)
    return alpha, alpha / diagonal


def _loss(smoothness, z, target, noise):
    alpha, diagonal = held_out(smoothness.regularised(z, noise), target)
    log_density = 0.5 * (jnp.log(diagonal) - jnp.square(alpha) / diagonal)
    return smoothness.penalty() - jnp.sum(log_density)


_value_and_gradient = jax.jit(jax.value_and_grad(_loss))
