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
        root: Square roots of the noise variances `nu`, `(m,)`.
        scaled: `N^{-1/2} F`, `(m, r)`.
        diagonal: Of the inverse, `(m,)`; NaN where the matrix is not positive definite to rounding.
    """

    root: np.ndarray
    scaled: np.ndarray
    diagonal: np.ndarray

    @staticmethod
    def of(factor: np.ndarray, noise: np.ndarray) -> "Ridge":
        """Factorise `F`, `(m, r)`, with noise variances `(m,)`."""
        root = noise_root(noise)
        return Ridge.of_scaled(factor / root[:, None], root)

    @staticmethod
    def of_scaled(scaled: np.ndarray, root: np.ndarray) -> "Ridge":
        """Factorise. Cost: `m r^2` operations, or `m^3` where there are more columns than simulations."""
        return _Narrow.of(scaled, root) if scaled.shape[1] < len(root) else _Wide.of(scaled, root)

    @property
    def factor(self) -> np.ndarray:
        """`F`, `(m, r)`."""
        return self.scaled * self.root[:, None]

    @abstractmethod
    def solve(self, right: np.ndarray) -> np.ndarray:
        """`A^-1 b`, for `b` `(m,)` or `(m, k)`."""

    @abstractmethod
    def sandwich(self, weights: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """For `B = A^-1 D A^-1` with `D = diag(weights)`: `N^{1/2} B F P`, `F' B F` and the trace of `N B`.

        `P` is zero but for its last rows, `(k, k)` and lower triangular.
        """

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
        return (self.alpha * self.ridge.root) @ self.ridge.scaled

    def adjoint(self, of_residual: np.ndarray, of_variance: np.ndarray, last: np.ndarray) -> "Adjoint":
        """Derivatives by the factor, the noise and the target from those by the predictions; `last` as in `Ridge.sandwich`."""
        ridge, variance, coefficients, k = self.ridge, self.variance, self.coefficients, len(last)
        of_target = ridge.solve(of_residual * variance)
        weights = (of_residual * self.alpha + of_variance) * np.square(variance)
        of_columns, products, of_noise = ridge.sandwich(weights, last)
        other = (of_target * ridge.root) @ ridge.scaled
        solved = np.stack([of_target, self.alpha], axis=1) * ridge.root[:, None]
        of_columns *= 2.0
        of_columns -= solved @ (np.stack([coefficients[-k:], other[-k:]]) @ last if k else np.zeros((2, 0)))
        crossed = np.outer(other, coefficients)
        products = 2.0 * products - crossed - crossed.T
        return Adjoint(of_columns, products, of_noise - solved[:, 0] @ solved[:, 1], of_target)


class Adjoint(NamedTuple):
    """Derivatives of a function of held-out predictions.

    Attributes:
        of_columns: `N^{1/2} H P`, `(m, k)`, for the derivative `H` by the factor `F`, `(m, r)`.
        products: `F' H`, `(r, r)`; its diagonal holds the derivatives by the logarithms of the columns' amplitudes.
        of_noise: By the logarithm of a common factor of the noise variances.
        of_target: By the target, `(m,)`.
    """

    of_columns: np.ndarray
    products: np.ndarray
    of_noise: float
    of_target: np.ndarray


@dataclass(frozen=True)
class _Narrow(Ridge):
    """Few columns: `half` is `T`, `inverse` is `L^-1`."""

    half: np.ndarray
    inverse: np.ndarray

    @classmethod
    def of(cls, scaled, root):
        inverse = inverse_root(scaled.T @ scaled + np.eye(scaled.shape[1]))
        half = scaled @ inverse.T
        return cls(root, scaled, (1.0 - _rows(half, half)) / np.square(root), half, inverse)

    def solve(self, right):
        scaled = (right.T / self.root).T
        return ((scaled - self.half @ (self.half.T @ scaled)).T / self.root).T

    def sandwich(self, weights, last):
        half, inverse, k = self.half, self.inverse, len(last)
        share = weights / np.square(self.root)
        middle = half.T @ (half * share[:, None])
        inner = inverse.T @ middle @ inverse
        trace = share.sum() - np.trace(middle) - np.trace(inner)
        start = half.shape[1] - k
        onto = inverse[start:, start:] @ last
        columns = half[:, start:] @ onto
        columns *= share[:, None]
        columns -= half @ (middle[:, start:] @ onto)
        return columns, inner, trace


@dataclass(frozen=True)
class _Wide(Ridge):
    """Many columns: `inverse` is that of `N^{-1/2} A N^{-1/2}`."""

    inverse: np.ndarray

    @classmethod
    def of(cls, scaled, root):
        half = inverse_root(scaled @ scaled.T + np.eye(len(root)))
        inverse = half.T @ half
        return cls(root, scaled, np.diagonal(inverse) / np.square(root), inverse)

    def solve(self, right):
        return ((self.inverse @ (right.T / self.root).T).T / self.root).T

    def sandwich(self, weights, last):
        whole = (self.inverse * (weights / np.square(self.root))) @ self.inverse
        columns = whole @ self.scaled
        return columns[:, columns.shape[1] - len(last) :] @ last, self.scaled.T @ columns, np.trace(whole)


def noise_root(noise: np.ndarray) -> np.ndarray:
    """Square roots; NaN where a variance is not positive."""
    return np.sqrt(noise, out=np.full(np.shape(noise), np.nan), where=noise > 0.0)


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
