r"""Ridge regression whose held-out predictions, and their derivatives, come in closed form: $A = F F' + \mathrm{diag}(\nu)$.

With weights $\alpha = A^{-1} t$, leaving out simulation $j$ gives the residual $\alpha_j / (A^{-1})_{jj}$ with variance
$1 / (A^{-1})_{jj}$, as a refit without it does. With fewer columns than simulations all goes through Woodbury's formula,
$A^{-1} = N^{-1/2} (I - T T') N^{-1/2}$ with $T = N^{-1/2} F L'^{-1}$ and $L L' = I + F' N^{-1} F$: a few products of matrices
of `m` by `r`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack


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
    def sandwich(self, weights: np.ndarray, onto: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For `B = A^-1 D A^-1` with `D = diag(weights)`: `B F P`, `F' B F` and the diagonal of `B`; `onto` is `P`, `(r, k)`."""

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

    def adjoint(self, of_residual: np.ndarray, of_variance: np.ndarray, onto: np.ndarray) -> "Adjoint":
        """Derivatives by the factor, the noise variances and the target from those by the predictions; `onto` is `P`, `(r, k)`."""
        variance, factor, coefficients = self.variance, self.ridge.factor, self.coefficients
        of_target = self.ridge.solve(of_residual * variance)
        weights = (of_residual * self.alpha + of_variance) * np.square(variance)
        of_columns, products, of_noise = self.ridge.sandwich(weights, onto)
        other = of_target @ factor
        of_columns = 2.0 * of_columns - np.outer(of_target, coefficients @ onto) - np.outer(self.alpha, other @ onto)
        products = 2.0 * products - np.outer(other, coefficients) - np.outer(coefficients, other)
        return Adjoint(of_columns, products, of_noise - of_target * self.alpha, of_target)


class Adjoint(NamedTuple):
    """Derivatives of a function of held-out predictions.

    Attributes:
        of_columns: `H P`, `(m, k)`, for the derivative `H` by the factor `F`, `(m, r)`.
        products: `F' H`, `(r, r)`; its diagonal holds the derivatives by the logarithms of the columns' amplitudes.
        of_noise: By the noise variances, `(m,)`.
        of_target: By the target, `(m,)`.
    """

    of_columns: np.ndarray
    products: np.ndarray
    of_noise: np.ndarray
    of_target: np.ndarray


@dataclass(frozen=True)
class _Narrow(Ridge):
    """Few columns: `root` is the square root of the noise, `half` is `T`, `inverse` is `L^-1`."""

    root: np.ndarray
    half: np.ndarray
    inverse: np.ndarray

    @classmethod
    def of(cls, factor, noise):
        root = np.sqrt(noise, out=np.full(len(noise), np.nan), where=noise > 0.0)
        scaled = factor / root[:, None]
        inverse = inverse_root(scaled.T @ scaled + np.eye(factor.shape[1]))
        half = scaled @ inverse.T
        return cls(factor, noise, (1.0 - _rows(half, half)) / noise, root, half, inverse)

    def solve(self, right):
        scaled = (right.T / self.root).T
        return ((scaled - self.half @ (self.half.T @ scaled)).T / self.root).T

    def sandwich(self, weights, onto):
        half, share = self.half, weights / self.noise
        weighted = half * share[:, None]
        middle = half.T @ weighted
        inner = half @ middle
        diagonal = (share - 2.0 * _rows(weighted, half) + _rows(inner, half)) / self.noise
        columns = ((weighted - inner) / self.root[:, None]) @ (self.inverse @ onto)
        return columns, self.inverse.T @ middle @ self.inverse, diagonal


@dataclass(frozen=True)
class _Wide(Ridge):
    """Many columns: the inverse itself."""

    inverse: np.ndarray

    @classmethod
    def of(cls, factor, noise):
        root = inverse_root(factor @ factor.T + np.diag(noise))
        inverse = root.T @ root
        return cls(factor, noise, np.diagonal(inverse), inverse)

    def solve(self, right):
        return self.inverse @ right

    def sandwich(self, weights, onto):
        whole = (self.inverse * weights) @ self.inverse
        columns = whole @ self.factor
        return columns @ onto, self.factor.T @ columns, np.diagonal(whole)


def inverse_root(matrix: np.ndarray) -> np.ndarray:
    """`L^-1` for the Cholesky factor `L` of a symmetric positive definite matrix; NaN where there is none.

    Products with it take less time than triangular solves, and threads can take them at once.
    """
    try:
        return lapack.dtrtri(np.linalg.cholesky(matrix), lower=1)[0]
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.nan)


def _rows(a, b):
    """Inner products of rows."""
    return np.einsum("jr,jr->j", a, b)
