r"""Ridge regression whose held-out predictions, and their derivatives, come in closed form.

The matrix is $A = F F' + \mathrm{diag}(\nu)$. With weights $\alpha = A^{-1} t$, leaving out simulation $j$ gives the
residual $\alpha_j / (A^{-1})_{jj}$ with variance $1 / (A^{-1})_{jj}$, as a refit without it does. All goes through
Woodbury's formula, $A^{-1} = N^{-1/2} (I - T T') N^{-1/2}$ with
$T = N^{-1/2} F L'^{-1}$ and $L L' = I + F' N^{-1} F$: a few products of matrices of `m` by `r`.

Every array may have leading axes, `...`: one regression for each.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack


@dataclass(frozen=True)
class Ridge:
    """A factorised regression.

    Attributes:
        root: Square roots of the noise variances `nu`, `(..., m)`.
        scaled: `N^{-1/2} F`, `(..., m, r)`.
        inverse_root: `L^-1` of `L L' = I + F' N^{-1} F`, the inverse covariance of the coefficients, `(..., r, r)`.
        half: `T`, `(..., m, r)`.
        diagonal: Diagonal of the inverse `A^-1`, `(..., m)`; NaN where a matrix is not positive definite to rounding.
    """

    root: np.ndarray
    scaled: np.ndarray
    inverse_root: np.ndarray
    half: np.ndarray
    diagonal: np.ndarray

    @staticmethod
    def of(factor: np.ndarray, noise: np.ndarray) -> "Ridge":
        """Factorise `F`, `(..., m, r)`, with noise variances `(..., m)`."""
        root = noise_root(noise)
        return Ridge.of_scaled(factor / root[..., None], root)

    @classmethod
    def of_scaled(cls, scaled: np.ndarray, root: np.ndarray) -> "Ridge":
        """Factorise. Cost: `m r^2` operations."""
        inverse = inverse_root(scaled.mT @ scaled + np.eye(scaled.shape[-1]))
        half = scaled @ inverse.mT
        diagonal = (1.0 - np.einsum("...r,...r->...", half, half)) / np.square(root)
        return cls(root, scaled, inverse, half, diagonal)

    def solve_rows(self, right: np.ndarray) -> np.ndarray:
        """`A^-1 b` for every row `b` of a matrix, `(..., k, m)`."""
        scaled = right / self.root[..., None, :]
        return (scaled - (scaled @ self.half) @ self.half.mT) / self.root[..., None, :]

    def sandwich(self, weights: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For `B = A^-1 D A^-1` with `D = diag(weights)`: `N^{1/2} B F P`, `F' B F` and the trace of `N B`.

        `P` is zero but for its last rows, `(..., k, k)` and lower triangular.
        """
        half, inverse = self.half, self.inverse_root
        scaled, start = weights / np.square(self.root), half.shape[-1] - last.shape[-1]
        middle = half.mT @ (half * scaled[..., None])
        inner = inverse.mT @ middle @ inverse
        onto = inverse[..., start:, start:] @ last
        columns = half[..., start:] @ onto
        columns *= scaled[..., None]
        columns -= half @ (middle[..., start:] @ onto)
        return columns, inner, scaled.sum(axis=-1) - np.linalg.trace(middle) - np.linalg.trace(inner)

    def solve(self, right: np.ndarray) -> np.ndarray:
        """`A^-1 b`, for `b` `(..., m)`."""
        return self.solve_rows(right[..., None, :])[..., 0, :]

    def held_out(self, target: np.ndarray) -> "HeldOutPredictions":
        """Regress a target, `(..., m)`."""
        return HeldOutPredictions(self, self.solve(target))


@dataclass(frozen=True)
class HeldOutPredictions:
    """Held-out predictions of one target.

    Attributes:
        ridge: The regression.
        alpha: `A^{-1} t`, `(..., m)`: residual over noise variance of each simulation.
    """

    ridge: Ridge
    alpha: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """Held-out variances, `(..., m)`."""
        return 1.0 / self.ridge.diagonal

    @property
    def residual(self) -> np.ndarray:
        """Held-out residuals, `(..., m)`."""
        return self.alpha * self.variance

    @property
    def coefficients(self) -> np.ndarray:
        """Coefficients of the columns of the factor, `(..., r)`: predictions are `F @ coefficients`."""
        return self._onto_columns(self.alpha)

    def adjoint(self, of_residual: np.ndarray, of_variance: np.ndarray, last: np.ndarray) -> "Adjoint":
        """Derivatives by factor, noise and target from those by the predictions; `last` as in `Ridge.sandwich`."""
        ridge, variance, coefficients = self.ridge, self.variance, self.coefficients
        of_target = ridge.solve(of_residual * variance)
        weights = (of_residual * self.alpha + of_variance) * np.square(variance)
        of_columns, products, of_noise = ridge.sandwich(weights, last)
        other, start = self._onto_columns(of_target), coefficients.shape[-1] - last.shape[-1]
        solved = np.stack([of_target, self.alpha], axis=-1) * ridge.root[..., None]
        of_columns *= 2.0
        of_columns -= solved @ (np.stack([coefficients[..., start:], other[..., start:]], axis=-2) @ last)
        crossed = other[..., :, None] * coefficients[..., None, :]
        products = 2.0 * products - crossed - crossed.mT
        return Adjoint(of_columns, products, of_noise - np.sum(solved[..., 0] * solved[..., 1], axis=-1), of_target)

    def _onto_columns(self, values):
        return ((values * self.ridge.root)[..., None, :] @ self.ridge.scaled)[..., 0, :]


class Adjoint(NamedTuple):
    """Derivatives of a function of held-out predictions.

    Attributes:
        of_columns: `N^{1/2} H P`, `(..., m, k)`, for the derivative `H` by the factor `F`, `(..., m, r)`.
        products: `F' H`, `(..., r, r)`; its diagonal holds the derivatives by the logarithms of the columns'
            amplitudes.
        of_noise: Derivative by the logarithm of a common factor of the noise variances.
        of_target: Derivatives by the target, `(..., m)`.
    """

    of_columns: np.ndarray
    products: np.ndarray
    of_noise: np.ndarray
    of_target: np.ndarray


def noise_root(noise: np.ndarray) -> np.ndarray:
    """Square roots; NaN where a variance is not positive."""
    return np.sqrt(noise, out=np.full(np.shape(noise), np.nan), where=noise > 0.0)


def inverse_root(matrix: np.ndarray) -> np.ndarray:
    """`L^-1` for the Cholesky factor `L` of symmetric positive definite matrices; NaN where there is none.

    Products with it take less time than triangular solves, and threads can take them at once.
    """
    found = np.empty_like(matrix)
    shape = (-1, *matrix.shape[-2:])
    for one, out in zip(matrix.reshape(shape), found.reshape(shape), strict=True):
        factor, failed = lapack.dpotrf(one.T, lower=1)
        out[:] = np.nan if failed or not np.isfinite(factor[-1, -1]) else lapack.dtrtri(factor, lower=1)[0]
    return found


def diagonal(values: np.ndarray) -> np.ndarray:
    """Diagonal matrices `(..., r, r)` of vectors `(..., r)`."""
    return values[..., None] * np.eye(values.shape[-1])
