r"""How well locations are known: draws from the normal distribution of their regressions' coefficients.

A regression on columns `F` with noise variances `N` leaves the coefficients uncertain by the covariance
$(I + F' N^{-1} F)^{-1}$, and the location at `z`, whose columns are `f(z)`, by the variance
$v(z) = f(z)' (I + F' N^{-1} F)^{-1} f(z)$. It is small where there are simulations, and everywhere where the function
is simple: a straight one is known far from the simulations too. The mean of squares of a few draws stands for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import squared_distances_on_host
from numpyro_kme.likelihoods.residual.smoothness import Regression, features

DRAWS = 32
"""Draws of each location: variances are known to a quarter."""


@register
class LocationErrors:
    """Draws `s` of what `n` learnt locations may be off by, functions of the coordinates.

    Attributes:
        points: Inducing points, `(r, D)`.
        log_length: Logarithms of the length scales of the Gaussian kernels around them, `(n, D)`.
        straight: Weights of the intercept and the features, `(n, s, 1 + 2 D)`.
        rbf: Weights of the kernels, `(n, s, r)`; 0 for points that a location does not use.
    """

    points: Array
    log_length: Array
    straight: Array
    rbf: Array

    @classmethod
    def of(cls, fits: Regression, points: np.ndarray, seed: int) -> Self:
        """Of regressions with the first ones of the inducing points."""
        size = *fits.held_out.alpha.shape[:-1], DRAWS, fits.num_columns
        intercepts, slopes, rbf = fits.drawn_weights(np.random.default_rng([2, seed]).standard_normal(size))
        rbf = np.pad(rbf, ((0, 0), (0, 0), (0, len(points) - rbf.shape[-1])))
        return cls(points, fits.smoothness.length, np.concatenate([intercepts, slopes], axis=-1), rbf)

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        """Those of locations with the same inducing points, one part after another."""
        leaves = zip(*((part.log_length, part.straight, part.rbf) for part in parts), strict=True)
        return cls(parts[0].points, *map(np.concatenate, leaves))

    def some(self, chosen: np.ndarray) -> "LocationErrors":
        """Those of the locations with these numbers."""
        log_length, straight, rbf = (np.asarray(leaf)[chosen] for leaf in (self.log_length, self.straight, self.rbf))
        return LocationErrors(self.points, log_length, straight, rbf)

    def without(self, left: np.ndarray) -> "LocationErrors":
        """With nothing that the locations that are `left` out, `(n,)`, may be off by."""
        straight, rbf = (np.where(left[:, None, None], 0.0, leaf) for leaf in (self.straight, self.rbf))
        return replace(self, straight=straight, rbf=rbf)

    def at(self, z: np.ndarray) -> np.ndarray:
        """The draws at points `(k, D)`, `(k, s, n)`, by NumPy."""
        basis, found = np.concatenate([np.ones((len(z), 1)), features(z)], axis=1), []
        for log_length, straight, rbf in zip(*map(np.asarray, (self.log_length, self.straight, self.rbf)), strict=True):
            near = np.exp(-0.5 * squared_distances_on_host(z * np.exp(-log_length), self.points * np.exp(-log_length)))
            found.append(basis @ straight.T + near @ rbf.T)
        return np.stack(found, axis=2)
