"""Fitted regressions as functions of the coordinates: features, and as few Gaussian kernels as they need."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy.linalg import block_diag

from numpyro_kme.kernels.base import register
from numpyro_kme.likelihoods.residual.smoothness import Regression, features, line_slopes


@register
class RidgeFunctions:
    """Fitted functions of the coordinates, `n` at once: `z (D,) -> (n,)`.

    Attributes:
        offset: Intercepts, `(n,)`.
        linear: Weights of the features, `(n, 2 D)`.
        points: Centres of the radial basis functions of all functions, `(r, D)`.
        precision: Their squared inverse length scales, `(r, D)`.
        rbf: Their weights in each function, `(n, r)`.
    """

    offset: ArrayLike
    linear: ArrayLike
    points: ArrayLike
    precision: ArrayLike
    rbf: ArrayLike

    @classmethod
    def of(cls, fits: Regression, shift: ArrayLike, tolerance: ArrayLike) -> "RidgeFunctions":
        """From `k` regressions, what is added to each, `(k,)`, and tolerances, `(k, m)`.

        Features, and as few of the first inducing points as match the function at every simulation to its tolerance,
        take the place of all of them.
        """
        offset, linear, centres, scales, rbf = [], [], [], [], []
        basis = np.concatenate([np.ones((len(fits.at), 1)), fits.at.features], axis=1)
        used = np.ones((len(fits.near), fits.at.dim), bool) if fits.at.used is None else fits.at.used
        used = np.concatenate([np.ones((len(used), 1), bool), used, used], axis=1)
        intercepts, slopes, weights = fits.weights()
        for i, scale in enumerate(1.0 / np.asarray(tolerance)[:, :, None]):
            straight = np.zeros(basis.shape[1])
            straight[used[i]], own = _simplified(basis[:, used[i]] * scale, fits.near[i] * scale, weights[i])
            offset.append(intercepts[i] + np.asarray(shift)[i] + straight[0])
            linear.append(slopes[i] + straight[1:])
            centres.append(fits.at.inducing_points[: len(own)])
            scales.append(np.tile(np.exp(-2.0 * fits.smoothness.length[i]), (len(own), 1)))
            rbf.append(own[None, :])
        points, precision = map(np.concatenate, (centres, scales))
        return cls(np.array(offset), np.array(linear), points, precision, block_diag(*rbf))

    @staticmethod
    def together(parts: Sequence["RidgeFunctions"]) -> "RidgeFunctions":
        """Functions of the same coordinates, one part after another, in one pass."""
        offset, linear, points, precision = (
            np.concatenate([np.asarray(getattr(part, name)) for part in parts])
            for name in ("offset", "linear", "points", "precision")
        )
        return RidgeFunctions(offset, linear, points, precision, block_diag(*(part.rbf for part in parts)))

    def filled(self) -> "RidgeFunctions":
        """With kernels of weight 0 up to one of few numbers, so that other functions do not compile again."""
        number = np.shape(self.points)[0]
        spare = padded(number) - number
        points, precision = (np.pad(a, ((0, spare), (0, 0))) for a in (self.points, self.precision))
        return replace(self, points=points, precision=precision, rbf=np.pad(self.rbf, ((0, 0), (0, spare))))

    def some(self, chosen: np.ndarray) -> "RidgeFunctions":
        """The functions with these numbers, with the kernels that they need."""
        offset, linear, rbf = (np.asarray(leaf)[chosen] for leaf in (self.offset, self.linear, self.rbf))
        return RidgeFunctions(offset, linear, self.points, self.precision, rbf).trimmed().filled()

    def times(self, factor: np.ndarray, added: np.ndarray) -> "RidgeFunctions":
        """The functions times factors `(n,)`, and what is added to them, `(n,)`."""
        column = factor[:, None]
        offset, linear, rbf = factor * self.offset + added, column * self.linear, column * self.rbf
        return replace(self, offset=offset, linear=linear, rbf=rbf)

    def among(self, numbers: np.ndarray, n: int) -> "RidgeFunctions":
        """These functions as those with some numbers among `n`; the others are 0."""
        place = np.eye(n)[:, numbers]
        return replace(self, offset=place @ self.offset, linear=place @ self.linear, rbf=place @ self.rbf)

    def __call__(self, z: Any, xp: Any = jnp) -> Any:
        """Values `(..., n)` at points `(..., D)`, by JAX or NumPy, in the precision of `points`.

        Cost: `r` exponentials a point, and products of matrices; under `vmap` too.
        """
        return self._values(z.astype(xp.asarray(self.points).dtype), xp)

    def on_host(self, z: np.ndarray, kind: type[np.floating] = np.float64) -> np.ndarray:
        """Values `(k, n)` at points `(k, D)` as NumPy computes them in a given precision."""
        return self._values(np.asarray(z, kind), np)

    def trimmed(self) -> "RidgeFunctions":
        """The same without kernels of weight 0 in every function, for NumPy."""
        used = np.asarray(self.rbf).any(axis=0)
        points, precision, rbf = np.asarray(self.points)[used], np.asarray(self.precision)[used], self.rbf
        return replace(self, points=points, precision=precision, rbf=np.asarray(rbf)[:, used])

    def _values(self, z, xp):
        offset, linear, rbf = (xp.asarray(leaf, z.dtype) for leaf in (self.offset, self.linear, self.rbf))
        return offset + features(z, xp).astype(z.dtype) @ linear.T + self._kernels(z, xp) @ rbf.T

    def _kernels(self, z, xp):
        """Gaussian kernels `(..., r)`."""
        points, precision = xp.asarray(self.points, z.dtype), xp.asarray(self.precision, z.dtype)
        # under vmap one product of matrices takes XLA a third of the time of two
        size = xp.sum(precision * xp.square(points), axis=1, keepdims=True)
        factor = xp.concatenate([precision * points, -0.5 * precision, -0.5 * size], axis=1)
        powers = xp.concatenate([z, xp.square(z), xp.ones((*z.shape[:-1], 1), z.dtype)], axis=-1)
        return xp.exp(powers @ factor.T)

    def slopes(self, z: np.ndarray) -> np.ndarray:
        """Derivatives `(k, n, D)` at points `(k, D)`, by NumPy."""
        points, precision, rbf = (np.asarray(leaf) for leaf in (self.points, self.precision, self.rbf))
        near = self._kernels(z, np)
        both = zip((precision * points).T, precision.T, z.T, strict=True)
        curved = [near @ (rbf * weighted).T - at[:, None] * (near @ (rbf * narrow).T) for weighted, narrow, at in both]
        return line_slopes(np.asarray(self.linear), z) + np.stack(curved, axis=-1)


def padded(size: int, least: int = 64, coarse: int = 256) -> int:
    """`size` rounded up to `least` times a power of four up to `coarse`, of two above: few sizes, few compilations."""
    return least if size <= least else padded(size, (4 if least < coarse else 2) * least, coarse)


def _simplified(basis: np.ndarray, kernels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the columns of `basis` `(m, b)`, and of the first few of the `kernels` `(m, r)`, with which they match
    `kernels @ weights` to 1 everywhere, by least squares; all kernels where half of the points would be needed, since a
    match at these says little of others."""
    target, count = kernels @ weights, 0
    while count < len(weights) and 2 * (basis.shape[1] + count) < len(kernels):
        columns = np.concatenate([basis, kernels[:, :count]], axis=1)
        found = np.linalg.lstsq(columns, target, rcond=1e-6)[0]
        if np.all(np.abs(target - columns @ found) <= 1.0):
            return found[: basis.shape[1]], found[basis.shape[1] :]
        count = max(4, 2 * count)
    return np.zeros(basis.shape[1]), weights
