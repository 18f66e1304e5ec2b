"""Probability measures on `R^D` whose kernel embeddings are known: priors in coordinates.

For a Gaussian kernel `k` with `B = diag(length_scale^2)` and a normal measure `N(m, S)`

    int k(a, t) N(t | m, S) dt = |B|^(1/2) |B + S|^(-1/2) exp(-1/2 (a - m)' (B + S)^(-1) (a - m)),

a product of two Gaussian kernels is a Gaussian kernel times a constant, and a mixture is a sum. Everything else goes
by weighted points: a quasi-random set drawn from the measure stands in for it.
"""

import abc
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.typing import ArrayLike
from scipy import special

from numpyro_kme._core import Array, checks, full_precision, in_jax_types, numpy_function, numpy_rng, shown
from numpyro_kme.kernels.base import Kernel, check_fields, namespace, register
from numpyro_kme.kernels.gram import matvec, one_per_dimension, squared_distances, uniform_weights
from numpyro_kme.kernels.stationary import Gaussian

__all__ = ["Normal", "NormalMixture", "Points", "Tilted", "standard_normal"]


class Measure(abc.ABC):
    """A probability measure `p` on `R^D`: NumPy float64 for arrays of NumPy, traceable for those of JAX."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Dimension `D`."""

    @abc.abstractmethod
    def mean_embedding(self, kernel: Kernel, a: ArrayLike) -> Any:
        """Values `int k(a_i, t) p(dt)` at the points `a` of shape `(m, D)`, `(m,)`."""

    @abc.abstractmethod
    def product_embedding(self, kernel_a: Kernel, a: ArrayLike, kernel_b: Kernel, b: ArrayLike) -> Any:
        """Matrix `int k_a(a_i, t) k_b(t, b_j) p(dt)` for points `(m, D)` and `(r, D)`, `(m, r)`."""

    @abc.abstractmethod
    def sample(self, rng_key: jax.Array, n: int) -> np.ndarray:
        """`n` independent draws, `(n, D)`, by NumPy."""

    @abc.abstractmethod
    def log_densities(self, points: Any) -> Any:
        """Log densities at points `(n, D)`, `(n,)`; raises where the measure has none."""


@register
class Points(Measure):
    """The measure `sum_t weights_t delta(points_t)`: prior draws where no closed form is known.

    Args:
        points: `(T, D)`.
        weights: `(T,)`, non-negative, with sum one; equal when left out.
    Embeddings cost `T` kernel evaluations a point.
    """

    points: ArrayLike
    weights: ArrayLike | None = None

    def __post_init__(self):
        checks.table("points", self.points)
        if self.weights is not None:
            checks.shaped("weights", self.weights, np.shape(self.points)[:1], "per point")
            checks.non_negative("weights", self.weights)
            checks.sums_to_one("weights", self.weights)

    @property
    def dim(self):
        """Dimension `D`."""
        return jnp.shape(self.points)[1]

    @property
    def probabilities(self) -> Any:
        """The weights, `(T,)`."""
        return uniform_weights(self.points) if self.weights is None else self.weights

    @full_precision
    def mean_embedding(self, kernel, a):
        """`sum_t weights_t k(a_i, points_t)`."""
        checks.sound("a", a)
        return matvec(kernel, a, self.points, self.probabilities)

    @full_precision
    def product_embedding(self, kernel_a, a, kernel_b, b):
        """`sum_t weights_t k_a(a_i, points_t) k_b(points_t, b_j)`."""
        return (kernel_a.gram(a, self.points) * self.probabilities[None, :]) @ kernel_b.gram(self.points, b)

    def sample(self, rng_key, n):
        """Points drawn with replacement."""
        checks.key(rng_key)
        probabilities = np.asarray(self.probabilities, np.float64)
        return numpy_rng(rng_key).choice(np.asarray(self.points), n, p=probabilities / probabilities.sum())

    def log_densities(self, points):
        """A set of points has no density."""
        raise checks.explained(
            "`Points` has no density: it stands for a measure known by draws alone. Use its draws with "
            "importance weights, or give a Normal or NormalMixture."
        )


@shown
class Tilted(NamedTuple):
    """The unnormalised measures `k(a_i, t) p(dt)`, each a mixture of `K` normals.

    Attributes:
        log_masses: `(m, K)`; the log mean embedding at `a_i` is the log-sum-exp of row `i`.
        means: `(m, K, D)`.
        covariances: `(K, D, D)`, the same for every `a_i`.
    """

    log_masses: Array
    means: Array
    covariances: Array


@register
class NormalMixture(Measure):
    """The mixture `sum_k weights_k N(means_k, covariances_k)`.

    Args:
        weights: `(K,)`, positive, with sum one.
        means: `(K, D)`.
        covariances: `(K, D, D)`, positive definite.
        num_points: How many quasi-random draws stand in where no closed form is known (static).
    """

    weights: Array
    means: Array
    covariances: Array
    num_points: int = field(default=2048, metadata=dict(static=True))

    def __post_init__(self):
        shapes = np.shape(self.weights), np.shape(self.means), np.shape(self.covariances)
        checks.require(
            len(shapes[1]) == 2 and shapes[0] == shapes[1][:1] and shapes[2] == (*shapes[1], shapes[1][1]),
            "`weights`, `means` and `covariances` must have shapes (K,), (K, D) and (K, D, D); "
            f"got {shapes[0]}, {shapes[1]} and {shapes[2]}.",
        )
        check_fields(self, checks.sound, "means", "covariances")
        check_fields(self, checks.positive, "weights")
        checks.sums_to_one("weights", self.weights)
        if checks.is_concrete(self.covariances):
            matrices = np.asarray(self.covariances, np.float64)
            smallest = np.linalg.eigvalsh(matrices).min(initial=np.inf)
            checks.require(
                bool(smallest > 0) and np.allclose(matrices, np.swapaxes(matrices, 1, 2), rtol=1e-5),
                f"`covariance` must be symmetric and positive definite; its smallest eigenvalue is {smallest:.3g}.",
            )

    @property
    def dim(self):
        """Dimension `D`."""
        return jnp.shape(self.means)[1]

    @full_precision
    def as_points(self) -> Points:
        """`num_points` quasi-random draws (scrambled Sobol points, always the same), stratified by component."""
        xp, each = namespace(self), max(self.num_points // len(self.means), 1)
        noise = _quasi_normals(each, self.dim).astype(self.means.dtype)
        draws = self.means[:, None, :] + noise[None] @ xp.swapaxes(xp.linalg.cholesky(self.covariances), 1, 2)
        return Points(draws.reshape(-1, self.dim), xp.repeat(self.weights / each, each))

    @full_precision
    def tilt(self, kernel: Kernel, a: Array) -> Tilted:
        """The measures `k(a_i, t) p(dt)` for a Gaussian kernel, by completing the square in each component."""
        if not isinstance(kernel, Gaussian):
            raise checks.explained(f"`kernel` must be Gaussian for a closed form; got {type(kernel).__name__}.")
        xp, means = namespace(self, kernel, a), self.means[:, None]
        length_scale = one_per_dimension(kernel.length_scale, self.dim, xp)
        unit, scaled, inverse, log_mass = _widened(self.covariances, length_scale, xp)
        white = ((a[None] - means) / unit[:, None]) @ xp.swapaxes(inverse, 1, 2)
        half = inverse @ scaled
        moved = means + (white @ half) * unit[:, None]
        left = (scaled - xp.swapaxes(half, 1, 2) @ half) * unit[:, None] * unit[:, :, None]
        log_masses = (xp.log(self.weights) + log_mass)[:, None] - 0.5 * xp.sum(white * white, axis=2)
        return Tilted(log_masses.T, xp.swapaxes(moved, 0, 1), left)

    def mean_embedding(self, kernel, a):
        """Closed form for a Gaussian kernel, otherwise a sum over `as_points()`."""
        checks.table("a", a, columns=self.dim)
        if not isinstance(kernel, Gaussian):
            return self.as_points().mean_embedding(kernel, a)
        log_masses = self.tilt(kernel, a).log_masses
        return namespace(log_masses).exp(log_masses).sum(axis=1)

    @full_precision
    def product_embedding(self, kernel_a, a, kernel_b, b):
        """Closed form for two Gaussian kernels, of equal or different length scales, otherwise by `as_points()`.

        `k_a(a, t) k_b(t, b) = exp(-1/2 (a - b)' (A + B)^(-1) (a - b)) exp(-1/2 (t - c)' C^(-1) (t - c))` with
        `C = (A^(-1) + B^(-1))^(-1)` and `c = C (A^(-1) a + B^(-1) b)`.
        """
        if not (isinstance(kernel_a, Gaussian) and isinstance(kernel_b, Gaussian)):
            return self.as_points().product_embedding(kernel_a, a, kernel_b, b)
        xp = namespace(self, kernel_a, a, kernel_b, b)
        of_a, of_b = (one_per_dimension(kernel.length_scale, self.dim, xp) for kernel in (kernel_a, kernel_b))
        total = xp.hypot(of_a, of_b)
        from_a, from_b = a * xp.square(of_b / total), b * xp.square(of_a / total)
        unit, _, inverse, log_mass = _widened(self.covariances, of_a * (of_b / total), xp)
        inverse = xp.swapaxes(inverse, 1, 2)
        white_a = ((from_a[None] - self.means[:, None]) / unit[:, None]) @ inverse
        white_b = (-from_b[None] / unit[:, None]) @ inverse
        apart = xp.stack([squared_distances(*both) for both in zip(white_a, white_b)])
        logs = log_mass[:, None, None] - 0.5 * apart + Gaussian(total[0]).log_gram(a, b)[None]
        return xp.tensordot(self.weights, xp.exp(logs), axes=1)

    @numpy_function
    def sample(self, rng_key, n):
        """Independent draws."""
        rng = numpy_rng(rng_key)
        which = rng.choice(len(self.weights), n, p=self.weights / self.weights.sum())
        noise = rng.standard_normal((n, self.dim))
        return self.means[which] + np.einsum("nij,nj->ni", np.linalg.cholesky(self.covariances)[which], noise)

    @full_precision
    def log_densities(self, points):
        """`log sum_k w_k N(t | m_k, S_k)`."""
        xp = namespace(self, points)
        factor = xp.linalg.cholesky(self.covariances)
        white = (points[None] - self.means[:, None]) @ xp.swapaxes(xp.linalg.inv(factor), 1, 2)
        log_norms = xp.log(xp.diagonal(factor, axis1=1, axis2=2)).sum(axis=1) + 0.5 * self.dim * np.log(2.0 * np.pi)
        logs = (xp.log(self.weights) - log_norms)[:, None] - 0.5 * xp.sum(white * white, axis=2)
        peak = logs.max(axis=0)
        return peak + xp.log(xp.exp(logs - peak[None]).sum(axis=0))


def Normal(mean: ArrayLike, covariance: ArrayLike, num_points: int = 2048) -> NormalMixture:
    """The normal measure `N(mean, covariance)`: a mixture of one component.

    Args:
        mean: `(D,)`.
        covariance: `(D, D)`, positive definite.
        num_points: As of `NormalMixture`.
    """
    middle, matrix = in_jax_types(mean), in_jax_types(covariance)
    shapes = np.shape(middle), np.shape(matrix)
    fits = np.ndim(middle) == 1 and shapes[1] == shapes[0] * 2
    checks.require(fits, f"`mean` and `covariance` must have shapes (D,) and (D, D); got {shapes[0]} and {shapes[1]}.")
    return NormalMixture(np.ones(1, middle.dtype), middle[None], matrix[None], num_points)


def standard_normal(dim: int) -> NormalMixture:
    """`N(0, I)` on `R^dim`: the prior in normal coordinates."""
    checks.whole("dim", dim, 1)
    return Normal(np.zeros(dim), np.eye(dim))


def _widened(covariances: Any, length_scale: Any, xp: Any) -> tuple[Any, Any, Any, Any]:
    """For covariances `S` `(K, D, D)`, a unit for each dimension, the larger of standard deviation and length scale, so
    that nothing overflows, `(K, D)`; in these units `S` and the inverse of the Cholesky factor of `B + S`; and
    `log(|B|^(1/2) |B + S|^(-1/2))`, `(K,)`."""
    unit = xp.maximum(xp.sqrt(xp.diagonal(covariances, axis1=1, axis2=2)), length_scale)
    unit = unit if xp is np else jax.lax.stop_gradient(unit)
    scaled, ratio = covariances / unit[:, None] / unit[:, :, None], length_scale / unit
    factor = xp.linalg.cholesky(scaled + xp.square(ratio)[:, None] * xp.eye(unit.shape[1])[None])
    log_mass = xp.log(ratio).sum(axis=1) - xp.log(xp.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    return unit, scaled, xp.linalg.inv(factor), log_mass


def _quasi_normals(n: int, dim: int) -> np.ndarray:
    sobol = scipy.stats.qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(0))
    points = sobol.random_base2(int(np.ceil(np.log2(n))))
    return special.ndtri(np.clip(points[:n], 1e-12, 1.0 - 1e-12))
