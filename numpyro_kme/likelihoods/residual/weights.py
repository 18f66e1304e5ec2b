r"""Weights of simulations that follow the coordinates, by JAX or NumPy: a conditional mean embedding made positive.

$a(z) = (K + m \lambda I)^{-1} k(z) + b \big( 1 - \mathbf 1^\top (K + m \lambda I)^{-1} k(z) \big)$ with a Gaussian
kernel and the intercept $b = (K + m \lambda I)^{-1} \mathbf 1 / \mathbf 1^\top (K + m \lambda I)^{-1} \mathbf 1$, and
their smooth positive part.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from numpyro_kme._core.solves import Array
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.by_numpy import gaussian_gram
from numpyro_kme.kernels.low_rank import AT_ONCE, by_columns
from numpyro_kme.likelihoods.base import positive_part
from numpyro_kme.likelihoods.residual.functions import padded
from numpyro_kme.likelihoods.residual.mixture import exponentials
from numpyro_kme.likelihoods.residual.smoothness import RIDGE

SOFTNESS = 0.1
"""Weights below this fraction of `1 / m` count as about zero, smoothly."""

NEGLIGIBLE = 0.03
"""Eigenvalues of `K` below this fraction of `m lam` are left out of the weights; log densities move by a thousandth."""

LANDMARKS, TOLD = 256, 1000
"""Pivots that are enough in few dimensions, else points at random, twice as many at a time; points that tell the
largest eigenvalue of what these leave out."""

A_PRODUCT, NEAR = 50, 0.25
"""A product with `K` costs as much as the factor of so many points that their square is this times `m`; eigenvalues
above this fraction of the `least` that counts may count once they are sharpened."""

EXPLAINED, SUFFICIENT, MOST = 1e-4, 1e-3, 100
"""NumPy takes pivots until no simulation's kernel is unexplained by more than the first of these times `lam`, or there
are `MOST`, which cost as much as all kernels; they have to explain up to the second: log densities move by less than
what float32 does."""


@register
class EmbeddingWeights:
    """The weights `a`.

    Attributes:
        points: Coordinates of the simulations, `(m, D)`.
        beta: Length scale of the kernel, a scalar.
        basis: `U`, `(m, r)`, with `m lam (K + m lam I)^-1 = I - U U'` up to negligible eigenvalues; columns of zeros
            round `r` up.
        intercept: `b`, `(m,)`.
        ridge: `m lam`, a scalar.
    """

    points: Array
    beta: Array
    basis: Array
    intercept: Array
    ridge: Array

    @classmethod
    def fit(cls, z: np.ndarray, beta: float, ridge: float) -> "EmbeddingWeights":
        """At coordinates `(m, D)`, with the length scale of the kernel and `m lam`.

        Cost: `m r^2` where `K` has numerical rank `r`.
        """
        basis = _basis(z, beta, ridge)
        basis = np.pad(basis, ((0, 0), (0, padded(basis.shape[1], 16, 64) - basis.shape[1])))
        ones = 1.0 - basis @ basis.sum(axis=0)
        return cls(z, np.array(beta), basis, ones / ones.sum(), np.array(ridge))

    @property
    def rank(self) -> int:
        """Columns of the basis that are not all zeros."""
        return int(np.count_nonzero(np.asarray(self.basis).any(axis=0)))

    def __call__(self, z: Any, xp: Any = jnp) -> Any:
        """`a(z)` at points `(..., D)` up to a factor, `(..., m)`."""
        kernel, one = _gaussian(z, self.points, self.beta, xp.log(self.ridge), xp), xp.ones((*z.shape[:-1], 1), z.dtype)
        # k - U U' k, and the intercept times what is left of 1 after its sum, k' (1 - U U' 1)
        basis, intercept = xp.asarray(self.basis), xp.asarray(self.intercept)[None, :]
        rest = 1.0 - basis @ xp.sum(basis, axis=0)
        within = xp.concatenate([kernel @ xp.concatenate([basis, rest[:, None]], axis=1), one], axis=-1)
        kernel += within @ xp.concatenate([-basis.T, -intercept, intercept], axis=0)  # in place by NumPy
        return positive_part(kernel, SOFTNESS / len(self.points), xp)

    def trimmed(self) -> Any:
        """What NumPy evaluates in their place: `PivotWeights` where they suffice, or these without columns of zeros."""
        basis = np.asarray(self.basis)
        return PivotWeights.of(self) or replace(self, basis=basis[:, basis.any(axis=0)])


@register
class PivotWeights:
    """The same where the kernel at few pivots `P` tells that at all simulations, `k(z) ~ C' k_P(z)`.

    Attributes:
        points: `P`, `(r, D)`.
        beta: Length scale of the kernel, a scalar.
        matrix: What the weights are of `k_P(z)`, `(r, m)`.
        intercept: What is added, `(m,)`.
    """

    points: Array
    beta: Array
    matrix: Array
    intercept: Array

    @classmethod
    def of(cls, whole: EmbeddingWeights) -> "PivotWeights | None":
        """The weights from few pivots; None where they do not suffice. Cost: `m r^2`."""
        points, basis, intercept = (
            np.asarray(leaf, np.float64) for leaf in (whole.points, whole.basis, whole.intercept)
        )
        beta, ridge, m = float(whole.beta), float(whole.ridge), len(points)
        kernels, lam = (lambda some: gaussian_gram(points, points[some], beta**2)), ridge / m
        factor, pivots = by_columns(kernels, np.ones(m), EXPLAINED * lam, MOST)
        if np.max(1.0 - np.sum(np.square(factor), axis=1)) > SUFFICIENT * lam or 2 * len(pivots) > m:
            return None
        kernel = np.linalg.solve(factor[pivots].T, factor.T) / ridge
        rest = 1.0 - basis @ basis.sum(axis=0)
        matrix = kernel - (kernel @ basis) @ basis.T - np.outer(kernel @ rest, intercept)
        return cls(points[pivots], np.array(beta), matrix, intercept)

    def __call__(self, z: Any, xp: Any = jnp) -> Any:
        """As `EmbeddingWeights`."""
        found = _gaussian(z, self.points, self.beta, 0.0, xp) @ xp.asarray(self.matrix)
        found += xp.asarray(self.intercept)  # in place by NumPy
        return positive_part(found, SOFTNESS / np.shape(self.matrix)[1], xp)


def _gaussian(z: Any, points: Any, beta: Any, log_divisor: Any, xp: Any) -> Any:
    """The kernel between points `(..., D)` and `(r, D)` over a number, `(..., r)`, by one product of matrices."""
    points, z = xp.asarray(points) / beta, z / beta
    size, one = xp.sum(xp.square(points), axis=1, keepdims=True), xp.ones((*z.shape[:-1], 1), z.dtype)
    factor = xp.concatenate([points, -0.5 * size - log_divisor, -0.5 * xp.ones_like(size)], axis=1)
    powers = xp.concatenate([z, one, xp.sum(xp.square(z), axis=-1, keepdims=True)], axis=-1)
    return exponentials(powers @ factor.T, xp)


def _basis(z: np.ndarray, beta: float, ridge: float) -> np.ndarray:
    """`U`, `(m, r)`, with `K (K + ridge I)^-1 = U U'` up to negligible eigenvalues.

    They are those of `F'F` for a factor `F` of low rank, which leaves out no more than they do; where the rank is
    large, of `K` itself.
    """
    factor = _factor(z, beta, NEGLIGIBLE * ridge)
    values, vectors = np.linalg.eigh(gaussian_gram(z, z, beta**2) if factor is None else factor.T @ factor)
    kept = values > NEGLIGIBLE * ridge
    vectors = vectors[:, kept] / np.sqrt(values[kept] + ridge)
    return vectors * np.sqrt(values[kept]) if factor is None else factor @ vectors


def _factor(z: np.ndarray, beta: float, least: float) -> np.ndarray | None:
    """`F`, `(m, r)`, such that about no eigenvalue of `K - F F'` is above the `least` that counts; None where `K` is
    small and its eigenvectors cost less.

    In few dimensions a few pivots leave no diagonal entry above `least / m`, and so no such eigenvalue. In many they do
    not, and the eigenvalues that count are those of functions that any points tell: `F` is that of points at random
    (Nystroem's method), twice as many until the largest eigenvalue left, told by other points, does not count. Where
    that takes so many points that a product with `K` costs no more, and fewer than half of their functions count, one
    product sharpens these.
    """
    m, order = len(z), np.random.default_rng(0).permutation(len(z))
    factor, _ = by_columns(lambda some: gaussian_gram(z, z[some], beta**2), np.ones(m), least / m, LANDMARKS)
    if factor.shape[1] < min(LANDMARKS, m):
        return factor
    if m <= TOLD:
        return None
    number, told = LANDMARKS, order[:TOLD]
    among = gaussian_gram(z[told], z[told], beta**2)
    while 2 * number < m or m > AT_ONCE:
        points = z[order[-number:]]
        root = np.linalg.cholesky(gaussian_gram(points, points, beta**2) + RIDGE * np.eye(number))
        factor = solve_triangular(root, gaussian_gram(points, z, beta**2), lower=True, overwrite_b=True).T
        left = among - factor[told] @ factor[told].T
        own = np.diagonal(left).max()
        np.fill_diagonal(left, 0.0)  # of all points there are more pairs, and each is alike to itself once
        if np.linalg.eigvalsh(left)[-1] * m / len(told) + own <= least or number == m:
            return factor
        if number**2 >= A_PRODUCT * m:
            values, vectors = np.linalg.eigh(factor.T @ factor)
            if 2 * np.count_nonzero(values > least) <= number:
                return _sharpened(z, beta, factor @ vectors[:, values > NEAR * least])
        number = min(2 * number, m)
    return None


def _sharpened(z: np.ndarray, beta: float, functions: np.ndarray) -> np.ndarray:
    """The factor `(m, r)` of `K` that functions `(m, r)` on the points tell, by one product with `K`, which is never
    formed: `K Q (Q' K Q)^-1 Q' K = F F'` for an orthonormal basis `Q` of theirs."""
    basis = np.linalg.qr(functions)[0]
    blocks = np.array_split(z, -(-len(z) // LANDMARKS))
    product = np.concatenate([gaussian_gram(some, z, beta**2) @ basis for some in blocks])
    return solve_triangular(np.linalg.cholesky(basis.T @ product), product.T, lower=True, overwrite_b=True).T
