r"""Ridge regression whose held-out predictions, and their derivatives, come in closed form.

The matrix is $A = F F' + \mathrm{diag}(\nu)$. With weights $\alpha = A^{-1} t$, leaving out simulation $j$ gives the
residual $\alpha_j / (A^{-1})_{jj}$ with variance $1 / (A^{-1})_{jj}$, as a refit without it does. All goes through
Woodbury's formula, $A^{-1} = N^{-1/2} (I - T T') N^{-1/2}$ with
$T = N^{-1/2} F L'^{-1}$ and $L L' = I + F' N^{-1} F$: a few products of matrices of `m` by `r`.

Every array may have leading axes, `...`: one regression for each.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import lapack


@dataclass(frozen=True)
class Ridge:
    """A regression of one target.

    Attributes:
        root: Square roots of the noise variances `nu`, `(..., m)`.
        scaled: `N^{-1/2} F`, `(..., m, r)`.
        inverse_root: `L^-1` of `L L' = I + F' N^{-1} F`, the inverse covariance of the coefficients, `(..., r, r)`.
        half: `T`, `(..., m, r)`.
        diagonal: Diagonal of the inverse `A^-1`, `(..., m)`; NaN where a matrix is not positive definite to rounding.
        alpha: `A^{-1} t`, `(..., m)`: residual over noise variance of each simulation.
    """

    root: np.ndarray
    scaled: np.ndarray
    inverse_root: np.ndarray
    half: np.ndarray
    diagonal: np.ndarray
    alpha: np.ndarray

    @classmethod
    def of(cls, scaled: np.ndarray, root: np.ndarray, target: np.ndarray) -> "Ridge":
        """Regress a target `(..., m)` on `N^{-1/2} F`, with the roots of the noise variances. Cost: `m r^2`."""
        inverse = inverse_root(scaled.mT @ scaled + np.eye(scaled.shape[-1]))
        half = scaled @ inverse.mT
        diagonal = (1.0 - np.einsum("...r,...r->...", half, half)) / np.square(root)
        return cls(root, scaled, inverse, half, diagonal, root).again(target)

    def again(self, target: np.ndarray) -> "Ridge":
        """Regress another target, `(..., m)`: nothing is factorised."""
        return replace(self, alpha=self.solve_rows(target[..., None, :])[..., 0, :])

    def solve_rows(self, right: np.ndarray) -> np.ndarray:
        """`A^-1 b` for every row `b` of a matrix, `(..., k, m)`."""
        scaled = right / self.root[..., None, :]
        return (scaled - (scaled @ self.half) @ self.half.mT) / self.root[..., None, :]

    @property
    def variance(self) -> np.ndarray:
        """Held-out variances, `(..., m)`."""
        return 1.0 / self.diagonal

    @property
    def residual(self) -> np.ndarray:
        """Held-out residuals, `(..., m)`."""
        return self.alpha * self.variance

    @property
    def coefficients(self) -> np.ndarray:
        """Coefficients of the columns of the factor, `(..., r)`: predictions are `F @ coefficients`."""
        return self._onto_columns(self.alpha)

    def adjoint(
        self, of_residual: np.ndarray, of_variance: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Derivatives from those by the held-out residuals and variances.

        Args:
            of_residual, of_variance: These, `(..., m)`.
            last: The last rows of a matrix `P` that is zero but for them, `(..., k, k)`, lower triangular.
        Returns:
            With the derivative `H` by the factor `F`, `N^{1/2} H P`, `(..., m, k)`, and `F' H`, `(..., r, r)`, whose
            diagonal holds those by the logarithms of the columns' amplitudes; those by the logarithm of a common factor
            of the noise variances, `(...)`, and by the target, `(..., m)`.
        """
        half, inverse, coefficients = self.half, self.inverse_root, self.coefficients
        of_target = self.again(of_residual * self.variance).alpha
        weights = (of_residual * self.alpha + of_variance) * np.square(self.variance)
        # for B = A^-1 diag(weights) A^-1: N^{1/2} B F P, F' B F and the trace of N B
        scaled, start = weights / np.square(self.root), half.shape[-1] - last.shape[-1]
        middle = half.mT @ (half * scaled[..., None])
        inner = inverse.mT @ middle @ inverse
        onto = inverse[..., start:, start:] @ last
        columns = half[..., start:] @ onto
        columns *= scaled[..., None]
        columns -= half @ (middle[..., start:] @ onto)
        of_noise = scaled.sum(axis=-1) - np.linalg.trace(middle) - np.linalg.trace(inner)
        other = self._onto_columns(of_target)
        solved = np.stack([of_target, self.alpha], axis=-1) * self.root[..., None]
        columns *= 2.0
        columns -= solved @ (np.stack([coefficients[..., start:], other[..., start:]], axis=-2) @ last)
        crossed = other[..., :, None] * coefficients[..., None, :]
        of_noise = of_noise - np.sum(solved[..., 0] * solved[..., 1], axis=-1)
        return columns, 2.0 * inner - crossed - crossed.mT, of_noise, of_target

    def _onto_columns(self, values):
        return ((values * self.root)[..., None, :] @ self.scaled)[..., 0, :]


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
