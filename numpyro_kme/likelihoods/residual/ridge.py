r"""Ridge regression whose held-out predictions, and their derivatives, come in closed form.

The matrix is $A = F F' + \mathrm{diag}(\nu)$. With weights $\alpha = A^{-1} t$, leaving out simulation $j$ gives the
residual $\alpha_j / (A^{-1})_{jj}$ with variance $1 / (A^{-1})_{jj}$, as a refit without it does. All goes through
Woodbury's formula, $A^{-1} = N^{-1/2} (I - T T') N^{-1/2}$ with
$T = N^{-1/2} F L'^{-1}$ and $L L' = I + F' N^{-1} F$: a few products of matrices of `m` by `r`.

Every array may have leading axes, `...`: one regression for each.

`RidgeFunctions` are fitted regressions as functions of the coordinates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import special
from scipy.linalg import block_diag, lapack

from numpyro_kme.kernels.base import register

if TYPE_CHECKING:
    from numpyro_kme.likelihoods.residual.smoothness import Regression


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
        return ((self.alpha * self.root)[..., None, :] @ self.scaled)[..., 0, :]

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
        back = self.again(of_residual * self.variance)
        of_target, other = back.alpha, back.coefficients
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
        solved = np.stack([of_target, self.alpha], axis=-1) * self.root[..., None]
        columns *= 2.0
        columns -= solved @ (np.stack([coefficients[..., start:], other[..., start:]], axis=-2) @ last)
        crossed = other[..., :, None] * coefficients[..., None, :]
        of_noise = of_noise - np.sum(solved[..., 0] * solved[..., 1], axis=-1)
        return columns, 2.0 * inner - crossed - crossed.mT, of_noise, of_target


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


def features(z: Any, xp: Any = np) -> Any:
    """`(..., D)` to `(..., 2 D)`: normal and uniform versions of each coordinate, each of variance 1."""
    erf = special.erf if xp is np else jax.lax.erf
    return xp.concatenate([z, np.sqrt(3.0) * erf(z / np.sqrt(2.0))], axis=-1)


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
    def of(cls, fits: "Regression", tolerance: ArrayLike) -> "RidgeFunctions":
        """From `k` regressions and tolerances, `(k, m)`.

        Features, and as few of the first inducing points as match the function at every simulation to its tolerance,
        take the place of all of them.
        """
        parts = []
        basis = np.concatenate([np.ones((len(fits.at), 1)), fits.at.features], axis=1)
        used = np.ones((len(fits.near), fits.at.dim), bool) if fits.at.used is None else fits.at.used
        used = np.concatenate([np.ones((len(used), 1), bool), used, used], axis=1)
        intercepts, slopes, weights = fits.weights()
        for i, scale in enumerate(1.0 / np.asarray(tolerance)[:, :, None]):
            straight = np.zeros(basis.shape[1])
            straight[used[i]], own = _simplified(basis[:, used[i]] * scale, fits.near[i] * scale, weights[i])
            offset, linear = intercepts[i, None] + straight[:1], slopes[i, None] + straight[None, 1:]
            precision = np.tile(np.exp(-2.0 * fits.smoothness.length[i]), (len(own), 1))
            parts.append(cls(offset, linear, fits.at.inducing_points[: len(own)], precision, own[None]))
        return cls.together(parts)

    @staticmethod
    def together(parts: Sequence["RidgeFunctions"]) -> "RidgeFunctions":
        """Functions of the same coordinates, one part after another, in one pass."""
        *own, rbf = zip(*map(jax.tree.leaves, parts))
        offset, linear, points, precision = map(np.concatenate, own)
        return RidgeFunctions(offset, linear, points, precision, block_diag(*rbf))

    def combined(self, matrix: np.ndarray, added: ArrayLike = 0.0) -> "RidgeFunctions":
        """Sums of the functions with weights `(k, n)`, plus constants `(k,)`, with the kernels that they need."""
        rbf = matrix @ np.asarray(self.rbf)
        needed = rbf.any(axis=0)
        points, precision = np.asarray(self.points)[needed], np.asarray(self.precision)[needed]
        return RidgeFunctions(matrix @ self.offset + added, matrix @ self.linear, points, precision, rbf[:, needed])

    def __call__(self, z: Any, xp: Any = jnp) -> Any:
        """Values `(..., n)` at points `(..., D)`, by JAX or NumPy, in the precision of `points`.

        Cost: `r` exponentials a point, and products of matrices; under `vmap` too.
        """
        offset, linear, points, precision, rbf = map(xp.asarray, jax.tree.leaves(self))
        z = z.astype(points.dtype)
        near = xp.exp(log_gaussians(z, points, precision, xp))
        return offset + features(z, xp).astype(z.dtype) @ linear.T + near @ rbf.T


def log_gaussians(at: Any, centres: Any, precision: Any, xp: Any) -> Any:
    """`-sum_d p_jd (a_d - c_jd)^2 / 2` of points `a` `(..., k)`, `(..., m)`, by one product of matrices.

    Args:
        at: `a`.
        centres: `c`, `(m, k)`.
        precision: `p`, `(m, k)`, or `(m, 1)` where all numbers of a point have the same.
    """
    squares = xp.square(at)
    squares = squares if precision.shape[1] == at.shape[-1] else xp.sum(squares, axis=-1, keepdims=True)
    own = -0.5 * xp.sum(precision * xp.square(centres), axis=1, keepdims=True)
    factor = xp.concatenate([precision * centres, -0.5 * precision, own], axis=1)
    return xp.concatenate([at, squares, xp.ones((*at.shape[:-1], 1), at.dtype)], axis=-1) @ factor.T


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
