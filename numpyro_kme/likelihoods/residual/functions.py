"""Fitted regressions as functions of the coordinates: features, and as few Gaussian kernels as they need."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy.linalg import block_diag, solve_triangular

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

        Features, and then as few kernels as are needed to match the function at every simulation to its tolerance, take
        the place of the kernels of the regression.
        """
        offset, linear, centres, scales, rbf = [], [], [], [], []
        basis = np.concatenate([np.ones((len(fits.at), 1)), fits.at.features], axis=1)
        used = np.ones((len(fits.near), fits.at.dim), bool) if fits.at.used is None else fits.at.used
        used = np.concatenate([np.ones((len(used), 1), bool), used, used], axis=1)
        intercepts, slopes, weights = fits.weights()
        for i, scale in enumerate(1.0 / np.asarray(tolerance)[:, :, None]):
            few, chosen, found = _sparse(fits.near[i] * scale, weights[i], basis[:, used[i]] * scale)
            straight = np.zeros(basis.shape[1])
            straight[used[i]] = few
            offset.append(intercepts[i] + np.asarray(shift)[i] + straight[0])
            linear.append(slopes[i] + straight[1:])
            centres.append(fits.at.inducing_points[chosen])
            scales.append(np.tile(np.exp(-2.0 * fits.smoothness.length[i]), (len(chosen), 1)))
            rbf.append(np.reshape(found, (1, -1)))
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


WORST = 64
"""Simulations at which a function was matched worst; they are looked at before all are."""


def _sparse(kernels: np.ndarray, weights: np.ndarray, basis: np.ndarray) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Weights of the columns of `basis`, and numbers and weights of kernels, that match `kernels @ weights` to 1.

    Kernels are added where they lessen the error most, and all weights are by least squares, by a Cholesky factor of
    the Gram matrix of what the basis leaves of them, which grows by a row for each. Where half as many weights as there
    are points do not suffice, a match at the points says little about the rest, and all kernels are kept.

    Args:
        kernels: At the simulations, `(m, r)`.
        weights: `(r,)`.
        basis: `(m, b)`.
    """
    size, begun, most = len(kernels), basis.shape[1], len(weights)
    target = kernels @ weights
    beside = np.linalg.qr(np.pad(basis, ((0, max(0, begun - size)), (0, 0))))[0][:size]
    left, rest = (x - beside @ (beside.T @ x) for x in (kernels, target))
    # errors are below 1 only if the sum of their squares is below their number; below rounding it says nothing
    # relative rounding error of a sum of squares
    perhaps = size + 1e-12 * (rest @ rest)
    gram = left.T @ left
    squares, products, error = np.diagonal(gram).copy(), left.T @ rest, rest @ rest
    # A kernel of which no larger fraction is left beside those chosen, as at a point that comes twice, adds nothing
    least = 1e-9 * np.sum(np.square(kernels), axis=0)
    factor, steps = np.zeros((min(most, max(0, size // 2 - begun)), most)), np.zeros(most)
    chosen, worst = list[int](), np.arange(0)
    while True:
        count = len(chosen)
        if error <= perhaps:
            found = solve_triangular(factor[:count, chosen], steps[:count])
            off = np.abs(rest[worst] - left[worst[:, None], chosen] @ found)
            if np.all(off <= 1.0):  # where it was matched worst; and elsewhere?
                off = np.abs(rest - left[:, chosen] @ found)
                if np.all(off <= 1.0):
                    return np.linalg.lstsq(basis, target - kernels[:, chosen] @ found, rcond=1e-12)[0], chosen, found
                worst = np.argsort(off)[-WORST:]
        useful = squares > least
        if count == len(factor) or not useful.any():
            return np.zeros(begun), list(range(most)), weights
        best = int(np.argmax(np.where(useful, np.square(products) / np.where(useful, squares, 1.0), -1.0)))
        size_left = np.sqrt(squares[best])
        row = (gram[best] - factor[:count, best] @ factor[:count]) / size_left
        factor[count], steps[count] = row, products[best] / size_left
        squares, products, error = squares - row**2, products - steps[count] * row, error - steps[count] ** 2
        squares[best] = 0.0
        chosen.append(best)
