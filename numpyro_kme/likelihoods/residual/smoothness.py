r"""How smooth a function of the coordinates is: hyperparameters of a ridge regression, and the columns that they give.

$k(z, z') = b^2 + \sum_f a_f^2 \phi_f(z) \phi_f(z') + c^2 g(z)' G^{-1} g(z')$ with the features
$\phi(z) = (z, \sqrt{12} (\Phi(z) - 1/2))$, so that a function that is linear in a normal, or in a uniform, parameter
costs one amplitude, and radial basis functions $g_u(z) = \exp(-\tfrac12 \sum_d (z_d - u_d)^2 / l_d^2)$ around inducing
points $u$ (Nystroem's method: where every simulation is an inducing point, the last term is the Gaussian kernel
itself).

Learning runs in NumPy with adjoints by hand: nothing is compiled, and a gradient takes a few products of matrices.
Several regressions on the same inputs are computed at once, `...` below: one for each of the leading axes of
hyperparameters and targets.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from numpyro_kme._core import blocked
from numpyro_kme.kernels.base import register
from numpyro_kme.kernels.gram import gaussian_gram
from numpyro_kme.likelihoods.residual.ridge import Ridge, features, inverse_root

INTERCEPT = 10.0
"""Prior standard deviation `b` of the intercept, in standard deviations of the target."""

JITTER = 1e-6
"""Least noise variance, in variances of the target."""

SPACING, EXPLAINED = 0.3, 1e-6
"""Inducing points are pivots of a Gaussian kernel of length `SPACING sqrt(D)`, until so little of it is unexplained."""

TOGETHER = 400_000
"""Numbers in the matrices of regressions that are learnt together."""

FLAT = 20.0
"""Minus the log amplitude of a coordinate that a regression does not depend on, and its log length."""

RIDGE = 1e-8
"""Added to the diagonal of `G`."""

LEFT_OUT, SHORTER, FEWEST = 0.01, 1.5, 10
"""While hyperparameters are learnt, inducing points are left out that matter less; see `Smoothness.enough`."""


@dataclass(frozen=True)
class Inputs:
    """Coordinates of simulations, and what every regression on them shares.

    Attributes:
        z: Coordinates, `(m, D)`.
        inducing_points: `u`, `(r, D)`.
        used: Which coordinates each of `n` regressions depends on, `(n, D)`; all where left out.
    """

    z: np.ndarray
    inducing_points: np.ndarray
    used: np.ndarray | None = None

    @cached_property
    def features(self) -> np.ndarray:
        """`phi`, `(m, 2 D)`."""
        return features(self.z)

    @classmethod
    def pivoted(cls, z: np.ndarray, most: int, rows: Any = slice(None)) -> "Inputs":
        """At most so many inducing points, of some rows those that explain the others best: the first pivots."""
        some = z[rows]
        return cls(z, some[blocked(gaussian_gram(some, some, SPACING**2 * z.shape[1]), EXPLAINED, most)[1]])

    def __getitem__(self, rows: np.ndarray) -> "Inputs":
        """Some of the simulations, with all inducing points."""
        return replace(self, z=self.z[rows])

    def first(self, number: int) -> "Inputs":
        """With the first so many inducing points: the best ones, as `pivoted` orders them."""
        return replace(self, inducing_points=self.inducing_points[:number])

    @property
    def coarse(self) -> "Inputs":
        """With the first half of the inducing points."""
        return self.first((len(self.inducing_points) + 1) // 2)

    def groups(self, number: int) -> list[np.ndarray]:
        """Numbers of regressions in groups that are learnt together, whose matrices have `TOGETHER` numbers in all: few
        calls of NumPy, for the threads."""
        each = max(1, TOGETHER // (len(self) * (self.features.shape[1] + len(self.inducing_points))))
        return np.array_split(np.arange(number), -(-number // each))

    def group(self, numbers: np.ndarray) -> "Inputs":
        """Inputs as the regressions with these numbers see them."""
        return self if self.used is None else replace(self, used=self.used[numbers])

    @property
    def dim(self) -> int:
        """Number `D` of coordinates."""
        return self.z.shape[1]

    def __len__(self) -> int:
        return len(self.z)


@register
class Smoothness:
    """Logarithms of the hyperparameters of regressions.

    Attributes:
        linear: Amplitudes `a` of the features, `(..., 2 D)`.
        rbf: Amplitude `c` of the radial basis functions, `(...)`.
        length: Their length scales `l`, `(..., D)`.
        noise: Standard deviation of the noise, `(...)`.
    """

    linear: Any
    rbf: Any
    length: Any
    noise: Any

    @classmethod
    def start(
        cls, dim: int, linear: float = 0.3, rbf: float = 0.3, length: float = 1.5, noise: float = 1.0
    ) -> "Smoothness":
        """Begin with the same values everywhere; `length` is multiplied by `sqrt(D)`."""
        lengths = np.full(dim, np.log(length * np.sqrt(dim)))
        return cls(np.full(2 * dim, np.log(linear)), np.log(rbf), lengths, np.log(noise))

    @classmethod
    def bounds(cls, at: Inputs, log_noise: tuple[float, float]) -> tuple["Smoothness", "Smoothness"]:
        """Box of the search, for each regression that uses some coordinates only."""
        used = np.ones(at.dim, bool) if at.used is None else at.used
        twice, same = np.concatenate([used, used], axis=-1), np.zeros(used.shape[:-1])
        low = np.where(twice, -9.0, -FLAT), same - 6.0, np.where(used, np.log(0.2), FLAT), same + log_noise[0]
        return cls(*low), cls(np.where(twice, 3.0, -FLAT), same + 3.0, np.where(used, 6.0, FLAT), same + log_noise[1])

    def times(self, factor: float) -> "Smoothness":
        """Functions and noise so many times as large: the same regression, of other variances."""
        log = np.log(factor)
        return replace(self, linear=self.linear + log, rbf=self.rbf + log, noise=self.noise + log)

    def curvature(self, size: int) -> "Smoothness":
        """About the second derivatives of minus the log density of `size` simulations, and minus the log prior."""
        return Smoothness(*map(np.full_like, jax.tree.leaves(self), (1.0, 5.0, 3.0, 2.0 * size)))

    def penalty(self) -> tuple[np.ndarray, "Smoothness"]:
        """Minus the log prior, and its gradient.

        Exponential priors on `a` (rate `sqrt(2 D)`), `1 / l` (rate `D`) and `c` (rate 2). A function that does not
        depend on a coordinate, or is straight, is the simplest, and costs nothing; the expected variance of the
        straight part, and the expected sum of `1 / l`, do not depend on the number of coordinates.
        """
        dim = np.shape(self.length)[-1]
        linear, length = np.sqrt(2.0 * dim) * np.exp(self.linear), dim * np.exp(-self.length)
        rbf = 2.0 * np.exp(self.rbf)
        total = linear.sum(axis=-1) + length.sum(axis=-1) + rbf
        return total, Smoothness(linear, rbf, -length, np.zeros(np.shape(rbf)))

    def regress(self, at: Inputs, noise: np.ndarray, target: np.ndarray) -> "Regression":
        """Regress targets, `(..., m)`; `noise` `(..., m)` is in units of `exp(2 self.noise)`.

        Cost: for each `(m + r) r` exponentials and about `2 m r^2` operations for `r` inducing points.
        """
        points = at.inducing_points
        near, among = self.radial_basis(at.z, points), self.radial_basis(points, points)
        root = np.exp(self.rbf)[..., None, None] * inverse_root(among + RIDGE * np.eye(len(points)))
        variance = (np.exp(2.0 * self.noise) + JITTER)[..., None] * noise
        scale = np.sqrt(np.where(variance > 0.0, variance, np.nan))
        weight, first = (1.0 / scale)[..., None], at.features.shape[1] + 1
        columns = np.empty((*scale.shape, first + len(points)))
        columns[..., :1] = INTERCEPT * weight
        np.multiply(at.features * np.exp(self.linear)[..., None, :], weight, out=columns[..., 1:first])
        np.multiply(near @ root.mT, weight, out=columns[..., first:])
        return Regression(self, at, near, among, root, Ridge.of(columns, scale, target))

    def enough(self, at: Inputs) -> Inputs:
        """Inputs with only as many of the first inducing points as are needed.

        The others add to the prior variance, on average over the inducing points, less than `LEFT_OUT` of the noise
        variance, at lengths that are `SHORTER` times shorter: a search may go there. Cost: `r^3 / 3` operations for `r`
        inducing points.
        """
        shorter = replace(self, length=self.length - np.log(SHORTER))
        points = at.inducing_points
        factor = np.linalg.cholesky(shorter.radial_basis(points, points) + RIDGE * np.eye(len(points)))
        left = np.mean(np.cumsum(np.square(factor)[..., ::-1], axis=-1)[..., ::-1], axis=-2)
        needed = np.sum(np.exp(2.0 * (self.rbf - self.noise))[..., None] * left > LEFT_OUT, axis=-1)
        return at.first(max(int(np.max(needed)), FEWEST))

    def radial_basis(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """`g_b(a)`, `(..., r, s)`."""
        shrink = np.exp(-self.length)[..., None, :]
        a, b = a * shrink, b * shrink
        products = a @ b.mT
        products -= 0.5 * np.sum(a * a, axis=-1)[..., :, None]
        products -= 0.5 * np.sum(b * b, axis=-1)[..., None, :]
        return np.exp(np.minimum(products, 0.0, out=products), out=products)


@dataclass(frozen=True)
class Regression:
    """Regressions on the coordinates, and their held-out predictions.

    Attributes:
        smoothness: Hyperparameters.
        at: Coordinates.
        near: `g` at the simulations, `(..., m, r)`.
        among: `g` at the inducing points, `(..., r, r)`.
        root: `c L^-1` for the Cholesky factor `L` of `G = among + RIDGE`, `(..., r, r)`.
        held_out: Ridge regression on the columns: intercept, features, kernels.
    """

    smoothness: Smoothness
    at: Inputs
    near: np.ndarray
    among: np.ndarray
    root: np.ndarray
    held_out: Ridge

    def gradient(self, of_residual: np.ndarray, of_variance: np.ndarray) -> tuple[Smoothness, np.ndarray]:
        """Derivatives by hyperparameters and targets, `(..., m)`, from those by held-out residuals and variances."""
        kernels, hyper, at = len(self.at.inducing_points), self.smoothness, self.at
        of_near, products, of_noise, of_target = self.held_out.adjoint(of_residual, of_variance, self.root)
        amplitudes, variance = np.linalg.diagonal(products), np.exp(2.0 * hyper.noise)
        of_among = self.root.mT @ products[..., -kernels:, -kernels:] @ self.root
        of_among *= -0.5 * np.exp(-2.0 * hyper.rbf)[..., None, None]
        of_among *= self.among
        of_near *= self.near
        squares = _squares(of_near, at.z, at.inducing_points, 1.0 / self.held_out.root)
        squares += _squares(of_among, at.inducing_points, at.inducing_points, np.ones(kernels))
        length = np.exp(-2.0 * hyper.length) * squares
        noise = 2.0 * of_noise * variance / (variance + JITTER)
        linear, rbf = amplitudes[..., 1:-kernels], amplitudes[..., -kernels:].sum(axis=-1)
        return Smoothness(linear, rbf, length, noise), of_target

    def weights(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Intercepts `(...)` of the fitted functions, and weights of features `(..., 2 D)` and kernels `(..., r)`."""
        found, kernels = self.held_out.coefficients, len(self.at.inducing_points)
        rbf = (found[..., None, -kernels:] @ self.root)[..., 0, :]
        return INTERCEPT * found[..., 0], np.exp(self.smoothness.linear) * found[..., 1:-kernels], rbf


def _squares(matrix, a, b, rows):
    """`sum_jk w_j H_jk (a_jd - b_kd)^2`, `(..., D)`, for `H` `(..., r, s)` and weights of the rows `w` `(..., r)`."""
    dim, powers = b.shape[1], np.concatenate([np.ones((len(a), 1)), a, np.square(a)], axis=1)
    sums = matrix.mT @ (powers * rows[..., None])
    first, second = sums[..., 1 : 1 + dim], sums[..., 1 + dim :]
    return sums[..., 0] @ np.square(b) + second.sum(axis=-2) - 2.0 * np.sum(b * first, axis=-2)
