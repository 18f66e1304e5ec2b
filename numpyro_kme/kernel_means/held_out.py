r"""Ridge regression whose held-out predictions, and their derivatives, come in closed form: $A = F F' + \mathrm{diag}(\nu)$.

With weights $\alpha = A^{-1} t$, leaving out simulation $j$ gives the residual $\alpha_j / (A^{-1})_{jj}$ with variance
$1 / (A^{-1})_{jj}$, as a refit without it does. With fewer columns than simulations all goes through Woodbury's formula,
$A^{-1} = N^{-1} - T T'$ with $T = N^{-1} F L'^{-1}$ and $L L' = I + F' N^{-1} F$: a few products of matrices of `m` by `r`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas, lapack


@dataclass(frozen=True)
class Ridge(ABC):
    """A factorised regression.

    Attributes:
        factor: `F`, `(m, r)`.
        noise: `nu`, noise variances, `(m,)`.
        diagonal: Of the inverse, `(m,)`; NaN where the matrix is not positive definite to rounding.
    """

    factor: np.ndarray
    noise: np.ndarray
    diagonal: np.ndarray

    @staticmethod
    def of(factor: np.ndarray, noise: np.ndarray) -> "Ridge":
        """Factorise. Cost: `m r^2` operations, or `m^3` where there are more columns than simulations."""
        return _Narrow.of(factor, noise) if factor.shape[1] < len(noise) else _Wide.of(factor, noise)

    @abstractmethod
    def solve(self, right: np.ndarray) -> np.ndarray:
        """`A^-1 b`, for `b` `(m,)` or `(m, k)`."""

    @abstractmethod
    def sandwich(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`A^-1 D A^-1 F`, `(m, r)`, and the diagonal of `A^-1 D A^-1`, `(m,)`, for `D = diag(weights)`."""

    def held_out(self, target: np.ndarray) -> "HeldOut":
        """Regress a target, `(m,)`."""
        return HeldOut(self, self.solve(target))


@dataclass(frozen=True)
class HeldOut:
    """Held-out predictions of one target.

    Attributes:
        ridge: The regression.
        alpha: `A^{-1} t`, `(m,)`.
    """

    ridge: Ridge
    alpha: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """Held-out variances, `(m,)`."""
        return 1.0 / self.ridge.diagonal

    @property
    def residual(self) -> np.ndarray:
        """Held-out residuals, `(m,)`."""
        return self.alpha * self.variance

    @property
    def coefficients(self) -> np.ndarray:
        """Of the columns of the factor, `(r,)`: predictions are `F @ coefficients`."""
        return self.alpha @ self.ridge.factor

    def adjoint(self, of_residual: np.ndarray, of_variance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Derivatives by the factor, `(m, r)`, the noise variances, `(m,)`, and the target, `(m,)`, from those by the predictions."""
        variance = self.variance
        of_target = self.ridge.solve(of_residual * variance)
        weights = (of_residual * self.alpha + of_variance) * np.square(variance)
        of_factor, of_noise = self.ridge.sandwich(weights)
        of_factor = 2.0 * of_factor - np.outer(of_target, self.coefficients)
        of_factor -= np.outer(self.alpha, of_target @ self.ridge.factor)
        return of_factor, of_noise - of_target * self.alpha, of_target


@dataclass(frozen=True)
class _Narrow(Ridge):
    """Few columns: `half` is `T`, `root` is `L`."""

    half: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, factor, noise):
        weighted = factor / noise[:, None]
        root, failed = lapack.dpotrf(weighted.T @ factor + np.eye(factor.shape[1]), lower=1, overwrite_a=1)
        if failed:
            return cls(factor, noise, np.full(len(noise), np.nan), np.full_like(factor, np.nan), root)
        half = blas.dtrsm(1.0, root, weighted, side=1, lower=1, trans_a=1)
        return cls(factor, noise, 1.0 / noise - np.einsum("jr,jr->j", half, half), half, root)

    def solve(self, right):
        return (right.T / self.noise).T - self.half @ (self.half.T @ right)

    def sandwich(self, weights):
        half, share = self.half, weights / self.noise
        weighted = half * weights[:, None]
        inner = half @ (half.T @ weighted)
        diagonal = share / self.noise - 2.0 * share * np.einsum("jr,jr->j", half, half)
        diagonal += np.einsum("jr,jr->j", inner, half)
        return blas.dtrsm(1.0, self.root, weighted / self.noise[:, None] - inner, side=1, lower=1), diagonal


@dataclass(frozen=True)
class _Wide(Ridge):
    """Many columns: the inverse itself."""

    inverse: np.ndarray

    @classmethod
    def of(cls, factor, noise):
        inverse = _inverse(factor @ factor.T + np.diag(noise))
        return cls(factor, noise, np.diagonal(inverse), inverse)

    def solve(self, right):
        return self.inverse @ right

    def sandwich(self, weights):
        whole = (self.inverse * weights) @ self.inverse
        return whole @ self.factor, np.diagonal(whole)


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """Inverse of a symmetric positive definite matrix by its Cholesky factor; NaN where there is none."""
    factor, failed = lapack.dpotrf(matrix.T, lower=1, clean=0)
    if failed:
        return np.full_like(matrix, np.nan)
    lower = np.tril(lapack.dpotri(factor, lower=1, overwrite_c=1)[0])
    inverse = lower + lower.T
    np.fill_diagonal(inverse, np.diagonal(lower))
    return inverse
