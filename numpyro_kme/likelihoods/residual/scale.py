r"""Scale function: the log scale of residuals given the coordinates, by a robust likelihood."""

from dataclasses import replace

import jax
import numpy as np

from numpyro_kme.kernels.length_scales import median_absolute_deviation
from numpyro_kme.likelihoods.descent import descend_all, ravel
from numpyro_kme.likelihoods.residual.ridge import diagonal
from numpyro_kme.likelihoods.residual.smoothness import JITTER, Inputs, Regression, Smoothness

DEGREES = 5.0
"""Degrees of freedom of the Student likelihood of residuals: one outlier moves the log scale by a bounded amount."""

INFORMATION = 2.0 * DEGREES / (DEGREES + 3.0)
"""Fisher information of the log scale in one residual of that likelihood; 2 for a Gaussian one."""


def winsorised_rms(residuals: np.ndarray) -> np.ndarray:
    """Root mean squares of residuals `(..., m)`, winsorised at four robust standard deviations; 0 is replaced by 1.

    Where winsorising leaves nothing, the plain standard deviation.
    """
    cut = 4.0 * median_absolute_deviation(np.moveaxis(residuals, -1, 0), 0.0)[..., None] / 0.6745
    robust = np.sqrt(np.mean(np.square(np.clip(residuals, -cut, cut)), axis=-1))
    plain = np.std(residuals, axis=-1)
    return np.where(robust > 0.0, robust, np.where(plain > 0.0, plain, 1.0))


class ScaleFunction:
    """Log scales `s(z)` being fitted to the residuals of `n` statistics: hyperparameters, and the last fit.

    Fisher scoring: with `e = r exp(-s)`, working targets `s + ((nu + 1) e^2 / (nu + e^2) - 1) / I` with variance
    `1 / I` are regressed on the coordinates by ridge regression; hyperparameters follow the held-out density of the
    working targets. The logarithm of squared residuals, the usual target, has two and a half times the variance: it
    only gives the start.
    """

    def __init__(self, dim: int, n: int, size: int):
        """Before the first fit: the same for all of `size` residuals of `n` statistics."""
        start = Smoothness.start(dim, noise=1.0)
        self.smoothness = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (n, *np.shape(leaf))), start)
        self.offset, self.fitted, self.held_out = np.zeros(n), np.zeros((n, size)), np.zeros((n, size))
        self.last: Regression | None = None
        self._inverses = diagonal(1.0 / ravel(self.smoothness.curvature(size), 1))

    def update(self, at: Inputs, residuals: np.ndarray, rounds: int, steps: int) -> None:
        """Fit to residuals `(n, m)` in `rounds` scoring steps; in the last hyperparameters get `steps` iterations."""
        if self.fitted.shape[-1] != len(at) or not self.fitted.any():
            self._begin(at, residuals, steps)
        for number in range(rounds):
            squares = np.square(residuals * np.exp(-self.fitted))
            score = (DEGREES + 1.0) * squares / (DEGREES + squares) - 1.0
            target, now = self.fitted + score / INFORMATION, steps if number == rounds - 1 else 0
            self._regress(at, target, 1.0 / INFORMATION, now, again=number > 0 and not now)

    def _begin(self, at, residuals, steps):
        logs = np.log(np.square(residuals) + 1e-300)
        logs = 0.5 * (np.maximum(logs, np.median(logs, axis=-1, keepdims=True) - 5.0) + 1.27)
        self._regress(at, logs, 1.23, steps)

    def _regress(self, at, target, variance, steps, again=False):
        self.offset = np.mean(target, axis=-1)
        centred, noise = target - self.offset[:, None], np.full(target.shape, variance)
        if steps:
            bounds = tuple(replace(bound, noise=0.0) for bound in Smoothness.bounds(at.dim))
            least = self.smoothness.enough(at)
            some = lambda smoothness, rows: loss(smoothness, least, centred[rows], noise[rows])  # noqa: E731
            self.smoothness, self._inverses = descend_all(some, self.smoothness, bounds, steps, self._inverses)
        self.last = self.last.again(centred) if again else self.smoothness.regress(at, noise, centred)
        self.held_out = target - self.last.held_out.residual
        self.fitted = target - (1.0 + JITTER) * noise * self.last.held_out.alpha


def loss(smoothness: Smoothness, at: Inputs, target: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, Smoothness]:
    """Minus the held-out normal log density and the log prior, `(...)`, and its gradient; the noise is known."""
    found = smoothness.regress(at, noise, target)
    residual, variance = found.held_out.residual, found.held_out.variance
    value = 0.5 * np.sum(np.log(variance) + np.square(residual) / variance, axis=-1)
    of_variance = 0.5 * (1.0 / variance - np.square(residual / variance))
    slope, _ = found.gradient(residual / variance, of_variance)
    penalty, of_penalty = smoothness.penalty()
    return penalty + value, jax.tree.map(np.add, slope, of_penalty)
