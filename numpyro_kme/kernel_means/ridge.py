r"""Kernel ridge regression on coordinates: a straight line in two scales plus a Gaussian kernel, learnt without refits.

$k(z, z') = b^2 + \sum_f a_f^2 \phi_f(z) \phi_f(z') + c^2 \exp(-\tfrac12 \sum_d (z_d - z'_d)^2 / l_d^2)$ with the features
$\phi(z) = (z, \sqrt{12} (\Phi(z) - 1/2))$: a function that is linear in a normal, or in a uniform, parameter costs one amplitude.

Learning runs in NumPy with adjoints by hand: nothing is compiled, and a gradient takes one product of matrices.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import special
from scipy.linalg import lapack

from numpyro_kme.kernels.base import register

INTERCEPT = 10.0
"""Prior standard deviation `b` of the intercept, in standard deviations of the target."""

JITTER = 1e-6
"""Least noise variance, in variances of the target."""


DEPENDENT = 1e-9
"""A kernel of which no larger share is left beside those chosen, as at a point that comes twice, adds nothing."""


def features(z: Any, xp: Any = np, erf: Any = special.erf) -> Any:
    """`(..., D)` to `(..., 2 D)`: normal and uniform versions of each coordinate, each of variance 1."""
    return xp.concatenate([z, np.sqrt(3.0) * erf(z / np.sqrt(2.0))], axis=-1)


@register
class Smoothness:
    """Logarithms of the hyperparameters of one regression.

    Attributes:
        linear: `a`, `(2 D,)`.
        bump: `c`, a scalar.
        length: `l`, `(D,)`.
        noise: Standard deviation of the noise, a scalar.
    """

    linear: Any
    bump: Any
    length: Any
    noise: Any

    @classmethod
    def start(
        cls, dim: int, linear: float = 0.3, bump: float = 0.3, length: float = 1.5, noise: float = 1.0
    ) -> "Smoothness":
        """The same values everywhere; `length` is multiplied by `sqrt(D)`."""
        lengths = np.full(dim, np.log(length * np.sqrt(dim)))
        return cls(np.full(2 * dim, np.log(linear)), np.log(bump), lengths, np.log(noise))

    @classmethod
    def bounds(cls, dim: int) -> tuple["Smoothness", "Smoothness"]:
        """Box of the search."""
        low = cls(np.full(2 * dim, -9.0), -6.0, np.full(dim, np.log(0.2)), -7.0)
        return low, cls(np.full(2 * dim, 3.0), 3.0, np.full(dim, 6.0), 1.5)

    def penalty(self) -> tuple[float, "Smoothness"]:
        """Minus the log prior, and its gradient: exponential priors on `a`, `1 / l` (rate `sqrt(2 D)`) and `c` (rate 2).

        A function that does not depend on a coordinate, or is straight, is the simplest, and costs nothing; the expected
        total variance does not depend on the number of coordinates.
        """
        rate = np.sqrt(2.0 * len(self.length))
        linear, length, bump = (
            rate * np.exp(self.linear),
            rate * np.exp(-self.length),
            2.0 * np.exp(self.bump),
        )
        return linear.sum() + length.sum() + bump, Smoothness(linear, bump, -length, 0.0)

    def signal(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Kernel matrix `(r, s)` between points `(r, D)` and `(s, D)`."""
        return INTERCEPT**2 + (features(a) * np.exp(2.0 * self.linear)) @ features(b).T + self.bumps(a, b)

    def regularised(self, z: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Kernel matrix plus the noise variance, `noise` `(m,)` in units of `exp(2 self.noise)`."""
        return self.signal(z, z) + np.diag(np.exp(2.0 * self.noise) * noise + JITTER)

    def gradient(self, z: np.ndarray, noise: np.ndarray, of_matrix: np.ndarray) -> "Smoothness":
        """Chain rule: from a symmetric derivative by `regularised(z, noise)`, `(m, m)`, to the hyperparameters."""
        shape, bumps = features(z), of_matrix * self.bumps(z, z)
        linear = 2.0 * np.exp(2.0 * self.linear) * np.sum(shape * (of_matrix @ shape), axis=0)
        length = 2.0 * np.exp(-2.0 * self.length) * (bumps.sum(axis=1) @ np.square(z) - np.sum(z * (bumps @ z), axis=0))
        own = 2.0 * np.exp(2.0 * self.noise) * (np.diagonal(of_matrix) @ noise)
        return Smoothness(linear, 2.0 * bumps.sum(), length, own)

    def bumps(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The Gaussian kernel alone, `(r, s)`."""
        a, b = a * np.exp(-self.length), b * np.exp(-self.length)
        squares = np.sum(a * a, axis=1)[:, None] + np.sum(b * b, axis=1) - 2.0 * a @ b.T
        return np.exp(2.0 * self.bump - 0.5 * np.maximum(squares, 0.0))


@dataclass(frozen=True)
class HeldOut:
    r"""Held-out predictions of ridge regression, in closed form.

    With weights `alpha = A^{-1} t`, leaving out simulation `j` gives the residual `alpha_j / (A^{-1})_jj` with variance
    `1 / (A^{-1})_jj`, as a refit without it does.

    Attributes:
        inverse: `A^{-1}`, `(m, m)`.
        alpha: `(m,)`.
    """

    inverse: np.ndarray
    alpha: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """Held-out variances, `(m,)`."""
        return 1.0 / np.diagonal(self.inverse)

    @property
    def residual(self) -> np.ndarray:
        """Held-out residuals, `(m,)`."""
        return self.alpha * self.variance

    def adjoint(self, of_residual: np.ndarray, of_variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives by the matrix, `(m, m)` and symmetric, and by the target, `(m,)`, from those by the predictions."""
        variance = self.variance
        of_target = self.inverse @ (of_residual * variance)
        of_diagonal = (of_residual * self.alpha + of_variance) * np.square(variance)
        outer = np.outer(of_target, self.alpha)
        return (self.inverse * of_diagonal) @ self.inverse - 0.5 * (outer + outer.T), of_target


def held_out(matrix: np.ndarray, target: np.ndarray) -> HeldOut:
    """Regress a target `(m,)` with a regularised kernel matrix; NaN where the matrix is not positive definite."""
    inverse = inverse_of(matrix)
    return HeldOut(inverse, inverse @ target)


def inverse_of(matrix: np.ndarray) -> np.ndarray:
    """Inverse of a symmetric positive definite matrix by its Cholesky factor; NaN where there is none. Cost: `m^3` operations."""
    factor, failed = lapack.dpotrf(matrix.T, lower=1, clean=0)
    if failed:
        return np.full_like(matrix, np.nan)
    lower = np.tril(lapack.dpotri(factor, lower=1, overwrite_c=1)[0])
    inverse = lower + lower.T
    np.fill_diagonal(inverse, np.diagonal(lower))
    return inverse


@register
class RidgeFunctions:
    """Fitted functions of the coordinates, `n` at once: `z (D,) -> (n,)`.

    Attributes:
        offset: `(n,)`.
        linear: Weights of the features, `(n, 2 D)`.
        points: Centres of the Gaussian kernels of all functions, `(r, D)`.
        precision: Their squared inverse length scales, `(r, D)`.
        bump: Their weights in each function, `(n, r)`.
    """

    offset: ArrayLike
    linear: ArrayLike
    points: ArrayLike
    precision: ArrayLike
    bump: ArrayLike

    @classmethod
    def stack(cls, z: np.ndarray, fits: list[tuple[Smoothness, np.ndarray, float, float]]) -> "RidgeFunctions":
        """From hyperparameters, weights `alpha` `(m,)`, an offset and a tolerance for each function.

        Features, and then as few kernels as are needed to match the function at every simulation to the tolerance, take
        the place of the `m` kernels of the regression. Their number is rounded up by kernels of weight 0, so that
        other functions do not compile again.
        """
        shape = features(z)
        basis = np.concatenate([np.ones((len(z), 1)), shape], axis=1)
        offset, linear, centres, precision, bump = [], [], [], [], []
        for i, (hyper, alpha, shift, tolerance) in enumerate(fits):
            straight, chosen, weights = _sparse(hyper, alpha, z, basis, tolerance)
            offset.append(INTERCEPT**2 * alpha.sum() + shift + straight[0])
            linear.append(np.exp(2.0 * hyper.linear) * (alpha @ shape) + straight[1:])
            centres.append(z[chosen])
            precision.append(np.tile(np.exp(-2.0 * hyper.length), (len(chosen), 1)))
            bump.append(np.outer(np.arange(len(fits)) == i, weights))
        spare = padded(sum(map(len, centres))) - sum(map(len, centres))
        rest = np.zeros((spare, z.shape[1]))
        return cls(
            np.array(offset),
            np.array(linear),
            np.concatenate([*centres, rest]),
            np.concatenate([*precision, rest]),
            np.concatenate([*bump, np.zeros((len(fits), spare))], axis=1),
        )

    def __call__(self, z: jax.Array) -> jax.Array:
        """Values `(n,)` at one point `(D,)`. Cost: `r` exponentials; under `vmap`, products of matrices."""
        points, precision = jnp.asarray(self.points), jnp.asarray(self.precision)
        straight = self.offset + jnp.asarray(self.linear) @ features(z, jnp, jax.lax.erf)
        near = (precision * points) @ z - 0.5 * precision @ jnp.square(z)
        near = near - 0.5 * jnp.sum(precision * jnp.square(points), axis=1)
        return straight + jnp.asarray(self.bump) @ jnp.exp(near)


def padded(size: int) -> int:
    """`size` rounded up to a power of two that is at least 64."""
    return max(64, 1 << (size - 1).bit_length())


def _sparse(
    hyper: Smoothness, alpha: np.ndarray, z: np.ndarray, basis: np.ndarray, tolerance: float
) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Weights of the columns of `basis`, indices of kernels and their weights that match `sum_j alpha_j k(z_j, z)`.

    Kernels are added where the error is largest, and all weights are by least squares. Where half as many weights as there
    are points do not suffice, a match at the points says little about the rest, and all kernels are kept.
    """
    gram = hyper.bumps(z, z)
    target, gram = gram @ alpha, gram * np.exp(-2.0 * hyper.bump)
    size, begun = len(z), basis.shape[1]
    columns = np.zeros((size, max(begun, size // 2)))
    columns[:, :begun] = np.linalg.qr(np.pad(basis, ((0, max(0, begun - size)), (0, 0))))[0][:size]
    rest, chosen = target, list[int]()
    for count in range(begun, size // 2):
        rest = rest - columns[:, :count] @ (columns[:, :count].T @ rest)
        error = np.abs(rest)
        if np.max(error) <= tolerance:
            weights = np.linalg.lstsq(np.concatenate([basis, gram[:, chosen]], axis=1), target, rcond=1e-12)[0]
            return weights[:begun], chosen, weights[begun:]
        error[chosen] = -1.0
        chosen.append(int(np.argmax(error)))
        new = whole = gram[:, chosen[-1]]
        for _ in range(2):
            new = new - columns[:, :count] @ (columns[:, :count].T @ new)
        left = float(np.linalg.norm(new))
        if left > DEPENDENT * float(np.linalg.norm(whole)):
            columns[:, count] = new / left
    return np.zeros(begun), list(range(size)), alpha * np.exp(2.0 * hyper.bump)
